"""How time and memory grow with image size, channels, cores and model size: `make bench-growth`.

Compilation should grow with the number of instructions written and nothing else. Each sweep changes one thing; the last
column is microseconds an instruction, which should settle.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from measure import ROOT, Run, compile_command
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(ROOT))
import models

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Point:
    """One compilation of a sweep."""

    value: float
    run: Run


def convolution(size: int, channels: int) -> onnx.ModelProto:
    """One 3x3 convolution of as many channels in as out, on a square image."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((channels, channels, 3, 3), dtype=np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, channels, size, size]) for n in "xy")
    graph = helper.make_graph([node], "convolution", [x], [y], [weights])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def sweeps() -> Iterator[tuple[str, list[float], Callable[[float], onnx.ModelProto], dict[str, int]]]:
    """Name, values, the model of a value, and fixed options; the sweep "cores" sets that option."""
    yield "image width", [2, 4, 8, 16, 32, 64, 128, 256, 512], lambda n: convolution(int(n), 16), {"cores": 16}
    yield "channels", [8, 16, 32, 64, 128, 256, 512, 1024], lambda n: convolution(14, int(n)), {"cores": 144}
    yield "cores", [20, 50, 100, 200, 500, 1000, 2000, 4000], lambda _: models.build("squeezenet"), {}
    yield (
        "width of ResNet-18",
        [0.25, 0.5, 1, 2, 3],
        lambda n: models.build("resnet18", seed=0, width=n),
        {"cores": 200},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="also draw the sweeps to this file (needs matplotlib)")
    args = parser.parse_args()
    drawn: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, values, build, options in sweeps():
            drawn[name] = list(sweep(name, values, build, options, Path(folder), args.repeat))
            show(name, drawn[name])
    if args.plot:
        plot(drawn, args.plot)


def sweep(
    name: str,
    values: list[float],
    build: Callable[[float], onnx.ModelProto],
    options: dict[str, int],
    folder: Path,
    repeat: int,
) -> Iterator[Point]:
    for value in values:
        path = folder / "model.onnx"
        path.write_bytes(build(value).SerializeToString())
        chosen = {"cores": int(value)} if name == "cores" else options
        yield Point(value, compile_command(path, folder / "out", repeat, streams="pim", **chosen))


def show(name: str, points: list[Point]) -> None:
    table = Table(title=f"compile (.pim, npz) against {name}")
    for column in (name, "instructions", "wall s", "stages s", "GiB", "us / instruction"):
        table.add_column(column, justify="right")
    for point in points:
        stages, count = sum(point.run.stages.values()), point.run.facts["instructions"]
        table.add_row(
            f"{point.value:g}",
            f"{count:,}",
            f"{point.run.wall_s:.2f}",
            f"{stages:.2f}",
            f"{point.run.peak_bytes / _GIB:.2f}",
            f"{stages / count * 1e6:.2f}",
        )
    Console(width=120).print(table)


def plot(drawn: dict[str, list[Point]], path: Path) -> None:
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    figure, axes = plt.subplots(1, len(drawn), figsize=(4 * len(drawn), 3.5), layout="constrained")
    for axis, (name, points) in zip(axes, drawn.items(), strict=True):
        axis.loglog([p.value for p in points], [sum(p.run.stages.values()) for p in points], "o-", label="seconds")
        axis.loglog(
            [p.value for p in points], [p.run.facts["instructions"] * 1e-6 for p in points], "s--", label="M instr."
        )
        axis.set_xlabel(name)
        axis.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
