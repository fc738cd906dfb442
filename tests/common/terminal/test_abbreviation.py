"""Long names in tables: cut in the middle, one line each, no two alike."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raptor
from raptor.common.terminal.abbreviation import ELLIPSIS, MIN_NAME_WIDTH, abbreviate_names
from raptor.common.terminal.console import LiteralConsole
from raptor.compiler.analysis.inspection import inspect, show_inspection
from raptor.tools.cli import app
from tests.tiny_models import make_model, node, random

BERT = [
    f"/bert/encoder/layer.{k}/attention/self/{part}/MatMul_output_quantised"
    for k in range(24)
    for part in ("query", "key", "value", "dense")
]


def test_short_names_stay():
    assert abbreviate_names(["conv1", "fc"], 20) == {"conv1": "conv1", "fc": "fc"}


def test_a_cut_keeps_both_ends():
    assert abbreviate_names(["StatefulPartitionedCall/model/block_3_expand/Conv2D"], 21) == {
        "StatefulPartitionedCall/model/block_3_expand/Conv2D": f"StatefulPa{ELLIPSIS}and/Conv2D"
    }


def test_names_that_differ_in_the_middle_show_where():
    a, b = (f"model/a_long_way_to_the_block_{k}_and_back_again/Conv2D/convolution" for k in (4, 5))
    shown = abbreviate_names([a, b], 30)
    assert "4" in shown[a]
    assert "5" in shown[b]
    assert all(s.startswith("model/") and s.endswith("volution") and len(s) <= 30 for s in shown.values())


def test_names_that_differ_in_two_places_are_numbered():
    names = [f"{30 * 'p'}{a}{40 * 'q'}{b}{30 * 'r'}" for a in "01" for b in "012"]
    shown = abbreviate_names(names, 20)
    assert len(set(shown.values())) == 6
    assert sum("#" in s for s in shown.values()) == 4


@pytest.mark.parametrize("width", [10, 16, 24, 40, 60])
def test_no_two_are_alike(width: int):
    shown = abbreviate_names(BERT, width)
    assert len(set(shown.values())) == len(BERT)
    assert all(len(s) <= max(width, MIN_NAME_WIDTH) for s in shown.values())


@given(st.lists(st.text("ab/.é\n", max_size=60)), st.integers(0, 40))
def test_any_names(names: list[str], width: int):
    shown = abbreviate_names(names, width)
    assert set(shown) == set(names)
    assert len(set(shown.values())) == len(shown)
    assert all(len(s) <= max(width, MIN_NAME_WIDTH) for s in shown.values())


def _long() -> list[str]:
    stem = "StatefulPartitionedCall/sequential_1/mobilenet_v2/block_{}_expand_relu/Conv2D/ReadVariableOp/resource"
    return [stem.format(k) for k in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`m.onnx` with long names, compiled to `out` (and `out2`); 80 columns."""
    names = _long()
    tensors = ["x", *names[:-1], "y"]
    nodes = [
        node("Conv", f"{a} w{k}", b, name=n)
        for k, (a, b, n) in enumerate(zip(tensors[:-1], tensors[1:], names, strict=True))
    ]
    model = make_model(nodes, {"x": (1, 3, 8, 8)}, ["y"], {f"w{k}": random(3, 3, 1, 1, seed=k) for k in range(4)})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("m.onnx").write_bytes(model.SerializeToString())
    program = raptor.compile("m.onnx", cores=8)
    program.save("out")
    raptor.compile("m.onnx", cores=8, xbar=64).save("out2")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        app.main(list(args))
    assert not stopped.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(("command", "lines"), [("inspect m.onnx", 4), ("explain out", 4), ("simulate out", 1)])
def test_a_row_is_a_line_at_80_columns(folder: Path, capsys: pytest.CaptureFixture[str], command: str, lines: int):
    printed = run(capsys, *command.split()).splitlines()
    rows = [line for line in printed if ELLIPSIS in line]
    assert len(rows) >= lines
    assert all(len(line.rstrip()) <= 80 for line in rows)
    assert all("Sta" in line and line.count(ELLIPSIS) in (1, 2) for line in rows)


@pytest.mark.parametrize("command", ["inspect m.onnx", "explain out", "simulate out"])
def test_json_has_the_whole_names(folder: Path, capsys: pytest.CaptureFixture[str], command: str):
    found = run(capsys, *command.split(), "--json", "-")
    json.loads(found)
    assert all(name in found for name in _long()[:1])
    assert ELLIPSIS not in found


def test_the_page_has_the_whole_names(folder: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, "report", "out", "-o", "page.html")
    page = Path("page.html").read_text()
    assert all(name in page for name in _long())


def test_compared_outputs(folder: Path, capsys: pytest.CaptureFixture[str]):
    printed = run(capsys, "compare", "out", "out2")
    assert ELLIPSIS in next(line for line in printed.splitlines() if "slowest layer" in line)


def test_a_table_of_the_validator_on_a_terminal(folder: Path):
    from validator.judge.validation_report import show as show_verdict
    from validator.validate import validate

    console = LiteralConsole()
    console.file = io.StringIO()
    console._force_terminal = True  # pyright: ignore[reportPrivateUsage] there is no other way to a terminal's table
    show_verdict(validate(Path("out"), layers=True), console)
    rows = [line for line in console.file.getvalue().splitlines() if "1x3x8x8" in line]
    assert len(rows) == 5
    assert all(ELLIPSIS in line for line in rows[:3])


def test_a_wide_terminal_shows_whole_names(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "250")
    console = LiteralConsole()
    console.file = io.StringIO()
    show_inspection(inspect("m.onnx"), console)
    assert all(name in console.file.getvalue() for name in _long())
