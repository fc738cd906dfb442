"""The wheel and the source archive, in fresh environments away from the checkout, and over the old distribution."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

import raptor
from tests.paths import ROOT

pytestmark = pytest.mark.release

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
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty directory to work in."""

    bin: Path
    folder: Path

    def run(self, command: str, *, status: int = 0, borrow: bool = False) -> str:
        """`borrow`: with the dependencies of the environment of the tests."""
        program, *args = command.split()
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"PYTHONPATH": sysconfig.get_path("purelib")} if borrow else {}
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
    assert all((packages / name / "py.typed").exists() for name in ("raptor", "validator", "models"))
    assert not any((packages / name).exists() for name in ("docgen", "tests", "benchmarks", "examples"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a wheel of the same sources by the old name of the distribution, with a module more."""
    folder = tmp_path_factory.mktemp("old")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "src" / name)
    project = folder / "src" / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "raptor-crossbar"', 'name = "raptor"'))
    (folder / "src" / "raptor" / "gone.py").write_text("")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, folder / "src"]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("raptor-*.whl"))


@pytest.fixture
def used(old: Path, tmp_path: Path) -> Environment:
    """An environment with the old distribution."""
    venv.create(tmp_path / "venv", with_pip=True)
    environment = Environment(tmp_path / "venv" / "bin", tmp_path / "work")
    environment.folder.mkdir()
    environment.run(f"{PIP} install --no-deps {old}")
    return environment


PIP = "python -m pip --quiet --disable-pip-version-check"
OLD_NAME = "is RAPTOR by its old name"


def check_clean(environment: Environment) -> None:
    """Only the new distribution is there, complete, and nothing of the old one."""
    packages = environment.run("python -m pip list --format freeze")
    assert "raptor-crossbar==" in packages
    assert "raptor==" not in packages
    assert OLD_NAME not in environment.run("raptor --version", borrow=True)
    environment.run("raptor models lenet5", borrow=True)
    environment.run("raptor compile lenet5.onnx --force", borrow=True)
    (site,) = environment.bin.parent.glob("lib/python*/site-packages")
    (record,) = site.glob("raptor_crossbar-*.dist-info/RECORD")
    assert all((site / line.rsplit(",", 2)[0]).exists() for line in record.read_text().splitlines())
    assert not (site / "raptor" / "gone.py").exists()


def test_the_new_distribution_after_the_old_one_was_removed(archives: Path, used: Environment) -> None:
    (wheel,) = archives.glob("*.whl")
    environment = used
    environment.run(f"{PIP} uninstall --yes raptor")
    environment.run(f"{PIP} install --no-deps {wheel}")
    check_clean(environment)


def test_the_new_distribution_over_the_old_one(archives: Path, used: Environment) -> None:
    """Both work, each command says what to do, and the commands of the page do it."""
    (wheel,) = archives.glob("*.whl")
    used.run(f"{PIP} install --no-deps {wheel}")
    said = used.run("raptor --version", borrow=True)
    assert f"raptor {raptor.__version__}\n" in said
    assert OLD_NAME in said
    used.run("raptor models mlp", borrow=True)
    used.run("raptor compile mlp.onnx", borrow=True)
    (commands,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "how-to" / "faq.md").read_text(), re.DOTALL)
    for command in commands.splitlines():
        assert all(part in said for part in re.findall(r"pip uninstall|--\w+-\w+", command))
        used.run(re.sub("^pip ", f"{PIP} ", re.sub(r"\.$", str(wheel), command)))
    check_clean(used)
