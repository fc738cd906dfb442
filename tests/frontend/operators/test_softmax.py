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


def test_log_softmax_over_the_channels_keeps_the_layout():
    """Another layout would have all pixels on one core, or transposed twice."""
    graph = load(single("LogSoftmax", (1, 3, 4, 5), axis=1)).graph
    assert {graph.tensors[node.output].image.pixel_dims for node in graph.nodes} == {(1, 4, 5)}


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_of_minus_infinity_have_no_share(op_type: str, axis: int):
    """Masks of attentions, and of letters that are not allowed, have such elements."""
    mask = np.where(np.arange(24).reshape(4, 6) % 5 == 0, -np.inf, 0).astype(np.float32)
    compare(make_model([node("Add", "x c", "s"), node(op_type, "s", axis=axis)], {"x": [4, 6]}, {"y": 2}, {"c": mask}))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_of_a_flattened_image(op_type: str):
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node(op_type, "f")]
    compare(make_model(nodes, {"x": [2, 3, 2, 2]}, {"y": 2}))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("factor", [200, 1e13])
def test_large_values_do_not_overflow(op_type: str, factor: float):
    factors = np.array(factor, np.float32)
    model = make_model([node("Mul", "x c", "s"), node(op_type, "s")], {"x": [3, 6]}, {"y": 2}, {"c": factors})
    compare(model)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_in_the_streams(op_type: str, axis: int):
    check(single(op_type, (2, 9, 3), axis=axis), xbar=8, xbars_per_core=16)
