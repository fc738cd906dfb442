"""ONNX's backend suite, compiled and executed: the selected cases, and some of all others.

A case in passing.txt must pass, no other may: `make conformance` writes the list and docs/reference/conformance.md
anew.
"""

import random
from pathlib import Path

import pytest

from tests.conformance import nodes, suite, table

SELECTED, HOSTED = 20, 5
NETWORKS = ("densenet121", "vgg19", "resnet50", "zfnet512", "bvlc_alexnet", "inception_v1", "inception_v2")
"""Networks of full size, which take 5 to 40 s each."""
LARGE = {f"test_{name}" for name in NETWORKS}


@pytest.mark.conformance
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in suite.cases()])
@pytest.mark.filterwarnings("ignore")  # those of the suite's own code
def test_case(name: str, tmp_path: Path) -> None:
    outcome = suite.run(suite.cases()[name], tmp_path)
    if name in suite.passing():
        assert not outcome.reason
        return
    assert outcome.reason, f"{name} passes now: make conformance"
    pytest.xfail(outcome.reason)


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")
def test_a_selection_of_the_other_node_cases_passes() -> None:
    others = sorted((suite.passing() & nodes.node_cases().keys()) - suite.cases().keys())
    assert len(others) > 500
    for name in random.Random(0).sample(others, SELECTED):
        assert not nodes.run_node(name), name


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")
def test_a_selection_passes_with_the_host() -> None:
    hosted = sorted(suite.hosted())
    assert len(hosted) > 50
    assert suite.hosted().isdisjoint(suite.passing())
    for name in random.Random(0).sample(hosted, HOSTED):
        assert not nodes.run_with_host(name), name


def test_enough_cases_pass() -> None:
    assert set(suite.cases()) >= LARGE
    assert len(suite.cases()) == 440
    assert len(suite.passing() & suite.cases().keys()) >= table.GOAL


def test_table_agrees_with_the_list() -> None:
    text = table.PAGE.read_text()
    passed = suite.passing() & nodes.node_cases().keys()
    assert f"{len(passed)} of {len(nodes.node_cases())} cases" in text
    assert f"With `host=True`, {len(passed | suite.hosted())} pass" in text
    for name in nodes.node_cases().keys() - passed:
        assert f"`{name.removeprefix('test_')}`" in text


def test_reasons_are_told_without_names_and_numbers() -> None:
    one = (
        "UnsupportedError: 1 node cannot be compiled: Cast -> y.7 (Cast): its input 'a' is int8, which it does not take"
    )
    other = "UnsupportedError: 2 nodes cannot be compiled: c (Cast): its input 'b' is int16, which it does not take"
    assert table.kind_of(one) == table.kind_of(other) == "Cast: its input an input is intN, which it does not take"
