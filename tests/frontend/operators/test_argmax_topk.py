"""ArgMax, ArgMin, Hardmax, TopK, OneHot, cumulative sums and products against onnxruntime, in the streams."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError
from raptor.frontend.proto.onnx_wrappers import infer_shapes
from raptor.integrations.onnx_backend import RaptorBackend
from tests.tiny_models import Array, golden, node, random

LARGEST = np.finfo(np.float32).max
TIES = np.array([[1, 3, 3, -2], [0, 0, 0, 0], [-5, -5, -7, -5], [2, 1, 2, 1]], np.float32).reshape(2, 2, 4)
INFINITE = np.array([[-np.inf] * 3, [-np.inf, 1, -np.inf], [np.inf, 0, np.inf], [1e-45, 0, -1e-45]], np.float32)
NEAR = np.array([[1, np.nextafter(np.float32(1), np.float32(2)), 1], [-LARGEST, 0, 1e-45]], np.float32)


def compare(op: Any, constants: dict[str, Array], x: Array, *outputs: int, opset: int = 18) -> None:
    """Runs a model of one node on the chip and in onnxruntime; `outputs`: their types."""
    graph = helper.make_graph(
        [op],
        "tiny",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info(n, t, None) for n, t in zip(op.output, outputs, strict=True)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))
    wanted = golden(model, {"x": x})
    for got, name in zip(RaptorBackend.run_model(model, [x]), op.output, strict=True):
        assert got.dtype == wanted[name].dtype
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_positions(op_type: str, axis: int, last: int):
    op = node(op_type, "x", axis=axis, select_last_index=last, keepdims=1 - last)
    compare(op, {}, TIES, TensorProto.INT64)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("x", [INFINITE, NEAR, random(1, 5), random(5, 1), TIES.astype(np.int32)])
def test_positions_of_hard_values(op_type: str, x: Array):
    compare(node(op_type, "x", axis=1), {}, x, TensorProto.INT64)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax(axis: int):
    compare(node("Hardmax", "x", axis=axis), {}, TIES, TensorProto.FLOAT)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "k"), [(0, 2), (1, 1), (2, 3)])
def test_top_k(axis: int, k: int, largest: int):
    op = node("TopK", "x k", "v i", axis=axis, largest=largest)
    compare(op, {"k": np.array([k])}, TIES, TensorProto.FLOAT, TensorProto.INT64)


def test_top_k_of_many_is_refused():
    op = node("TopK", "x k", "v i")
    with pytest.raises(UnsupportedError, match="K is 40, must be from 1 to 32"):
        compare(op, {"k": np.array([40])}, random(1, 64), TensorProto.FLOAT, TensorProto.INT64)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot_of_ids_in_and_out_of_range(axis: int):
    ids = np.array([[0, 4, -1], [-5, 5, -6]], np.int64)
    op = node("OneHot", "x d v", axis=axis)
    compare(op, {"d": np.array(5), "v": np.array([0.1, 2.3], np.float32)}, ids, TensorProto.FLOAT)


@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative_sums(axis: int, attributes: dict[str, int]):
    compare(node("CumSum", "x a", **attributes), {"a": np.array(axis)}, random(3, 4, 5).round(3), TensorProto.FLOAT)


def test_cumulative_sums_of_integers_are_exact():
    x = np.random.default_rng(0).integers(-120, 120, (2, 40)).astype(np.int32)
    compare(node("CumSum", "x a"), {"a": np.array(1)}, x, TensorProto.INT32)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_products(exclusive: int, reverse: int):
    x = random(3, 5, 2)
    op = node("CumProd", "x a", exclusive=exclusive, reverse=reverse)
    graph = helper.make_graph(
        [op],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(1), "a")],
    )
    model = infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=10))
    (got,) = RaptorBackend.run_model(model, [x])
    turned = x[:, ::-1] if reverse else x
    wanted = np.cumprod(turned, axis=1)
    if exclusive:
        wanted = np.concatenate([np.ones_like(x[:, :1]), wanted[:, :-1]], axis=1)
    np.testing.assert_allclose(got, wanted[:, ::-1] if reverse else wanted, rtol=1e-6)
