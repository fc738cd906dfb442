"""Measure the gain of row streaming over one layer after another, as CLSA-CIM (DATE 2024) does: `make bench-streaming`.

Four programs of each model are compiled for the same chip. Either each layer gets the fewest cores that hold it, or
slow layers get more until the chip is full. And either a core passes nothing on before it has done all of a layer, or
lines are streamed. Both programs of a pair have the same matrices on the same cores. Latencies are the built-in
simulator's; a core is utilised while it multiplies.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from rich import box
from rich.console import Console
from rich.table import Table

import models
import raptor
from raptor import frontend
from raptor.compiler.pipeline import prepare_graph, rewrite_and_map
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.mapping_file import make_mapping_file
from raptor.mapping.strategies import rows_strategy
from raptor.target.arch import Target, load
from validator.program.pimsim_program import read_program
from validator.simulate.analysis.core_work import compute_least_work
from validator.simulate.cycle import cycle_model, simulated_chip

FEWEST_CORES, ALL_CORES = "fewest", "all"
CORE_SHARES = {FEWEST_CORES: 0.0, ALL_CORES: 1.0}
BY_LAYER, STREAMED = "layer by layer", "streamed"


@dataclass(frozen=True, slots=True)
class StreamingRow:
    """Results of one program.

    `cores`: number of cores with products. `utilisation`: mean share of the latency in which they multiply, 0 to 1.
    """

    model: str
    given: str
    order: str
    cores: int
    latency_ms: float
    utilisation: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet50", "vgg16", "tiny_yolo_v4"])
    parser.add_argument("--arch", default="bench", help="architecture file, or preset")
    parser.add_argument("--cores", type=int, default=256, help="cores of the chip")
    args = parser.parse_args()
    arch = load(args.arch, cores=args.cores)
    found = [measure_model(name, models.build(name), arch, args.arch) for name in args.models]
    show(found)


def measure_model(name: str, source: onnx.ModelProto, arch: Target, preset: str) -> list[StreamingRow]:
    """Returns the results of the four programs of a model, the slowest first."""
    graph = frontend.load(source).graph
    graph = prepare_graph(graph, arch)
    found: list[StreamingRow] = []
    for given, share in CORE_SHARES.items():
        decision = rewrite_and_map(graph, arch, rows_strategy(TuningKnobs(share=share)).without_search()).decision
        assert isinstance(decision.flow, LineFlow), "the chip is large enough for lines"
        for order, streamed in ((BY_LAYER, False), (STREAMED, True)):
            changed = replace(decision, flow=replace(decision.flow, streamed=streamed))
            cores, latency_ms, utilisation = measure(source, changed, graph, arch, preset)
            found.append(StreamingRow(name, given, order, cores, latency_ms, utilisation))
            print(found[-1], file=sys.stderr, flush=True)
    return found


def measure(
    source: onnx.ModelProto, decision: Decision, graph: Graph, arch: Target, preset: str
) -> tuple[int, float, float]:
    """Returns the number of cores that multiply, latency in ms, utilisation."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "mapping.json", Path(folder) / "out"
        path.write_bytes(make_mapping_file(decision, graph, arch).to_json())
        program = raptor.compile(source, arch=preset, cores=arch.core_count, mapping=str(path))
        program.save(out, stream_format="pim", weight_format="npz")
        machine = cycle_model.build_cycle_model(
            read_program(out), simulated_chip.read_simulated_chip(out / "arch.json")
        )
    latency_ns = cycle_model.run_cycle_model(machine).last_tick * machine.period_ns
    products_ns = compute_least_work(machine).products / 1000
    cores = int(np.count_nonzero(products_ns))
    return cores, latency_ns / 1e6, float(products_ns.sum()) / cores / latency_ns


def show(found: Sequence[Sequence[StreamingRow]]) -> None:
    table = Table(box=box.MARKDOWN)
    for name in ("model", "cores", "order"):
        table.add_column(name, no_wrap=True)
    for name in ("cores used", "latency, ms", "speed-up", "utilisation, %", "times"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in found:
        for row in group:
            table.add_row(*format_cells(group[0], row))
        table.add_section()
    Console(width=110).print(table)


def format_cells(first: StreamingRow, row: StreamingRow) -> tuple[str, ...]:
    """Returns a line of the table, compared with `first`: layer by layer on the fewest cores."""
    faster, fuller = first.latency_ms / row.latency_ms, row.utilisation / first.utilisation
    figures = (f"{row.latency_ms:.4g}", f"{faster:.3g}", f"{100 * row.utilisation:.3g}", f"{fuller:.3g}")
    return row.model, row.given, row.order, str(row.cores), *figures


if __name__ == "__main__":
    main()
