"""Products whose operands and results have their axes in any order: they stream, and stay what they were."""

import numpy as np
import pytest
from onnx import ModelProto

from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Dot, Graph
from raptor.mapping.modes.line_streaming import can_stream_product, find_views, line_channel_ranges
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from raptor.transforms.tokens.line_up_products import line_up_products
from tests.pipeline import check, chip
from tests.tiny_models import make_model, node, random

LOCAL_LAYER = {"x": (1, 4, 6, 1, 8, 3), "w": (1, 4, 5, 3, 6)}
"""A layer whose weights are others for each of 6 pieces of 8 pixels: windows of 3 pixels with 4 channels, 5 results."""
HEADS = {"x": (1, 10, 3, 4), "w": (1, 12, 3, 4)}
EQUATIONS = {
    "bildsk,biokl->bolsd": LOCAL_LAYER,
    "bildsk,biokl->bsold": LOCAL_LAYER,
    "blhd,bshd->bhls": HEADS,
    "blhd,bshd->bhsl": HEADS,
    "blhd,bshd->blsh": HEADS,
}


def computed(equation: str) -> ModelProto:
    """A product of two tensors that functions compute, and a function of it."""
    nodes = [
        node("Tanh", "x", "left", name="left"),
        node("Sigmoid", "w", "right", name="right"),
        node("Einsum", "left right", "z", equation=equation, name="product"),
        node("Abs", "z", "y", name="behind"),
    ]
    return make_model(nodes, EQUATIONS[equation], {"y": 5 if "i" in equation else 4}, {})


def streams(graph: Graph) -> bool:
    parts = line_channel_ranges(graph, chip((16, 16)))
    (product,) = (n for n in graph.nodes if isinstance(n.operator, Dot))
    return can_stream_product(graph, product, parts, find_views(graph, parts))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_product_streams_and_is_the_same(equation: str):
    model = computed(equation)
    graph = load(model).graph
    laid = lay_out_tokens(graph)
    laid.verify()
    assert streams(laid)
    given = {
        name: random(*shape, seed=i).astype(np.float64) for i, (name, shape) in enumerate(EQUATIONS[equation].items())
    }
    before, after = evaluate_graph(graph, given), evaluate_graph(laid, given)
    np.testing.assert_array_equal(after["y"], before["y"])
    check(model, xbar=16, xbars_per_core=4, cores=12)


def test_heads_in_the_usual_order_stay():
    graph = load(computed("blhd,bshd->bhls")).graph
    assert [n.output for n in line_up_products(graph).nodes] == [n.output for n in graph.nodes]
