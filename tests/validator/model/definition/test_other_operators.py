"""Operators that move, select and interpolate, and narrow types: onnxruntime is the witness."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from tests.validator.model.definition.quantised import Graph, defined
from validator.model.definition.evaluator import load_definition

F32 = np.float32
X = (F32(0.05), np.uint8(119))


def ints(*values):
    return np.array(values, np.int64)


MOVES = {
    "transpose": lambda g, x: g.op("Transpose", [x], perm=[0, 2, 3, 1]),
    "reshape": lambda g, x: g.op("Reshape", [x, g.constant(ints(2, -1))]),
    "flatten": lambda g, x: g.op("Flatten", [x], axis=2),
    "slice": lambda g, x: g.op("Slice", [x, *(g.constant(ints(n)) for n in (5, 1, 3, -2))]),
    "gather": lambda g, x: g.op("Gather", [x, g.constant(ints(2, 0, 2))], axis=1),
    "unsqueeze": lambda g, x: g.op("Unsqueeze", [x, g.constant(ints(1))]),
    "split": lambda g, x: g.op("Split", [x, g.constant(ints(4))], axis=1),
    "pad": lambda g, x: g.op("Pad", [x, g.constant(ints(0, 0, 1, 2, 0, 0, 0, 1))]),
    "pad with a number": lambda g, x: g.op("Pad", [x, g.constant(ints(0, 0, 1, 2, 0, 0, 0, 1)), g.constant(F32(0.25))]),
    "reflect": lambda g, x: g.op("Pad", [x, g.constant(ints(0, 0, 1, 2, 0, 0, 0, 1))], mode="reflect"),
    "depth to space": lambda g, x: g.op("DepthToSpace", [x], blocksize=2),
    "nearest": lambda g, x: g.op("Resize", [x, "", g.constant(np.array([1, 1, 2, 3], F32))], mode="nearest"),
    "identity": lambda g, x: g.op("Identity", [x]),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("same", [True, False])
def test_moves(name, same):
    g = Graph(1)
    real = MOVES[name](g, g.dequantized(g.given(g.codes("uint8", (2, 4, 5, 6))), *X))
    y = g.quantized(real, *X) if same else g.quantized(real, F32(0.077), np.uint8(30))
    definition, _, found = defined(g.model(y), g.values)
    assert not definition.inexact_tensors
    assert [d for d in found if (d.count if same else d.unexplained)] == []


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
def test_interpolation(mode):
    """Weights that are multiples of a power of two are exact; others are a float section."""
    g = Graph(2)
    x = g.dequantized(g.given(g.codes("uint8", (1, 3, 5, 6))), *X)
    scales = g.constant(np.array([1, 1, 2, 4], F32))
    real = g.op("Resize", [x, "", scales], mode="linear", coordinate_transformation_mode=mode)
    definition, _, found = defined(g.model(g.quantized(real, F32(0.041), np.uint8(77))), g.values)
    assert bool(definition.rounded_from_floats) == (mode == "align_corners")
    assert [d for d in found if d.unexplained] == []


@pytest.mark.parametrize("seed", range(6))
def test_transposed_convolution(seed):
    g = Graph(seed)
    group = 1 + seed % 2
    x = g.dequantized(g.given(g.codes("uint8", (2, 4, 5, 3))), *X)
    w = g.dequantized(g.constant(g.codes("int8", (4, 2, 3, 2))), F32(0.01), np.int8(3))
    b = g.dequantized(g.constant(np.arange(2 * group, dtype=np.int32) * 900), F32(0.05) * F32(0.01), np.int32(0))
    given = [
        {"strides": [2, 1], "pads": [1, 0, 0, 1]},
        {"dilations": [2, 1], "output_padding": [0, 0]},
        {"strides": [2, 2], "output_padding": [1, 0]},
    ]
    real = g.op("ConvTranspose", [x, w, b], group=group, **given[seed % 3])
    definition, _, found = defined(g.model(g.quantized(real, F32(0.3), np.uint8(100))), g.values)
    assert not definition.inexact_tensors
    assert [d for d in found if d.unexplained] == []
    assert sum(d.total for d in found) > 100


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("form", ["channel", "blocks"])
def test_narrow_weights(kind, form):
    """Blocks have other scales inside of a sum, so each is a sum of its own."""
    g = Graph(3)
    dtype = np.dtype(getattr(ml_dtypes, kind))
    low = 0 if kind == "uint4" else -8
    weights = g.rng.integers(low, low + 15, (8, 6), endpoint=True).astype(dtype)
    shape, given = ((6,), {"axis": 1}) if form == "channel" else ((2, 6), {"axis": 0, "block_size": 4})
    zeros = g.rng.integers(low, low + 15, shape, endpoint=True).astype(dtype)
    w = g.dequantized(g.constant(weights), g.scale(shape=shape), zeros, **given)
    x = g.dequantized(g.given(g.codes("uint8", (3, 8))), *X)
    definition, _, found = defined(g.model(g.quantized(g.op("MatMul", [x, w]), F32(0.05), np.uint8(120))), g.values)
    assert not definition.rounded_from_floats
    assert [d for d in found if d.unexplained] == []


def test_narrow_activations():
    g = Graph(4)
    four = np.dtype(ml_dtypes.uint4)
    x = g.quantized(g.given(g.rng.standard_normal((3, 8)).astype(F32)), F32(0.3), np.array(7, four))
    w = g.dequantized(g.constant(g.codes("int8", (8, 5))), F32(0.01), np.int8(0))
    real = g.op("MatMul", [g.dequantized(x, F32(0.3), np.array(7, four)), w])
    _, _, found = defined(g.model(g.quantized(real, F32(0.4), np.array(6, four))), g.values)
    assert len(found) == 2
    assert [d for d in found if d.unexplained] == []


def test_a_shared_dequantisation_and_a_weight_that_the_model_quantises():
    g = Graph(5)
    x = g.dequantized(g.given(g.codes("uint8", (1, 4, 6, 6))), *X)
    plain = g.constant(g.rng.normal(0, 1, (4, 4, 1, 1)).astype(F32))
    codes = g.quantized(plain, g.scale(0.01, 0.02, (4,)), np.zeros(4, np.int8), axis=0)
    w = g.op("DequantizeLinear", [codes, g.nodes[-1].input[1], g.nodes[-1].input[2]], axis=0)
    y = g.quantized(g.op("Relu", [g.op("Conv", [x, w])]), F32(0.08), np.uint8(0))
    z = g.op("Add", [g.dequantized(y, F32(0.08), np.uint8(0)), x])
    definition, _, found = defined(g.model(g.quantized(z, F32(0.1), np.uint8(60)), y), g.values)
    assert not definition.inexact_tensors
    assert [d.tensor for d in found] == [y, f"t{len(g.nodes) - 1}"]
    assert [d for d in found if d.unexplained] == []


def test_a_branch_of_a_constant_condition_reads_the_input_of_each_run():
    g = Graph(6)
    x = g.codes("uint8", (2, 3))
    name, condition = g.given(x), g.constant(np.array(True))
    branches = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node("Identity", [name], [side])], side, [], [onnx.ValueInfoProto(name=side)]
        )
        for side in ("then", "else")
    }
    y = g.op("If", [condition], **branches)
    definition = load_definition(g.model(y))
    for given in (x, x + 1):
        assert (definition.run({name: given}).outputs[y] == given).all()


def test_a_result_after_one_that_is_not_used():
    g = Graph(7)
    x = g.codes("int8", (9,))
    name = g.given(x)
    g.nodes.append(helper.make_node("Unique", [name], ["all", "", "places"]))
    found = load_definition(g.model("places")).run({name: x}).outputs["places"]
    np.testing.assert_array_equal(found, np.unique(x, return_inverse=True)[1])
