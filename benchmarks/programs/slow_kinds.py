"""Compare the interval of small models of unusual kinds with its bound, on few and on many cores: `make bench-slow`.

The bound is the larger of two: all work of the program spread evenly over the cores, and the port of global memory. The
last lines have the geometric mean and the largest of the ratios. Every program is validated. A ratio falls, too, if the
program does more work than before: so compare intervals.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import raptor
from benchmarks.programs.slow_models import MODELS, build_model
from raptor.compiler.analysis.explain import explain

CORES = (64, 400)


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """A compiled model, with times in ns. `passed`: `validate` found it right."""

    interval_ns: float
    latency_ns: float
    bound_ns: float
    passed: bool

    @property
    def ratio(self) -> float:
        return self.interval_ns / self.bound_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--cores", type=int, nargs="*", default=CORES, help="sizes of the chip")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"no model {unknown[0]}; there are: {', '.join(MODELS)}")
    print(format_line(["model", *(f"{what}, {n} cores" for n in options.cores for what in FIGURES)]))
    print(format_line(["---", *["---:"] * len(FIGURES) * len(options.cores)]))
    found: list[list[MeasuredProgram]] = []
    for name in options.models or MODELS:
        found.append([measure(name, cores) for cores in options.cores])
        print(format_line([name, *(cell for each in found[-1] for cell in format_cells(each))]), flush=True)
    by_cores = [[each.ratio for each in column] for column in zip(*found, strict=True)]
    for title, summary in (("geometric mean", geometric_mean), ("largest", max)):
        print(format_line([title, *format_summary([f"{summary(ratios):.2f}" for ratios in by_cores])]))
    sys.exit(0 if all(each.passed for row in found for each in row) else 1)


def measure(name: str, cores: int) -> MeasuredProgram:
    """Compiles, validates and simulates a model on the preset `bench`."""
    program = raptor.compile(build_model(name), arch="bench", cores=cores)
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        found, verdict = explain(out), program.validate().verdict
    bound = max(found.bounds.average, found.bounds.port)
    return MeasuredProgram(found.interval_ns, found.latency_ns, bound, verdict == "pass")


FIGURES = ("interval", "latency", "bound", "times")


def format_cells(found: MeasuredProgram) -> tuple[str, ...]:
    """Returns the cells of a program, with times in us."""
    us = (ns / 1e3 for ns in (found.interval_ns, found.latency_ns, found.bound_ns))
    times = (f"{t:,.0f}" if t >= 1000 else f"{t:.4g}" for t in us)
    return *times, f"{found.ratio:.2f}" if found.passed else f"{found.ratio:.2f}, wrong"


def format_summary(ratios: Sequence[str]) -> list[str]:
    """Returns the cells of a line that has ratios alone."""
    return [cell for ratio in ratios for cell in (*[""] * (len(FIGURES) - 1), ratio)]


def format_line(cells: Sequence[str]) -> str:
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
