"""Models as exporters write them: what an error suggests, typed as it stands, compiles and is right."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import raptor
from raptor.tools.cli import app
from tests.frontend.exporters import CASES, Case
from tests.tiny_models import golden, random

CHIP = ["--xbar", "16", "--cores", "8", "--xbars-per-core", "128"]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The status of a command, and what it says on standard error."""
    with pytest.raises(SystemExit) as stopped:
        app.main(list(args))
    return int(stopped.value.code or 0), capsys.readouterr().err


def filled_in(message: str, case: Case) -> list[str]:
    """The arguments of the command that a message suggests, with what only the user knows."""
    command = shlex.split(next(line for line in message.splitlines() if line.startswith("try: ")))
    assert command[:2] == ["try:", "raptor"]
    return [_filled(word, case) for word in command[2:]]


def _filled(word: str, case: Case) -> str:
    name, equals, value = word.rpartition("=")
    if value == "SIZE":
        return f"{name}={case.sizes[name]}"
    if value == "VALUE":
        return f"{name}={case.values[name]}"
    return re.sub(r"\b[A-Z]\d*\b", lambda m: str(case.sizes[m[0]]), word) if equals else word


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Writes one of the models as `m.onnx` to the working directory."""
    case = CASES[request.param]
    (tmp_path / "m.onnx").write_bytes(case.build().SerializeToString())
    monkeypatch.chdir(tmp_path)
    return case


def test_the_suggested_command_compiles(case: Case, capsys: pytest.CaptureFixture[str]):
    status, message = run(capsys, "compile", "m.onnx", *CHIP)
    if case.sizes or case.values:
        assert status == 2
        status, message = run(capsys, *filled_in(message, case))
    assert status == 0, message
    assert run(capsys, "validate", "out", "--layers") == (0, "")
    assert run(capsys, "explain", "out") == (0, "")
    assert run(capsys, "check", "out")[0] == 0
    shapes = {p["name"]: tuple(p["shape"]) for p in json.loads(Path("out/memory.json").read_text())["inputs"]}
    assert shapes == case.inputs
    compare_with_onnxruntime(case)


def compare_with_onnxruntime(case: Case) -> None:
    """The program against a session of the model that knows nothing of the output directory."""
    inputs = {name: random(*shape, seed=k) for k, (name, shape) in enumerate(case.inputs.items())}
    model = case.build()
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:  # a size of 0, which onnxruntime takes by its word
            if dim.dim_value == 0:
                dim.Clear()
    constants = {name: np.array(int(value), np.int64) for name, value in case.values.items()}
    found = raptor.load("out").run(inputs)
    for name, wanted in golden(model, inputs | constants).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


def test_inspect_suggests_and_counts_the_same(case: Case, capsys: pytest.CaptureFixture[str]):
    status, message = run(capsys, "inspect", "m.onnx", "--json", "i.json")
    if status and case.sizes:
        assert "raptor inspect m.onnx --json i.json --" in message
        status, message = run(capsys, *filled_in(message, case))
    assert status == 0, message
    found = json.loads(Path("i.json").read_text())
    assert {name: tuple(shape) for name, shape in found["inputs"].items()} == case.inputs
    assert not {"If", "Loop", "Scan"} & {o["op_type"] for o in found["operators"]}
    assert found["unsupported"] == []


def test_the_same_from_python(tmp_path: Path):
    case = CASES["voice_detector"]
    program = raptor.compile(
        case.build(), dims={"samples": 32, "batch": 1}, constants={"sr": 16000}, xbar=16, cores=8, xbars_per_core=128
    )
    assert program.validate().passed
    inputs = {name: random(*shape) for name, shape in case.inputs.items()}
    wanted = golden(case.build(), inputs | {"sr": np.array(16000)})
    other = golden(case.build(), inputs | {"sr": np.array(8000)})
    found = program.run(inputs)
    np.testing.assert_allclose(found["output"], wanted["output"], rtol=1e-5)
    assert not np.allclose(found["output"], other["output"], rtol=1e-3)


def test_all_that_is_missing_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "a model.onnx"
    path.write_bytes(CASES["voice_detector"].build().SerializeToString())
    status, message = run(capsys, "compile", str(path), "-q", "-o", "some where", "--dim", "batch=1")
    assert status == 2
    assert message.splitlines() == [
        "raptor: error: the model leaves open what the chip needs fixed:",
        "  input 'input' (1,samples): samples has no size",
        "  input 'sr' is int64 and must be a constant (--set sr=VALUE)",
        f"try: raptor compile '{path}' -q -o 'some where' --dim batch=1 --dim samples=SIZE --set sr=VALUE",
    ]


def test_a_suggestion_comes_before_the_end_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "m.onnx"
    path.write_bytes(CASES["paddle_detector"].build().SerializeToString())
    message = run(capsys, "compile", "-q", "--", str(path))[1]
    assert message.endswith(f"try: raptor compile -q --shape x=1,3,H,W -- {path}\n")


def test_every_kind_of_open_dimension_is_among_the_models():
    """Names, no names, -1, 0, and the other ways to leave a size open."""
    dims = [d for case in CASES.values() for v in case.build().graph.input for d in v.type.tensor_type.shape.dim]
    values = {d.dim_value for d in dims if d.HasField("dim_value")}
    assert {-1, 0} <= values
    assert any(d.dim_param for d in dims)
    assert any(not d.WhichOneof("value") for d in dims)
    kinds = {v.type.tensor_type.elem_type for case in CASES.values() for v in case.build().graph.input}
    assert kinds == {TensorProto.FLOAT, TensorProto.INT64}
    producers = {case.build().producer_name for case in CASES.values()}
    assert len(producers) >= 4
