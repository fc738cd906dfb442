"""Repeat the figures of the thesis with this compiler: `make bench-thesis`.

Draws into docs/images/thesis and writes the tables of docs/explanation/thesis-figures.md. Figures 5.2, 5.3 and A.3 are
equal on every computer; 5.4 and 5.5 are seconds of processor time, the least of several runs, both lowerings in turn.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import models
import raptor
from benchmarks.programs import thesis_drawing
from benchmarks.programs.thesis_drawing import LOWERINGS, SHOWN_INSTRUCTIONS
from benchmarks.tables import store_tables
from raptor.api import Program
from raptor.codegen.pimsim.stream_files import pimsim_files
from raptor.output.writer import ProgramArtifacts
from raptor.target import isa
from validator.simulate import builtin

DOCS = Path(__file__).resolve().parents[2] / "docs"
IMAGES = DOCS / "images" / "thesis"

CROSSBAR = 3
"""Side of the crossbars of figures 5.2 to 5.5."""
XBARS_PER_CORE = 5
"""Crossbars of a core in figure 4.8."""

WIDTHS = range(2, 10)
SIZES = (3, 6, 12, 18, 24, 30, 36, 42, 48)
CORES = (100, 125, 150, 175, 200, 225, 250)
MAPPINGS = ("raptor", "rows")

PJ_PER_UWH = 3.6e9

Table = tuple[Sequence[str], Sequence[tuple[object, ...]]]
"""Heads and rows."""


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """Instructions of one convolution. `width`: width of the image, in pixels."""

    width: int
    mapping: str
    counts: Mapping[str, int]

    @property
    def shown(self) -> list[int]:
        return [self.counts.get(name, 0) for name in SHOWN_INSTRUCTIONS]

    @property
    def other(self) -> int:
        return sum(self.counts.values()) - self.counts.get("sldi", 0) - sum(self.shown)


@dataclass(frozen=True, slots=True)
class CompileSeconds:
    """Compile time (of the processor) by mapping. `size`: width of the image, or side of the matrix."""

    size: int
    by_mapping: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """Compile time of the pixel-wise lowering, divided by the time of the channel-wise lowering."""
        return self.by_mapping["pixelwise"] / self.by_mapping["raptor"]


@dataclass(frozen=True, slots=True)
class ChipInference:
    """ResNet-18 on a chip of `cores`, samples one after another. `widths`: with `setbw`, as every program should."""

    cores: int
    mapping: str
    widths: bool
    samples_per_s: float
    energy_uwh: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FIGURES, nargs="*", default=list(FIGURES), help="figures to repeat")
    parser.add_argument("--repeat", type=int, default=15, help="compilations of each point; the quickest counts")
    args = parser.parse_args()
    for name in args.only:
        heads, rows = FIGURES[name](args.repeat)
        store_tables.store_table(f"thesis-{name}", heads, [[str(cell) for cell in row] for row in rows])
        print(f"thesis-{name}: {len(rows)} lines", flush=True)


# Figures 5.2 and 5.3


def make_mix_figure(_: int) -> Table:
    points = [measure_mix(width, mapping) for width in WIDTHS for mapping in LOWERINGS]
    thesis_drawing.draw_shares(points, IMAGES / "figure-5-2.svg")
    thesis_drawing.draw_counts(points, IMAGES / "figure-5-3.svg")
    return ["width", "lowering", *SHOWN_INSTRUCTIONS, "other", "`sldi`"], list(mix_rows(points))


def mix_rows(points: Sequence[InstructionMix]) -> Iterator[tuple[object, ...]]:
    return ((p.width, LOWERINGS[p.mapping], *p.shown, p.other, p.counts["sldi"]) for p in points)


def measure_mix(width: int, mapping: str) -> InstructionMix:
    return InstructionMix(width, mapping, compile_layer(build_convolution(width), mapping).report.instructions)


def compile_layer(source: onnx.ModelProto, mapping: str) -> Program:
    """Compiles for a chip with just enough cores; both lowerings use the same crossbars."""
    (weights,) = source.graph.initializer
    outs, ins = weights.dims[:2]
    xbars = math.prod(weights.dims[2:]) * -(-outs // CROSSBAR) * -(-ins // CROSSBAR)
    cores = -(-xbars // XBARS_PER_CORE)
    return raptor.compile(source, mapping=mapping, xbar=CROSSBAR, xbars_per_core=XBARS_PER_CORE, cores=cores)


def build_convolution(width: int) -> onnx.ModelProto:
    """Builds the thesis's layer (listing 4.1): 4 channels, 8 filters of 3x3, as many pixels out as in."""
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4, 3, 3), dtype=np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    return build_layer_model(node, [1, 4, width, width], [1, 8, width, width], weights)


