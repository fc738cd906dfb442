"""Script written by `raptor --install-completion`, run by the bash that would use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raptor.compiler.compilation import PASS_OPTION

COMPLETE = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_raptor_completion raptor
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that bash reads."""
    home = tmp_path_factory.mktemp("home")
    _bash("raptor --install-completion bash || exit 1", home)  # the shell is looked for among the parents
    (written,) = (home / ".bash_completions").iterdir()
    assert str(written) in (home / ".bashrc").read_text()
    return written


def _bash(command: str, home: Path, *args: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(home)}
    return subprocess.run(
        ["bash", "-c", command, "bash", *args], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("raptor sim", {"simulate"}),
        ("raptor compile --xb", {"--xbar", "--xbars-per-core"}),
        ("raptor compile m.onnx --mapping rap", {"raptor"}),
        ("raptor compile m.onnx --format p", {"pim"}),
        ("raptor compile m.onnx --optimize th", {"throughput"}),
        ("raptor compile m.onnx --isa b", {"base"}),
        ("raptor compile m.onnx --stop-after p", {p for p in PASS_OPTION.choices if p.startswith("p")}),
        ("raptor quantize m.onnx --scheme p", {"pow2"}),
        ("raptor models resnet", {"resnet18", "resnet34", "resnet50", "resnet8"}),
        ("raptor arch show isaa", {"isaac"}),
        ("raptor simulate out --mode thr", {"throughput"}),
    ],
)
def test_bash_is_offered(script: Path, line: str, offered: set[str]) -> None:
    assert set(_bash(COMPLETE, script.parent, str(script), *line.split()).split()) == offered
