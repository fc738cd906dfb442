"""Measure time and memory against image size, channels, cores and model size: `make bench-growth`.

Compilation time should grow with the number of instructions and the size of the weights, and with nothing else. Each
sweep changes one thing. The mapping is the reference, `raptor`, whose instructions grow with the work, unless
`--mapping` names another: `rows` makes more instructions on more cores, so one of its sweeps lets 200 cores work,
whatever the chip has. CPU is user and system time of the whole cold process. The last column is CPU time per
instruction in microseconds, after subtracting the quickest point; it should become constant.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import models
from benchmarks.speed.measured_commands import CommandRun, compile_command

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One compilation of a sweep."""

    value: float
    run: CommandRun


def build_convolution(size: int, channels: int) -> onnx.ModelProto:
    """Builds one 3x3 convolution with as many channels in as out, on a square image."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((channels, channels, 3, 3), dtype=np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, channels, size, size]) for n in "xy")
    graph = helper.make_graph([node], "convolution", [x], [y], [weights])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


WORKING_CORES = 200
"""Number of cores with work in the sweep over the size of the chip."""


@dataclass(frozen=True, slots=True)
class GrowthSweep:
    """A sweep over a quantity: the model and the options of the compiler for each of its values."""

    name: str
    values: Sequence[float]
    build: Callable[[float], onnx.ModelProto]
    options: Callable[[float], dict[str, Any]]


def list_sweeps(mapping: str) -> Iterator[GrowthSweep]:
    """Yields the sweeps of a mapping."""

    def on(cores: float) -> dict[str, object]:
        return {"cores": int(cores), "mapping": mapping}

    widths, channels = [2, 4, 8, 16, 32, 64, 128, 256, 512], [8, 16, 32, 64, 128, 256, 512, 1024]
    yield GrowthSweep("image width", widths, lambda n: build_convolution(int(n), 16), lambda _: on(16))
    yield GrowthSweep("channels", channels, lambda n: build_convolution(14, int(n)), lambda _: on(144))
    yield GrowthSweep("cores", [20, 50, 100, 200, 500, 1000, 2000, 4000], lambda _: models.build("squeezenet"), on)
    if mapping == "rows":  # the default, whose knobs are given without its name
        yield GrowthSweep(
            f"cores, {WORKING_CORES} work",
            [200, 500, 1000, 2000, 4000],
            lambda _: models.build("squeezenet"),
            lambda n: {"cores": int(n), "knobs": {"share": WORKING_CORES / n}},
        )
    yield GrowthSweep(
        "width of ResNet-18",
        [0.25, 0.5, 1, 2, 3],
        lambda n: models.build("resnet18", seed=0, width=n),
        lambda _: on(200),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mapping", default="raptor")
    parser.add_argument("--sweep", default="", help="only this one")
    parser.add_argument("--plot", type=Path, help="also draw the sweeps to this file (needs matplotlib)")
    args = parser.parse_args()
    drawn: dict[str, list[SweepPoint]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for sweep in list_sweeps(args.mapping):
            if args.sweep in ("", sweep.name):
                drawn[sweep.name] = [*compile_points(sweep, Path(folder), args.repeat)]
                show(sweep.name, drawn[sweep.name])
    if args.plot:
        plot_sweeps(drawn, args.plot)


def compile_points(sweep: GrowthSweep, folder: Path, repeat: int) -> Iterator[SweepPoint]:
    """Compiles the model for each value."""
    for value in sweep.values:
        path = folder / "model.onnx"
        path.write_bytes(sweep.build(value).SerializeToString())
        yield SweepPoint(value, compile_command(path, folder / "out", repeat, streams="pim", **sweep.options(value)))


def show(name: str, points: list[SweepPoint]) -> None:
    """Prints the table, as Markdown."""
    base = min(p.run.cpu_s for p in points)
    print(f"\n| {name} | instructions | wall s | CPU s | GiB | us / instruction |\n|---:|---:|---:|---:|---:|---:|")
    for point in points:
        run, count = point.run, point.run.facts["instructions"]
        above = f"{(run.cpu_s - base) / count * 1e6:.2f}" if run.cpu_s > 1.2 * base else ""
        gib = run.peak_bytes / _GIB
        print(f"| {point.value:g} | {count:,} | {run.wall_s:.2f} | {run.cpu_s:.2f} | {gib:.2f} | {above} |", flush=True)


def plot_sweeps(drawn: dict[str, list[SweepPoint]], path: Path) -> None:
    """Draws the sweeps, in colours that can be read on light and on dark pages."""
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    plt.rcParams |= {"svg.hashsalt": "raptor", "svg.fonttype": "none", "font.size": 9}
    figure, axes = plt.subplots(1, len(drawn), figsize=(3.2 * len(drawn), 3), layout="constrained", sharey=True)
    for axis, (name, points) in zip(axes, drawn.items(), strict=True):
        values = [p.value for p in points]
        axis.loglog(values, [p.run.cpu_s for p in points], "o-", color="#0072b2", label="CPU seconds")
        axis.loglog(
            values, [p.run.facts["instructions"] * 1e-6 for p in points], "s--", color="#d55e00", label="M instructions"
        )
        axis.loglog(values, [p.run.peak_bytes / _GIB for p in points], "^:", color="#009e73", label="GiB")
        axis.set_xlabel(name)
        ticks = values[:: 1 if len(values) < 6 else 2]
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})  # pyright: ignore[reportUnknownMemberType] as matplotlib declares it


if __name__ == "__main__":
    main()
