"""Models whose types contradict the definitions of their operators."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend import load
from tests.tiny_models import compare, golden, make_model, node, random

BYTES = np.random.default_rng(0).integers(-9, 9, (4, 3, 2, 2)).astype(np.int8)


def fault_of(model: ModelProto) -> str:
    """The message of a model that onnxruntime refuses as well."""
    with pytest.raises(Exception, match="Type"):
        golden(model, {})
    with pytest.raises(UserError) as raised:
        load(model)
    return str(raised.value)


def test_trial_a7_a_float_convolution_of_int8_weights():
    found = fault_of(make_model([node("Conv", "x w")], {"x": (1, 3, 5, 5)}, ["y"], {"w": BYTES}))
    assert "my_conv (Conv): its input 'w' is int8, must be one of" in found


def test_trial_a7_all_nodes_at_once():
    nodes = [
        node("Conv", "x w", "a", name="first"),
        node("Relu", "a", "b"),
        node("Conv", "b w", "c", name="second"),
        node("Add", "c three", name="third"),
    ]
    constants = {"w": BYTES[:, :, :1, :1][:3], "three": np.array(3)}
    found = fault_of(make_model(nodes, {"x": (1, 3, 5, 5)}, ["y"], constants))
    assert found.startswith("not a valid ONNX model: 3 nodes have operands of a wrong type:")
    assert "third (Add): its input 'c' is float32, but its input 'three' is int64: they must have one type" in found
    assert "first (Conv)" in found
    assert "second (Conv)" in found


WRONG: dict[str, tuple[NodeProto, dict[str, Any]]] = {
    "MatMul": (node("MatMul", "x w"), {"w": np.ones((5, 2), np.int8)}),
    "Gemm": (node("Gemm", "x w b"), {"w": random(5, 2), "b": np.array([1, 2], np.int32)}),
    "Reshape": (node("Reshape", "x to"), {"to": np.array([5, 3], np.int32)}),
    "Pad": (node("Pad", "x pads"), {"pads": np.array([0, 0, 1, 1], np.int32)}),
    "Concat": (node("Concat", "x w", axis=1), {"w": np.ones((3, 1), np.int64)}),
    "Where": (node("Where", "w x x"), {"w": random(3, 5)}),
    "BatchNormalization": (
        node("BatchNormalization", "x a a a w"),
        {"a": random(5), "w": np.ones(5, np.int32)},
    ),
    "Clip": (node("Clip", "x low"), {"low": np.array(0)}),
    "Gather": (node("Gather", "x i"), {"i": np.array([1], np.int16)}),
    "Relu": (node("Relu", "x", "wrong"), {}),
}


@pytest.mark.parametrize("op_type", WRONG)
def test_trial_a7_every_operator(op_type: str):
    wrong, constants = WRONG[op_type]
    model = make_model([wrong], {"x": (3, 5)}, {wrong.output[0]: 2}, constants)
    if op_type == "Relu":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert f"{wrong.name} ({op_type}): its " in fault_of(model)


def test_trial_a7_inside_of_a_branch():
    inner = helper.make_graph(
        [node("MatMul", "x w", "inner", name="deep")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3, 2])],
    )
    choice = node("If", "yes", then_branch=inner, else_branch=inner)
    model = make_model([choice], {"x": (3, 5)}, {"y": 2}, {"w": np.ones((5, 2), np.int8), "yes": np.array(True)})
    assert "deep (MatMul): its input 'w' is int8" in fault_of(model)


def test_operands_of_different_variables_may_differ():
    """A scale of float32 with weights of int8, indices of int32, and a condition: each has a type of its own."""
    nodes = [
        node("DequantizeLinear", "w s", "wd"),
        node("MatMul", "x wd", "m"),
        node("Gather", "m i", "g", axis=1),
        node("Greater", "g zero", "c"),
        node("Where", "c g zero"),
    ]
    constants = {
        "w": np.ones((5, 4), np.int8),
        "s": np.float32(0.5),
        "i": np.array([1, 3], np.int32),
        "zero": np.float32(0),
    }
    compare(make_model(nodes, {"x": (3, 5)}, {"y": 2}, constants))


def test_types_of_a_sequence():
    nodes = [node("SequenceConstruct", "a b", "s"), node("ConcatFromSequence", "s", "w", axis=0), node("MatMul", "x w")]
    model = make_model(nodes, {"x": (3, 4)}, {"y": 2}, {"a": random(2, 5), "b": random(2, 5, seed=1)})
    compare(model)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones((2, 5), np.int64), "b"))
    assert "my_sequenceconstruct (SequenceConstruct): its input 'a' is float32, but its input 'b'" in fault_of(model)


@pytest.mark.parametrize(
    ("wrong", "constants", "reason"),
    [
        (node("MatMul", "x w"), {"w": random(4, 3)}, "my_matmul (MatMul): Incompatible dimensions"),
        (
            node("Reshape", "x to"),
            {"to": np.array([7, 2])},
            "my_reshape (Reshape): The input tensor cannot",
        ),
        (node("Gather", "x i", axis=7), {"i": np.array([0])}, "my_gather (Gather): axis must be in"),
        (node("Transpose", "x", perm=[0, 0]), {}, "my_transpose (Transpose): Attribute perm"),
        (node("Conv", "c w"), {"w": random(4, 3, 2, 2)}, "my_conv (Conv): Input channels C is not equal to kernel"),
    ],
)
def test_trial_a16_a_message_of_a_library_names_the_node(wrong: NodeProto, constants: dict[str, Any], reason: str):
    """It has neither codes nor places in the sources of the library."""
    model = make_model([wrong], {"x": (3, 5), "c": (1, 5, 5, 3)}, {"y": 4 if wrong.op_type == "Conv" else 2}, constants)
    with pytest.raises(UserError) as raised:
        load(model)
    assert reason in str(raised.value)
    assert "onnxruntime_src" not in str(raised.value)
    assert "Error]" not in str(raised.value)


def test_a_constant_of_an_early_version_has_any_type():
    """Constant was defined for floats until version 9; onnxruntime takes the shape of a Reshape from one as well."""
    shape = node("Constant", "", "s", value=numpy_helper.from_array(np.array([6, 2], np.int64)))
    model = make_model([shape, node("Reshape", "x s")], {"x": (3, 4)}, {"y": 2}, opset=8)
    assert load(model).graph.tensors["y"].shape == (6, 2)
