"""Models that onnxruntime's quantiser writes, in integers, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

import raptor
from raptor.graph.ir import Filter, Requantise
from tests.quantised_models import compare, quantise
from tests.tiny_models import Array, make_model, node, random


def small_cnn() -> ModelProto:
    constants = {"w1": (6, 1, 5, 5), "b1": (6,), "w2": (8, 6, 3, 3), "b2": (8,), "w3": (12, 8 * 36), "b3": (12,)}
    weights = {
        n: random(*s, seed=i) / np.float32(np.sqrt(np.prod(s[1:]))) for i, (n, s) in enumerate(constants.items())
    }
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[2, 2, 2, 2], name="conv1"),
        node("Relu", "c1", "r1", name="relu1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2], name="pool1"),
        node("Conv", "p1 w2 b2", "c2", pads=[1, 1, 1, 1], name="conv2"),
        node("Relu", "c2", "r2", name="relu2"),
        node("Flatten", "r2", "f", name="flatten"),
        node("Gemm", "f w3 b3", "y", transB=1, name="dense"),
    ]
    return make_model(nodes, {"x": (1, 1, 12, 12)}, {"y": 2}, weights, opset=21, ir_version=10)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_small_cnn(form: str, activations: str, per_channel: bool, tmp_path: Path):
    # NOTE: without VNNI, onnxruntime adds pairs of products of u8 and s8 in 16 bits, which saturate with 8-bit weights.
    narrow = activations == "QUInt8"
    more = {"per_channel": per_channel, "reduce_range": narrow}
    graph = compare(quantise(small_cnn(), tmp_path, form=form, activations=activations, **more)).graph
    assert graph.arithmetic == "int"
    operators = [n.operator for n in graph.nodes]
    assert sum(isinstance(o, Filter) for o in operators) == sum(isinstance(o, Requantise) for o in operators) == 3
    assert {o.weight_bits for o in operators if isinstance(o, Filter)} == {8}


CODES = {"QInt8": (np.int8, 3), "QUInt8": (np.uint8, 100)}


def wrapped(
    nodes: list[NodeProto],
    inputs: dict[str, tuple[int, ...]],
    constants: dict[str, Array] | None = None,
    *,
    kind: str = "QInt8",
    scales: tuple[float, ...] = (0.02, 0.031),
    rank: int = 4,
    opset: int = 21,
) -> ModelProto:
    """Q and DQ of every input, the nodes, which read `a`, `b` and write `r`, and Q and DQ of the result `y`."""
    dtype, zero = CODES[kind]
    found = dict(constants or {}) | {"s": np.float32(0.057), "z": dtype(zero + 5)}
    before: list[NodeProto] = []
    for i, name in enumerate(inputs):
        short = name[1:]
        found |= {f"s{short}": np.float32(scales[i]), f"z{short}": dtype(zero - 7 * i)}
        before += [
            node("QuantizeLinear", f"{name} s{short} z{short}", f"q{short}", name=f"q{short}"),
            node("DequantizeLinear", f"q{short} s{short} z{short}", short, name=f"d{short}"),
        ]
    after = [node("QuantizeLinear", "r s z", "qr", name="qr"), node("DequantizeLinear", "qr s z", "y", name="dr")]
    return make_model([*before, *nodes, *after], inputs, {"y": rank}, found, opset=opset, ir_version=10)


ONE, IMAGE = (1, 4, 6, 5), {"xa": (1, 4, 6, 5)}
TWO = IMAGE | {"xb": (1, 4, 6, 5)}
INTEGER_CASES = {
    "add": wrapped([node("Add", "a b", "r")], TWO),
    "add broadcast": wrapped([node("Add", "a b", "r")], IMAGE | {"xb": (4, 1, 1)}),
    "add itself": wrapped([node("Add", "a a", "r")], IMAGE),
    "sub": wrapped([node("Sub", "a b", "r")], TWO),
    "mul": wrapped([node("Mul", "a b", "r")], TWO),
    "mul broadcast": wrapped([node("Mul", "a b", "r")], IMAGE | {"xb": (1, 4, 1, 1)}),
    "square": wrapped([node("Mul", "a a", "r")], IMAGE),
    "relu of add": wrapped([node("Add", "a b", "t"), node("Relu", "t", "r")], TWO),
    "clip": wrapped([node("Clip", "a lo hi", "r")], IMAGE, {"lo": np.float32(-1), "hi": np.float32(0.5)}),
    "relu then add": wrapped([node("Relu", "a", "t"), node("Add", "t b", "r")], TWO),
    "max pool": wrapped([node("MaxPool", "a", "r", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], IMAGE),
    "average pool": wrapped([node("AveragePool", "a", "r", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], IMAGE),
    "average pool with pads": wrapped(
        [node("AveragePool", "a", "r", kernel_shape=[3, 2], pads=[1, 1, 1, 1], count_include_pad=1, strides=[2, 1])],
        IMAGE,
    ),
    "global average pool": wrapped([node("GlobalAveragePool", "a", "r")], IMAGE),
    "mean": wrapped([node("ReduceMean", "a axes", "r", keepdims=0)], IMAGE, {"axes": np.array([2, 3])}, rank=2),
    "mean of channels": wrapped([node("ReduceMean", "a axes", "r")], IMAGE, {"axes": np.array([1])}),
    "sum": wrapped([node("ReduceSum", "a axes", "r")], IMAGE, {"axes": np.array([3])}),
    "concat": wrapped([node("Concat", "a b", "r", axis=1)], TWO),
    "concat of equal scales": wrapped([node("Concat", "a a", "r", axis=2)], IMAGE),
    "pad": wrapped([node("Pad", "a pads", "r")], IMAGE, {"pads": np.array([0, 0, 1, 1, 0, 0, 2, 0])}),
    "transpose": wrapped([node("Transpose", "a", "r", perm=[0, 2, 3, 1])], IMAGE),
    "resize": wrapped(
        [node("Resize", "a - scales", "r", mode="nearest")], IMAGE, {"scales": np.array([1, 1, 2, 2], np.float32)}
    ),
    "split": wrapped([node("Split", "a", "t u", axis=1, num_outputs=2), node("Add", "t u", "r")], IMAGE),
    "sigmoid": wrapped([node("Sigmoid", "a", "r")], IMAGE),
    "hard swish": wrapped([node("HardSwish", "a", "r")], IMAGE),
    "silu": wrapped([node("Sigmoid", "a", "t"), node("Mul", "a t", "r")], IMAGE),
    "leaky relu": wrapped([node("LeakyRelu", "a", "r", alpha=0.1)], IMAGE),
    "gelu": wrapped(
        [
            node("Div", "a c", "t"),
            node("Erf", "t", "u"),
            node("Add", "u one", "v"),
            node("Mul", "a v", "w", name="times"),
            node("Mul", "w half", "r"),
        ],
        IMAGE,
        {"c": np.float32(1.4142135), "one": np.float32(1), "half": np.float32(0.5)},
    ),
    "matmul": wrapped([node("MatMul", "a b", "r")], {"xa": (2, 3, 5), "xb": (2, 5, 4)}, rank=3),
    "gemm": wrapped([node("Gemm", "a b", "r", transB=1)], {"xa": (3, 5), "xb": (4, 5)}, rank=2),
}


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("case", INTEGER_CASES)
def test_integers_between_quantisers(case: str, kind: str):
    model = INTEGER_CASES[case]
    if kind == "QUInt8":
        model = with_kind(model, kind)
    assert compare(model).graph.arithmetic == "int"


def with_kind(model: ModelProto, kind: str) -> ModelProto:
    """A copy of the model with zero points of another type."""
    copy = ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.name.startswith("z"):
            value = numpy_helper.to_array(tensor).astype(np.int64) + CODES[kind][1] - CODES["QInt8"][1]
            tensor.CopyFrom(numpy_helper.from_array(value.astype(CODES[kind][0]), tensor.name))
    return copy


FLOAT_SECTIONS = {
    "softmax": wrapped([node("Softmax", "a", "r", axis=-1)], IMAGE),
    "layer norm": wrapped(
        [node("LayerNormalization", "a g", "r", axis=-1)], {"xa": (2, 7, 12)}, {"g": np.ones(12, np.float32)}, rank=3
    ),
    "max of different scales": wrapped([node("Max", "a b", "r")], TWO),
    "relu of a conv": wrapped(
        [
            node("DequantizeLinear", "w s", "dw", name="dw"),
            node("Conv", "a dw", "t"),
            node("LeakyRelu", "t", "r", alpha=0.1),
        ],
        IMAGE,
        {"w": np.arange(-12, 12, dtype=np.int8).reshape(6, 4, 1, 1)},
    ),
}


@pytest.mark.parametrize("case", FLOAT_SECTIONS)
def test_sections_of_floats(case: str):
    graph = compare(FLOAT_SECTIONS[case]).graph
    assert graph.arithmetic == "mixed"
    (operator,) = (n.name for n in FLOAT_SECTIONS[case].graph.node if n.output[0] == "r")
    assert operator in graph.float_nodes


def test_weights_alone_are_floats():
    """Integers that only stand for weights leave a model of floats."""
    constants = {"w": np.arange(-12, 12, dtype=np.int8).reshape(6, 4, 1, 1), "s": np.float32(0.01)}
    model = make_model([node("DequantizeLinear", "w s", "d"), node("Conv", "x d", "y")], {"x": ONE}, ["y"], constants)
    graph = compare(model).graph
    assert (graph.arithmetic, graph.float_nodes) == ("float", ())


@pytest.mark.parametrize("block", [0, 2])
def test_weights_with_negative_scales(block: int):
    """onnxruntime writes such scales for blocks of 4 bits whose largest weight is positive."""
    constants = {"w": np.arange(-16, 16, dtype=np.int8).reshape(4, 8), "s": random(*((2, 8) if block else (8,)))}
    assert (constants["s"] < 0).any()
    nodes = [node("DequantizeLinear", "w s", "d", axis=0 if block else 1, block_size=block), node("MatMul", "x d", "y")]
    compare(make_model(nodes, {"x": (3, 4)}, {"y": 2}, constants, opset=21, ir_version=10))


@pytest.mark.parametrize(
    ("x", "w"), [((7, 5), (5, 6)), ((2, 7, 5), (5, 6)), ((5,), (5, 6)), ((5,), (2, 5, 6)), ((2, 5, 7), (6, 5))]
)
def test_scales_of_columns_of_a_product(x: tuple[int, ...], w: tuple[int, ...]):
    """The scales of the weights are those of the output, whatever ranks the factors have."""
    left = w[-1] == x[-2] if len(x) > 1 else False
    axis = len(w) - (2 if left else 1)
    constants: dict[str, Any] = {
        "s": np.float32(0.05),
        "z": np.int8(3),
        "w": np.random.default_rng(0).integers(-99, 99, w, np.int8),
        "ws": abs(random(w[axis])) / 9 + np.float32(0.1),
    }
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w ws", "wd", name="weights", axis=axis),
        node("MatMul", "wd d" if left else "d wd"),
    ]
    rank = len(np.matmul(*((np.zeros(w), np.zeros(x)) if left else (np.zeros(x), np.zeros(w)))).shape)
    program = raptor.compile(make_model(nodes, {"x": x}, {"y": rank}, constants), cores=4)
    assert program.validate(samples=3).passed
