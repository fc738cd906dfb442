"""Measure what programs gain if constants and states stay on the chip, for docs/how-to/memory.md: `make bench-memory`.

Each program is compiled without and with the options of its line, on the preset `bench`, validated over several samples
and simulated. Without states on the chip, a step of a model with states takes the latency, since the host must have the
states before the next step begins; so this is the interval of these lines before.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import models
import raptor
from models.model_builder import ModelBuilder
from models.resnet import add_basic_block
from raptor.common.files import file_access
from raptor.compiler.analysis.explain import explain
from raptor.output import files


def resnet20() -> ModelProto:
    """A ResNet of three stages with 16, 32 and 64 channels, three basic blocks each, for images of 32 x 32 pixels."""
    b = ModelBuilder("resnet20", 3)
    x = b.conv(b.input(1, 3, 32, 32), "conv1", 16, 3, stride=1, pad=1)
    x = b.relu(b.batch_norm(x, "bn1"), "relu")
    for stage in range(3):
        for block in range(3):
            x = add_basic_block(b, x, f"layer{stage + 1}.{block}", 16 << stage, 2 if stage and not block else 1)
    x = b.op("Flatten", "flatten", [b.op("GlobalAveragePool", "avgpool", [x])], axis=1)
    return b.finish(b.gemm(x, "fc", 10, logits=1), "")


def quantised(build: Callable[[], ModelProto]) -> ModelProto:
    """Returns a model in integers of 8 bits, with ranges of random samples."""
    found = raptor.quantize(build(), samples=4)
    return ModelProto.FromString(found.onnx_bytes)


class StepBuilder:
    """A model of one step in the making, with random weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.shapes: list[dict[str, tuple[int, ...]]] = [{}, {}]

    def weights(self, name: str, *shape: int) -> str:
        scale = 0.1 if len(shape) < 2 else 1 / np.prod(shape[1:]) ** 0.5
        self.constants[name] = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def whole(self, *values: int) -> str:
        name = f"i{len(self.constants)}"
        self.constants[name] = np.array(values)
        return name

    def add(self, op_type: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=outputs[-1], **attributes))
        return outputs[0]

    def model(self, name: str) -> ModelProto:
        given, made = (
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
            for shapes in self.shapes
        )
        constants = [numpy_helper.from_array(array, n) for n, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, name, given, made, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def denoiser_step(bins: int = 257, width: int = 128, hidden: tuple[int, ...] = (64, 64)) -> ModelProto:
    """A step of a denoiser: a dense layer, GRUs, and a dense layer that makes a mask for the frequency bins."""
    b = StepBuilder()
    b.shapes[0]["frame"] = b.shapes[1]["enhanced"] = (1, bins)
    x = b.add("Gemm", ["frame", b.weights("w0", width, bins), b.weights("b0", width)], "d0", transB=1)
    x = b.add("Unsqueeze", [b.add("Relu", [x], "r0"), b.whole(0)], "x0")
    for k, size in enumerate(hidden):
        b.shapes[0][f"h{k}_in"] = b.shapes[1][f"h{k}_out"] = (1, 1, size)
        parameters = [b.weights(f"wi{k}", 1, 3 * size, width), b.weights(f"wh{k}", 1, 3 * size, size)]
        gates = [x, *parameters, b.weights(f"g{k}", 1, 6 * size), "", f"h{k}_in"]
        x = b.add("GRU", gates, f"y{k}", f"h{k}_out", hidden_size=size, linear_before_reset=1)
        x, width = b.add("Squeeze", [x, b.whole(1)], f"s{k}"), size
    x = b.add("Reshape", [x, b.whole(1, width)], "flat")
    x = b.add("Gemm", [x, b.weights("w1", bins, width), b.weights("b1", bins)], "m", transB=1)
    b.add("Mul", ["frame", b.add("Sigmoid", [x], "mask")], "enhanced")
    return b.model("denoiser")


def cached_convolutions(frames: int, bins: int = 257, channels: int = 64, depth: int = 4) -> ModelProto:
    """Some frames of causal convolutions, each dilated twice as much as the one before, with caches of older frames."""
    b = StepBuilder()
    b.shapes[0]["frame"] = b.shapes[1]["enhanced"] = (1, bins, frames)
    x = b.add("Conv", ["frame", b.weights("w_in", channels, bins, 1), b.weights("b_in", channels)], "c")
    x = b.add("Relu", [x], "x0")
    for k in range(depth):
        kept = 2 << k
        b.shapes[0][f"cache{k}_in"] = b.shapes[1][f"cache{k}_out"] = (1, channels, kept)
        both = b.add("Concat", [f"cache{k}_in", x], f"all{k}", axis=2)
        parameters = [b.weights(f"w{k}", channels, channels, 3), b.weights(f"b{k}", channels)]
        y = b.add("Relu", [b.add("Conv", [both, *parameters], f"y{k}", dilations=[1 << k])], f"r{k}")
        b.add("Slice", [both, b.whole(frames), b.whole(frames + kept), b.whole(2)], f"cache{k}_out")
        x = b.add("Add", [y, x], f"x{k + 1}")
    x = b.add("Conv", [x, b.weights("w_out", bins, channels, 1), b.weights("b_out", bins)], "m")
    b.add("Mul", ["frame", b.add("Sigmoid", [x], "mask")], "enhanced")
    return b.model("cached_convolutions")


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A line of the table: a model, the cores, and the options with which values stay."""

    build: Callable[[], ModelProto]
    cores: int
    options: Mapping[str, Any] = field(default_factory=lambda: {"resident_constants": True})


STATES: dict[str, Any] = {"states": "auto"}
BOTH = {"states": "auto", "resident_constants": True}
CASES: dict[str, MemoryCase] = {
    "ResNet-20, int8": MemoryCase(partial(quantised, resnet20), 400),
    "ResNet-20, float": MemoryCase(resnet20, 400),
    "ResNet-18, int8": MemoryCase(partial(quantised, partial(models.build, "resnet18")), 200),
    "LSTM": MemoryCase(partial(models.build, "lstm"), 200),
    "BERT-tiny": MemoryCase(partial(models.build, "bert_tiny"), 200),
    "denoiser step": MemoryCase(denoiser_step, 144, STATES),
    "denoiser step, constants, too": MemoryCase(denoiser_step, 144, BOTH),
    "GRU of 128, step": MemoryCase(partial(denoiser_step, hidden=(128,)), 144, BOTH),
    "four cached convolutions": MemoryCase(partial(cached_convolutions, 1), 144, BOTH),
    "the same, 4 frames a step": MemoryCase(partial(cached_convolutions, 4), 144, BOTH),
}


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """Figures of a program; times in ns. `local_bytes`: of the fullest core. `passed`: it was validated."""

    latency_ns: float
    interval_ns: float
    port_ns: float
    local_bytes: int
    init_ns: float
    passed: bool


def measure(model: ModelProto, cores: int, samples: int, **options: Any) -> MeasuredProgram:
    program = raptor.compile(model, arch="bench", cores=cores, **options)
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        found, auxiliary = explain(out), raptor.simulate(out).auxiliary
        local = max(file_access.read_json_file(files.MemoryMap, out, files.MEMORY).local_bytes)
        passed = program.validate(samples=samples).verdict == "pass"
    init_ns = auxiliary["init"].latency_ns if auxiliary else 0.0
    return MeasuredProgram(found.latency_ns, found.interval_ns, found.bounds.port, local, init_ns, passed)


COLUMNS = (
    *("program", "cores", "interval, us", "kept", "latency, us", "kept", "port, us", "kept"),
    *("local memory, kB", "kept", "after power-up, us"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4, help="samples, or steps, that are validated")
    parser.add_argument("--only", nargs="*", default=[*CASES], metavar="PROGRAM", help="some lines of the table")
    options = parser.parse_args()
    print(format_line(COLUMNS))
    print(format_line(["---", *["---:"] * (len(COLUMNS) - 1)]))
    passed = True
    for name in options.only:
        case = CASES[name]
        model = case.build()
        plain = measure(model, case.cores, options.samples)
        kept = measure(model, case.cores, options.samples, **case.options)
        interval_ns = plain.latency_ns if "states" in case.options else plain.interval_ns
        times = [interval_ns, kept.interval_ns, plain.latency_ns, kept.latency_ns, plain.port_ns, kept.port_ns]
        sizes = [plain.local_bytes / 1000, kept.local_bytes / 1000]
        cells = [f"{ns / 1e3:.4g}" for ns in times] + [f"{kb:.3g}" for kb in sizes]
        print(format_line([name, f"{case.cores}", *cells, f"{kept.init_ns / 1e3:.3g}"]), flush=True)
        passed &= plain.passed and kept.passed
    sys.exit(0 if passed else 1)


def format_line(cells: list[str] | tuple[str, ...]) -> str:
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
