"""Language: docstrings start with a verb or a noun, pages with what they are for, and sentences are short."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.project.documents import pages

TREES = ("raptor", "validator", "models", "docgen", "benchmarks", "examples", "tests")
RIDDLES = (
    *("All that", "Also", "Anyone", "As", "By", "Else", "How", "If not", "Of", "Such", "The same", "There", "Those"),
    *("Unless", "What", "Whatever", "Where", "Whether", "Which", "Whoever", "Whose", "Why"),
)
"""Openings that leave the noun or the verb to the reader."""

MOST_WORDS = 37
"""Longest sentence of a page; most have fewer than 25 words."""
NOTES = ("docs/developers/target.md",)
"""Pages of notes, which list more than they explain."""

_OPENING = re.compile(rf"\s*({'|'.join(RIDDLES)})\b")


def riddles(path: Path) -> Iterator[str]:
    """Yields place and first line of every docstring of a file that breaks the rule, also those of attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(ast.Constant(str(text))) if _OPENING.match(text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {text.strip().splitlines()[0]}"
            case _:
                pass


def files(*names: str) -> list[Path]:
    """Returns the Python files of folders and files, given by names relative to the repository."""
    paths = [ROOT / name for name in names]
    return sorted(p for path in paths for p in (path.rglob("*.py") if path.is_dir() else [path]))


@pytest.mark.parametrize("tree", TREES)
def test_docstrings_start_with_a_verb_or_a_noun(tree: str) -> None:
    assert [found for path in files(tree) for found in riddles(path)] == []


def prose(page: str) -> Iterator[str]:
    """Yields the paragraphs and list items of a page, without blocks, tables, headings and links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if part.strip() and not part.lstrip().startswith("#"):
            yield re.sub(r"\]\([^)]*\)", "]", " ".join(part.split()))


@pytest.mark.parametrize("name", pages())
def test_a_page_begins_with_what_it_is_for(name: str) -> None:
    page = (ROOT / name).read_text()
    if page.startswith("{%"):  # holds another page
        return
    title, _, rest = page.partition("\n")
    assert title.startswith("# ")
    assert re.match(r"\n(\w|`|\[)(?!``)", rest), "a sentence should follow the title"


@pytest.mark.parametrize("name", [name for name in pages() if name not in NOTES])
def test_sentences_are_short(name: str) -> None:
    sentences = (s for part in prose((ROOT / name).read_text()) for s in re.split(r"(?<=[.?!:;]) ", part))
    assert [s for s in sentences if len(s.split()) > MOST_WORDS] == []
