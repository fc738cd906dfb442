"""Pages for developers: what holds today is short, each decision has a record, and names are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docgen.package_layers import find_modules
from raptor.compiler.pipeline import PASSES
from raptor.spatial import partition
from tests.project.documents import ROOT

DEVELOPERS = ROOT / "docs" / "developers"
DECISIONS = DEVELOPERS / "decisions"
RECORDS = sorted(DECISIONS.glob("0*.md"))
MOST_WORDS = {"architecture": 1300, "mapping": 1200}
RECORD_WORDS = 300


@pytest.mark.parametrize("page", MOST_WORDS)
def test_what_holds_today_is_short(page: str) -> None:
    assert len((DEVELOPERS / f"{page}.md").read_text().split()) <= MOST_WORDS[page]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem[:4])
def test_a_record_is_short_and_dated(path: Path) -> None:
    text = path.read_text()
    assert re.match(r"# \d{4}\. .+\n\nDecided on 20\d\d-\d\d-\d\d, at commit [0-9a-f]{8}\.\n", text)
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [s for s in sections if s != "What was tried"] == ["Context", "Decision", "Consequences"]
    assert len(text.split()) <= RECORD_WORDS


def test_the_index_lists_every_record_in_order() -> None:
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (\S+) \| (.*) \|$", (DECISIONS / "index.md").read_text(), re.MULTILINE
    )
    assert [name for _, name, _, _ in rows] == [path.name for path in RECORDS]
    for (number, _, date, title), path in zip(rows, RECORDS, strict=True):
        assert path.read_text().startswith(f"# {number}. {title}\n\nDecided on {date}, ")
    assert [number for number, *_ in rows] == [f"{i:04}" for i in range(1, len(rows) + 1)]
    assert [date for _, _, date, _ in rows] == sorted(date for _, _, date, _ in rows)


PAGES = ("developers/architecture.md", "developers/mapping.md", "reference/forms.md", "reference/programs.md")


def defined() -> Iterator[str]:
    """Yields the names of all classes and functions."""
    for path in find_modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield node.name


def test_the_page_about_mapping_names_every_pass_until_the_decision_is_complete() -> None:
    text = (DEVELOPERS / "mapping.md").read_text()
    passes = [step.__name__ for step in PASSES[: PASSES.index(partition)]]
    assert len(passes) > 15
    assert [name for name in passes if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", [*PAGES, "../CONTRIBUTING.md"])
def test_modules_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    files = {path.name for path in find_modules().values()}
    assert set(re.findall(r"`(\w+\.py)`", text)) <= files


@pytest.mark.parametrize("page", [*PAGES, "reference/glossary.md"])
def test_classes_that_a_page_names_are_there(page: str) -> None:
    """A name of the code has two capitals, or stands in brackets behind the word that it explains."""
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:\.\w+)?`", text)) | set(
        re.findall(r"\(`([A-Z]\w+)`\)", text)
    )
    assert sorted(named - set(defined()) - ONNX) == []


ONNX = {"ChipTest", "DequantizeLinear", "QuantizeLinear", "ArgMax", "TopK", "IsNaN", "IsInf", "QLinearConv"}
"""Names that are not ours."""


@pytest.mark.parametrize(
    "tree", ["raptor", "validator", "models", "docgen", "benchmarks", "examples", "tests", "Makefile"]
)
def test_pages_that_the_sources_name_are_there(tree: str) -> None:
    root = ROOT / tree
    texts = {path: path.read_text() for path in (root.rglob("*.py") if root.is_dir() else [root])}
    named = {name for text in texts.values() for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