def build_layer_model(
    node: onnx.NodeProto, shape: Sequence[int], result: Sequence[int], constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Builds the model x -> node -> y."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", result)))
    graph = helper.make_graph(
        [node], "layer", [x], [y], [numpy_helper.from_array(values, name) for name, values in constants.items()]
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


# Figures 5.4 and 5.5


def make_convolution_figure(repeat: int) -> Table:
    points = [measure_seconds(width, build_convolution(width), repeat) for width in WIDTHS]
    thesis_drawing.draw_seconds(points, "width of the image", IMAGES / "figure-5-4.svg")
    return seconds_table("width", points)


def make_product_figure(repeat: int) -> Table:
    points = [measure_seconds(size, build_product(size), repeat) for size in SIZES]
    thesis_drawing.draw_seconds(points, "side of the matrix", IMAGES / "figure-5-5.svg")
    return seconds_table("side", points)


def build_product(size: int) -> onnx.ModelProto:
    """Builds the product of a vector and a square matrix."""
    weights = {"w": np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)}
    return build_layer_model(helper.make_node("MatMul", ["x", "w"], ["y"], "product"), [1, size], [1, size], weights)


def measure_seconds(size: int, source: onnx.ModelProto, repeat: int) -> CompileSeconds:
    """Measures compilation, from a model in memory to an output directory. The first run of each mapping is dropped."""
    found: dict[str, list[float]] = {mapping: [] for mapping in LOWERINGS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeat + 1):
            for mapping, seconds in found.items():
                begin = time.process_time()
                compile_layer(source, mapping).save(Path(folder) / "out", force=True)
                seconds.append(time.process_time() - begin)
    return CompileSeconds(size, {mapping: min(seconds[1:]) for mapping, seconds in found.items()})


def seconds_table(size: str, points: Sequence[CompileSeconds]) -> Table:
    rows = ((p.size, *(f"{p.by_mapping[m] * 1e3:.0f}" for m in LOWERINGS), f"{p.ratio:.1f}") for p in points)
    return [size, *(f"{label}, ms" for label in LOWERINGS.values()), "ratio"], list(rows)


# Figure A.3


def make_resnet_figure(_: int) -> Table:
    points = list(measure_inferences(models.build("resnet18", seed=0), CORES))
    thesis_drawing.draw_resnet(points, IMAGES / "figure-a-3.svg")
    heads = [f"{m}{'' if w else ' without `setbw`'}, {unit}" for m, w in _PROGRAMS for unit in ("samples/s", "µWh")]
    return ["cores", *heads], list(resnet_rows(points))


_PROGRAMS = [(mapping, widths) for mapping in MAPPINGS for widths in (True, False)]


def resnet_rows(points: Sequence[ChipInference]) -> Iterator[tuple[object, ...]]:
    by_cores = {(p.cores, p.mapping, p.widths): p for p in points}
    for cores in sorted({p.cores for p in points}):
        yield cores, *(text for name in _PROGRAMS for text in _figures(by_cores[cores, *name]))


def _figures(point: ChipInference) -> tuple[str, str]:
    return f"{point.samples_per_s:.4g}", f"{point.energy_uwh:.3g}"


def measure_inferences(source: onnx.ModelProto, cores: Sequence[int]) -> Iterator[ChipInference]:
    for count in cores:
        for mapping in MAPPINGS:
            program = raptor.compile(source, cores=count, mapping=mapping)
            yield measure_inference(program, count, mapping, widths=True)
            remove_widths(program)
            yield measure_inference(program, count, mapping, widths=False)


def measure_inference(program: Program, cores: int, mapping: str, *, widths: bool) -> ChipInference:
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        report = builtin.simulate(out, out / "arch.json", mode="throughput")
    assert report.samples_per_s is not None
    assert report.energy_pj is not None
    return ChipInference(cores, mapping, widths, report.samples_per_s, report.energy_pj / PJ_PER_UWH)


def remove_widths(program: Program) -> None:
    """Replaces every `setbw` by an `sldi` of register 0, which takes equally long, to isolate the effect of widths."""
    assert isinstance(program.artifacts, ProgramArtifacts)
    for records in pimsim_files(program.artifacts).records.values():
        chosen = records["opcode"] == isa.OPCODE["setbw"]
        records[chosen] = np.zeros(1, records.dtype)
        records["opcode"][chosen] = isa.OPCODE["sldi"]


FIGURES: Mapping[str, Callable[[int], Table]] = {
    "5.2": make_mix_figure,
    "5.4": make_convolution_figure,
    "5.5": make_product_figure,
    "A.3": make_resnet_figure,
}
"""Number of a figure -> function that draws it and returns its table; 5.3 is drawn with 5.2."""

if __name__ == "__main__":
    main()
