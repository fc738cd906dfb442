"""The text after every pass of a tiny network, by the default mapping. `make goldens` writes the texts anew."""

import difflib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from onnx import ModelProto

import raptor
from raptor.compiler.pass_driver import Driver
from tests.paths import GOLDEN
from tests.tiny_models import make_model, node, random

TEXTS = GOLDEN / "passes"
ORDER = "PASSES.txt"
"""Names of the passes, in the order they run; the other files do not have numbers, so a new pass changes few."""


def residual() -> ModelProto:
    """A convolution and its Relu, a pool, a branch that is added, a fully connected layer."""
    nodes = [
        node("Conv", "x w b", "c", name="conv", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r", name="relu"),
        node("MaxPool", "r", "p", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "d", name="branch", pads=[1, 1, 1, 1]),
        node("Add", "d p", "s", name="add"),
        node("Flatten", "s", "f", name="flatten"),
        node("Gemm", "f u g", "y", name="fc", transB=1),
    ]
    constants = {"w": random(3, 2, 3, 3), "b": random(3), "v": random(3, 3, 3, 3), "u": random(2, 12), "g": random(2)}
    return make_model(nodes, {"x": (1, 2, 4, 4)}, {"y": 2}, constants)


def dumped(folder: Path) -> dict[str, str]:
    """The text of each pass by the name of its file."""
    program = raptor.compile(residual(), xbar=16, xbars_per_core=4, cores=4, driver=Driver(dump=folder))
    assert program.report.cores_used > 1, "messages between cores are part of the texts"
    texts = {path.name.partition("-")[2]: path.read_text() for path in sorted(folder.iterdir())}
    return {ORDER: "".join(f"{name.removesuffix('.txt')}\n" for name in texts), **texts}


def write(texts: Mapping[str, str]) -> None:
    """Writes all texts; those of passes that no longer exist are deleted."""
    shutil.rmtree(TEXTS, ignore_errors=True)
    TEXTS.mkdir(parents=True)
    for name, text in texts.items():
        (TEXTS / name).write_text(text)


def changes(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yields the differences, each file with its lines."""
    for name in sorted(was.keys() | now.keys()):
        if name not in now:
            yield f"{name}: no pass of this name"
        elif name not in was:
            yield f"{name}: a new pass"
        elif was[name] != now[name]:
            lines = (was[name].splitlines(), now[name].splitlines())
            yield "\n".join([f"{name}: differs", *difflib.unified_diff(*lines, name, "now", lineterm="")])


def test_the_text_after_every_pass(request: pytest.FixtureRequest, tmp_path: Path):
    now = dumped(tmp_path / "ir")
    if request.config.getoption("--update-golden"):
        write(now)
        return
    found = list(changes({path.name: path.read_text() for path in TEXTS.glob("*.txt")}, now))
    if found:
        pytest.fail(f"{TEXTS} (if that is right: make goldens):\n" + "\n".join(found), pytrace=False)


def test_a_change_is_told_by_file():
    was, now = (
        {"a.txt": "1\n2\n", "b.txt": "3\n", "same.txt": "4\n"},
        {"a.txt": "1\n5\n", "c.txt": "", "same.txt": "4\n"},
    )
    text = "\n".join(changes(was, now))
    assert text.splitlines() == [
        *("a.txt: differs", "--- a.txt", "+++ now", "@@ -1,2 +1,2 @@", " 1", "-2", "+5"),
        "b.txt: no pass of this name",
        "c.txt: a new pass",
    ]
