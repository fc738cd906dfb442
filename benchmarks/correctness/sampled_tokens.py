"""Compare texts of the trained language model with onnxruntime's, greedy and sampled: `make bench-tokens`.

The weights are those that ship, 8 bits with a scale for each column, or 4 bits with a scale for each block of 32
inputs, as `MatMulNBits` of onnxruntime. A cache of 256 tokens is filled: a prompt of 20 bytes, and 236 new tokens. Both
sides choose their own tokens, with the same random numbers. The last line of each form compares programs of different
capacities with one another: the logits of 64 random tokens, to the bit.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import raptor
from benchmarks.programs.interval_limits import format_line
from models.trained import LANGUAGE_MODEL
from validator.decoding.generation import Sampling, generate_tokens
from validator.decoding.growing_model import GrowingModel

Array = npt.NDArray[Any]

PROMPT = b"And it came to pass "
TEMPERATURE, SEEDS = 0.7, (1, 2, 3, 4)
CAPACITIES = 64, 128, 256
BLOCK = 32
"""Inputs that share a scale with 4 bits."""
_VOCABULARY = 126
"""Tokens of the model: its ids are below this."""
HEAD = "weights", "tokens", "crossbars", "steps", "equal tokens"


@dataclass(frozen=True, slots=True)
class JudgedSteps:
    """onnxruntime's steps with its own caches, as a session has them."""

    session: raptor.Session
    model: GrowingModel

    def step(self, inputs: int) -> dict[str, Array]:
        return {"logits": self.model.step(self.session.token_inputs(inputs))["logits"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=256, help="rows of the caches")
    args = parser.parse_args()
    print(format_line(HEAD), format_line(("---", "---", *("---:",) * 3)), sep="\n", flush=True)
    model = ModelProto.FromString(LANGUAGE_MODEL.read_bytes())
    for name, proto in {"8 bits": model, "4 bits": quantise_to_4_bits(model)}.items():
        for cells in compare_texts(proto, args.capacity):
            print(format_line((name, *cells)), flush=True)
        print(format_line((name, *compare_capacities(proto))), flush=True)


def compare_texts(proto: ModelProto, capacity: int) -> Iterator[Sequence[str]]:
    """Yields the cells of a line for each text: how tokens are chosen, crossbars, steps, and tokens that are equal."""
    program = raptor.compile(proto, states="auto", capacity=capacity, arch="bench", resident_constants=True)
    prompt, new = list(PROMPT), capacity - len(PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "out")
        for sampling in (Sampling(0.0, 0), *(Sampling(TEMPERATURE, seed) for seed in SEEDS)):
            session = raptor.Session(program)
            judge = JudgedSteps(session, GrowingModel(session.program, session.decoder))
            found = session.generate(prompt, new, temperature=sampling.temperature, seed=sampling.seed)
            wanted = generate_tokens(judge, prompt, new, sampling).tokens
            equal = sum(a == b for a, b in zip(found, wanted, strict=True))
            how = f"temperature {TEMPERATURE}, seed {sampling.seed}" if sampling.temperature else "greedy"
            yield how, f"{program.report.xbars_used:,}", f"{session.position:,}", f"{equal} of {new}"


def compare_capacities(proto: ModelProto) -> Sequence[str]:
    """Returns the cells of the line that compares the logits of programs whose caches have different capacities."""
    count = min(CAPACITIES)
    tokens = np.random.default_rng(0).integers(0, _VOCABULARY, count).tolist()
    programs = [
        raptor.compile(proto, states="auto", capacity=capacity, arch="bench", resident_constants=True)
        for capacity in CAPACITIES
    ]
    sessions = list(map(raptor.Session, programs))
    differing = 0
    for token in tokens:
        first, *others = (session.step(token)["logits"] for session in sessions)
        differing += not all(np.array_equal(first, other) for other in others)
    listed = ", ".join(map(str, CAPACITIES))
    verdict = f"{count - differing} of {count} steps bit-equal"
    return f"random, capacities {listed}", f"{programs[0].report.xbars_used:,}", str(count), verdict


def quantise_to_4_bits(model: ModelProto) -> ModelProto:
    """Returns a model whose products with 8-bit weights have 4-bit weights instead, in the form of `MatMulNBits`."""
    made, weights = ModelProto(), {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    made.CopyFrom(model)
    floats = {n.output[0]: n for n in model.graph.node if n.op_type == "DequantizeLinear"}
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in floats:
            codes, scale = (weights[name] for name in floats[node.input[1]].input[:2])
            packed, scales = pack_blocks(codes.astype(np.float32) * scale)
            parts = {f"{node.output[0]}.packed": packed, f"{node.output[0]}.scales": scales}
            constants += [numpy_helper.from_array(array, name) for name, array in parts.items()]
            sizes: dict[str, Any] = {"K": codes.shape[0], "N": codes.shape[1], "bits": 4, "block_size": BLOCK}
            given = [node.input[0], *parts]
            nodes.append(
                helper.make_node("MatMulNBits", given, node.output, node.name, domain="com.microsoft", **sizes)
            )
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    nodes = [node for node in nodes if node.op_type != "DequantizeLinear" or node.output[0] in read]
    read = {name for node in nodes for name in node.input}
    kept = [t for t in (*model.graph.initializer, *constants) if t.name in read]
    for field, left in (("node", nodes), ("initializer", kept)):
        made.graph.ClearField(field)
        getattr(made.graph, field).extend(left)
    return made


def pack_blocks(values: npt.NDArray[np.float32]) -> tuple[Array, Array]:
    """Packs weights [inputs, outputs] as 4-bit numbers around 8, two in a byte, with a scale for each block of inputs.

    Returns the bytes [outputs, blocks, bytes of a block] and the scales [outputs, blocks].
    """
    blocks = values.T.reshape(values.shape[1], -1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(axis=2) / 7, np.finfo(np.float32).tiny)
    codes = (np.clip(np.rint(blocks / scales[..., None]), -8, 7) + 8).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales.astype(np.float32)


if __name__ == "__main__":
    main()
