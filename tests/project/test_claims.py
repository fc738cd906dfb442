"""Every claim of the pages about RAPTOR names a test that would fail if it became untrue (tests/project/claims.py)."""

import ast
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.paths import ROOT
from tests.project.claims import COMPARISON, cells, claims, registry, sentences

PLANTED = """# A page

It compiles models. RAPTOR does not compile [loops](loops.md)
that data ends. Models of
strings are refused.

- `raptor check` has no limit.
- The simulator has no limit, and pimsim-nn never ends.

| not | RAPTOR does not |
|---|---|

```text
RAPTOR cannot do this
```
"""


def problems(said: Mapping[str, Sequence[str]], known: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Yields the claims without a test, and the tests of what no page says."""
    for page in said.keys() | known.keys():
        yield from (f"{page} claims, without a test: {s}" for s in said.get(page, ()) if s not in known.get(page, {}))
        yield from (f"{page} does not say any more: {s}" for s in known.get(page, {}) if s not in said.get(page, ()))


def named(known: Mapping[str, Mapping[str, str | Sequence[str]]]) -> set[str]:
    """Returns all tests of a registry."""
    entries = [tests for page in known.values() for tests in page.values()]
    return {test for tests in entries for test in ([tests] if isinstance(tests, str) else tests)}


def missing(test: str) -> bool:
    """Tells whether pytest would find no such test, or leave it out."""
    name, _, function = test.partition("::")
    path = ROOT / name
    if not (path.is_file() and path.name.startswith("test_") and function.startswith("test_")):
        return True
    found = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == function]
    return len(found) != 1 or "skip" in "".join(map(ast.unparse, found[0].decorator_list))


def test_every_claim_has_a_test_and_every_test_a_claim() -> None:
    assert sorted(problems(claims(), registry())) == []


def test_the_tests_exist() -> None:
    assert [test for test in sorted(named(registry())) if missing(test)] == []


def test_a_claim_without_a_test_is_told() -> None:
    page, known = "a-page.md", {"a-page.md": {"Models of strings are refused.": "t", "It is gone.": "t"}}
    assert sorted(problems({page: list(sentences(PLANTED))}, known)) == [
        "a-page.md claims, without a test: - `raptor check` has no limit.",
        "a-page.md claims, without a test: RAPTOR does not compile loops that data ends.",
        "a-page.md does not say any more: It is gone.",
    ]


def test_a_test_that_is_not_there_is_told() -> None:
    here = "tests/project/test_claims.py::test_the_tests_exist"
    gone, no_test = "tests/project/test_claims.py::test_of_nothing", "tests/project/claims.py::cells"
    known = {"a page": {"a": here, "b": [here, gone], "c": no_test}}
    assert {test for test in named(known) if missing(test)} == named(known) - {here}


def test_every_row_of_the_comparison_is_a_claim() -> None:
    page = (ROOT / COMPARISON).read_text()
    found = list(cells(page))
    assert len(found) == sum(line.startswith("| ") for line in page.splitlines()) - page.count(
        "| capability | RAPTOR |"
    )
    changed = page.replace("| training | under errors of cells, of classifiers |", "| training | a little |")
    assert set(cells(changed)) - set(found) == {"training: a little"}


def test_what_others_do_has_a_source() -> None:
    """Each cell about another tool names a source that the page lists with its address, or says "not known"."""
    page = (ROOT / COMPARISON).read_text()
    rows = [
        line.strip("|").split("|")[2:]
        for line in page.splitlines()
        if line.startswith("| ") and "capability" not in line
    ]
    assert len(rows) > 30
    for cell in (cell.strip() for row in rows for cell in row):
        marks = [mark for mark in ("".join(pair) for pair in SOURCES) if f"[{mark}]" in cell]
        assert marks or cell == "not known", cell
        assert all(f"\n[{mark}]: https://" in page and page.count(f"[{mark}]") > 2 for mark in marks), cell


SOURCES = [(letter, digit) for letter in "ACFHILMNOPSUXZ" for digit in "1234"]


@pytest.mark.parametrize("page", sorted(registry()))
def test_a_page_of_the_registry_is_there(page: str) -> None:
    assert (ROOT / page).is_file()
