"""JSON of the commands with `--json`: fits a schema of docs/schemas, has a version, and is equal in equal runs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from typer.main import get_command

import raptor
from docgen import json_schemas
from raptor.compiler.analysis import inspection
from raptor.tools.cli import app, explain_view
from raptor.tools.explore import study_driver
from raptor.tools.explore.study.study_file import read_study
from tests.decoder_models import plain_decoder
from tests.oversized_models import dense
from tests.paths import ROOT
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node, random
from validator.checks import check
from validator.checks import findings_output as checked
from validator.judge.comparison import TensorComparison
from validator.judge.validation_report import ValidationReport, to_json
from validator.simulate import simulation_report as simulated

SCHEMAS = ROOT / "docs" / "schemas"
WALL_TIMES = {"accuracy", "simulate", "validate"}
STUDY = """
objectives = { latency_ns = "min" }
study = { name = "shop", models = ["model.onnx"], sampler = "grid", trials = 2 }
space = { xbar = [8], cores = [1, 8] }
"""
RUNS = {
    "accuracy": ("out", "--data", "data.npz"),
    "arch show": ("isaac",),
    "check": ("out",),
    "compare": ("out", "out"),
    "explain": ("out",),
    "explore show": ("study.toml",),
    "generate": ("decoder", "--prompt-ids", "1,2", "--tokens", "3"),
    "harden": ("model.onnx", "--cells", "sonos", "--data", "inputs.npz", "-o", "hard.onnx", "--force"),
    "inspect": ("model.onnx", "--xbar", "8"),
    "quantize": ("model.onnx", "-o", "int8.onnx", "--force"),
    "report": ("out",),
    "simulate": ("out", "--mode", "throughput"),
    "validate": ("out", "--layers"),
    "yield": ("int8", "--data", "labelled.npz", "--chips", "2", "--rates", "0.1", "--candidates", "2"),
}
WITH_TORCH = {"train"}
"""Commands that need PyTorch: tests/tools/train validates their JSON."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and a program of it."""
    folder = tmp_path_factory.mktemp("shop")
    model = conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True, relu=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    raptor.compile(folder / "model.onnx", xbar=8, cores=8).save(folder / "out")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).random((3, 1, 5, 4, 4), np.float32), y=np.arange(3))
    np.savez(folder / "inputs.npz", x=random(3, 1, 5, 4, 4))
    raptor.compile(raptor.quantize(dense(6, 3), samples=1).save(folder / "int8.onnx"), xbar=16, cores=2).save(
        folder / "int8"
    )
    np.savez(folder / "labelled.npz", x=random(5, 6), y=np.array([0, 1, 2, 0, 1]))
    raptor.compile(plain_decoder(layers=1), states="auto", capacity=8, cores=8).save(folder / "decoder")
    (folder / "study.toml").write_text(STUDY)
    study_driver.run_study(read_study(folder / "study.toml"))
    return folder


