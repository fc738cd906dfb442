"""Stores tables that a benchmark prints, for the pages: `make bench-binds STORE=1`.

    python -m benchmarks.programs.interval_limits | python -m benchmarks.tables.store_tables binds

The tables on standard input, in order, are stored as benchmarks/results/NAME.json for the given names; `-` skips a
table. The fields `made_by` and `conditions` are kept; edit the file to change them. Then `make docs-generate` writes
the tables into the pages. All input is echoed.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain

from docgen import stored_figures

TableLines = list[list[str]]
"""Cells of each line of a table; the first line is the heading."""


def main() -> int:
    names = sys.argv[1:]
    found = list(parse_tables(echo_lines(sys.stdin)))
    if len(found) != len(names):
        found_and_wanted = f"{len(found)} tables were printed, expected {len(names)}"
        print(f"store_tables: {found_and_wanted}: nothing is stored", file=sys.stderr)
        return 1
    for name, (columns, *rows) in zip(names, found, strict=True):
        if name != "-":
            store_table(name, columns, rows)
    return 0


def store_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replaces the cells of a stored table by new measurements, with the date of today and the current commit."""
    stored_figures.write_table(name, stamp_table(replace(stored_figures.read_table(name), columns=columns, rows=rows)))


def stamp_table(measured: stored_figures.StoredTable) -> stored_figures.StoredTable:
    """Returns a table with the date of today and the commit that is checked out."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(command, cwd=stored_figures.ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return replace(measured, date=datetime.now(UTC).date().isoformat(), commit=commit)


def echo_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, end="", flush=True)
        yield line


def parse_tables(lines: Iterable[str]) -> Iterator[TableLines]:
    """Yields the Markdown tables of a text, without the lines of dashes."""
    table: TableLines = []
    for line in chain(lines, [""]):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            table += [] if all(re.fullmatch(":?-+:?", cell) for cell in cells) else [cells]
        elif table:
            yield table
            table = []


if __name__ == "__main__":
    sys.exit(main())
