"""A user's own `models` or `validator` beside the script: RAPTOR says which file is in its way."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raptor
from tests.paths import ROOT
from tests.pipeline import thesis_model

FORMS = {"module": "{}.py", "package": "{}/__init__.py"}
COMMANDS = ("raptor models lenet5", "raptor validate out", "raptor -V")
CALLS = (
    "program.check()",
    "program.run({})",
    "program.validate()",
    "program.simulate()",
    "program.explain()",
    "raptor.simulate('out')",
    "import raptor, numpy; raptor.backend.prepare(model).run(numpy.ones((1, 4, 4, 4), 'f'))",
    "raptor.compile(model, optimize='latency')",
)


@pytest.fixture(params=FORMS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a package of each name, as PyTorch projects have."""
    for name in ("models", "validator"):
        path = tmp_path / FORMS[request.param].format(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("class Net: ...\n")
    (tmp_path / "model.onnx").write_bytes(thesis_model(4, 8).SerializeToString())
    return tmp_path


def python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the project, whose folder comes before that of RAPTOR."""
    environment = os.environ | {"PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def in_the_way(message: str, project: Path, name: str) -> bool:
    places = [re.escape(str(project.resolve() / name)) + suffix for suffix in ("", r"\.py")]
    return bool(re.search(rf"(?:{'|'.join(places)}) is in the way of RAPTOR's own package '{name}'", message))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_what_is_in_its_way(command: str, project: Path) -> None:
    ended = python(project, "-m", *command.split())
    assert ended.returncode == 2
    assert in_the_way(ended.stderr, project, "validator")
    assert "Traceback" not in ended.stderr


def test_models_alone(project: Path) -> None:
    """A user's package is an obstacle only for the command that needs ours."""
    for path in project.glob("validator*"):
        path.rename(project / "gone")
    assert python(project, "-m", "raptor", "-V").stdout == f"raptor {raptor.__version__}\n"
    ended = python(project, "-m", "raptor", "models", "lenet5")
    assert ended.returncode == 2
    assert in_the_way(ended.stderr, project, "models")
    assert not (project / "lenet5.onnx").exists()


@pytest.mark.parametrize("imported", ["", "import validator, models\n"], ids=["later", "before"])
def test_the_python_api_says_it(imported: str, project: Path) -> None:
    """The user's package may be imported already or not. Compiling alone needs neither."""
    script = (
        f"{imported}import onnx, raptor\n"
        "model = onnx.load('model.onnx')\n"
        "program = raptor.compile(model)\n"
        f"for call in {CALLS}:\n"
        "    try:\n        exec(call)\n"
        "    except raptor.UserError as e:\n        print(e)\n"
    )
    ended = python(project, "-c", script)
    assert ended.returncode == 0, ended.stderr
    assert [in_the_way(line, project, "validator") for line in ended.stdout.splitlines()] == [True] * len(CALLS)


def test_what_is_later_on_the_path_is_in_nobodys_way(project: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{project}"}
    code = "import raptor.common.package_clashes as p; p.require_own_packages('models', 'validator')"
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd="/", env=environment, check=True)


def test_a_package_that_is_missing(tmp_path: Path) -> None:
    made = "import sys; sys.modules['models'] = type(sys)('models'); "
    script = f"{made}import raptor.common.package_clashes as p; p.require_own_packages('models')"
    ended = python(tmp_path, "-c", script)
    assert "install RAPTOR again" in ended.stderr


@pytest.mark.parametrize(("command", "told"), [("raptor.__main__:main", True), ("raptor.tools.cli:main", False)])
def test_an_old_distribution(command: str, told: bool, tmp_path: Path) -> None:
    """RAPTOR by its old name is told of; another project of that name is none of ours."""
    old = tmp_path / "raptor-0.1.0.dist-info"
    old.mkdir()
    (old / "entry_points.txt").write_text(f"[console_scripts]\nraptor = {command}\n")
    ended = python(tmp_path, "-m", "raptor", "-V")
    assert (ended.returncode, ended.stdout) == (0, f"raptor {raptor.__version__}\n")
    assert (f"warning: {old} is RAPTOR by its old name" in ended.stderr) == told == bool(ended.stderr)


def test_a_list_of_entry_points_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "raptor-0.1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    ended = python(tmp_path, "-m", "raptor", "-V")
    assert (ended.returncode, ended.stderr) == (0, "")
