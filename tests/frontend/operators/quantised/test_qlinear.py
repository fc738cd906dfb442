"""Operators of onnxruntime's domain, one by one, and moves of integers between them."""

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend import load
from tests.quantised_models import compare
from tests.tiny_models import Array, node

SHAPE = (1, 4, 6, 5)
TYPES = {"int8": (TensorProto.INT8, np.int8, 0), "uint8": (TensorProto.UINT8, np.uint8, 128)}


def contributed(op_type: str, inputs: str, outputs: str = "y", **attributes: object) -> NodeProto:
    made = node(op_type, inputs, outputs, **attributes)
    made.domain = "com.microsoft"
    return made


def model(
    nodes: list[NodeProto], kind: str, *, inputs: int = 1, more: dict[str, Array] | None = None, rank: int = 4
) -> ModelProto:
    """Integers x0, x1, ... with scales s0, s1, ... and zero points z0, z1, ... -> nodes -> integers y (s, z)."""
    elem_type, dtype, middle = TYPES[kind]
    constants: dict[str, Array] = {"s": np.float32(0.0417), "z": np.asarray(middle + 9, dtype)} | (more or {})
    for i in range(inputs):
        constants |= {f"s{i}": np.float32(0.02 + 0.013 * i), f"z{i}": np.asarray(middle - 5 + 11 * i, dtype)}
    graph = helper.make_graph(
        nodes,
        "integers",
        [helper.make_tensor_value_info(f"x{i}", elem_type, SHAPE) for i in range(inputs)],
        [helper.make_tensor_value_info("y", elem_type, [None] * rank)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


ONE, TWO, RESULT = "x0 s0 z0", "x0 s0 z0 x1 s1 z1", "s z"
POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
CASES = {
    "QLinearAdd": ([contributed("QLinearAdd", f"{TWO} {RESULT}")], 2),
    "QLinearMul": ([contributed("QLinearMul", f"{TWO} {RESULT}")], 2),
    "QLinearAveragePool": ([contributed("QLinearAveragePool", f"{ONE} {RESULT}", **POOL)], 1),
    "QLinearGlobalAveragePool": ([contributed("QLinearGlobalAveragePool", f"{ONE} {RESULT}")], 1),
    "QLinearConcat": ([contributed("QLinearConcat", f"{RESULT} {TWO}", axis=1)], 2),
    "QLinearSigmoid": ([contributed("QLinearSigmoid", f"{ONE} {RESULT}")], 1),
    "QLinearLeakyRelu": ([contributed("QLinearLeakyRelu", f"{ONE} {RESULT}", alpha=0.2)], 1),
    "QLinearSoftmax": ([contributed("QLinearSoftmax", f"{ONE} full z", axis=-1, opset=13)], 1),
    "moves": (
        [
            node("MaxPool", "x0", "p", kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
            node("Pad", "p pads value", "q", name="my_pad"),
            node("Transpose", "q", "t", perm=[0, 2, 3, 1]),
            node("Concat", "t t", "c", axis=3),
            contributed("QLinearLeakyRelu", f"c s0 z0 {RESULT}", alpha=0.3),
        ],
        1,
    ),
    "an operator after another": (
        [
            contributed("QLinearAdd", f"{TWO} {RESULT}", "t"),
            node("Flatten", "t", "f"),
            contributed("QLinearSigmoid", "f s z s z"),
        ],
        2,
    ),
}
# The scale that onnxruntime's quantiser gives a softmax; onnxruntime rounds the inverse of others down.
MORE = {"pads": np.array([0, 0, 1, 1, 0, 0, 0, 2]), "full": np.float32(1 / 256)}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_integers(case: str, kind: str):
    nodes, inputs = CASES[case]
    rank = 2 if case == "an operator after another" else 4
    value = np.asarray(TYPES[kind][2] + 17, TYPES[kind][1])
    compare(model(nodes, kind, inputs=inputs, more=MORE | {"value": value}, rank=rank), off=0.01)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("is_float", [False, True])
def test_qgemm(kind: str, transposed: int, is_float: bool):
    shape = (7, 120) if transposed else (120, 7)
    weights = np.random.default_rng(0).integers(-128, 127, shape, dtype=np.int8)
    more = {
        "w": weights,
        "sw": np.full(7, 0.01, np.float32) + np.arange(7, dtype=np.float32) / 300,
        "zw": np.zeros(7, np.int8),
        "b": np.arange(-300, 400, 100, dtype=np.int32),
    }
    inputs = f"f s0 z0 w sw zw b{'' if is_float else ' s z'}"
    nodes = [node("Flatten", "x0", "f"), contributed("QGemm", inputs, transB=transposed, alpha=1.5)]
    proto = model(nodes, kind, more=more, rank=2)
    if is_float:
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    graph = compare(proto, off=0.2 if is_float else 0.002).graph
    assert graph.arithmetic == "int"


def test_zero_points_of_another_type():
    proto = model(CASES["QLinearSigmoid"][0], "int8")
    for tensor in proto.graph.initializer:
        if tensor.name == "z0":
            tensor.CopyFrom(numpy_helper.from_array(np.uint8(3), "z0"))
    with pytest.raises(UserError, match=r"x0|refuses"):
        load(proto)


def test_zero_points_of_weights_that_differ_by_channel():
    more = {
        "w": np.ones((2, 4, 1, 1), np.uint8),
        "sw": np.full(2, 0.1, np.float32),
        "zw": np.array([3, 4], np.uint8),
    }
    proto = model([node("QLinearConv", f"x0 s0 z0 w sw zw {RESULT}")], "uint8", more=more)
    with pytest.raises(
        UserError, match=r"my_qlinearconv .*zero points 'zw' of the weights differ by channel: -?\d+ and"
    ):
        load(proto)
