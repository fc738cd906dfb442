"""CONTRIBUTING.md's steps for a rewrite of the graph: in a copy of the sources, they are enough."""

from pathlib import Path

import onnx
import pytest

from tests.project.recipes.recipe import copied, followed, run
from tests.tiny_models import make_model, node, random


@pytest.mark.slow
def test_a_rewrite_is_added_by_following_the_page(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r", name="one"), node("Relu", "r", "y", name="two")]
    onnx.save(make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], {"w": random(2, 3, 3, 3)}), tmp_path / "model.onnx")
    sources = copied(tmp_path / "sources")
    followed(sources, "A rewrite of the graph, step by step")

    run(sources, ["-m", "raptor", "compile", "model.onnx", "--dump-ir", "ir"], folder=tmp_path)
    before, after = ((tmp_path / "ir" / name).read_text() for name in ("00-load.txt", "01-drop_repeated_relus.txt"))
    assert (before.count("relu"), after.count("relu")) == (2, 1)
    assert "PASS" in run(sources, ["-m", "raptor", "validate", "out"], folder=tmp_path)

    goldens = ["tests/transforms/test_goldens.py", "tests/compiler/test_passes.py"]
    tests = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    run(sources, [*tests, "--update-golden", *goldens])
    run(sources, [*tests, *goldens, "tests/compiler/test_pipeline.py"])
    run(sources, ["-m", "ruff", "check", "raptor", "tests/transforms"])
