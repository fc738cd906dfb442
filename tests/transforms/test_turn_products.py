"""Products of attentions with channels before tokens, or keys before queries: turned, so that queries are pixels."""

import numpy as np
import pytest
from onnx import ModelProto

from benchmarks.programs.block_models import BLOCKS
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Dot, Graph
from raptor.mapping.modes.line_streaming import can_stream_product, find_views, line_channel_ranges
from raptor.transforms.turn_products import turn_products
from tests.pipeline import check, chip, streamed
from tests.tiny_models import Array, make_model, node, random

CHIP = {"cores": 30, "xbar": 16}


def image_attention(*, shared: bool = False) -> ModelProto:
    """Two heads over the pixels of an image, values times transposed shares; `shared`: the shares are a result, too."""
    nodes = [
        node("Conv", "x w", "qkv", name="qkv"),
        node("Reshape", "qkv heads", "h", name="heads"),
        node("Split", "h sizes", "q k v", axis=2, name="split"),
        node("Transpose", "q", "qt", perm=[0, 1, 3, 2], name="queries"),
        node("MatMul", "qt k", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1, name="softmax"),
        node("Transpose", "p", "pt", perm=[0, 1, 3, 2], name="turn"),
        node("MatMul", "v pt", "o", name="values"),
        node("Reshape", "o image", "y", name="image"),
    ]
    constants = {
        "w": random(24, 6, 1, 1),
        "heads": np.array([1, 2, 12, 20]),
        "sizes": np.array([3, 3, 6]),
        "image": np.array([1, 12, 4, 5]),
    }
    outputs = {"y": 4, "p": 4} if shared else {"y": 4}
    return make_model(nodes, {"x": (1, 6, 4, 5)}, outputs, constants, opset=13)


def signal_attention(
    function: str = "Mul",
    *,
    scale: tuple[int, ...] = (),
    constant: Array | None = None,
    outputs: tuple[str, ...] = ("y",),
) -> ModelProto:
    """Scores of 18 keys x 9 queries, a softmax along the keys, values times shares.

    `function` of the scores: with `constant`, or random factors of shape `scale`.
    """
    nodes = [
        *(node("Conv", f"x {name}w", name, name=name) for name in "kv"),
        node("Conv", "x qw", "q", name="q", strides=[2]),
        node("Transpose", "k", "kt", perm=[0, 2, 1], name="keys"),
        node("MatMul", "kt q", "s", name="scores"),
        node(function, "s" if function == "Tanh" else "s constant", "f", name="function"),
        node("Softmax", "f", "p", axis=1, name="softmax"),
        node("MatMul", "v p", "o", name="values"),
        node("Conv", "o ow", "y", name="last"),
    ]
    constants = {f"{name}w": random(7, 7, 1, seed=i) for i, name in enumerate("qkvo")}
    constants["constant"] = np.abs(random(*scale)) if constant is None else constant
    return make_model(nodes, {"x": (1, 7, 18)}, dict.fromkeys(outputs, 3), constants, opset=13)


def dots(graph: Graph) -> dict[str, Dot]:
    return {n.name: n.operator for n in graph.nodes if isinstance(n.operator, Dot)}


def same_values(model: ModelProto) -> Graph:
    """Returns the graph with turned products, whose outputs are those of the graph before."""
    before = load(model).graph
    after = turn_products(before)
    after.verify()
    values = {name: random(*before.tensors[name].shape) for name in before.inputs}
    one, two = (evaluate_graph(graph, values) for graph in (before, after))
    for name in before.outputs:
        assert np.allclose(one[name], two[name], rtol=1e-5, atol=1e-6)
    return after


TURNED = {
    "values times shares": (image_attention(), {"scores": (20, 20), "values": (20, 6)}),
    "shares that are a result": (image_attention(shared=True), {"scores": (20, 20), "values": (20, 6)}),
    "keys times queries": (signal_attention(), {"scores": (9, 18), "values": (9, 7)}),
    "keys times queries, by a function": (signal_attention("Tanh"), {"scores": (9, 18), "values": (9, 7)}),
}


