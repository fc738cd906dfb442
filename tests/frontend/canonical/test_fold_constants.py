"""Nodes of constants: those whose results have shapes that depend on values, and those behind quantised weights."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Filter
from tests import quantised_models
from tests.tiny_models import compare, make_model, node, random

MASK = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.float32)
AXIS = np.array([0], np.int64)


def picked(nodes: list[NodeProto], constants: dict[str, Any], source: str) -> None:
    """Compares a model that gathers columns of x by constants that `nodes` compute."""
    nodes = [*nodes, node("Gather", f"x {source}", "g", axis=1), node("MatMul", "g w")]
    compare(make_model(nodes, {"x": (3, 8)}, {"y": 2}, {"w": random(4, 5), **constants}))


def test_trial_b9_places_that_are_not_zero():
    picked([node("NonZero", "m", "nz"), node("Squeeze", "nz ax", "i")], {"m": MASK, "ax": AXIS}, "i")


def test_trial_b9_boxes_that_are_kept():
    boxes = np.random.default_rng(2).uniform(0, 1, (1, 8, 4)).astype(np.float32)
    scores = np.random.default_rng(3).uniform(0, 1, (1, 1, 8)).astype(np.float32)
    nodes = [
        node("NonMaxSuppression", "b s most iou", "kept"),
        node("Slice", "kept from to ax", "column"),
        node("Squeeze", "column ax", "i"),
    ]
    constants = {"b": boxes, "s": scores, "most": np.array(4), "iou": np.float32(0.95), "ax": np.array([1])}
    picked(nodes, {**constants, "from": np.array([2]), "to": np.array([3])}, "i")


def test_trial_b9_rows_of_weights_by_a_condition():
    nodes = [node("Compress", "v m", "w", axis=0), node("MatMul", "x w")]
    loaded = compare(make_model(nodes, {"x": (3, 4)}, {"y": 2}, {"v": random(8, 300), "m": MASK.astype(bool)}))
    assert [type(n.operator) for n in loaded.graph.nodes] == [Filter]


def test_trial_b9_a_constant_of_the_shape_of_an_input():
    one = numpy_helper.from_array(np.array([1], np.int64))
    nodes = [
        node("Shape", "x", "shape", start=1),
        node("ConstantOfShape", "shape", "ones", value=one),
        node("NonZero", "ones", "nz"),
        node("Squeeze", "nz ax", "i"),
        node("Gather", "x i", axis=1),
    ]
    compare(make_model(nodes, {"x": (3, 8)}, {"y": 2}, {"ax": AXIS}))


def test_trial_b9_a_sequence_and_what_follows_it():
    nodes = [
        node("SplitToSequence", "v", "parts", axis=0, keepdims=1),
        node("SequenceAt", "parts two", "part"),
        node("SequenceErase", "parts two", "others"),
        node("ConcatFromSequence", "others", "w", axis=0),
        node("MatMul", "x w", "product"),
        node("Add", "product part"),
    ]
    compare(make_model(nodes, {"x": (3, 7)}, {"y": 2}, {"v": random(8, 5), "two": np.array(2)}))


def test_trial_b9_two_foldings_one_after_the_other():
    """The second depends on a shape that only the first makes known."""
    nodes = [
        node("NonZero", "m", "nz"),
        node("Squeeze", "nz ax", "i"),
        node("Gather", "x i", "g", axis=1),
        node("Shape", "g", "shape", start=1),
        node("ConstantOfShape", "shape", "zeros"),
        node("Equal", "zeros zero", "all"),
        node("NonZero", "all", "again"),
        node("Squeeze", "again ax", "j"),
        node("Gather", "g j", axis=1, name="last"),
    ]
    nodes[7].name = "second"
    nodes[6].name = "twice"
    compare(make_model(nodes, {"x": (3, 8)}, {"y": 2}, {"ax": AXIS, "m": MASK, "zero": np.float32(0)}))


def test_random_numbers_are_not_folded():
    nodes = [node("RandomUniformLike", "v", "w"), node("MatMul", "x w")]
    with pytest.raises(UnsupportedError, match="my_randomuniformlike"):
        load(make_model(nodes, {"x": (3, 8)}, {"y": 2}, {"v": random(8, 5)}))


WIDE = np.random.default_rng(7).integers(-100, 100, (8, 6)).astype(np.int8)
KINDS: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "int8": (WIDE, np.float32(0.01), {}),
    "int4": ((WIDE // 16).astype(ml_dtypes.int4), np.float32(0.1), {}),
    "read_channel_vector": (WIDE, np.random.default_rng(8).uniform(0.01, 0.1, 6).astype(np.float32), {"axis": 1}),
    "blocks": (
        (WIDE // 16).astype(ml_dtypes.int4),
        np.random.default_rng(9).uniform(0.01, 0.1, (2, 6)).astype(np.float32),
        {"axis": 0, "block_size": 4},
    ),
}
CHAINS: dict[str, tuple[list[NodeProto], dict[str, Any]]] = {
    "reshape": ([node("Reshape", "wd to", "v")], {"to": np.array([6, 8])}),
    "squeeze": ([node("Unsqueeze", "wd ax", "u"), node("Squeeze", "u ax", "v")], {"ax": AXIS}),
    "flatten": ([node("Unsqueeze", "wd ax", "u"), node("Flatten", "u", "v", axis=2)], {"ax": AXIS}),
    "slice": ([node("Slice", "wd a b ax", "v")], {"a": np.array([1]), "b": np.array([7]), "ax": AXIS}),
    "split": ([node("Split", "wd", "other v", axis=1, num_outputs=2)], {}),
    "gather": ([node("Gather", "wd i", "v", axis=1)], {"i": np.array([2, 4, 1])}),
    "pad": ([node("Pad", "wd p", "v")], {"p": np.array([1, 0, 0, 2])}),
    "pad_with_a_number": ([node("Pad", "wd p c", "v")], {"p": np.array([1, 0, 0, 2]), "c": np.float32(0.3)}),
    "clip": ([node("Clip", "wd low high", "v")], {"low": np.float32(-0.3), "high": np.float32(0.4)}),
    "transpose": ([node("Transpose", "wd", "v", perm=[1, 0])], {}),
    "relu": ([node("Relu", "wd", "v")], {}),
    "concat": ([node("Concat", "wd more", "v", axis=1)], {"more": random(8, 1)}),
    "mul": ([node("Mul", "wd k", "v")], {"k": np.float32(3)}),
    "expand": ([node("Expand", "wd to", "v")], {"to": np.array([2, 8, 6])}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", CHAINS)
def test_trial_b10_chains_behind_quantised_weights(chain: str, kind: str):
    (values, scale, attributes), (nodes, constants) = KINDS[kind], CHAINS[chain]
    first = node("DequantizeLinear", "w s", "wd", name="dequantise", **attributes)
    rows = {"reshape": 6, "pad": 9, "pad_with_a_number": 9, "slice": 6, "transpose": 6}.get(chain, 8)
    rank = 3 if chain == "expand" else 2
    model = make_model(
        [first, *nodes, node("MatMul", "x v")],
        {"x": (3, rows)},
        {"y": rank},
        {"w": values, "s": scale, **constants},
        opset=21,
        ir_version=10,
    )
    loaded = compare(model)
    assert any(isinstance(n.operator, Filter) for n in loaded.graph.nodes)


def test_trial_b10_weights_of_four_dimensions_become_a_matrix():
    nodes = [
        node("DequantizeLinear", "w s", "wd", axis=1),
        node("Flatten", "wd", "wf"),
        node("Gemm", "x wf", transB=1),
    ]
    scales = np.random.default_rng(1).uniform(0.01, 0.1, 2).astype(np.float32)
    compare(make_model(nodes, {"x": (3, 12)}, {"y": 2}, {"w": WIDE.reshape(4, 2, 2, 3)[:3], "s": scales}))


@pytest.mark.parametrize("chain", [c for c in CHAINS if c not in ("concat", "mul", "pad_with_a_number", "expand")])
@pytest.mark.parametrize("axis", [None, 1])
def test_trial_b10_chains_in_a_model_of_integers(chain: str, axis: int | None):
    """The weights stay integers with a scale, or the model of integers would not take them."""
    nodes, constants = CHAINS[chain]
    rows = {"reshape": 6, "pad": 9, "slice": 6, "transpose": 6}.get(chain, 8)
    if axis == 1 and chain == "reshape":
        # One scale for each column is one for each column still.
        constants, rows = {"to": np.array([4, 2, 6]), "back": np.array([8, 6])}, 8
        nodes = [node("Reshape", "wd to", "u"), node("Reshape", "u back", "v", name="back")]
    scale = np.float32(0.02) if axis is None else KINDS["read_channel_vector"][1]
    if chain == "clip":
        # Bounds that are codes of the weights: the real numbers are multiples of the scale, exactly.
        scale = np.float32(0.0625) if axis is None else np.full(6, 0.0625, np.float32)
        constants = {"low": np.float32(-0.5), "high": np.float32(0.25)}
    model = make_model(
        [
            node("QuantizeLinear", "x sx zx", "q", name="q"),
            node("DequantizeLinear", "q sx zx", "xd", name="dq"),
            node("DequantizeLinear", "w s", "wd", name="dqw", **({} if axis is None else {"axis": axis})),
            *nodes,
            node("MatMul", "xd v", "m"),
            node("QuantizeLinear", "m sy zx", "yq", name="qy"),
            node("DequantizeLinear", "yq sy zx", "y", name="dqy"),
        ],
        {"x": (3, rows)},
        {"y": 2},
        {"w": WIDE, "s": scale, "sx": np.float32(0.02), "sy": np.float32(0.5), "zx": np.int8(3), **constants},
        opset=21,
        ir_version=10,
    )
    quantised_models.compare(model)


def test_trial_a11_weights_of_eight_bit_floats():
    weights = numpy_helper.from_array(random(8, 5).astype(ml_dtypes.float8_e4m3fn), "w")
    model = make_model(
        [node("DequantizeLinear", "w s", "wd"), node("MatMul", "x wd")],
        {"x": (3, 8)},
        {"y": 2},
        {"s": np.float32(0.5)},
        opset=21,
        ir_version=10,
    )
    model.graph.initializer.append(weights)
    compare(model)


def layers() -> dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    return {
        "MatMul": ((3, 8), (8, 6), {}),
        "Gemm": ((3, 8), (6, 8), {"transB": 1}),
        "Conv": ((1, 3, 5, 5), (4, 3, 2, 2), {}),
        "ConvTranspose": ((1, 3, 5, 5), (3, 4, 2, 2), {}),
        "PRelu": ((1, 3, 5, 5), (3, 1, 1), {}),
    }


@pytest.mark.parametrize("op_type", layers())
@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4"])
def test_trial_a11_a_float_layer_of_quantised_weights(op_type: str, kind: str):
    shape, weights, attributes = layers()[op_type]
    to = np.dtype(getattr(ml_dtypes, kind)) if kind.endswith("4") else np.dtype(kind)
    low, high = (0, 15 if "4" in kind else 255) if kind.startswith("u") else (-8, 7)
    values = np.random.default_rng(4).integers(low, high, weights, endpoint=True).astype(to)
    model = make_model(
        [node("DequantizeLinear", "w s z", "wd"), node(op_type, "x wd", **attributes)],
        {"x": shape},
        {"y": len(shape)},
        {"w": values, "s": np.float32(0.02), "z": np.asarray(3, to)},
        opset=21,
        ir_version=10,
    )
    assert compare(model).graph.arithmetic == "float"


def test_a_wrong_node_of_constants_is_refused():
    nodes = [helper.make_node("Reshape", ["wd", "to"], ["v"], name="wrong"), node("MatMul", "x v")]
    nodes.insert(0, node("DequantizeLinear", "w s", "wd"))
    constants = {"w": WIDE, "s": np.float32(0.1), "to": np.array([5, 5])}
    with pytest.raises(UnsupportedError, match=r"wrong|my_matmul"):
        load(make_model(nodes, {"x": (3, 5)}, {"y": 2}, constants))
