"""ONNX's backend suite, compiled and executed: a sample of it here, all by `make conformance`.

A case in passing.txt must pass; one that is not may. `make conformance` adds to the list what passes now.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance import suite, table

SAMPLE = frozenset(suite.sample(110))


def _parameters() -> list[pytest.param]:  # pyright: ignore[reportInvalidTypeForm]
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(name, marks=marks[name in SAMPLE]) for name in suite.cases()]


@pytest.mark.conformance
@pytest.mark.parametrize("name", _parameters())
@pytest.mark.filterwarnings("ignore")  # those of the suite's own code
def test_case(name: str, tmp_path: Path) -> None:
    outcome = suite.run(suite.cases()[name], tmp_path)
    if outcome.reason and name not in suite.passing():
        pytest.xfail(outcome.reason)
    assert not outcome.reason


def test_sample_has_every_operator_and_is_small() -> None:
    ops = Counter(case.ops for name, case in suite.cases().items() if name in SAMPLE)
    assert set(ops) == {case.ops for case in suite.cases().values() if case.category != "real"}
    assert 100 <= len(SAMPLE) <= 150


def test_enough_cases_pass() -> None:
    assert len(suite.cases()) == 440
    assert suite.passing() <= set(suite.cases())
    assert len(suite.passing()) >= table.GOAL


def test_table_agrees_with_the_list() -> None:
    text = table.PAGE.read_text()
    assert f"{len(suite.passing())} of {len(suite.cases())} cases pass" in text
    for name in set(suite.cases()) - suite.passing():
        assert f"`{name}`" in text
