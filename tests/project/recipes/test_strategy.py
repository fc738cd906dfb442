"""CONTRIBUTING.md's steps for a mapping strategy: in a copy of the sources, they are enough."""

from pathlib import Path

import onnx
import pytest

from tests.pipeline import conv_model
from tests.project.recipes.recipe import copied, followed, run

SECTION = "A mapping strategy, step by step"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return copied(tmp_path / "sources")


@pytest.mark.slow
def test_a_strategy_is_added_by_following_the_page(sources: Path, tmp_path: Path):
    onnx.save(conv_model((1, 3, 12, 12), 4), tmp_path / "model.onnx")
    compile_ = ["-m", "raptor", "compile", "model.onnx", "--cores", "8", "--xbar", "32", "--mapping"]
    refused = run(sources, [*compile_, "few_cores"], status=2, folder=tmp_path)
    assert "few_cores" in refused
    assert "rows, raptor, pixelwise" in refused

    followed(sources, SECTION)

    run(sources, [*compile_, "few_cores", "--emit-mapping", "mapping.json"], folder=tmp_path)
    assert "PASS" in run(sources, ["-m", "raptor", "validate", "out"], folder=tmp_path)
    assert "few_cores" in run(sources, ["-m", "raptor", "explain", "out"], folder=tmp_path)
    run(sources, [*compile_, "mapping.json", "-o", "again"], folder=tmp_path)
    streams = [{p.name: p.read_bytes() for p in (tmp_path / out).glob("core_*")} for out in ("out", "again")]
    assert streams[0] == streams[1]
    tests = ["tests/mapping/test_row_mapping.py", "-k", "few_cores"]
    run(sources, ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests])