@pytest.fixture
def written(shop: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Runs a command of `RUNS` and returns the bytes of its JSON."""
    monkeypatch.chdir(shop)

    def run(command: str, *more: str) -> bytes:
        option = ("--json",) if command == "arch show" else ("--json", "-")
        with pytest.raises(SystemExit):
            app.main([*command.split(), *RUNS[command], *option, *more])
        return capsysbinary.readouterr().out

    return run


def _schema(command: str) -> Draft202012Validator:
    content = json.loads((SCHEMAS / json_schemas.command_schema_file(command)).read_bytes())
    Draft202012Validator.check_schema(content)
    return Draft202012Validator(content)


def _with_json(command: click.Command, name: str = "") -> Iterator[str]:
    for key, inner in getattr(command, "commands", {}).items():
        yield from _with_json(inner, f"{name} {key}".strip())
    if any("--json" in parameter.opts for parameter in command.params):
        yield name


def test_every_command_with_json_has_a_schema() -> None:
    assert set(_with_json(get_command(app.app))) == set(json_schemas.COMMAND_CLASSES) == {*RUNS, *WITH_TORCH}


@pytest.mark.parametrize("command", RUNS)
def test_the_schema_is_followed(command: str, written: Any) -> None:
    _schema(command).validate(json.loads(written(command)))


@pytest.mark.parametrize("command", sorted(RUNS))
def test_there_is_a_version(command: str, written: Any) -> None:
    found = json.loads(written(command))
    assert found["version"] >= 1
    assert not _schema(command).is_valid(found | {"version": found["version"] + 1})
    assert not _schema(command).is_valid(found | {"surprise": 1})


@pytest.mark.parametrize("command", RUNS)
def test_equal_runs_write_the_same(command: str, written: Any) -> None:
    first, second = (json.loads(written(command)) for _ in range(2))
    for found in (first, second):
        assert ("seconds" in found) == (command in WALL_TIMES)
        found.pop("seconds", None)
    assert first == second


def test_only_wall_times_are_said_to_differ() -> None:
    """A report shows those of the measurements that it was given, too, which are the same in each run."""
    fields = {c: json.loads((SCHEMAS / json_schemas.command_schema_file(c)).read_bytes())["properties"] for c in RUNS}
    assert {c for c in RUNS if "differs between equal runs" in json.dumps(fields[c])} == WALL_TIMES


@pytest.mark.parametrize("more", [("--tolerance", "0"), ("--input", "missing.npy")])
def test_a_validation_that_fails(more: tuple[str, ...], written: Any) -> None:
    found = json.loads(written("validate", *more))
    assert found["verdict"] in ("mismatch", "bad input")
    _schema("validate").validate(found)


def test_what_is_not_a_number() -> None:
    worst = TensorComparison("y", (1,), np.inf, np.inf, (0,), np.nan, 1.0, passed=False)
    found = json.loads(to_json(ValidationReport("mismatch", 1e-4, outputs=(worst,))))
    assert found["outputs"][0]["max_absolute"] is None
    _schema("validate").validate(found)


def test_a_model_that_cannot_be_compiled(tmp_path: Path) -> None:
    model = make_model([node("Relu", "x", "r"), node("Bernoulli", "r", "y")], {"x": (1, 4)}, ["y"])
    inspection.write_inspection(tmp_path / "found.json", raptor.inspect(model))
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert found["unsupported"]
    _schema("inspect").validate(found)


def test_a_program_of_another_compiler(shop: Path) -> None:
    """The program has no architecture, and findings."""
    found = check(shop / "out", "isaac")
    assert found
    _schema("check").validate(json.loads(checked.to_json(found)))


def test_python_has_the_same(shop: Path, tmp_path: Path) -> None:
    program = raptor.load(shop / "out")
    _schema("simulate").validate(json.loads(simulated.to_json(program.simulate())))
    explain_view.write_explanation(tmp_path / "found.json", program.explain())
    _schema("explain").validate(json.loads((tmp_path / "found.json").read_bytes()))


def test_a_program_that_is_not_saved_is_simulated_and_explained(shop: Path) -> None:
    saved = raptor.load(shop / "out")
    program = raptor.compile(shop / "model.onnx", xbar=8, cores=8)
    for mode in ("latency", "throughput"):
        wanted = replace(saved.simulate(mode=mode), program="", seconds={})
        assert replace(program.simulate(mode=mode), program="", seconds={}) == wanted
        assert replace(raptor.simulate(shop / "out", mode=mode), program="", seconds={}) == wanted
    assert replace(program.explain(), program="") == replace(saved.explain(), program="")
    assert program.folder is None
    assert program.simulate().program == program.explain().program == "model"
    assert saved.simulate().program == saved.explain().program == str(shop / "out")


def test_another_chip_takes_another_time(shop: Path, tmp_path: Path) -> None:
    chip = json.loads((shop / "out" / "arch.json").read_bytes())
    chip["chip_config"]["core_config"]["vector_latency_cycle"] += 100
    (tmp_path / "slow.json").write_text(json.dumps(chip))
    (tmp_path / "network.json").write_bytes((shop / "out" / "network.json").read_bytes())
    program = raptor.load(shop / "out")
    slow = program.simulate(arch=tmp_path / "slow.json").latency_ns
    assert slow is not None
    assert slow > (program.simulate().latency_ns or 0.0)
