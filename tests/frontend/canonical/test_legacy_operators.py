"""Operators that are none of the standard, written out by those of the standard."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from tests.pipeline import check
from tests.tiny_models import Array, make_model, node, random

LEARNING = "ai.onnx.ml"


def learning(op_type: str, shape: tuple[int, ...], *, kind: int = TensorProto.FLOAT, **attributes: Any) -> ModelProto:
    one = helper.make_node(op_type, ["x"], ["y"], name="mine", domain=LEARNING, **attributes)
    model = make_model([one], {"x": shape}, {"y": len(shape)})
    model.graph.input[0].type.tensor_type.elem_type = kind
    model.opset_import.append(helper.make_opsetid(LEARNING, 2))
    return model


def early(op_type: str, shape: tuple[int, ...], opset: int, **attributes: Any) -> ModelProto:
    model = make_model([node(op_type, "x", name="mine", **attributes)], {"x": shape}, {"y": len(shape)}, opset=opset)
    return model


def judged(model: ModelProto, x: Array) -> Array:
    """Returns what onnxruntime's own kernel of the operator computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def compare(model: ModelProto, x: Array, tolerance: float = 1e-6) -> None:
    found = evaluate_graph(load(model).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, judged(model, x), rtol=tolerance, atol=tolerance)


FOUR = [1.0, -2.0, 0.5, 4.0]
TABLES: dict[str, dict[str, Any]] = {
    "Scaler": {"offset": FOUR, "scale": [0.5, 2.0, 3.0, -1.0]},
    "Scaler of one number": {"offset": [0.5], "scale": [2.0]},
    "Normalizer": {"norm": "L2"},
    "Normalizer L1": {"norm": "L1"},
    "Normalizer MAX": {"norm": "MAX"},
    "Binarizer": {"threshold": 0.25},
    "Imputer": {"imputed_value_floats": FOUR, "replaced_value_float": 0.0},
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("shape", [(3, 4), (4,)])
def test_trial_a9_operators_for_tables(case: str, shape: tuple[int, ...]):
    x = random(*shape)
    x.reshape(-1)[:2] = 0
    compare(learning(case.split()[0], shape, **TABLES[case]), x)


def test_trial_a9_a_row_of_zeros():
    x = random(3, 4)
    x[1] = 0
    for norm in ("L1", "L2", "MAX"):
        compare(learning("Normalizer", (3, 4), norm=norm), x)


@pytest.mark.parametrize("targets", [1, 3])
def test_trial_a9_a_linear_regressor(targets: int):
    weights = random(targets, 4).ravel().tolist()
    attributes = {"coefficients": weights, "intercepts": random(targets, seed=1).tolist(), "targets": targets}
    compare(learning("LinearRegressor", (3, 4), **attributes), random(3, 4))


def test_trial_a9_columns():
    model = make_model(
        [helper.make_node("ArrayFeatureExtractor", ["x", "at"], ["y"], name="mine", domain=LEARNING)],
        {"x": (3, 4)},
        {"y": 2},
        {"at": np.array([2, 0], np.int64)},
    )
    model.opset_import.append(helper.make_opsetid(LEARNING, 2))
    compare(model, random(3, 4))


@pytest.mark.parametrize(("kind", "dtype"), [(TensorProto.INT64, np.int64), (TensorProto.INT32, np.int32)])
def test_trial_a9_a_scaler_of_integers(kind: int, dtype: Any):
    x = np.arange(-6, 6, dtype=dtype).reshape(3, 4)
    compare(learning("Scaler", (3, 4), kind=kind, offset=FOUR, scale=FOUR), x)


def test_a_scaler_of_an_image_is_refused():
    with pytest.raises(UnsupportedError, match="mine"):
        load(learning("Scaler", (1, 3, 4, 4), offset=FOUR[:3], scale=FOUR[:3]))


EARLY: dict[str, dict[str, Any]] = {
    "ImageScaler": {"scale": 0.5, "bias": [1.0, -2.0, 3.0]},
    "Affine": {"alpha": 0.5, "beta": 2.0},
    "Crop": {"border": [1, 2, 1, 0]},
    "Crop to a size": {"border": [1, 2, 0, 0], "scale": [3, 4]},
    "Scale": {"scale": 0.5},
    "ParametricSoftplus": {"alpha": 0.5, "beta": 2.0},
    "ScaledTanh": {"alpha": 0.5, "beta": 2.0},
    "ThresholdedRelu": {"alpha": 0.5},
}


@pytest.mark.parametrize(("case", "opset"), [(c, v) for c in EARLY for v in (7, 9) if (c, v) != ("ThresholdedRelu", 7)])
def test_trial_a9_operators_that_left_the_standard(case: str, opset: int):
    compare(early(case.split()[0], (1, 3, 6, 6), opset, **EARLY[case]), random(1, 3, 6, 6))


def test_trial_a9_where_onnxruntime_has_no_kernel_the_definition_counts():
    """Holds from opset 10 on; the model that is stored for validation is the one that was written out."""
    weights = random(4, 3, 3, 3)
    nodes = [node("ImageScaler", "x", "z", name="mine", scale=0.5, bias=[1.0, -2.0, 3.0]), node("Conv", "z w")]
    model = make_model(nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": weights}, opset=17)
    loaded, x = load(model), random(1, 3, 6, 6)
    bias = np.array([1.0, -2.0, 3.0], np.float32).reshape(1, 3, 1, 1)
    again = make_model([node("Conv", "x w")], {"x": (1, 3, 6, 6)}, ["y"], {"w": weights}, opset=17)
    np.testing.assert_allclose(
        evaluate_graph(loaded.graph, {"x": x})["y"], judged(again, x * np.float32(0.5) + bias), rtol=1e-5, atol=1e-5
    )
    check(model, xbar=16, cores=8)


def test_trial_a9_a_program_of_a_table():
    scaler = helper.make_node("Scaler", ["x"], ["z"], name="mine", domain=LEARNING, offset=FOUR, scale=FOUR)
    model = make_model([scaler, node("Gemm", "z w b")], {"x": (3, 4)}, {"y": 2}, {"w": random(4, 5), "b": random(5)})
    model.opset_import.append(helper.make_opsetid(LEARNING, 2))
    check(model, xbar=8, cores=8)


def test_trial_a9_a_model_that_imports_no_version_of_the_standard():
    model = learning("Scaler", (3, 4), offset=FOUR, scale=FOUR)
    del model.opset_import[0]
    compare(model, random(3, 4))


def test_names_that_are_taken_stay():
    model = learning("Scaler", (3, 4), offset=FOUR, scale=FOUR)
    model.graph.node.append(node("Add", "y y.sub", "total"))
    model.graph.initializer.append(numpy_helper.from_array(random(4), "y.sub"))
    model.graph.output[0].name = "total"
    x = random(3, 4)
    found = evaluate_graph(load(model).graph, {"x": x})["total"]
    np.testing.assert_allclose(found, judged(model, x), rtol=1e-6, atol=1e-6)
