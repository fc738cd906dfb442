"""Compile built-in models and print, as a table of docs/reference/performance.md, what binds their intervals: `make
bench-binds`.

Beside latency and interval of the built-in simulator stand the bounds of `raptor explain`: all work spread evenly over
the cores, the work of the busiest core, and the time of the port of global memory. The largest of them, as a share of
the interval, says what binds; the rest of the interval is waiting. The last column is the local memory of the fullest
core. With `--optimize`, the mapping is searched for.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import models
import raptor
from raptor.common.options.option_values import Objective
from raptor.compiler.analysis.explain import TimeBounds, explain

MODELS = (
    "resnet18",
    "resnet50",
    "vgg16",
    "googlenet",
    "squeezenet",
    "inception_v3",
    "densenet121",
    "mobilenet_v2",
    "efficientnet_b0",
    "shufflenet_v2",
    "tiny_yolo_v4",
    "unet",
    "vit_tiny",
    "bert_tiny",
    "lstm",
)
HEAD = (
    "model",
    "latency, ms",
    "interval, ms",
    "even work, ms",
    "busiest core, ms",
    "port, ms",
    "largest, of interval",
    "local memory, kB",
)


@dataclass(frozen=True, slots=True)
class BoundRow:
    """Times of a model in ns, the bounds on its interval, and the local memory of the fullest core in bytes."""

    model: str
    latency_ns: float
    interval_ns: float
    bounds: TimeBounds
    local_bytes: int

    @property
    def largest_bound(self) -> str:
        """Name of the largest bound, and its share of the interval."""
        bounds = self.bounds
        named = {"even work": bounds.average, "port": bounds.port, f"core of `{bounds.node}`": bounds.busiest}
        name = max(named, key=lambda n: named[n])
        return f"{name}, {named[name] / self.interval_ns:.0%}"

    def format_cells(self) -> tuple[str, ...]:
        """Returns the cells of a line of the table."""
        bounds = self.bounds
        times = (self.latency_ns, self.interval_ns, bounds.average, bounds.busiest, bounds.port)
        return self.model, *(f"{ns / 1e6:.3g}" for ns in times), self.largest_bound, f"{self.local_bytes / 1e3:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--arch", default="bench", help="architecture file, or preset")
    parser.add_argument("--cores", type=int, default=200, help="cores of the chip")
    parser.add_argument("--optimize", choices=get_args(Objective), help="search for the mapping")
    args = parser.parse_args()
    print(format_line(HEAD), format_line(("---", *["---:"] * (len(HEAD) - 3), "---", "---:")), sep="\n", flush=True)
    for name in args.models:
        print(format_line(measure(name, args.arch, args.cores, args.optimize).format_cells()), flush=True)


def measure(name: str, arch: str, cores: int, optimize: Objective | None = None) -> BoundRow:
    """Compiles a model and explains the program."""
    program = raptor.compile(models.build(name), arch=arch, cores=cores, optimize=optimize)
    with tempfile.TemporaryDirectory() as folder:
        found = explain(program.save(Path(folder) / "out", stream_format="pim", weight_format="npz"))
    return BoundRow(name, found.latency_ns, found.interval_ns, found.bounds, program.report.peak_local_bytes)


def format_line(cells: tuple[str, ...]) -> str:
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