@pytest.mark.parametrize("name", TURNED)
def test_queries_are_pixels(name: str):
    model, sizes = TURNED[name]
    after = same_values(model)
    assert {name: (dot.rows, dot.cols) for name, dot in dots(after).items()} == sizes
    laid = streamed(load(model).graph)
    parts = line_channel_ranges(laid, chip((16, 16)))
    views = find_views(laid, parts)
    assert all(can_stream_product(laid, n, parts, views) for n in laid.nodes if isinstance(n.operator, Dot))
    check(model, **CHIP)


KEPT_SCORES = {
    "a factor for each query": signal_attention(scale=(1, 1, 9)),
    "a factor for each key": signal_attention(scale=(1, 18, 1)),
    "scores that are a result": signal_attention(outputs=("y", "s")),
    "functions of them that are a result": signal_attention(outputs=("y", "f")),
}


@pytest.mark.parametrize("name", KEPT_SCORES)
def test_scores_stay_that_something_else_reads_or_that_are_not_alike(name: str):
    after = same_values(KEPT_SCORES[name])
    assert {name: (dot.rows, dot.cols) for name, dot in dots(after).items()} == {"scores": (18, 9), "values": (9, 7)}
    check(KEPT_SCORES[name], **CHIP)


def test_masked_keys():
    """A key of -infinity for all queries has no share, and NaN in no other place."""
    mask = np.zeros((1, 18, 1), np.float32)
    mask[:, 5:9] = -np.inf
    model = signal_attention("Add", constant=mask)
    same_values(model)
    check(model, **CHIP)


def test_shares_on_the_left_stay():
    nodes = [
        node("Softmax", "x", "p", axis=-1, name="softmax"),
        node("MatMul", "p v", "o", name="values"),
        node("Transpose", "o", "y", perm=[0, 2, 1], name="turn"),
    ]
    graph = load(make_model(nodes, {"x": (1, 6, 9), "v": (1, 9, 4)}, {"y": 3})).graph
    assert turn_products(graph) is graph


def test_a_product_that_no_softmax_reads_stays():
    """The keys times values of a linear attention, which the next product reads transposed."""
    graph = load(BLOCKS["linear_attention"]()).graph
    assert turn_products(graph) is graph


@pytest.mark.parametrize(("shares", "form", "other"), [((28,), (4, 7), (3, 7, 2)), ((2, 10), (4, 5), (2, 5, 3))])
def test_shares_of_another_form(shares: tuple[int, ...], form: tuple[int, ...], other: tuple[int, ...]) -> None:
    """A softmax over one form of a tensor, and a product with another one: its rows and columns are the product's."""
    nodes = [
        node("Softmax", "x", "p", axis=-1, name="softmax"),
        node("Reshape", "p form", "r", name="form"),
        node("MatMul", "r a", "y", name="product"),
    ]
    rank = len(np.broadcast_shapes(form[:-2], other[:-2])) + min(2, len(other))
    outputs = {"y": rank}
    assert dots(same_values(make_model(nodes, {"x": shares, "a": other}, outputs, {"form": np.array(form)}, opset=13)))


def test_new_tensors_have_new_names():
    """An Einsum with transposed shares makes a tensor of the very name that the turned product would have."""
    nodes = [
        node("MatMul", "x w", "h", name="layer"),
        node("Reshape", "h heads", "v", name="heads"),
        node("Softmax", "s", "p", axis=1, name="softmax"),
        node("Einsum", "p v", "y", equation="ijh,jhd->ihd", name="values"),
    ]
    constants = {"w": random(8, 8), "heads": np.array([6, 2, 4])}
    model = make_model(nodes, {"x": (6, 8), "s": (6, 6, 2)}, {"y": 3}, constants, opset=13)
    assert dots(same_values(model)) != dots(load(model).graph), "turned"
    check(model, **CHIP)
