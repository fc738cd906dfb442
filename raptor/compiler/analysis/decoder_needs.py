"""Needs of a language model: caches of some capacity, and weights whose blocks have scales."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.common.option_spelling import spell_option
from raptor.frontend.proto.model_stats import WeightBlocks
from raptor.graph.decoder_steps import DecoderSteps
from raptor.graph.ir import Graph
from raptor.target.arch import Target


class DecoderInfo(StrictSchema):
    """The caches of a decoder, of which one step is inspected."""

    capacity: int = Field(description="tokens that the inspected caches hold; `--capacity` chooses it when compiling")
    states: JsonArray[str] = Field(description="inputs that grow by a row with every token")
    token_bytes: int = Field(description="local memory that the rows of a token take")
    cache_bytes: int = Field(description="local memory that the caches of a session take")
    derived: JsonArray[str] = Field(description="inputs that follow from the number of the token")

    def format_lines(self) -> Iterator[tuple[str, str]]:
        """Yields name and formatted value of each line that `inspect` shows."""
        options = f"{spell_option('states', 'auto')} {spell_option('capacity', self.capacity)}"
        yield "decoder", f"a step with caches of {self.capacity:,} tokens: {options}"
        yield (
            "caches",
            f"{len(self.states):,}, {self.token_bytes:,} bytes a token, {self.cache_bytes:,} bytes a session",
        )
        if self.derived:
            yield "from the position", ", ".join(self.derived)


class BlockInfo(StrictSchema):
    """Layers whose weights of `bits` bits have a scale for each block of inputs."""

    bits: int
    size: int = Field(description="inputs of a block")
    nodes: int
    scales_per_xbar: int = Field(description="blocks in the rows of a crossbar")

    def format_line(self, rows: int) -> tuple[str, str]:
        """Returns name and formatted value of the line that `inspect` shows. `rows`: of a crossbar."""
        share = f"{self.scales_per_xbar:,} scales in {rows} rows of a crossbar"
        return f"{self.bits}-bit weights", f"{self.nodes:,} layers, blocks of {self.size:,} inputs: {share}"


def describe_decoder(steps: DecoderSteps, graph: Graph, arch: Target) -> DecoderInfo:
    """Returns the caches of a decoder. `graph`: its step, whose caches have the capacity of `steps`."""
    found = [graph.tensors[state.input] for state in steps.states if state.input in graph.tensors]
    size = sum(int(np.prod(tensor.shape)) * arch.bytes_of(tensor.element) for tensor in found)
    rows = {state.input: state.rows or steps.capacity for state in steps.states}
    stacked = {part.input: stack.input for stack in steps.stacks for part in stack.parts}
    names = dict.fromkeys(stacked.get(state.input, state.input) for state in steps.states)
    return DecoderInfo(
        capacity=steps.capacity,
        states=tuple(names),
        token_bytes=sum(
            int(np.prod(tensor.shape)) // rows[tensor.name] * arch.bytes_of(tensor.element) for tensor in found
        ),
        cache_bytes=size,
        derived=tuple(given.name for given in steps.derived),
    )


def describe_blocks(blocks: Sequence[WeightBlocks], arch: Target) -> Iterator[BlockInfo]:
    """Yields the blocks of weights, with the number of scales that the rows of a crossbar have."""
    for found in blocks:
        share = -(-arch.xbar_rows // found.size)
        yield BlockInfo(bits=found.bits, size=found.size, nodes=found.nodes, scales_per_xbar=share)
