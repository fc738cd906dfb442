"""Compare the simulated tables of the pages with the code as it is: `make check-tables`; `--write` writes them.

Latencies, energies and bytes belong to the modelled chip and are equal on every computer. Tables that were measured
with a clock, or come from other compilers, are not touched: `benchmarks/bench.py`, `growth.py`, docs/performance.md.
Exit status 1 if a table differs; then its lines are printed as they are and as they should be.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mapping
import streaming
import thesis_figures
from measure import ROOT

sys.path.insert(0, str(ROOT))
import models
from raptor.target.arch import load

PERFORMANCE, THESIS = ROOT / "docs" / "performance.md", ROOT / "docs" / "thesis-figures.md"
END = "<!-- end -->"
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
USUAL, MORE = 144, 200
"""Cores of the preset, and of the larger chip."""

Cells = tuple[str | None, ...]
"""A line of a table; None keeps the cell as it is on the page."""


@dataclass(frozen=True, slots=True)
class Made:
    """Body of table `name` of a page as the code makes it."""

    page: Path
    name: str
    rows: Sequence[Cells]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"some of: {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true", help="write the tables that differ")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time")
    args = parser.parse_args()
    if unknown := [name for name in args.tables if name not in TABLES]:
        parser.error(f"no table {unknown[0]}; there are: {', '.join(TABLES)}")
    differ = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for name in args.tables:
            for made in TABLES[name](pool):
                differ += compare(made, write=args.write)
    return 1 if differ and not args.write else 0


def compare(made: Made, *, write: bool) -> int:
    """Prints the lines that differ and returns their number."""
    page = made.page.read_text()
    head, lines, tail = parts(page, made.name)
    wanted = [merged(line, cells) for line, cells in zip(lines, made.rows, strict=False)]
    wanted += [line_of(tuple(cell or "" for cell in cells)) for cells in made.rows[len(lines) :]]
    differ = [(a, b) for a, b in zip(lines, wanted, strict=False) if a != b]
    count = len(differ) + abs(len(lines) - len(wanted))
    print(f"{made.page.name}, {made.name}: {len(wanted)} lines, {count} differ", flush=True)
    for is_there, should_be in differ:
        print(f"  is     {is_there}\n  should {should_be}")
    if write and count:
        made.page.write_text(head + "".join(f"{line}\n" for line in wanted) + tail)
    return count


def parts(page: str, name: str) -> tuple[str, list[str], str]:
    """Returns the page before the body of a table, the lines of the body, and the rest."""
    mark = f"<!-- table {name} -->\n"
    if page.count(mark) != 1:
        raise SystemExit(f"{page[:40]!r}: {page.count(mark)} tables {name}, expected one")
    head, rest = page.split(mark)
    table, tail = rest.split(END, 1)
    lines = [line for line in table.splitlines() if line]
    return f"{head}{mark}\n{lines[0]}\n{lines[1]}\n", lines[2:], f"\n{END}{tail}"


def merged(line: str, cells: Cells) -> str:
    there = [cell.strip() for cell in line.strip("|").split("|")]
    return line_of(tuple(there[i] if cell is None else cell for i, cell in enumerate(cells)))


def line_of(cells: Sequence[str | None]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


# docs/performance.md


def mappings(pool: Executor) -> Iterator[Made]:
    points = [(name, cores, strategy) for name in MAPPED for cores in (USUAL, MORE) for strategy in STRATEGIES]
    found = dict(zip(points, pool.map(measured, points), strict=True))
    yield Made(PERFORMANCE, "rows", [usual(found[name, USUAL, mapping.ROWS]) for name in MAPPED])
    pairs = [
        (found[name, cores, mapping.REFERENCE], found[name, cores, mapping.ROWS]) for name, cores, _ in points[::2]
    ]
    yield Made(PERFORMANCE, "mappings", [beside(*pair) for pair in pairs])


STRATEGIES = (mapping.REFERENCE, mapping.ROWS)


def measured(point: tuple[str, int, str]) -> mapping.Row:
    name, cores, strategy = point
    return mapping.measure(name, models.build(name), strategy, "bench", cores)


def usual(row: mapping.Row) -> Cells:
    return NAMES[row.model], latency(row), samples(row), energy(row), None


def beside(reference: mapping.Row, row: mapping.Row) -> Cells:
    bound = f"{row.bound_per_s:.0f}"
    figures = (f"{r.local_bytes / 1e3:.0f}" for r in (reference, row))
    times, rates, energies = ((show(reference), show(row)) for show in (latency, samples, energy))
    return NAMES[row.model], str(row.cores), *times, *rates, bound, *energies, *figures


def latency(row: mapping.Row) -> str:
    return figures(row.latency_ms, 3)


def samples(row: mapping.Row) -> str:
    return figures(row.samples_per_s, 2)


def energy(row: mapping.Row) -> str:
    return figures(row.energy_mj, 2)


def figures(x: float, decimals: int) -> str:
    """Writes a number with so many decimals below 10, one fewer below 100, none above."""
    return f"{x:.{decimals if x < 10 else decimals - 1 if x < 100 else 0}f}"


def streams(pool: Executor) -> Iterator[Made]:
    rows: list[Cells] = []
    for found in pool.map(streamed, STREAMED):
        for row in found:
            _, *cells = streaming.cells(found[0], row)
            rows.append((NAMES[row.model], *cells))
    yield Made(PERFORMANCE, "streaming", rows)


def streamed(name: str) -> list[streaming.Row]:
    return streaming.rows(name, models.build(name), load("bench", cores=STREAMED_CORES), "bench")


# docs/thesis-figures.md


def mixes(pool: Executor) -> Iterator[Made]:
    points = [(w, m) for w in thesis_figures.WIDTHS for m in thesis_figures.LOWERINGS]
    found = list(pool.map(thesis_figures.mix, *zip(*points, strict=True)))
    yield Made(THESIS, "5.2", [strings(row) for row in thesis_figures.mix_rows(found)])


def chips(pool: Executor) -> Iterator[Made]:
    found = [point for points in pool.map(inferred, thesis_figures.CORES) for point in points]
    yield Made(THESIS, "A.3", [strings(row) for row in thesis_figures.resnet_rows(found)])


def inferred(cores: int) -> list[thesis_figures.Inference]:
    return list(thesis_figures.inferences(models.build("resnet18", seed=0), (cores,)))


def strings(row: Sequence[object]) -> Cells:
    return tuple(map(str, row))


TABLES: Mapping[str, Callable[[Executor], Iterator[Made]]] = {
    "thesis-mix": mixes,
    "mappings": mappings,
    "streaming": streams,
    "thesis-resnet18": chips,
}
"""Functions that make one table or several, by name."""

if __name__ == "__main__":
    sys.exit(main())
