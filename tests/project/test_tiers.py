"""The table of tiers names tests that exist, and both tiers have cases."""

import pytest

from tests import tiers
from tests.paths import ROOT


class _Case:
    """Stand-in for a collected case: its id, and the marks that it gets."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.marks = nodeid, list[str]()

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


@pytest.mark.parametrize("file", tiers.TABLE)
def test_named_tests_exist(file: str):
    text = (ROOT / file).read_text()
    assert [test for test in tiers.TABLE[file] if f"\ndef {test}(" not in text] == []


@pytest.mark.parametrize(("quick", "left"), [(2, 3), (0, 5), (["1", "4"], 3)])
def test_some_cases_are_quick_and_the_others_thorough(quick: int, left: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiers, "TABLE", {"tests/a.py": {"test_b": quick}})
    cases = [_Case(f"tests/a.py::test_b[{i}]") for i in range(5)] + [_Case("tests/a.py::test_c[0]")]
    tiers.mark(cases)
    assert sum(case.marks == ["thorough"] for case in cases[:5]) == left
    assert cases[5].marks == []
