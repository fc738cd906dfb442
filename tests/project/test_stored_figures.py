"""Figures of performance on pages that people write: stored measurements only (docgen/stored_figures.py)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docgen import stored_figures
from docgen.generated_files import PAGE_MAKERS
from docgen.stored_figures import StoredTable
from tests.paths import ROOT
from tests.project.documents import pages

MADE = {f"docs/{name}" for name in PAGE_MAKERS} | {"docs/reference/conformance.md"}
EXEMPT = {
    "CHANGELOG.md": "what changed, by how much at that time",
    "docs/developers/target.md": "times of pimsim-nn's instructions, each of them a case of tests/validator/simulate",
}
"""Pages that tell other figures. Records are exempt by their folder, and say so at their top."""
LAB = "docs/lab/"
RECORDS = (LAB, "docs/developers/decisions/")

_RATE = r"(?:images|samples|inferences|tokens)(?:/s| (?:a|per) second)|[GM]i?B/s"
_UNIT = rf"(?:ms|us|µs|s|seconds?|minutes?|hours?|mJ|uJ|µJ|{_RATE})"
_CELL = re.compile(rf"^\|.*(?<![\w/])(?:ms|us|µs|mJ|uJ|µJ|{_RATE})(?![\w/])")
"""A line of a table that names a unit; the numbers may stand in others."""
_FIGURE = re.compile(rf"(?<![\w.])\d[\d.,]*(?: to \d[\d.,]*)? ?{_UNIT}(?![\w/(])")


def typed(page: str) -> Iterator[str]:
    """Yields the lines of a page with a figure of performance that nothing makes again."""
    text = re.sub(r"^```.*?^```$", "", stored_figures.remove_figures(page), flags=re.MULTILINE | re.DOTALL)
    lines = re.sub(r"`[^`]*`", "", text).splitlines()
    yield from (line for line in lines if _FIGURE.search(line) or _CELL.search(line))


@pytest.mark.parametrize(
    "name", [n for n in pages() if n not in MADE and n not in EXEMPT and not n.startswith(RECORDS)]
)
def test_no_figure_is_typed(name: str) -> None:
    assert list(typed((ROOT / name).read_text())) == []


def test_a_typed_figure_is_told() -> None:
    page = "ResNet-18 takes 1.91 ms.\n\nIt does 1,070 images a second,\nand is read in 3 s. `--timeout 5 s` is one.\n"
    assert len(list(typed(page))) == 3
    assert list(typed("| model | latency, ms |\n|---|---:|\n| a | 1.91 |\n")) == ["| model | latency, ms |"]
    assert (
        list(
            typed("<!-- figures: x -->\n| 1.91 ms |\n<!-- end -->\n```console\nlatency 5 us\n```\n8 bits, 3 samples\n")
        )
        == []
    )


def test_records_say_that_they_are_records() -> None:
    found = sorted((ROOT / LAB).glob("*.md"))
    assert found
    for path in found:
        assert re.match(
            r"# Record .*?\n\n.*?commit\s+[0-9a-f]{7}.*?nothing here is kept up to date", path.read_text(), re.DOTALL
        )


def test_every_stored_table_is_on_a_page_and_complete() -> None:
    shown = re.findall(r"<!-- figures: (\S+) -->", "".join((ROOT / name).read_text() for name in pages()))
    stored = {path.stem for path in stored_figures.RESULTS.glob("*.json")}
    assert set(shown) == stored
    for name in stored:
        one = stored_figures.read_table(name)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", one.date), name
        assert re.fullmatch(r"[0-9a-f]{7}", one.commit), name
        assert one.conditions.endswith("."), name
        assert one.rows, name


@pytest.mark.parametrize("name", sorted(path.stem for path in stored_figures.RESULTS.glob("*.json")))
def test_what_makes_a_table_again_is_there(name: str) -> None:
    made_by = stored_figures.read_table(name).made_by
    targets = re.findall(r"`make ([\w-]+)", made_by)
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets)
    modules = re.findall(r"`python -m (\w+(?:\.\w+)*)", made_by)
    assert all((ROOT / f"{module.replace('.', '/')}.py").is_file() for module in modules)
    assert targets or modules or re.search(r"`raptor |^hand, ", made_by)


def test_a_table_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_figures, "RESULTS", tmp_path)
    one = StoredTable("`make bench`", "2026-11-27", "630d0f5", "Chip.", ["model", "us"], [["a", "1.5"], ["b", "`x`"]])
    stored_figures.write_table("one", one)
    assert stored_figures.read_table("one") == one
    page = stored_figures.fill_page("# T\n\n<!-- figures: one -->\n<!-- end -->\n\nText.\n")
    assert "| a | 1.5 |\n" in page
    assert "*Chip. Measured on 2026-11-27 at 630d0f5; made again by `make bench`.*" in page
    assert stored_figures.fill_page(page) == page
    with pytest.raises(ValueError, match="expected 2 cells"):
        StoredTable("", "", "", "", ["a", "b"], [["1"]])
