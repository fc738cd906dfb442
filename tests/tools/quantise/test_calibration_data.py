"""Models with inputs of integers are calibrated with samples of their types (trial of real models, A6)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import raptor
from raptor.common.errors import UserError
from raptor.frontend.proto.model_checks import collect_inputs
from raptor.tools.quantise.calibration_data import random_samples, read_sampled_inputs, read_samples
from tests.tiny_models import Array, make_model, node, random

ROWS = 300
WEIGHTS = {"t": random(ROWS, 8, seed=1), "w": random(8, 4, seed=2), "v": random(4, 3, seed=3)}
PRODUCTS = (node("MatMul", "e w", "h", name="m0"), node("Relu", "h", "r"), node("MatMul", "r v", "y", name="m1"))


def of(kind: int, shape: list[int], *nodes: Any, **constants: Array) -> ModelProto:
    """An input of a type -> nodes -> e -> two products."""
    model = make_model([*nodes, *PRODUCTS], {"x": shape}, {"y": len(shape) + 1}, {**WEIGHTS, **constants})
    model.graph.input[0].type.tensor_type.elem_type = kind
    return model


FLOAT = node("Cast", "x", "e", name="cast", to=TensorProto.FLOAT)
MODELS: dict[str, ModelProto] = {
    "ids of 64 bits": of(TensorProto.INT64, [5], node("Gather", "t x", "e")),
    "ids of 32 bits": of(TensorProto.INT32, [5], node("Gather", "t x", "e")),
    "ids moved": of(TensorProto.INT64, [5], node("Add", "x k", "i"), node("Gather", "t i", "e"), k=np.array([280])),
    "an image of bytes": of(TensorProto.UINT8, [2, 8], FLOAT),
    "signed bytes": of(TensorProto.INT8, [2, 8], FLOAT),
    "flags": of(TensorProto.BOOL, [2, 8], FLOAT),
    "counts": of(TensorProto.INT32, [2, 8], FLOAT),
}
for name in ("an image of bytes", "signed bytes", "flags", "counts"):
    MODELS[name].graph.output[0].type.tensor_type.shape.dim.pop()


def data_for(model: ModelProto, count: int = 6) -> dict[str, Array]:
    found = random_samples(read_sampled_inputs(model), 3, count)
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_quantised(name: str, given: bool, tmp_path: Path):
    model, data = MODELS[name], None
    if given:
        data = tmp_path / "data.npz"
        np.savez(data, **data_for(model))
    found = raptor.quantize(model, data=data)
    assert {layer.node for layer in found.report.layers} >= {"m0", "m1"}
    assert found.report.snr_db > 15
    found.save(tmp_path / "int8.onnx")
    program = raptor.compile(tmp_path / "int8.onnx", xbar=32, cores=8, host=True)
    assert program.validate(samples=2).passed


@pytest.mark.parametrize("name", MODELS)
def test_samples_have_the_types_of_the_model(name: str):
    model = MODELS[name]
    dtype = helper.tensor_dtype_to_np_dtype(collect_inputs(model)["x"].type.tensor_type.elem_type)
    values = data_for(model, 40)["x"]
    assert values.dtype == dtype
    if "ids" in name:
        low = -280 if "moved" in name else 0
        assert low <= values.min() < values.max() < low + ROWS
        assert values.max() - values.min() > ROWS // 2
    if "byte" in name:
        assert values.max() - values.min().astype(int) > 250


def test_a_float_that_becomes_an_index():
    model = of(TensorProto.FLOAT, [5], node("Cast", "x", "i", to=TensorProto.INT64), node("Gather", "t i", "e"))
    values = data_for(model, 40)["x"]
    assert values.dtype == np.float32
    assert 0 <= values.min() < values.max() <= ROWS - 1
    assert raptor.quantize(model).report.samples == 16


def test_data_that_the_type_does_not_have(tmp_path: Path):
    for values, told in (
        (np.full((4, 5), 0.5), "20 of 20 numbers of 'x' are no int64"),
        (np.full((4, 5), np.nan), "20 of 20"),
    ):
        np.savez(tmp_path / "data.npz", x=values)
        with pytest.raises(UserError, match=told):
            raptor.quantize(MODELS["ids of 64 bits"], data=tmp_path / "data.npz")
    np.savez(tmp_path / "data.npz", x=np.arange(20, dtype=np.float32).reshape(4, 5))
    assert raptor.quantize(MODELS["ids of 64 bits"], data=tmp_path / "data.npz").report.samples == 4


def test_the_array_of_the_only_input_may_be_x(tmp_path: Path):
    """Like in the files of `raptor accuracy`; an array with the name of the input comes first."""
    model = make_model([node("MatMul", "image w", "y")], {"image": [1, 4]}, {"y": 2}, {"w": random(4, 3)})
    inputs, (first, second) = read_sampled_inputs(model), random(2, 3, 4)
    np.savez(tmp_path / "data.npz", x=first, y=np.arange(3))
    assert np.array_equal(
        np.concatenate([s["image"] for s in read_samples(tmp_path / "data.npz", inputs, None)]), first
    )
    np.savez(tmp_path / "data.npz", x=first, image=second)
    assert np.array_equal(read_samples(tmp_path / "data.npz", inputs, 1)[0]["image"], second[:1])
