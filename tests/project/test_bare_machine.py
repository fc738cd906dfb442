"""Machines without a browser, a locale with letters, or a home to write in: all is not needed, or an error names it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.paths import ROOT
from tests.tiny_models import make_model, node, random

IN_A_BROWSER = "tests/tools/reporting/test_report_page.py"
"""Tests that need a browser, all of them."""


def suite(*arguments: str, **surroundings: str) -> subprocess.CompletedProcess[str]:
    """Runs a part of the tests in a separate process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | surroundings, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_without_a_browser_its_tests_are_skipped_and_the_last_line_says_so(workers: str, tmp_path: Path) -> None:
    ended = suite(IN_A_BROWSER, "-n", workers, PATH=str(tmp_path))
    assert ended.returncode == 0, ended.stdout
    *_, sentence, counts = ended.stdout.splitlines()
    count = counts.split()[0]
    assert f"{count} skipped" in counts
    assert "passed" not in counts
    assert f"{count} tests that open pages were skipped: no Chromium" in sentence
    assert "`apt-get install chromium chromium-driver`" in sentence


def test_who_demands_the_browser_and_has_none_fails(tmp_path: Path) -> None:
    ended = suite(IN_A_BROWSER, "-n", "0", "-x", "--browser=required", PATH=str(tmp_path))
    assert ended.returncode == 1, ended.stdout
    assert "--browser=required, but there is no Chromium" in ended.stdout
    assert "skipped" not in ended.stdout


def test_continuous_integration_demands_it() -> None:
    (line,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make test")]
    plan = subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--browser=required" in plan


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    listed = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()
    assert [line.split()[0] for line in listed.splitlines()] == [
        name for name in re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE) if name in phony
    ]
    assert len(phony) == len(listed.splitlines())


COMMANDS = (
    "arch new --cores 4 --xbar 8 -o chip.json",
    "arch check chip.json",
    "compile model.onnx --arch chip.json --dump-ir ir",
    "compile model.onnx --arch chip.json --stop-after load",
    "validate out --layers",
    "simulate out --trace trace.json",
    "report out",
)


def test_neither_locale_nor_home(tmp_path: Path) -> None:
    """ASCII only, which Python would replace by UTF-8 by itself, and a home that is not there."""
    model = make_model([node("MatMul", "x w", "y", name="é")], {"x": (1, 4)}, ["y"], {"w": random(4, 4)})
    onnx.save(model, tmp_path / "model.onnx")
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    bare["PYTHONCOERCECLOCALE"] = "0"
    for command in COMMANDS:
        ended = subprocess.run(
            [sys.executable, "-m", "raptor", *command.split()], cwd=tmp_path, env=bare, capture_output=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, b""), (command, ended)
    assert "# é" in (tmp_path / "ir" / "00-load.txt").read_text(encoding="utf-8")
    assert '"é: store' in (tmp_path / "trace.json").read_text(encoding="utf-8")
