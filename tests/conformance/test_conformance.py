"""ONNX's backend suite, compiled and executed, all of it.

A case in passing.txt must pass, no other may: `make conformance` writes the list and docs/conformance.md anew.
"""

from pathlib import Path

import pytest

from tests.conformance import suite, table


@pytest.mark.conformance
@pytest.mark.parametrize("name", suite.cases())
@pytest.mark.filterwarnings("ignore")  # those of the suite's own code
def test_case(name: str, tmp_path: Path) -> None:
    outcome = suite.run(suite.cases()[name], tmp_path)
    if name in suite.passing():
        assert not outcome.reason
        return
    assert outcome.reason, f"{name} passes now: make conformance"
    pytest.xfail(outcome.reason)


def test_enough_cases_pass() -> None:
    assert len(suite.cases()) == 440
    assert suite.passing() <= set(suite.cases())
    assert len(suite.passing()) >= table.GOAL


def test_table_agrees_with_the_list() -> None:
    text = table.PAGE.read_text()
    assert f"{len(suite.passing())} of {len(suite.cases())} cases pass" in text
    for name in set(suite.cases()) - suite.passing():
        assert f"`{name}`" in text
