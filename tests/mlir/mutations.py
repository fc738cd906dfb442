"""Programs to write as MLIR, their verification as a compilation does it, and random changes of their text."""

import random
import re
import tempfile
from functools import cache
from pathlib import Path

import onnx

from raptor import mlir, pim
from raptor.codegen import pimsim
from raptor.pim import PimProgram
from tests.pipeline import THESIS_CHIP, Passes, passes, thesis_model
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node
from tests.tiny_models import random as values

NUMBERS = ("0", "1", "2", "7", "-1", "100", str(2**31), str(2**62), str(10**20))
CHARACTERS = '{}[]<>()":,%@#= x-0\n\\'


def lookup_model() -> onnx.ModelProto:
    """Rows of a table, then a softmax over them."""
    nodes = [node("Gather", "table ids", "rows", name="embed"), node("Softmax", "rows", "y", name="soft", axis=-1)]
    model = make_model(nodes, {"ids": (3,)}, ["y"], {"table": values(5, 4)})
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


def pooled_model() -> onnx.ModelProto:
    """A convolution, pools, a depthwise convolution, and a sum."""
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1, 1, 1, 1]),
        node("Conv", "c d", "e", name="depthwise", pads=[1, 1, 1, 1], group=3),
        node("Add", "c e", "s", name="sum"),
        node("MaxPool", "s", "p", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "y", name="mean"),
    ]
    return make_model(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": values(3, 2, 3, 3), "d": values(3, 1, 3, 3, seed=1)})


@cache
def programs() -> dict[str, Passes]:
    """Small programs with floats, integers, lookups, pools and lines."""
    with tempfile.TemporaryDirectory() as folder:
        integers = quantise(thesis_model(3, 4), Path(folder))
    return {
        "thesis": passes(thesis_model(3, 5), **THESIS_CHIP),
        "integers": passes(integers, **THESIS_CHIP),
        "lines": passes(pooled_model(), mapping="rows", xbar=8, cores=8),
        "lookup": passes(lookup_model(), xbar=8, cores=4),
    }


def verify(program: PimProgram, of: Passes) -> None:
    """Checks a program as a compilation does after `--from-mlir`. Raises `VerifyError`."""
    pim.verify_pim(program, of.arch)
    pim.verify_global_addresses(program, of.memory, of.arch)
    pimsim.verify_forms(program, of.arch)


def finish(program: PimProgram, of: Passes) -> pimsim.InstructionStreams:
    """Runs the passes after `lower`, each with its verifier."""
    program = pim.reuse_operands(program)
    verify(program, of)
    program = pim.allocate(program, of.arch)
    verify(program, of)
    streams = pimsim.generate(program, of.arch)
    pimsim.verify_streams(streams, program, of.arch)
    return streams


def mutate(text: str, rng: random.Random) -> str:
    """Changes a number, some characters, or whole lines."""
    lines, at = text.split("\n"), rng.randrange(len(text))
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            found = rng.choice(list(re.finditer(r"\d+", text)))
            value = rng.choice((*NUMBERS, str(int(found[0]) + 1), str(int(found[0]) - 1)))
            return text[: found.start()] + value + text[found.end() :]
        case 1:
            return text[:at] + text[at + rng.randrange(1, 8) :]
        case 2:
            return text[:at] + rng.choice(CHARACTERS) + text[at:]
        case 3:
            del lines[first]
        case 4:
            lines.insert(second, lines[first])
        case _:
            lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def text_of(name: str) -> str:
    """The module of one of `programs` after `lower`."""
    return mlir.dump(programs()[name].placed, "lower")
