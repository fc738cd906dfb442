"""Writes stored measurements into pages.

On a page, the text between `<!-- figures: NAME -->` and `<!-- end -->` is generated: the table of
benchmarks/results/NAME.json, with the command, date and commit of the measurement. Written pages have no other figures
of performance (`tests/project/test_stored_figures.py`).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

_BLOCK = re.compile(r"<!-- figures: (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)
_NUMBER = re.compile(r"[-+~]?[\d.,]+(?: ?(?:%|s|ms|us|mJ|uJ|kB))?")


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of measurements.

    `made_by`: command that measures again. `date`, `commit`: of the measurement. `conditions`: chip or machine, and the
    units that are counted.
    """

    made_by: str
    date: str
    commit: str
    conditions: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"{wrong[0]}: expected {len(self.columns)} cells")


def read_table(name: str) -> StoredTable:
    """Reads the table benchmarks/results/NAME.json."""
    return StoredTable(**json.loads((RESULTS / f"{name}.json").read_text()))


def write_table(name: str, figures: StoredTable) -> None:
    """Stores a table as JSON with a row per line, so that diffs show the changed rows."""
    fields = ("made_by", "date", "commit", "conditions", "columns")
    head = [f'"{field}": {_text(getattr(figures, field))}' for field in fields]
    rows = ",\n".join(f"  {_text(row)}" for row in figures.rows)
    (RESULTS / f"{name}.json").write_text("{\n" + ",\n".join([*head, f'"rows": [\n{rows}\n]']) + "\n}\n")


def fill_pages() -> dict[str, str]:
    """Returns all pages that contain stored tables, filled in, by path below docs/."""
    found = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    names = {
        path: "../README.md" if path.name == "README.md" else str(path.relative_to(ROOT / "docs")) for path in found
    }
    return {names[path]: fill_page(text) for path, text in found.items() if _BLOCK.search(text)}


def fill_page(page: str) -> str:
    """Returns a page with the stored tables filled in."""
    return _BLOCK.sub(
        lambda block: f"<!-- figures: {block['name']} -->\n\n{format_table(read_table(block['name']))}\n<!-- end -->",
        page,
    )


def remove_figures(page: str) -> str:
    """Returns a page without its stored tables."""
    return _BLOCK.sub("", page)


def format_table(figures: StoredTable) -> str:
    """Returns a table as Markdown, followed by a line on its origin."""
    columns = list(zip(*figures.rows, strict=True))
    rules = ["---:" if all(_NUMBER.fullmatch(cell) or not cell for cell in column) else "---" for column in columns]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in (figures.columns, *figures.rows))
    head, body = lines.split("\n", 1)
    return f"{head}\n|{'|'.join(rules)}|\n{body}\n{''.join(_origin(figures))}"


def _origin(figures: StoredTable) -> Iterator[str]:
    yield f"*{figures.conditions} Measured on {figures.date} at {figures.commit}; made again by {figures.made_by}.*\n"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
