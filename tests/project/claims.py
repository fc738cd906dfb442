"""Claims of the pages about RAPTOR, which tests must prove: tests/project/claims.toml names a test for each.

A claim is one of two things:

- a cell of the column RAPTOR in a table of docs/explanation/comparison.md, after the name of its row;
- a sentence that says what RAPTOR does not do: its subject is RAPTOR, the compiler, the validator, a command or an
  option, and a negative word follows; or it says that something is refused, must be a constant, or is not supported,
  modelled, counted, offered or implemented. So does the first sentence of each item below a heading such as "Limits".

Pages that are made from the code or measured in pimsim-nn, records of the past, and tables elsewhere have none: `MADE`
and `PAST`.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docgen.generated_files import PAGE_MAKERS
from tests.paths import ROOT
from tests.project.documents import pages

REGISTRY = Path(__file__).with_name("claims.toml")
COMPARISON = "docs/explanation/comparison.md"
MADE = {f"docs/{name}" for name in PAGE_MAKERS} | {"docs/reference/conformance.md", "docs/developers/target.md"}
PAST = ("CHANGELOG.md", "docs/lab/", "docs/developers/decisions/")

_COMMANDS = "accuracy|arch|check|compare|compile|explain|explore|inspect|models|quantize|report|run|simulate|validate"
_SUBJECT = (
    r"(?:\bRAPTOR\b|\b[Tt]h(?:e|is) (?:compiler|validator|judge)\b|`raptor [^`]+`|`--[a-z][^`]*`"
    rf"|`(?:{_COMMANDS}|raptor|rows|validator)`)"
)
_LIMITS = re.compile(
    r"^##+ (?:Limits|Not promised|What (?:is not modelled|it does not do))\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL
)
_NEGATIVE = r"(?:\b(?:not|cannot|no|none|nothing|only|never|neither|without)\b|n't\b)"
_PATTERNS = (
    re.compile(rf"{_SUBJECT}.*?{_NEGATIVE}"),
    re.compile(r"\b(?:refus(?:e|es|ed|al)|reject(?:s|ed)?|unsupported)\b|\bmust be (?:a constant|constants)\b"),
    re.compile(r"\b(?:is|are) (?:not|never) (?:supported|modelled|counted|offered|implemented)\b"),
)


def claims() -> dict[str, list[str]]:
    """Returns the claims of each page, in their order."""
    found = {name: list(sentences((ROOT / name).read_text())) for name in (*pages(), "SECURITY.md") if _speaks(name)}
    found[COMPARISON] += cells((ROOT / COMPARISON).read_text())
    return {name: said for name, said in found.items() if said}


def sentences(page: str) -> Iterator[str]:
    """Yields the sentences of a page that are claims."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    limits = {next(_split(item)) for section in _LIMITS.findall(text) for item in _parts(section) if item[:2] == "- "}
    found = (sentence for part in _parts(text) for sentence in _split(part))
    yield from dict.fromkeys(s for s in found if s in limits or any(p.search(s) for p in _PATTERNS))


def _parts(text: str) -> list[str]:
    """Returns paragraphs and items, each on one line, links without their targets."""
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|^#.*$", text, flags=re.MULTILINE)
    return [re.sub(r"\[([^][]*)\](?:\([^)]*\))?", r"\1", " ".join(part.split())) for part in parts]


def _split(part: str) -> Iterator[str]:
    yield from re.split(r"(?<=[.?!:;]) ", part)


def cells(page: str) -> Iterator[str]:
    """Yields `capability: what RAPTOR does` for each row of the tables with a column RAPTOR."""
    for table in re.findall(r"^\| capability \| RAPTOR \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            capability, ours, *_ = (cell.strip() for cell in row.strip("|").split("|"))
            yield f"{capability}: {ours}"


def registry() -> dict[str, dict[str, str]]:
    """Returns the test of each claim, by page and claim."""
    return tomllib.loads(REGISTRY.read_text())


def _speaks(name: str) -> bool:
    return name not in MADE and not name.startswith(PAST) and not (ROOT / name).read_text().startswith("{%")
