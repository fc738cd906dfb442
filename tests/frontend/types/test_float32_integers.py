"""Integers and truth values in programs of floats: inputs and outputs have the model's types, from end to end."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from raptor import Program
from raptor.common.errors import UserError
from tests.pipeline import compile_to_fit

KINDS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]


def moved(kind: str, shape: tuple[int, ...] = (2, 3)) -> ModelProto:
    """Builds y = x transposed, and z = x as a float."""
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], name="turn"),
        helper.make_node("Cast", ["x"], ["z"], to=TensorProto.FLOAT, name="cast"),
    ]
    outputs = {"y": (elem_type, shape[::-1]), "z": (TensorProto.FLOAT, shape)}
    graph = helper.make_graph(
        nodes,
        "moved",
        [helper.make_tensor_value_info("x", elem_type, shape)],
        [helper.make_tensor_value_info(name, *of) for name, of in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def compiled(kind: str) -> Program:
    return compile_to_fit(moved(kind), xbar=4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_goes_through_the_chip(kind: str) -> None:
    program = compiled(kind)
    most = 1 if kind == "bool" else min(np.iinfo(kind).max, 2**24)
    x = np.array([[0, 1, 1], [most, 0, most]]).astype(kind)
    found = program.run({"x": x})
    np.testing.assert_array_equal(found["y"], x.T, strict=True)
    np.testing.assert_array_equal(found["z"], x.astype(np.float32), strict=True)
    assert program.validate(layers=True).verdict == "pass"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int64", np.nan, "input 'x', int64: holds nan, which is no integer"),
        ("int32", -np.inf, "input 'x', int32: holds -inf, which is no integer"),
        ("uint8", 0.5, "input 'x', uint8: holds 0.5, which is no whole number"),
        ("uint8", 256, "input 'x', uint8: holds 256, outside 0..255, for which the program is exact"),
        ("int64", 2**24 + 1, "input 'x', int64: holds 16777217, outside -16777216..16777216, for which"),
        ("bool", 2, "input 'x', bool: holds 2, outside 0..1"),
        ("int64", "7", "'x' holds <U1, expected numbers"),
        ("int64", 1j, "'x' holds complex128, expected numbers"),
    ],
)
def test_a_value_that_is_none(kind: str, value: Any, message: str) -> None:
    program = compiled(kind)
    x = np.full((2, 3), value)
    for call in (program.run, program.validate):
        with pytest.raises(UserError, match=message):
            call({"x": x})
