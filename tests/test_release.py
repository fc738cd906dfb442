"""The wheel and the source archive, each alone in a fresh environment, away from the checkout."""

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

import raptor

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[1]
COMMANDS = """
raptor --version
raptor models
raptor models lenet5
raptor inspect lenet5.onnx --json inspected.json
raptor compile lenet5.onnx --mapping rows
raptor validate out --layers
raptor simulate out --json simulated.json
raptor check out
raptor arch list
raptor arch show isaac
raptor arch new -o chip.json --from pimcomp --cores 4
raptor compile lenet5.onnx --arch chip.json -o other
python -m raptor.schemas schemas
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty directory to work in."""

    bin: Path
    folder: Path

    def run(self, command: str, *, status: int = 0) -> str:
        program, *args = command.split()
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        ended = subprocess.run(
            [self.bin / program, *args], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == status, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_an_archive_is_enough(archives: Path, pattern: str, tmp_path: Path) -> None:
    (archive,) = archives.glob(pattern)
    assert raptor.__version__ in archive.name
    venv.create(tmp_path / "venv", with_pip=True)
    environment = Environment(tmp_path / "venv" / "bin", tmp_path / "work")
    environment.folder.mkdir()
    environment.run(f"python -m pip install --quiet --disable-pip-version-check {archive}")
    for command in COMMANDS.strip().splitlines():
        environment.run(command)
    for name in ("models", "validator"):  # as in a project that uses PyTorch; `raptor` does not look there
        (environment.folder / f"{name}.py").write_text("class Net: ...\n")
    environment.run("raptor models mlp --option width=0.1")
    assert f"{environment.folder / 'validator.py'} is in the way" in environment.run("python -m raptor -V", status=2)
    (environment.folder / "validator.py").unlink()
    assert f"{environment.folder / 'models.py'} is in the way" in environment.run("python -m raptor models", status=2)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    assert json.loads((environment.folder / "simulated.json").read_text())["latency_ns"] > 0
    assert len(list((environment.folder / "schemas").iterdir())) >= 7
    assert all((packages / name / "py.typed").exists() for name in ("raptor", "validator", "models"))
    assert not any((packages / name).exists() for name in ("docgen", "tests", "benchmarks", "examples"))
