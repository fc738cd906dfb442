"""Compile built-in models with both mappings and print the results of the built-in simulator: `make bench-mapping`.

Times and energies belong to the modelled chip and are equal on every computer; only the seconds of compilation differ.
A third line shows how many times better `rows` is than the reference mapping; below 1 it is worse. The bound is the
rate that products alone would allow, spread evenly over all cores. Below the table, `raptor explain` names the
bottleneck.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from rich import box
from rich.console import Console
from rich.table import Table

import models
import raptor
from raptor.compiler.analysis.explain import explain
from validator.simulate.builtin import simulate

REFERENCE, ROWS = "raptor", "rows"
MODELS = ("resnet18", "vgg16", "googlenet", "squeezenet", "resnet50", "mobilenet_v2")


@dataclass(frozen=True, slots=True)
class MappingRow:
    """Results of one model and mapping. `energy_mj`: per sample when streaming. `local_bytes`: of the fullest core.

    `bound_per_s`: samples/s if products, on all cores alike, were the only work. `binds`: a sentence on the bottleneck.
    """

    model: str
    cores: int
    mapping: str
    latency_ms: float
    samples_per_s: float
    energy_mj: float
    local_bytes: int
    compile_s: float
    bound_per_s: float
    binds: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--arch", default="bench", help="architecture file, or preset")
    parser.add_argument("--cores", type=int, nargs="+", default=[144, 200], help="cores of the chip, one or more")
    args = parser.parse_args()
    pairs: list[tuple[MappingRow, MappingRow]] = []
    for name in args.models:
        model = models.build(name)
        for cores in args.cores:
            reference, row = (measure(name, model, m, args.arch, cores) for m in (REFERENCE, ROWS))
            pairs.append((reference, row))
            print(reference, row, sep="\n", file=sys.stderr, flush=True)
    show(pairs)


def measure(name: str, model: onnx.ModelProto, mapping: str, arch: str, cores: int) -> MappingRow:
    begin = time.perf_counter()
    program = raptor.compile(model, arch=arch, cores=cores, mapping=mapping)
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        report = simulate(out, out / "arch.json", mode="throughput")
        explained = explain(out)
    latency_ms, energy_mj = (report.latency_ns or 0) / 1e6, (report.energy_pj or 0) / 1e9
    bound_per_s, used = 1e9 / explained.bounds.products, program.report.peak_local_bytes
    figures = (latency_ms, report.samples_per_s or 0, energy_mj, used, seconds, bound_per_s)
    return MappingRow(name, cores, mapping, *figures, explained.binds)


def compute_ratios(reference: MappingRow, row: MappingRow) -> tuple[float, ...]:
    """Returns how many times better the row is: latency, samples/s, energy, local memory, seconds of compilation."""
    return (
        reference.latency_ms / row.latency_ms,
        row.samples_per_s / reference.samples_per_s,
        reference.energy_mj / row.energy_mj,
        reference.local_bytes / row.local_bytes,
        reference.compile_s / row.compile_s,
    )


def show(pairs: Sequence[tuple[MappingRow, MappingRow]]) -> None:
    table = Table(box=box.MARKDOWN)
    for name in ("model", "cores", "mapping"):
        table.add_column(name, no_wrap=True)
    for name in ("latency, ms", "samples/s", "bound", "energy, mJ", "local memory, kB", "compile, s"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair in pairs:
        for cells in format_lines(*pair):
            table.add_row(*cells)
        table.add_section()
    console = Console(width=120)
    console.print(table)
    for row in (r for pair in pairs for r in pair):
        console.print(f"{row.model}, {row.cores} cores, {row.mapping}: {row.binds}", markup=False, highlight=False)


def format_lines(reference: MappingRow, row: MappingRow) -> Iterator[tuple[str, ...]]:
    for r in (reference, row):
        figures = (r.latency_ms, r.samples_per_s, r.bound_per_s, r.energy_mj, r.local_bytes / 1e3, r.compile_s)
        yield r.model, str(r.cores), r.mapping, *(f"{x:.4g}" for x in figures)
    faster, more, *others = (f"{x:,.0f}" if x >= 100 else f"{x:.2g}" for x in compute_ratios(reference, row))
    yield "", "", "times better", faster, more, "", *others


if __name__ == "__main__":
    main()
