"""CONTRIBUTING.md's steps for an operation: in a copy of the sources, they are enough."""

from pathlib import Path

import onnx
import pytest

from tests.project.recipes.recipe import copied, followed, run
from tests.tiny_models import make_model, node, random

SECTION = "An operation, step by step"
TESTS = "tests/spatial/test_operations.py", "tests/codegen/pimsim/test_emit.py"
CHOSEN = "told or emitter or square"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return copied(tmp_path / "sources")


@pytest.mark.slow
def test_an_operation_is_added_by_following_the_page(sources: Path, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Mul", "c c", "s"), node("Relu", "s", "y")]
    onnx.save(make_model(nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": random(4, 3, 3, 3)}), tmp_path / "model.onnx")
    compile_ = ["-m", "raptor", "compile", "model.onnx", "--cores", "8", "--xbar", "32"]
    stopped = [*compile_, "--stop-after", "allocate"]
    assert "pim.square" not in run(sources, stopped, folder=tmp_path)

    followed(sources, SECTION)

    text = run(sources, stopped, folder=tmp_path)
    assert "pim.square" in text
    assert "pim.vmul" not in text
    run(sources, compile_, folder=tmp_path)
    assert "PASS" in run(sources, ["-m", "raptor", "validate", "out", "--layers"], folder=tmp_path)
    run(sources, ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS])
