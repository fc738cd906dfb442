"""Times and energy of a token, for a program that is one step of a decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from raptor.common.files import file_access
from raptor.common.files.schema_types import JsonArray
from raptor.output import files
from raptor.output.decoder_files import DecoderFile
from raptor.output.files import MemoryMap
from validator.program.coding import element_bytes

PROMPT = 64
"""Tokens of a prompt, if the cache has room for it and a new token."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Time in ns and energy in pJ of a step. `critical_ns`: its critical path, by ONNX node.

    `interval_ns`: only in throughput mode. `uncounted_pj`: static energy that the simulator does not count.
    """

    latency_ns: float
    interval_ns: float | None
    energy_pj: float
    uncounted_pj: float | None
    critical_ns: Mapping[str, float]


class _NotedLayer(BaseModel):
    """A layer of `report.json`, as far as the figures of a token use it: its node and number of crossbars."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    node: str
    xbars: int = 0


class _NotedLayers(BaseModel):
    """`report.json`, as far as the figures of a token use it: its layers."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    layers: JsonArray[_NotedLayer] = ()


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Figures of a decoder: time to first token in ns, tokens a second, and energy of a token in pJ.

    `session_per_s`: of one session, whose next token depends on the last one, so each takes a step. `stream_per_s`: of
    a prompt or of many sessions, a step each interval. `first_ns`: after a prompt of `prompt` tokens, one interval for
    each but the last, and a step. Both only in throughput mode. `with_uncounted_pj`: with the static power of the
    crossbars in use that the simulator does not count.

    `cache_bytes`: local memory that the caches of a session take. `cache_share`, `product_share`: of the critical path
    of a step, on nodes that compute with caches, and on layers with crossbars. `growth_ns`: time on the former for each
    token of the capacity, an upper estimate of what a further one takes. None for programs that do not say which nodes
    these are.
    """

    capacity: int
    session_per_s: float
    stream_per_s: float | None
    prompt: int
    first_ns: float | None
    energy_pj: float
    with_uncounted_pj: float | None
    cache_bytes: int | None = None
    cache_share: float | None = None
    product_share: float | None = None
    growth_ns: float | None = None

    @classmethod
    def from_times(cls, program: Path, times: StepTimes) -> "TokenFigures | None":
        """Returns the figures of a program with these times and energies of a step; None if it is no decoder."""
        if not (program / files.DECODER).is_file():
            return None
        decoder = file_access.read_json_file(DecoderFile, program, files.DECODER)
        latency_ns, interval_ns, uncounted_pj = times.latency_ns, times.interval_ns, times.uncounted_pj
        capacity, prompt = decoder.capacity, max(1, min(PROMPT, decoder.capacity - 1))
        on_caches = sum(times.critical_ns.get(name, 0.0) for name in decoder.cache_nodes)
        in_products = sum(times.critical_ns.get(name, 0.0) for name in _find_layers(program) - {*decoder.cache_nodes})
        known = bool(decoder.cache_nodes) and not times.critical_ns.keys().isdisjoint(decoder.cache_nodes)
        return cls(
            capacity,
            1e9 / latency_ns,
            1e9 / interval_ns if interval_ns else None,
            prompt,
            (prompt - 1) * interval_ns + latency_ns if interval_ns else None,
            times.energy_pj,
            None if uncounted_pj is None else times.energy_pj + uncounted_pj,
            _count_cache_bytes(program, decoder),
            on_caches / latency_ns if known else None,
            in_products / latency_ns if known else None,
            on_caches / capacity if known else None,
        )


def _find_layers(program: Path) -> set[str]:
    """Returns the nodes that have crossbars, by the compiler's notes."""
    if not (program / files.REPORT).is_file():
        return set()
    noted = file_access.read_json_file(_NotedLayers, program, files.REPORT)
    return {layer.node for layer in noted.layers if layer.xbars}


def _count_cache_bytes(program: Path, decoder: DecoderFile) -> int | None:
    """Returns the bytes of the states that grow, as their tensors take them in the chip's element type."""
    if not (program / files.MEMORY).is_file():
        return None
    memory, names = file_access.read_json_file(MemoryMap, program, files.MEMORY), {s.input for s in decoder.states}
    places = [place for place in memory.inputs if place.name in names]
    return sum(prod(place.shape) * element_bytes(place.coding, memory.element_bytes) for place in places)
