"""The script and the workflow of docs/how-to/ci.md do what the page says."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
import yaml

from tests.paths import ROOT
from tests.pipeline import conv_model
from tests.project.documents import blocks
from tests.tiny_models import make_model, node

PAGE = (ROOT / "docs" / "how-to" / "ci.md").read_text()


def _only(language: str) -> str:
    (block,) = [block.body for block in blocks(PAGE) if block.language == language]
    return block


RIGHT = {"a-small": conv_model((1, 2, 4, 4), 2), "c-large": conv_model((1, 4, 12, 12), 200)}


@pytest.mark.parametrize("right", [["c-large"], pytest.param(["a-small", "c-large"], marks=pytest.mark.slow)])
def test_the_workflow_runs_the_script(right: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be compiled lies before the last: that one is done still, and the job fails."""
    (job,) = yaml.safe_load(_only("yaml"))["jobs"].values()
    install, check = (step["run"] for step in job["steps"] if "run" in step)
    (kept,) = [step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert install.startswith("pip install ")
    (tmp_path / "models").mkdir()
    refused = make_model([node("Bernoulli", "x", "y")], {"x": (1, 4)}, ["y"])
    for name, model in {"b refused": refused, **{name: RIGHT[name] for name in right}}.items():
        onnx.save(model, tmp_path / "models" / f"{name}.onnx")
    (tmp_path / "check_models.sh").write_text(_only("sh"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    ended = subprocess.run(["sh", "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "FAIL  models/b refused.onnx" in ended.stdout
    assert "slowest: c-large" in ended.stdout
    wanted = {"slowest.html", "largest.html", *(f"{name}.xml" for name in right)}
    assert {path.name for path in (tmp_path / kept).iterdir()} == wanted
    for name in right:
        suites = ElementTree.parse(tmp_path / kept / f"{name}.xml").getroot()
        assert (suites.get("tests"), suites.get("failures")) == ("1", "0")
