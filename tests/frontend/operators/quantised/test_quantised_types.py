"""Types and granularities of quantised models, and models that are wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import RaptorError, UnsupportedError, UserError
from raptor.frontend import load
from raptor.graph.ir import Filter
from tests.quantised_models import compare, onnx_type
from tests.tiny_models import Array, make_model, node, random


def integers(kind: str, *shape: int, seed: int = 0) -> Array:
    """Random integers of the whole range of a type of ONNX."""
    bits, sign = int(kind.lstrip("uint")), not kind.startswith("u")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, (1 << bits) - 1)
    found = np.random.default_rng((seed, *shape)).integers(low, high, shape, endpoint=True)
    return found.astype(onnx_type(kind))


def layer(
    op_type: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    *,
    activations: str = "int8",
    kind: str = "int8",
    zero: int = 3,
    axis: int | None = None,
    block: int = 0,
    bias: int = 0,
    float_bias: bool = False,
    result: int = 4,
    opset: int = 21,
    **attributes: Any,
) -> ModelProto:
    """x -> Q -> DQ -> a layer of quantised weights, with a bias of so many elements -> Q -> DQ -> y."""
    values = integers(kind, *weights)
    shape_of_scales = () if axis is None else (weights[axis],)
    if block:
        shape_of_scales = tuple(-(-n // block) if d == axis else n for d, n in enumerate(weights))
    scales = np.asarray(np.random.default_rng(5).uniform(0.001, 0.01, shape_of_scales), np.float32)
    to, off = onnx_type(activations), zero + (128 if activations == "uint8" else 0)
    constants: dict[str, Array] = {
        "w": values,
        "sw": scales,
        "s": np.float32(0.013),
        "z": np.asarray(off, to),
        "sy": np.float32(0.021),
        "zy": np.asarray(off - 1, to),
    }
    for_weights: dict[str, int] = {} if axis is None else {"axis": axis}
    if block:
        for_weights["block_size"] = block
    nodes = [
        node("QuantizeLinear", "x s z", "qx", name="qx"),
        node("DequantizeLinear", "qx s z", "dx", name="dx"),
        node("DequantizeLinear", "w sw", "dw", name="dw", **for_weights),
    ]
    if kind.startswith("u"):
        constants["zw"] = np.full(shape_of_scales, 7, onnx_type(kind))
        nodes[-1].input.append("zw")
    if bias:
        given = integers("int16", bias).astype(np.int32)
        constants |= {"b": random(bias)} if float_bias else {"bq": given, "sb": np.float32(0.013) * scales}
        if not float_bias:
            nodes.append(node("DequantizeLinear", "bq sb", "b", name="db", **({} if axis is None else {"axis": 0})))
    nodes += [
        node(op_type, f"dx dw{' b' if bias else ''}", "r", name="layer", **attributes),
        node("QuantizeLinear", "r sy zy", "qy", name="qy"),
        node("DequantizeLinear", "qy sy zy", "y", name="dy"),
    ]
    return make_model(nodes, {"x": shape}, {"y": result}, constants, opset=opset, ir_version=10)


LAYERS = {
    "conv": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), bias=4, pads=[1, 1, 1, 1]),
    "conv of uint8": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), activations="uint8", bias=4, pads=[2, 1, 0, 1]),
    "conv by channel": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), axis=0, bias=4, pads=[1, 1, 1, 1], strides=[2, 2]),
    "conv of a batch": layer("Conv", (2, 3, 6, 5), (4, 3, 3, 3), axis=0, bias=4, pads=[1, 1, 1, 1]),
    "conv of one dimension": layer("Conv", (1, 3, 9), (4, 3, 3), pads=[1, 1], result=3),
    "conv with a float bias": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), bias=4, float_bias=True),
    "depthwise conv": layer("Conv", (1, 4, 6, 5), (4, 1, 3, 3), axis=0, group=4, pads=[1, 1, 1, 1]),
    "grouped conv": layer("Conv", (1, 4, 6, 5), (6, 2, 3, 3), group=2, pads=[1, 1, 1, 1]),
    "transposed conv": layer("ConvTranspose", (1, 3, 4, 5), (3, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed conv by channel": layer("ConvTranspose", (1, 3, 4, 5), (3, 4, 2, 2), axis=1, strides=[2, 2]),
    "weights of 4 bits": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), kind="int4", bias=4),
    "weights of uint4": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), kind="uint4", axis=0),
    "large weights of 4 bits": layer("Gemm", (2, 70), (70, 40), kind="int4", result=2),
    "weights of uint8": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), kind="uint8", bias=4),
    "activations of 16 bits": layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), activations="int16", bias=4),
    "gemm": layer("Gemm", (2, 7), (7, 5), bias=5, result=2),
    "gemm by channel": layer("Gemm", (2, 7), (5, 7), axis=0, bias=5, transB=1, result=2),
    "matmul": layer("MatMul", (2, 3, 7), (7, 5), axis=1, result=3),
    "matmul in blocks": layer("MatMul", (3, 8), (8, 5), axis=0, block=4, result=2),
    "gemm in blocks": layer("Gemm", (3, 9), (5, 9), axis=1, block=3, result=2, transB=1),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case: str):
    graph = compare(LAYERS[case], off=0.01).graph
    assert graph.arithmetic == "int"


def test_bits_of_weights():
    def bits(case: str) -> int:
        (found,) = (n.operator for n in load(LAYERS[case]).graph.nodes if isinstance(n.operator, Filter))
        return found.weight_bits

    assert [bits(c) for c in ("conv", "weights of 4 bits", "weights of uint4", "weights of uint8")] == [8, 4, 5, 9]


def test_accumulators_are_as_wide_as_their_sums_need():
    def width(kind: str, count: int) -> int:
        graph = load(layer("Gemm", (1, count), (count, 3), kind=kind, result=2)).graph
        return next(graph.tensors[n.output].element.bits for n in graph.nodes if isinstance(n.operator, Filter))

    assert [width("int4", 4), width("int8", 16), width("int8", 2000)] == [16, 24, 32]


@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8", "int16", "uint16"])
def test_types_of_inputs_and_outputs(kind: str):
    """The host quantises a float input, and takes integers as they are."""
    zero = np.asarray(1, onnx_type(kind))
    nodes = [node("DequantizeLinear", "x s z", "d"), node("Relu", "d", "r"), node("QuantizeLinear", "r t z", "y")]
    model = make_model(
        nodes, {"x": (2, 3)}, {"y": 2}, {"s": np.float32(0.5), "t": np.float32(0.3), "z": zero}, opset=21
    )
    model.ir_version = 10
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(onnx_type(kind))
    # onnxruntime takes no arrays of 4 bits.
    graph = (load(model) if "4" in kind else compare(model)).graph
    coding = graph.tensors["x"].coding
    assert coding is not None
    assert (coding.dtype, coding.scale) == (kind, ())


def changed(name: str, value: Array, case: str = "conv") -> ModelProto:
    """A layer with another constant."""
    copy = ModelProto.FromString(LAYERS[case].SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value), name))
    return copy


@pytest.mark.parametrize("case", ["conv by channel", "conv", "matmul in blocks"])
def test_layers_with_negative_scales_of_weights(case: str):
    """The integers are negative instead, so the program has integers only."""
    scales = next(numpy_helper.to_array(t) for t in LAYERS[case].graph.initializer if t.name == "sw")
    signs = np.where(np.arange(scales.size) % 2, 1, -1).astype(np.float32).reshape(scales.shape)
    graph = compare(changed("sw", scales * signs, case), off=0.01).graph
    assert graph.arithmetic == "int"


def dynamic() -> ModelProto:
    nodes: list[NodeProto] = [
        node("DynamicQuantizeLinear", "x", "q s z", name="dynamic"),
        node("DequantizeLinear", "q s z", "y", name="back"),
    ]
    return make_model(nodes, {"x": (2, 3)}, {"y": 2})


def too_large() -> ModelProto:
    weights = np.full((70000, 1), 127, np.int8)
    model = layer("Gemm", (1, 70000), (70000, 1), activations="int16", result=2)
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array(weights, "w"))
    return model


def other_zero_point() -> ModelProto:
    model = changed("z", np.int8(3))
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(3), "other"))
    model.graph.node[1].input[2] = "other"
    return model


def float_weights() -> ModelProto:
    """Integers everywhere but in the weights of the layer."""
    copy = changed("w", np.zeros((4, 3, 3, 3), np.int8))
    copy.graph.node.remove(copy.graph.node[2])
    copy.graph.initializer.append(numpy_helper.from_array(random(4, 3, 3, 3), "dw"))
    return copy


BAD: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "scale of 0": (lambda: changed("s", np.float32(0)), r"qx.*scale 's' is 0"),
    "negative scale": (lambda: changed("sy", np.float32(-0.5)), r"qy.*scale 'sy' is -0.5"),
    "scale that is no number": (lambda: changed("sw", np.float32(np.nan)), r"'sw': .* not finite, read by dw"),
    "scale of weights that is 0": (lambda: changed("sw", np.float32(0)), r"dw.*scale 'sw' is 0, .* other than 0"),
    "infinite scale": (lambda: changed("s", np.float32(np.inf)), r"'s': 1 of 1 values are not finite, read by qx"),
    "zero point of another type": (
        other_zero_point,
        r"dx \(Deq.*'qx' is int8, but its input 'other' is uint8",
    ),
    "zero points of another number": (
        lambda: changed("z", np.full(3, 3, np.int8)),
        r"1 scales \('s'\), but 3 zero points \('z'\)",
    ),
    "float zero point": (lambda: changed("z", np.float32(3)), "Q|DequantizeLinear|int8|Type"),
    "scales for other channels": (
        lambda: changed("sw", np.full(3, 0.1, np.float32), "conv by channel"),
        "3 scales or zero points for 4 channels",
    ),
    "scales whose product is 0": (
        lambda: changed("sw", np.float32(1e-45), "conv with a float bias"),
        r"layer \(Conv\): the product of the scales of its operands is 0 in float32",
    ),
    "multiplier beyond float32": (lambda: changed("sy", np.float32(1e38)), "beyond the range of float32"),
    "sums beyond 32 bits": (too_large, r"layer \(Gemm\): its sums reach .* more than 32 bits"),
    "weights in too many blocks": (
        lambda: layer("MatMul", (3, 18), (18, 5), axis=0, block=2, result=2),
        "9 blocks of scales, supported are 8",
    ),
    "bias beyond 32 bits": (
        lambda: changed("b", np.full(4, 1e9, np.float32), "conv with a float bias"),
        r"layer \(Conv\): its bias is 1000000000.0, beyond 32 bits",
    ),
    "float weights": (float_weights, r"layer \(Conv\): its weights are floats, .* quantise them, too"),
    "dynamic": (dynamic, "its scale is known only at run time"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str):
    build, message = BAD[case]
    with pytest.raises(RaptorError, match=message) as caught:
        load(build())
    assert isinstance(caught.value, UserError | UnsupportedError)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("length", [3, 1, 14])
@pytest.mark.parametrize(
    ("op_type", "shape", "weights", "float_bias", "axis"),
    [
        ("Conv", (1, 3, 5, 5), (7, 3, 2, 2), False, None),
        ("Conv", (1, 3, 5, 5), (7, 3, 2, 2), True, 0),
        ("ConvTranspose", (1, 3, 5, 5), (3, 7, 2, 2), False, None),
        ("Gemm", (2, 6), (6, 7), False, None),
        ("Gemm", (2, 6), (6, 7), True, 1),
    ],
)
def test_trial_b2_a_bias_of_a_wrong_length(
    op_type: str, shape: tuple[int, ...], weights: tuple[int, ...], float_bias: bool, axis: int | None, length: int
):
    model = layer(op_type, shape, weights, bias=length, float_bias=float_bias, axis=axis)
    if op_type == "Gemm" and length == 1:
        compare(model)
        return
    with pytest.raises(UnsupportedError, match=rf"\({op_type}\): its bias has the shape \({length},\), .*7"):
        load(model)


@pytest.mark.parametrize("length", [3, 1, 14])
def test_trial_b2_a_bias_of_a_wrong_length_inside_of_one_operator(length: int):
    nodes = [node("QuantizeLinear", "x s z", "q", name="q"), node("QLinearConv", "q s z w s z s z b", "y")]
    constants: dict[str, Any] = {"w": integers("int8", 7, 3, 2, 2), "s": np.float32(0.02), "z": np.int8(0)}
    model = make_model(nodes, {"x": (1, 3, 5, 5)}, {"y": 4}, {**constants, "b": np.ones(length, np.int32)})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    with pytest.raises(UnsupportedError, match=r"my_qlinearconv.*its bias has the shape .*, must be \(7,\)"):
        load(model)


@pytest.mark.parametrize(
    ("op_type", "weights", "wrong", "right"), [("Conv", (4, 3, 2, 2), 1, 0), ("ConvTranspose", (3, 4, 2, 2), 0, 1)]
)
def test_trial_b15_scales_of_weights_along_a_wrong_axis(op_type: str, weights: tuple[int, ...], wrong: int, right: int):
    compare(layer(op_type, (1, 3, 5, 5), weights, axis=right))
    wanted = rf"layer \({op_type}\): its weights '.*' have scales \(.*3.*\) along what is added up; .* \(axis {right}\)"
    with pytest.raises(UnsupportedError, match=wanted):
        load(layer(op_type, (1, 3, 5, 5), weights, axis=wrong))
    with pytest.raises(UnsupportedError, match=wanted.replace("3", "2")):
        load(layer(op_type, (1, 3, 5, 5), weights, axis=2))


def test_trial_b15_an_input_of_more_than_one_scale():
    constants: dict[str, Any] = {"w": integers("int8", 4, 3, 2, 2), "s": np.float32(0.02)}
    constants |= {"sx": np.array([0.1, 0.2, 0.3], np.float32), "z": np.zeros(3, np.int8)}
    nodes = [
        node("QuantizeLinear", "x sx z", "q", name="q", axis=1),
        node("DequantizeLinear", "q sx z", "xd", name="dx", axis=1),
        node("DequantizeLinear", "w s", "wd", name="dw"),
        node("Conv", "xd wd", name="layer"),
    ]
    with pytest.raises(UnsupportedError, match=r"layer .*: its input 'xd' is quantised by more than one scale"):
        load(make_model(nodes, {"x": (1, 3, 5, 5)}, ["y"], constants))
