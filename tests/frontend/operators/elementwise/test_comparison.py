"""Comparisons, logic, casts and arithmetic of integers, where easy formulas fail: equal to numpy and onnxruntime."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError
from raptor.integrations.onnx_backend import RaptorBackend
from tests.tiny_models import Array, golden, random

CLOSE = np.array([0, 1e-45, -1e-45, 1, np.nextafter(np.float32(1), 2), -3e38, 3e38, np.inf, -np.inf], np.float32)


def typed(op_type: str, arrays: dict[str, Array], output: Any, **attributes: Any) -> ModelProto:
    """Builds y = op(arrays) with the types of the arrays, and of `output`."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    ]
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(output)), shape)
    graph = helper.make_graph([helper.make_node(op_type, list(arrays), ["y"], **attributes)], "typed", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def check(op_type: str, arrays: dict[str, Array], output: Any, **attributes: Any) -> None:
    model = typed(op_type, arrays, output, **attributes)
    rep = RaptorBackend.prepare(model)
    (found,) = rep.run(arrays)
    np.testing.assert_array_equal(found, golden(model, arrays)["y"], strict=True)
    assert "a" not in rep.bound


@pytest.mark.parametrize("op_type", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons_of_floats(op_type: str) -> None:
    pairs = np.array([(a, b) for a in CLOSE for b in CLOSE if not (np.isinf(a) and a == b)], np.float32)
    check(op_type, {"a": pairs[:, 0].copy(), "b": pairs[:, 1].copy()}, np.bool_)


@pytest.mark.parametrize("op_type", ["Equal", "Greater", "LessOrEqual"])
def test_comparisons_of_large_integers(op_type: str) -> None:
    a = np.array([2**24, 2**24 - 1, -(2**24), 0, 5])
    check(op_type, {"a": a, "b": np.array([2**24, 2**24, 2**24, 0, 4])}, np.bool_)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_logic_is_broadcast(op_type: str) -> None:
    check(op_type, {"a": np.array([[True], [False]]), "b": np.array([True, False])}, np.bool_)


def test_a_choice_of_infinite_numbers() -> None:
    a = np.array([[1, np.inf, -np.inf, -0.5, 0]], np.float32)
    arrays = {"c": np.array([[True], [False]]), "a": a, "b": -2 * a + 1}
    check("Where", arrays, np.float32)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_small_integers_wrap_around(op_type: str, kind: Any) -> None:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    values = np.array([low, low + 1, 0, 3, high - 1, high])
    a, b = (m.ravel().astype(kind) for m in np.meshgrid(values, values))
    model = typed(op_type, {"a": a, "b": b}, kind)
    (found,) = RaptorBackend.run_model(model, [a, b])
    with np.errstate(over="ignore"):
        wanted = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op_type](a, b)
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_integers_without_room_are_refused_or_bounded() -> None:
    x = np.array([3, -5], np.int32)
    model = typed("Mul", {"a": x, "b": x}, np.int32)
    rep = RaptorBackend.prepare(model)
    np.testing.assert_array_equal(rep.run([x, x])[0], x * x)
    large = np.array([4097, 1], np.int32)
    with pytest.raises(Exception, match=r"holds 4097, outside -4096..4096, for which the program is exact"):
        rep.run([large, large])


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int8])
def test_quotients_are_rounded_towards_zero(kind: Any) -> None:
    a = np.array([7, 8, 9, 100, 99, 1, 0, 126], kind)
    b = np.array([3, 3, 3, 10, 10, 127, 5, 127], kind)
    if np.iinfo(kind).min < 0:
        a, b = np.concatenate([a, -a]), np.concatenate([b, b])
    check("Div", {"a": a, "b": b}, kind)
    check("Mod", {"a": a, "b": b}, kind)
    check("Mod", {"a": a, "b": b}, kind, fmod=1)


def test_quotients_of_the_largest_integers() -> None:
    a = np.array([2**24, 2**24 - 1, 2**24 - 3, 2**24 - 1, -(2**24)])
    check("Div", {"a": a, "b": np.array([2**24 - 1, 2**24, 3, 2**12 - 1, 7])}, np.int64)


@pytest.mark.parametrize(
    ("to", "x"),
    [
        (TensorProto.INT32, [-1.5, -0.5, 0.5, 1.999, 8388609, -16777214, 2.0**30]),
        (TensorProto.UINT8, [0.999, 1, 254.9, 255]),
        (TensorProto.BOOL, [0, -0.0, 1e-45, -3e38, 0.5]),
    ],
)
def test_casts_of_floats(to: int, x: list[float]) -> None:
    check("Cast", {"a": np.array(x, np.float32)}, helper.tensor_dtype_to_np_dtype(to), to=to)


def test_casts_to_fewer_bits_wrap_around() -> None:
    x = np.array([-300, -129, -128, 127, 128, 255, 256, 70000, -70000], np.int64)
    check("Cast", {"a": x}, np.int8, to=TensorProto.INT8)


@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits_of_signed_integers(op_type: str) -> None:
    a, b = (m.ravel().astype(np.int8) for m in np.meshgrid([-128, -1, 0, 1, 85, 127], [-128, -86, 3, 127]))
    check(op_type, {"a": a, "b": b}, np.int8)


def test_what_has_no_bound_is_refused() -> None:
    """Whole numbers made of floats can be of any size."""
    x = np.ones(3, np.float32)
    model = typed("Cast", {"a": x}, np.int64, to=TensorProto.INT64)
    model.graph.node[0].output[0] = "i"
    model.graph.node.append(helper.make_node("Add", ["i", "i"], ["y"], name="twice"))
    with pytest.raises(UnsupportedError, match=r"twice \(Add\): its integers have no known bound; they must"):
        RaptorBackend.run_model(model, [x])


def test_remainders_by_infinite_numbers() -> None:
    a = np.array([0, 3, -3, 5.5, -5.5, 7, -7, 2e4, np.inf], np.float32)
    b = np.array([np.inf, np.inf, np.inf, -2, 2, -np.inf, 3, 3, 3], np.float32)
    check("Mod", {"a": a, "b": b}, np.float32, fmod=1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_row_without_numbers_is_replaced(wrapped: bool) -> None:
    """The softmax of a row that is masked wholly is no number; a cast behind it changes nothing."""
    middle = [helper.make_node("Cast", ["s"], ["t"], to=TensorProto.FLOAT)] if wrapped else []
    nodes = [
        helper.make_node("Where", ["mask", "a", "low"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"]),
        *middle,
        helper.make_node("Where", ["mask", "t" if wrapped else "s", "zero"], ["y"]),
    ]
    arrays = {"a": np.ones((2, 3), np.float32), "mask": np.array([[True, False, True], [False] * 3])}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))
    constants = {"low": -np.inf, "zero": 0}
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "masked", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (found,) = RaptorBackend.prepare(model).run(arrays)
    np.testing.assert_allclose(found, [[0.5, 0, 0.5], [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_of_a_computed_tensor(axis: int) -> None:
    arrays = {"a": random(4, 3, 5), "b": np.array([[2, 0], [-1, 1]])}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    ]
    wanted = np.take(arrays["a"], arrays["b"], axis)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["a", "b"], ["y"], axis=axis)],
        "slices",
        infos,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, wanted.shape)],
    )
    rep = RaptorBackend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    np.testing.assert_array_equal(rep.run(arrays)[0], wanted)
    assert not rep.bound


def test_signs_of_integers_have_a_bound() -> None:
    """A product with a sign needs its range."""
    check("Sign", {"a": np.array([-7, 0, 2**20])}, np.int64)
