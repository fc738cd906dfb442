"""Quantised models whose floats have 16 bits: the program computes in float32, and so do its judges (B6)."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import raptor
from tests.tiny_models import Array, golden, make_model, node, random
from validator.validate import validate

HALF = np.float16
KINDS = {np.dtype(HALF): TensorProto.FLOAT16, np.dtype(np.float32): TensorProto.FLOAT}


def product(scale: type[np.floating] = HALF) -> ModelProto:
    """x -> codes -> a product 16x12 with int8 weights -> codes -> y."""
    codes = np.random.default_rng(0).integers(-128, 128, (16, 12)).astype(np.int8)
    zero = np.array(0, np.int8)
    constants = {"xs": np.array(0.05, scale), "ws": np.array(0.01, scale), "ys": np.array(0.1, scale)}
    nodes = [
        node("QuantizeLinear", "x xs zero", "xq", name="q"),
        node("DequantizeLinear", "xq xs zero", "xd", name="dq"),
        node("DequantizeLinear", "codes ws zero", "w", name="weights"),
        node("MatMul", "xd w", "m", name="product"),
        node("QuantizeLinear", "m ys zero", "yq", name="q2"),
        node("DequantizeLinear", "yq ys zero", "y", name="dq2"),
    ]
    model = make_model(nodes, {"x": [2, 16]}, {"y": 2}, {**constants, "codes": codes, "zero": zero}, opset=19)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = KINDS[np.dtype(scale)]
    return model


def between_casts() -> ModelProto:
    """Inputs and outputs of float32, everything between in float16."""
    model = product()
    model.graph.node[0].input[0], model.graph.node[-1].output[0] = "xh", "yh"
    model.graph.node.insert(0, node("Cast", "x", "xh", name="to half", to=TensorProto.FLOAT16))
    model.graph.node.append(node("Cast", "yh", "y", name="from half", to=TensorProto.FLOAT))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def then(*nodes: str) -> ModelProto:
    """Functions of floats behind the product."""
    model = product()
    for k, op_type in enumerate(nodes):
        last = model.graph.node[-1]
        last.output[0] = f"t{k}"
        model.graph.node.append(node(op_type, f"t{k}", "y", name=op_type))
    return model


def weights_only() -> ModelProto:
    """Weights in codes, the product in float16."""
    model = product()
    kept = [n for n in model.graph.node if n.name in ("weights", "product")]
    kept[1].input[0], kept[1].output[0] = "x", "y"
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


MODELS: dict[str, Callable[[], ModelProto]] = {
    "product": product,
    "between casts": between_casts,
    "softmax": lambda: then("Softmax"),
    "relu, softmax": lambda: then("Relu", "Softmax"),
    "weights only": weights_only,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_right_passes(name: str, tmp_path: Path):
    """The output has the model's type, and the values of onnxruntime within rounding to 16 bits and one step."""
    model = MODELS[name]()
    program = raptor.compile(model, xbar=32, cores=8)
    program.save(tmp_path / "out")
    verdict = program.validate(samples=4)
    assert verdict.passed, verdict
    dtype = HALF if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
    x = random(2, 16, seed=5).astype(dtype)
    found = raptor.load(tmp_path / "out").run({"x": x})["y"]
    wanted = golden(model, {"x": x})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), atol=0.11, rtol=2**-9)


def test_a_wrong_weight_is_found(tmp_path: Path):
    """The judge is not lenient: one code of a weight that is another makes integers differ."""
    model = product()
    raptor.compile(model, xbar=32, cores=8).save(tmp_path / "out")
    tensor = next(t for t in model.graph.initializer if t.name == "codes")
    codes = np.frombuffer(tensor.raw_data, np.int8).copy()
    codes[0] ^= 64
    tensor.raw_data = codes.tobytes()
    (tmp_path / "out" / "model.onnx").write_bytes(model.SerializeToString())
    verdict = validate(tmp_path / "out", check_hashes=False)
    assert not verdict.passed


@pytest.mark.parametrize("name", MODELS)
def test_no_tolerance_is_advised_that_is_refused(name: str):
    notes = raptor.compile(MODELS[name](), xbar=32, cores=8).report.warnings
    assert any("tensors are computed in float32" in note for note in notes)
    assert not any("tolerance" in note for note in notes)


def test_advice_for_a_model_of_floats_works(tmp_path: Path):
    model = make_model([node("MatMul", "x w", "y")], {"x": [2, 16]}, {"y": 2}, {"w": random(16, 4).astype(HALF)})
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    program = raptor.compile(model, xbar=32, cores=8)
    assert any("tolerance of 0.01" in note for note in program.report.warnings)
    assert program.validate(samples=2, tolerance=0.01).passed
    assert program.run({"x": np.ones((2, 16), HALF)})["y"].dtype == HALF


def test_inputs_are_rounded_to_the_type_of_the_model():
    """A number between two of 16 bits is not what the model gets."""
    program = raptor.compile(product(), xbar=32, cores=8)
    x = np.full((2, 16), 0.025 + 1e-6, np.float32)  # above the tie of the codes 0 and 1 in float32, on it in float16
    wanted = program.run({"x": x.astype(HALF)})["y"]
    np.testing.assert_array_equal(program.run({"x": x})["y"], wanted)


def test_scales_of_bfloat16(tmp_path: Path):
    """onnxruntime has no such kernels; the definition has."""
    model = product(np.float32)
    for tensor in model.graph.initializer:
        if tensor.name in ("xs", "ws", "ys"):
            values: Array = np.frombuffer(tensor.raw_data, np.float32).astype(ml_dtypes.bfloat16)
            tensor.raw_data, tensor.data_type = values.tobytes(), TensorProto.BFLOAT16
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    program = raptor.compile(model, xbar=32, cores=8)
    program.save(tmp_path / "out")
    assert program.validate(samples=2).passed
    assert program.run({"x": random(2, 16)})["y"].dtype == ml_dtypes.bfloat16
