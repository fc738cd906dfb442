"""Command `raptor quantize`: the file, the table, the JSON."""

import json
from pathlib import Path

import onnx
import pytest

import raptor
from raptor.tools.cli import app
from tests.tools.quantise.support import small_cnn, transformer


def call(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(["quantize", *words])
    assert not ended.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_cnn(), "model.onnx")
    return tmp_path


def test_it_writes_what_python_returns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("model.onnx", "-o", "int8.onnx", "--scheme", "u8s8", "--samples", "3", "--per-channel", "--json", "found.json")
    found = raptor.quantize("model.onnx", scheme="u8s8", samples=3, per_channel=True)
    assert Path("int8.onnx").read_bytes() == found.onnx_bytes
    assert json.loads(Path("found.json").read_bytes()) == json.loads(found.report.model_dump_json())
    assert "int8.onnx: 0.01 MB" in capsys.readouterr().out


def test_the_default_name(folder: Path) -> None:
    call("model.onnx", "--quiet")
    assert Path("model-quantised.onnx").is_file()


def test_the_worst_layers_come_first(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    call("model.onnx", "--all")
    printed = capsys.readouterr().out
    table, _, _ = printed.partition("\nSNR: ")  # the legend may take two lines
    rows = [line.split() for line in table.splitlines()[2:]]
    ratios = [float(row[-1]) for row in rows]
    assert ratios == sorted(ratios)
    assert len(ratios) == 8


def test_only_some_layers_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(transformer(), "large.onnx")
    call("large.onnx", "--samples", "1")
    printed = capsys.readouterr().out
    layers = raptor.quantize("large.onnx", samples=1).report.layers
    assert f"and {len(layers) - 10} more: --all" in printed
    assert "left in float: " in printed
    call("large.onnx", "--samples", "1", "--all", "--force")
    assert "more: --all" not in capsys.readouterr().out


def test_json_on_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("model.onnx", "--json", "-")
    assert json.loads(capsys.readouterr().out)["model"] == "model"
