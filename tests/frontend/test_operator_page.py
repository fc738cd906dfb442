"""docs/reference/operators.md says what the code does."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from raptor.common.errors import RaptorError
from raptor.frontend import load, operator_page
from raptor.frontend.registry import importers
from raptor.graph.ir import (
    EXTENDED_FUNCTIONS,
    Graph,
    Map,
    Softmax,
)
from tests.conformance import suite
from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "operators.md"


def test_page_is_up_to_date() -> None:
    """Run `make docs-generate` if this fails."""
    assert PAGE.read_text() == "".join(operator_page.generate_page())


def test_every_operator_is_described() -> None:
    for found in importers():
        assert found.summary.endswith((".", "...")), found.op_type
    assert set(operator_page.EXTENDED_NEEDS) <= {found.op_type for found in importers()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_extended_instructions_are_those_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Imports the cases of ONNX's suite, and so every operator."""
    used: defaultdict[str, set[str]] = defaultdict(set)

    def record(*args: object, **kwargs: object) -> None:
        _collect(load(*args, **kwargs).graph, used)  # pyright: ignore[reportArgumentType]
        raise RaptorError("seen")

    monkeypatch.setattr("raptor.frontend.load", record)
    for case in suite.cases().values():
        if case.category != "real":
            suite.run(case, tmp_path)
    assert len(used) > 5
    for op_type, functions in used.items():
        described = set(re.findall(r"\w+", operator_page.EXTENDED_NEEDS.get(op_type, "")))
        assert functions <= described, op_type


def _collect(graph: Graph, used: defaultdict[str, set[str]]) -> None:
    for node in graph.nodes:
        if isinstance(node.operator, Softmax):
            used[node.op_type].add("softmax")
        elif isinstance(node.operator, Map) and node.operator.function in EXTENDED_FUNCTIONS:
            used[node.op_type].add(node.operator.function)
