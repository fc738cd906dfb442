"""Inputs that were made constants: the judge feeds the original model the same, and believes no manifest blindly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import raptor
from raptor.common.errors import UserError
from raptor.output import files
from tests.tiny_models import make_model, node
from validator.validate import validate


def scaled(kind: int = TensorProto.INT64) -> ModelProto:
    """y = relu(x) * gain + bias; the gain is of a type that the chip has not."""
    nodes = [
        node("Relu", "x", "r", name="relu"),
        node("Cast", "gain", "g", name="cast", to=TensorProto.FLOAT),
        node("Mul", "r g", "p", name="scale"),
        node("Add", "p bias", name="shift"),
    ]
    model = make_model(nodes, {"x": (-1, 3), "bias": (3,)}, {"y": 2})
    model.graph.input.append(helper.make_tensor_value_info("gain", kind, []))
    return model


@pytest.fixture
def out(tmp_path: Path) -> Path:
    program = raptor.compile(scaled(), constants={"gain": 5, "bias": "1,2.5,-3"}, cores=2)
    return program.save(tmp_path / "out")


def change(out: Path, **constants: Any) -> None:
    path = out / files.MANIFEST
    manifest = json.loads(path.read_text())
    manifest["options"]["constants"] |= constants
    path.write_text(json.dumps(manifest))


def test_what_is_recorded(out: Path):
    options = json.loads((out / files.MANIFEST).read_text())["options"]
    assert options["constants"] == {"gain": 5, "bias": [1.0, 2.5, -3.0]}
    assert [p["name"] for p in json.loads((out / files.MEMORY).read_text())["inputs"]] == ["x"]


@pytest.mark.parametrize("layers", [False, True])
def test_the_judge_has_the_same_constants(out: Path, layers: bool):
    assert validate(out, layers=layers).passed
    change(out, gain=6)
    assert not validate(out, layers=layers).passed


def test_every_type_of_constant(tmp_path: Path):
    for kind in (TensorProto.INT8, TensorProto.UINT16, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL):
        program = raptor.compile(scaled(kind), constants={"gain": 1, "bias": [0, 1, 2]}, cores=2)
        assert program.validate().passed, kind


def test_a_loaded_program_runs_without_them(out: Path):
    x = np.array([[1, -2, 3]], np.float32)
    found = raptor.load(out).run({"x": x})
    np.testing.assert_array_equal(found["y"], np.maximum(x, 0) * 5 + np.array([1, 2.5, -3], np.float32))


def test_an_input_that_is_a_constant_cannot_be_given(out: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"input 'gain' is the constant 5 since the model was compiled \(--set\)"):
        validate(out, inputs={"x": np.ones((1, 3), np.float32), "gain": np.array(4)})
    np.save(tmp_path / "gain.npy", np.array(4))
    with pytest.raises(UserError, match="input 'gain' is the constant 5"):
        validate(out, inputs=[f"gain={tmp_path / 'gain.npy'}"])


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"gain": 5.5}, "constants: 'gain', a tensor.int64.: another type of value"),
        ({"gain": "5"}, "'gain', a tensor.int64.: another type of value"),
        ({"gain": 2**63}, "'gain', a tensor.int64.:"),
        ({"gain": None}, "'gain', a tensor.int64.:"),
        ({"bias": [[1, 2], [3]]}, "'bias', a tensor.float.: .*inhomogeneous"),
        ({"other": 5}, "'other' is no input that can be a constant"),
        ({"bias": [1, 2]}, "onnxruntime: .*"),
    ],
)
def test_a_manifest_with_other_constants(out: Path, constants: dict[str, Any], reason: str):
    change(out, **constants)
    with pytest.raises(UserError, match=reason):
        validate(out)


def test_a_manifest_whose_constants_are_no_object(out: Path):
    path = out / files.MANIFEST
    manifest = json.loads(path.read_text())
    manifest["options"]["constants"] = [5]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest.json: options: constants: expected values by name"):
        validate(out)


def test_without_its_constants_the_model_has_an_input_too_many(out: Path):
    path = out / files.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["options"]["constants"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"input 'bias' is not in memory\.json"):
        validate(out)


@pytest.mark.parametrize("layers", [False, True])
def test_a_size_of_0_is_any_size_to_the_judge_too(layers: bool):
    model = make_model([node("Relu", "x", name="relu")], {"x": (0, 3, 0)}, {"y": 3})
    assert raptor.compile(model, shapes={"x": (1, 3, 4)}, cores=2).validate(layers=layers).passed
