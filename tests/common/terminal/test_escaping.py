"""Names are shown as they are, on a terminal and in a pipe: they are no markup, and nothing they hold acts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import raptor
import validator
from raptor.common.terminal.escaping import escape_unprintable
from raptor.tools.cli import app

SHOWN = {
    "[/red]": "[/red]",
    "[red]x": "[red]x",
    "a[i]": "a[i]",
    ":cat:": ":cat:",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x1b[2J": r"\x1b[2J",
    "y\nPASS": r"y\nPASS",
    "\u202egnp": r"\u202egnp",
    "é ü": "é ü",
}
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = {
    "inspect": ("inspect", "odd.onnx", "--xbar", "8"),
    "validate": ("validate", "[/b]", "--layers"),
    "explain": ("explain", "[/b]"),
    "stop after a pass": ("compile", "odd.onnx", "--xbar", "8", "--cores", "4", "--stop-after", "load"),
    "check": ("check", "[/b]"),
    "simulate": ("simulate", "[/b]"),
    "compare": ("compare", "[/b]", "[/b]"),
    "report": ("report", "[/b]"),
}
NAMING = ("inspect", "validate", "explain")
"""Commands that show every name in a table or on a separate line."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chain of products, each with one of the names, and what it compiles to."""
    folder = tmp_path_factory.mktemp("odd")
    draw = np.random.default_rng(0)
    weights = [draw.standard_normal((4, 4)).astype(np.float32) for _ in SHOWN]
    tensors = ["x", *SHOWN]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [a, f"w{b}"], [b], b) for a, b in zip(tensors[:-1], SHOWN, strict=True)],
        "[/graph]\x1b[2J",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in SHOWN],
        [numpy_helper.from_array(w, f"w{name}") for w, name in zip(weights, SHOWN, strict=True)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "odd.onnx")
    with pytest.raises(SystemExit) as stopped:
        app.main(["compile", str(folder / "odd.onnx"), "--xbar", "8", "--cores", "4", "-o", str(folder / "[" / "b]")])
    assert not stopped.value.code
    return folder


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("command", COMMANDS)
def test_names_are_shown_as_they_are(
    command: str, terminal: bool, odd: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(odd)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    with pytest.raises(SystemExit) as stopped:
        app.main([*COMMANDS[command]])
    seen = capfd.readouterr()
    text = STYLE.sub("", seen.out)
    assert not stopped.value.code, seen.err
    assert escape_unprintable(text) == text
    for name in SHOWN.values() if command in NAMING else ():
        assert name in text


def test_nothing_is_printed_past_it() -> None:
    sources = [path for part in (raptor, validator) for path in Path(part.__path__[0]).rglob("*.py")]
    assert [path.name for path in sources if re.search(r"rich(\.| import )console", path.read_text())] == ["console.py"]


def test_spaces_of_any_width_are_no_danger() -> None:
    assert escape_unprintable("17.8\u00a0%\n") == "17.8\u00a0%\n"
    assert escape_unprintable("a\u2028b\x9bc\td\r", keep="") == r"a\u2028b\x9bc\td\r"


def test_a_terminal_without_the_letters(odd: Path) -> None:
    """JSON is UTF-8 whatever encoding the terminal has."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "250"}
    command = [
        sys.executable,
        "-c",
        "import raptor.tools.cli.app; raptor.tools.cli.app.main()",
        "inspect",
        "odd.onnx",
        "--xbar",
        "8",
    ]
    shown = subprocess.run(command, cwd=odd, env=environment, capture_output=True, check=True)
    assert rb"\xe9 \xfc" in shown.stdout
    told = subprocess.run([*command, "--json", "-"], cwd=odd, env=environment, capture_output=True, check=True)
    assert json.loads(told.stdout.decode())["layers"][-1]["node"] == "é ü"


@pytest.mark.parametrize("command", ["inspect", "compile", "validate", "report"])
def test_a_path_that_is_no_text(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        app.main([command, os.fsdecode(b"m\xff.onnx")])
    assert stopped.value.code == 2
    assert r"raptor: error: m\udcff.onnx: not UTF-8" in capfd.readouterr().err
