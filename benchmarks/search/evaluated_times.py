"""Compare times that are evaluated before lowering with simulated ones: `make bench-evaluation`.

Each model is mapped, compiled and simulated, and its decision is evaluated (`raptor.mapping.evaluation`). The table has
evaluated by simulated time. Small blocks of networks are one line: the medians, and how many are within 15 % of the
simulator.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

import models
from benchmarks.programs.block_models import BLOCKS
from benchmarks.programs.interval_limits import MODELS, format_line
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.common.errors import RaptorError
from raptor.compiler import pipeline
from raptor.compiler.pass_driver import Driver
from raptor.frontend import load
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.mapping.strategies import STRATEGIES
from raptor.options import ChipOptions
from raptor.target.arch import load_chip

HEAD = ("model", "interval", "latency")
NEAR = 0.15


@dataclass(frozen=True, slots=True)
class TimeRatios:
    """Evaluated by simulated times of a model: interval and latency."""

    interval: float
    latency: float

    @property
    def columns(self) -> tuple[float, ...]:
        return self.interval, self.latency


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="built-in models, on 200 cores")
    parser.add_argument("--blocks", nargs="*", default=BLOCKS, help="small blocks of networks, on 64 cores")
    options = parser.parse_args()
    print(format_line(HEAD), format_line(("---", *["---:"] * (len(HEAD) - 1))), sep="\n", flush=True)
    networks = [measure(name, lambda name=name: models.build(name), 200) for name in options.models]
    blocks = [measure("", BLOCKS[name], 64) for name in options.blocks]
    for kind, found in (("networks", networks), ("blocks", blocks)):
        if found:
            print_summary(kind, found)


def measure(name: str, build: Callable[[], ModelProto], cores: int) -> TimeRatios:
    """Maps, evaluates, compiles and simulates a model. Prints a line if it has a name."""
    chip, unverified = load_chip(ChipOptions(arch="bench", cores=cores)), Driver(verified=False)
    graph = pipeline.prepare_graph(load(build()).graph, chip, driver=unverified)
    mapped = pipeline.rewrite_and_map(graph, chip, STRATEGIES["rows"])
    done = pipeline.complete(mapped, chip, aim=BALANCED_OBJECTIVE, driver=unverified)
    found = evaluate(done.mapped.graph, done.mapped.decision, chip)
    lowered = pipeline.run_lowering(done.mapped, chip, driver=unverified, known=done.known)
    streams = pipeline.generate_code(lowered, PIMSIM_BACKEND, driver=unverified)
    cost = simulate_objective("throughput", lowered.program, streams, chip)
    ratios = TimeRatios(found.interval_ns / cost.interval_ns, found.latency_ns / cost.latency_ns)
    if name:
        print(format_line((name, *(f"{ratio:.2f}" for ratio in ratios.columns))), flush=True)
    return ratios


def print_summary(kind: str, found: Sequence[TimeRatios]) -> None:
    columns = np.array([ratios.columns for ratios in found]).T
    near = [f"{np.mean(np.abs(column - 1) < NEAR):.0%}" for column in columns]
    medians = [f"{np.median(column):.2f}" for column in columns]
    print(format_line((f"{len(found)} {kind}, median", *medians)))
    print(format_line((f"{len(found)} {kind}, within {NEAR:.0%}", *near)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except RaptorError as error:
        sys.exit(f"evaluated_times: {error}")
