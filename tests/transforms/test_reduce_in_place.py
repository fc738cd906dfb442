"""Softmaxes and pools over distributed pixels are computed on the cores of these pixels, and compute the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph, Map, Move, Pool, Softmax
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.lift_to_2d import lift_to_2d
from raptor.transforms.reduce_in_place import reduce_in_place
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node, random

CONSTANTS = {
    "kernel": random(4, 3, 3, 3),
    "taps": random(4, 3, 3),
    "taps4": random(2, 4, 3),
    "point": random(3, 4, 1, 1),
    "dense": random(6, 8),
    "across": np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8),
    "down": np.arange(5, dtype=np.float32).reshape(1, 1, 5, 1),
    "pixels": np.array([1, 4, 40]),
    "image": np.array([1, 4, 5, 8]),
    "halves": np.array([1, 4, 10, 4]),
    "cut": np.array([1, -1, 2, 8]),
}
CONV = node("Conv", "x kernel", "a", pads=[1] * 4)
IMAGE, SIGNAL = (1, 3, 5, 8), (1, 3, 16)


def made(*nodes: Any, given: tuple[int, ...] = IMAGE, rank: int = 4) -> ModelProto:
    for each in nodes:
        each.name = each.output[0]
    return make_model(list(nodes), {"x": given}, {"y": rank}, CONSTANTS, opset=13)


LAYER = node("Conv", "d point", "y")
IN_PLACE = {
    "all pixels": made(
        *(CONV, node("Reshape", "a pixels", "b"), node("Softmax", "b", "c", axis=2)),
        *(node("Reshape", "c image", "d"), LAYER),
    ),
    "a line": made(CONV, node("Softmax", "a", "d", axis=3), LAYER),
    "a column": made(CONV, node("Softmax", "a", "d", axis=2), LAYER),
    "a signal": made(
        *(node("Conv", "x taps", "a", pads=[1, 1]), node("Softmax", "a", "b", axis=2), node("Conv", "b taps4", "y")),
        given=SIGNAL,
        rank=3,
    ),
    "lines of a batch": made(CONV, node("Softmax", "a", "d", axis=3), LAYER, given=(2, *IMAGE[1:])),
    "with functions of places": made(
        *(CONV, node("Reshape", "a pixels", "b"), node("Softmax", "b", "c", axis=2), node("Reshape", "c image", "e")),
        *(node("Mul", "e across", "f"), node("Mul", "e down", "g"), node("Add", "f g", "d"), LAYER),
    ),
}
CUT_LINE = (
    *(node("MatMul", "x dense", "a"), node("Reshape", "a cut", "b")),
    node("ReduceMean", "b", "y", axes=[1]),
)
"""A mean of every second token of a sequence."""


def laid_out(model: ModelProto) -> Graph:
    return lift_to_2d(lay_out_tokens(load(model).graph))


def inputs(graph: Graph) -> dict[str, Any]:
    return {
        name: np.random.default_rng(5).normal(0, 2, graph.tensors[name].shape).astype(np.float32)
        for name in graph.inputs
    }


def same_values(before: Graph, after: Graph) -> None:
    after.verify()
    given = inputs(before)
    expected, found = (evaluate_graph(graph, given)["y"] for graph in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_softmax_over_pixels_moves_no_element(name: str):
    before = laid_out(IN_PLACE[name])
    after = compose_gathers(reduce_in_place(before))
    same_values(before, after)
    assert not [n for n in after.nodes if isinstance(n.operator, Softmax)]
    elements = max(after.tensors[n.output].image.elements for n in after.nodes)
    moves = [n for n in after.nodes if isinstance(n.operator, Move)]
    assert all(after.tensors[n.inputs[0]].image.elements < elements for n in moves), "only pooled pixels are copied"
    assert raptor.compile(IN_PLACE[name], arch="bench", cores=8).validate(samples=2).verdict == "pass"


def test_a_softmax_of_shares_of_an_attention_stays():
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "s"), node("Softmax", "s", "p", axis=1)]
    graph = laid_out(made(*nodes, node("MatMul", "p x", "y"), given=(1, 12, 6), rank=3))
    assert [n for n in reduce_in_place(graph).nodes if isinstance(n.operator, Softmax)]


def test_a_softmax_over_some_pixels_of_a_line_stays():
    nodes = [node("Reshape", "a halves", "b"), node("Softmax", "b", "c", axis=3), node("Reshape", "c image", "y")]
    before = laid_out(made(CONV, *nodes))
    after = reduce_in_place(before)
    same_values(before, after)
    assert [n for n in after.nodes if isinstance(n.operator, Softmax)]


def test_a_mean_of_every_second_token_is_one_over_pixels_of_two():
    before = laid_out(model := made(*CUT_LINE, given=(1, 24, 6), rank=4))
    after = reduce_in_place(before)
    same_values(before, after)
    (pool,) = [n for n in after.nodes if isinstance(n.operator, Pool)]
    image = after.tensors[pool.inputs[0]].image
    assert (image.rows, image.width, image.channels) == (1, 12, 16)
    assert raptor.compile(model, arch="bench", cores=8).validate(samples=2).verdict == "pass"


def test_a_mean_of_integers_is_pooled_in_place(tmp_path: Path):
    model = quantise(made(*CUT_LINE, given=(1, 24, 6), rank=4), tmp_path)
    before = laid_out(model)
    after = reduce_in_place(before)
    same_values(before, after)
    (pool,) = [n for n in after.nodes if isinstance(n.operator, Pool)]
    assert after.tensors[pool.inputs[0]].image.channels == 16
    assert raptor.compile(model, arch="bench", cores=8).validate(samples=2).verdict == "pass"


def test_a_softmax_that_is_quantised_has_the_type_of_its_codes():
    """Between layers with integers: its codes are made in place, and are integers there, too."""
    scale, zero = np.float32(0.05), np.array(3, np.uint8)
    codes = np.random.default_rng(0).integers(-8, 8, (4, 3, 3)).astype(np.int8)
    constants = {"s": scale, "z": zero, "w": codes, "w_zero": np.array(0, np.int8), "unit": np.float32(1 / 255)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Softmax", "d", "p", axis=2),
        node("QuantizeLinear", "p unit z", "r"),
        node("DequantizeLinear", "r unit z", "y"),
        node("QLinearConv", "q s z w s w_zero s z", "c", kernel_shape=[3], pads=[1, 1]),
        node("DequantizeLinear", "c s z", "e"),
    ]
    for each in nodes:
        each.name = each.output[0]
    model = make_model(nodes, {"x": SIGNAL}, {"y": 3, "e": 3}, constants, opset=13)
    after = reduce_in_place(laid_out(model))
    assert not [n for n in after.nodes if isinstance(n.operator, Softmax)]
    after.verify()
    rounded = [n.output for n in after.nodes if isinstance(n.operator, Map) and n.operator.function == "round"]
    assert [name for name in rounded if ".in_place" in name]
    assert {after.tensors[name].element.kind for name in rounded} == {"int"}
    assert raptor.compile(model, arch="bench", cores=8).validate(samples=2).verdict == "pass"


def test_infinities_and_smooth_images():
    model = IN_PLACE["all pixels"]
    before = laid_out(model)
    after = reduce_in_place(before)
    ramp = np.linspace(-80, 80, 120, dtype=np.float32).reshape(IMAGE)
    for given in (ramp, np.zeros(IMAGE, np.float32)):
        expected, found = (evaluate_graph(graph, {"x": given})["y"] for graph in (before, after))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert raptor.compile(model, arch="bench", cores=8).validate(samples=2).verdict == "pass"
