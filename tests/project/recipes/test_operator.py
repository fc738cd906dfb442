"""CONTRIBUTING.md's steps for an ONNX operator: in a copy of the sources, they are enough."""

from pathlib import Path

import onnx
import pytest

from tests.project.recipes.recipe import copied, followed, run
from tests.tiny_models import make_model, node, random

SECTION = "An ONNX operator, step by step"

TESTS = "tests/frontend/operators/elementwise/test_activations.py", "tests/frontend/test_operator_page.py"
CHOSEN = "Shrink or page or described"
"""Tests that the page asks for, and tests that fail when a step is left out."""
DRAWN = """
from random import Random
from tests.all_graphs.cases import build
assert any(n.op_type == "Shrink" for seed in range(200) for n in build(Random(seed), "elementwise").nodes)
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return copied(tmp_path / "sources")


@pytest.mark.slow
def test_an_operator_is_added_by_following_the_page(sources: Path, tmp_path: Path):
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Shrink", "c", "y", lambd=0.75, bias=0.25)]
    onnx.save(make_model(nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": random(4, 3, 3, 3)}), tmp_path / "model.onnx")
    compile_ = ["-m", "raptor", "compile", "model.onnx", "--cores", "8", "--xbar", "32"]
    refused = run(sources, compile_, status=2, folder=tmp_path)
    assert "my_shrink (Shrink): not supported" in refused, "RAPTOR has it: take another operator for the example"

    followed(sources, SECTION)

    run(sources, compile_, folder=tmp_path)
    assert "PASS" in run(sources, ["-m", "raptor", "validate", "out", "--layers"], folder=tmp_path)
    refused = run(sources, [*compile_, "--isa", "base", "--force"], status=2, folder=tmp_path)
    assert "(Shrink): needs the extended instruction vvdiv" in refused
    run(sources, ["-m", "docgen"])
    assert "| Shrink | 9 |" in (sources / "docs" / "reference" / "operators.md").read_text()
    run(sources, ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS])
    run(sources, ["-c", DRAWN])
