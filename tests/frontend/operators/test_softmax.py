"""Softmax and LogSoftmax over any axis against onnxruntime, on the graph and in the instruction streams."""

import numpy as np
import pytest

from raptor.frontend import load
from raptor.graph.ir import Softmax
from tests.pipeline import check
from tests.tiny_models import compare, make_model, node, single

SHAPES = [(2, 3, 4), (1, 5), (4, 6), (7,), (2, 3, 2, 5), (1, 4, 1, 1), (2, 4, 1, 1)]


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("shape", "axis"), [(s, a) for s in SHAPES for a in range(-len(s), len(s))])
def test_any_axis(op_type: str, opset: int, shape: tuple[int, ...], axis: int):
    compare(single(op_type, shape, opset=opset, axis=axis))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 17])
def test_default_axis(op_type: str, opset: int):
    compare(single(op_type, (2, 3, 4), opset=opset))


def test_softmax_over_the_channels_moves_nothing():
    (softmax,) = load(single("Softmax", (2, 3, 4, 5), axis=1)).graph.nodes
    assert isinstance(softmax.operator, Softmax)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_of_a_flattened_image(op_type: str):
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node(op_type, "f")]
    compare(make_model(nodes, {"x": [2, 3, 2, 2]}, {"y": 2}))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_large_values_do_not_overflow(op_type: str):
    model = make_model([node("Mul", "x c", "s"), node(op_type, "s")], {"x": [3, 6]}, {"y": 2}, {"c": np.float32(200)})
    compare(model)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_in_the_streams(op_type: str, axis: int):
    check(single(op_type, (2, 9, 3), axis=axis), xbar=8, xbars_per_core=16)
