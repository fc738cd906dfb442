"""Compiled programs on devices: equal to the reference engine bit for bit."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import raptor
import raptor.device
from raptor.common.errors import CapacityError, UserError
from raptor.device.program_execution import DeviceWriter
from raptor.device.server import started
from raptor.tools.cli import app
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node, random
from validator.execution.run import run_program
from validator.load.output_directory import load_output


def resnet_block() -> Any:
    nodes = [
        node("Conv", "x w1", "a", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b", name="relu"),
        node("Conv", "b w2", "c", name="second", pads=[1, 1, 1, 1]),
        node("Add", "c x", "d", name="add"),
        node("Relu", "d", "y", name="last"),
    ]
    weights = {"w1": random(4, 4, 3, 3, seed=1), "w2": random(4, 4, 3, 3, seed=2)}
    return make_model(nodes, {"x": (1, 4, 5, 5)}, ["y"], weights)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "raptor.device.server", "numpy", "--xbar", "128", "--crossbars", "256"]
    with started(command) as place:
        yield place


def numbers(folder: Path) -> dict[str, Any]:
    places = load_output(folder).memory.inputs
    return {place.name: np.random.default_rng(3).standard_normal(place.shape).astype(np.float32) for place in places}


@pytest.mark.parametrize(("name", "xbar"), [("lenet5", 128), ("block", 36)])
def test_a_driver_in_another_process_computes_what_the_reference_engine_does(name: str, xbar: int, address: str):
    model = models.build("lenet5") if name == "lenet5" else resnet_block()
    program = raptor.compile(model, xbar=xbar, cores=20)
    inputs = numbers(program.directory)
    want = run_program(load_output(program.directory), inputs, engine="python").outputs
    for device in [f"socket:{address}", *(["numpy"] if name == "block" else [])]:
        got = program.run(inputs, device=device)
        assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


def test_matrices_are_written_once():
    program = raptor.compile(conv_model((1, 3, 4, 4), 4), xbar=16, cores=4)
    inputs = numbers(program.directory)
    with raptor.device.open("numpy", xbar=(32, 2), crossbars=64) as device:
        chips = DeviceWriter(device)
        placed = load_output(program.directory).write_to_device(chips)
        first, second = (run_program(placed, inputs).outputs for _ in range(2))
        assert all((first[name] == second[name]).all() for name in first)
        weights = load_output(program.directory).weights
        assert device.account.writes == sum(-(-int(cols) // 2) for cols in weights.cols)
        assert list(chips) == [
            f"device numpy: {device.account.writes} writes of crossbars, {device.account.products} products"
        ]


def test_integers_on_a_device(tmp_path: Path):
    model = raptor.quantize(conv_model((1, 3, 4, 4), 4), samples=1).save(tmp_path / "int8.onnx")
    program = raptor.compile(model, xbar=32, cores=8)
    assert load_output(program.directory).has_integers
    with DeviceWriter("integer") as chips:
        from validator.validate import validate

        assert validate(program.directory, samples=1, write=chips).verdict == "pass"
    with pytest.raises(UserError, match="the program has integers; try integer"):
        program.run({}, device="numpy")


def test_devices_that_are_too_small():
    program = raptor.compile(conv_model((1, 3, 4, 4), 4), xbar=32, cores=4)
    with raptor.device.open("numpy", xbar=8) as device, pytest.raises(CapacityError, match="rows of a crossbar: need"):
        program.run({}, device=device)
    with (
        raptor.device.open("numpy", xbar=(32, 1), crossbars=2) as device,
        pytest.raises(CapacityError, match=r"crossbars: need .*, have 2"),
    ):
        program.run({}, device=device)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program") / "out"
    return raptor.compile(conv_model((1, 3, 4, 4), 4), xbar=32, cores=4).save(folder)


def status(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main([str(a) for a in args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_run(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    inputs = numbers(out)
    np.savez(tmp_path / "in.npz", **inputs)
    for device in ([], ["--device", "numpy"]):
        assert status("run", out, "--input", tmp_path / "in.npz", "-o", tmp_path / "y.npy", "--force", *device) == 0
        assert (np.load(tmp_path / "y.npy") == next(iter(raptor.load(out).run(inputs).values()))).all()
    assert "device numpy: " in capsys.readouterr().out
    assert status("run", out, "-o", tmp_path / "y.npy") == 2
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert status("run", out, "-o", tmp_path / "y.txt") == 2
    assert "expected a .npz file, or .npy" in capsys.readouterr().err
    assert status("run", out, "-q", "-o", tmp_path / "y.npz", "--seed", 1) == 0
    assert len(np.load(tmp_path / "y.npz").files) == 1


def test_the_command_validate(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert status("validate", out, "--device", "numpy", "--samples", 1, "--json", tmp_path / "v.json") == 0
    assert "device numpy: " in capsys.readouterr().out
    assert json.loads((tmp_path / "v.json").read_text())["verdict"] == "pass"
    assert status("validate", out, "--device", "nosuch") == 2
    assert "expected one of: numpy" in capsys.readouterr().err


def test_the_validator_alone_knows_no_device(out: Path, capsys: pytest.CaptureFixture[str]):
    from validator.cli import command
    from validator.standalone_cli import run_alone

    assert run_alone(command, "python -m validator", [str(out), "--device", "numpy"]) == 2
    assert "--device numpy: only with `raptor validate`" in capsys.readouterr().err
