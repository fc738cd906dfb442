"""Compare the simulated tables of the pages with the code as it is: `make check-tables`; `--write` stores them.

Latencies, energies and bytes belong to the modelled chip and are equal on every computer. Tables that were measured
with a clock, or come from other compilers, are not touched: `store_tables` stores those. Exit status 1 if a table
differs; then its lines are printed as they are and as they should be. `make docs-generate` writes what is stored into
the pages.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace

import models
from benchmarks.programs import mapping_figures, streaming, thesis_figures
from benchmarks.tables import store_tables
from docgen import stored_figures as stored
from raptor.target.arch import load

NAMES = {
    "resnet18": "ResNet-18",
    "squeezenet": "SqueezeNet",
    "googlenet": "GoogLeNet",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNet-v2",
    "vgg16": "VGG-16",
    "tiny_yolo_v4": "TinyYOLO-v4",
}
"""Names of the models on the pages, in the order of their tables."""
MAPPED = [name for name in NAMES if name != "tiny_yolo_v4"]
STREAMED = ("resnet50", "vgg16", "tiny_yolo_v4")
STREAMED_CORES = 256
PRESET_CORES, MORE_CORES = 144, 200
"""Cores of the preset, and of the larger chip."""

TableCells = tuple[str | None, ...]
"""Cells of a line of a table; None keeps the stored cell."""


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table as the current code makes it: name of the stored table, and its lines."""

    name: str
    rows: Sequence[TableCells]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"some of: {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true", help="store the tables that differ")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time")
    args = parser.parse_args()
    if unknown := [name for name in args.tables if name not in TABLES]:
        parser.error(f"no table {unknown[0]}; there are: {', '.join(TABLES)}")
    differ = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for name in args.tables:
            for made in TABLES[name](pool):
                differ += compare_table(made, write=args.write)
    return 1 if differ and not args.write else 0


def compare_table(made: MadeTable, *, write: bool) -> int:
    """Compares a table with the stored one. Prints the lines that differ, and returns their number."""
    table = stored.read_table(made.name)
    there = [tuple(row) for row in table.rows]
    kept = there + [("",) * len(table.columns)] * len(made.rows)
    wanted = [merge_cells(row, cells) for row, cells in zip(kept, made.rows, strict=False)]
    differ = [(a, b) for a, b in zip(there, wanted, strict=False) if a != b]
    count = len(differ) + abs(len(there) - len(wanted))
    print(f"{made.name}: {len(wanted)} lines, {count} differ", flush=True)
    for is_there, should_be in differ:
        print(f"  is     {format_line(is_there)}\n  should {format_line(should_be)}")
    if write and count:
        stored.write_table(made.name, store_tables.stamp_table(replace(table, rows=wanted)))
    return count


def merge_cells(row: Sequence[str], cells: TableCells) -> tuple[str, ...]:
    return tuple(there if cell is None else cell for there, cell in zip(row, cells, strict=True))


def format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# docs/reference/performance.md


def make_mapping_tables(pool: Executor) -> Iterator[MadeTable]:
    points = [
        (name, cores, strategy) for name in MAPPED for cores in (PRESET_CORES, MORE_CORES) for strategy in STRATEGIES
    ]
    found = dict(zip(points, pool.map(measure_mapping, points), strict=True))
    yield MadeTable("mapping", [usual_cells(found[name, PRESET_CORES, mapping_figures.ROWS]) for name in MAPPED])
    yield MadeTable(
        "readme", [readme_cells(found["resnet18", PRESET_CORES, strategy]) for strategy in STRATEGIES[::-1]]
    )
    pairs = [
        (found[name, cores, mapping_figures.REFERENCE], found[name, cores, mapping_figures.ROWS])
        for name, cores, _ in points[::2]
    ]
    yield MadeTable("mappings", [compared_cells(*pair) for pair in pairs])


STRATEGIES = (mapping_figures.REFERENCE, mapping_figures.ROWS)


def measure_mapping(point: tuple[str, int, str]) -> mapping_figures.MappingRow:
    name, cores, strategy = point
    return mapping_figures.measure(name, models.build(name), strategy, "bench", cores)


def usual_cells(row: mapping_figures.MappingRow) -> TableCells:
    return NAMES[row.model], format_latency(row), format_samples(row), format_energy(row), None


def readme_cells(row: mapping_figures.MappingRow) -> TableCells:
    return None, format_latency(row), format_samples(row), format_energy(row)


def compared_cells(reference: mapping_figures.MappingRow, row: mapping_figures.MappingRow) -> TableCells:
    bound = f"{row.bound_per_s:.0f}"
    figures = (f"{r.local_bytes / 1e3:.0f}" for r in (reference, row))
    times, rates, energies = ((show(reference), show(row)) for show in (format_latency, format_samples, format_energy))
    return NAMES[row.model], str(row.cores), *times, *rates, bound, *energies, *figures


def format_latency(row: mapping_figures.MappingRow) -> str:
    return format_figure(row.latency_ms, 3)


def format_samples(row: mapping_figures.MappingRow) -> str:
    return format_figure(row.samples_per_s, 2)


def format_energy(row: mapping_figures.MappingRow) -> str:
    return format_figure(row.energy_mj, 2)


def format_figure(x: float, decimals: int) -> str:
    """Formats a number with `decimals` decimals below 10, one fewer below 100, none above."""
    return f"{x:.{decimals if x < 10 else decimals - 1 if x < 100 else 0}f}"


def make_streaming_table(pool: Executor) -> Iterator[MadeTable]:
    rows: list[TableCells] = []
    for found in pool.map(measure_streaming, STREAMED):
        for row in found:
            _, *cells = streaming.format_cells(found[0], row)
            rows.append((NAMES[row.model], *cells))
    yield MadeTable("streaming", rows)


def measure_streaming(name: str) -> list[streaming.StreamingRow]:
    return streaming.measure_model(name, models.build(name), load("bench", cores=STREAMED_CORES), "bench")


# docs/explanation/thesis-figures.md


def make_mix_table(pool: Executor) -> Iterator[MadeTable]:
    points = [(w, m) for w in thesis_figures.WIDTHS for m in thesis_figures.LOWERINGS]
    found = list(pool.map(thesis_figures.measure_mix, *zip(*points, strict=True)))
    yield MadeTable("thesis-5.2", [to_strings(row) for row in thesis_figures.mix_rows(found)])


def make_chip_table(pool: Executor) -> Iterator[MadeTable]:
    found = [point for points in pool.map(measure_inferences, thesis_figures.CORES) for point in points]
    yield MadeTable("thesis-A.3", [to_strings(row) for row in thesis_figures.resnet_rows(found)])


def measure_inferences(cores: int) -> list[thesis_figures.ChipInference]:
    return list(thesis_figures.measure_inferences(models.build("resnet18", seed=0), (cores,)))


def to_strings(row: Sequence[object]) -> TableCells:
    return tuple(map(str, row))


TABLES: Mapping[str, Callable[[Executor], Iterator[MadeTable]]] = {
    "thesis-mix": make_mix_table,
    "mappings": make_mapping_tables,
    "streaming": make_streaming_table,
    "thesis-resnet18": make_chip_table,
}
"""Name -> function that makes one or several tables."""

if __name__ == "__main__":
    sys.exit(main())
