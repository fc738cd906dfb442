"""Operands of products: attentions with one head, whose turned keys are another name of the keys, and matrices that a
dense layer computes, stream."""

import numpy as np
import pytest
from onnx import ModelProto

from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Dot
from raptor.mapping.modes.line_streaming import can_stream_product, find_views, line_channel_ranges
from raptor.transforms.lay_out_matmuls import lay_out_matmuls
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from tests.pipeline import check, chip
from tests.tiny_models import make_model, node, random


def cross_attention(heads: int, *, keys_are_a_result: bool = False) -> ModelProto:
    """Six queries of one input to twenty keys and values of another one."""
    nodes = [
        node("MatMul", "q wq", "queries", name="queries"),
        node("MatMul", "x wk", "keys", name="keys"),
        node("MatMul", "x wv", "values", name="values"),
        *(
            node("Reshape", f"{name} {shape}", f"{name}.r", name=f"{name}.r")
            for name, shape in (("queries", "few"), ("keys", "many"), ("values", "many"))
        ),
        node("Transpose", "queries.r", "qh", perm=[0, 2, 1, 3], name="qh"),
        node("Transpose", "keys.r", "kh", perm=[0, 2, 3, 1], name="kh"),
        node("Transpose", "values.r", "vh", perm=[0, 2, 1, 3], name="vh"),
        node("MatMul", "qh kh", "scores", name="scores"),
        node("Softmax", "scores", "shares", axis=-1, name="softmax"),
        node("MatMul", "shares vh", "y", name="sums"),
    ]
    constants = {f"w{name}": random(8, 8, seed=i) for i, name in enumerate("qkv")}
    constants |= {"few": np.array([1, 6, heads, 8 // heads]), "many": np.array([1, 20, heads, 8 // heads])}
    outputs = {"y": 4, "kh": 4} if keys_are_a_result else {"y": 4}
    return make_model(nodes, {"q": (1, 6, 8), "x": (1, 20, 8)}, outputs, constants, opset=13)


def rotated_points(*, transposed: bool) -> ModelProto:
    """Twenty points, transformed by a matrix that a dense layer computes of a vector, and two layers of them."""
    nodes = [
        node("MatMul", "x wx", "points", name="points"),
        node("MatMul", "v wv", "numbers", name="numbers"),
        node("Reshape", "numbers square", "matrix", name="matrix"),
        node("Transpose", "matrix", "turned", perm=[0, 2, 1], name="turned"),
        node("MatMul", f"points {'turned' if transposed else 'matrix'}", "moved", name="moved"),
        node("MatMul", "moved wy", "y", name="last"),
    ]
    constants = {"wx": random(8, 4), "wv": random(6, 16, seed=1), "wy": random(4, 8, seed=2)}
    constants["square"] = np.array([1, 4, 4])
    return make_model(nodes, {"x": (1, 20, 8), "v": (1, 6)}, {"y": 3}, constants, opset=13)


@pytest.mark.parametrize(
    "model",
    [
        *(cross_attention(1), cross_attention(1, keys_are_a_result=True), cross_attention(2)),
        *(rotated_points(transposed=False), rotated_points(transposed=True)),
    ],
    ids=["one head", "one head, keys that are a result", "two heads", "matrix of a vector", "transposed matrix"],
)
def test_all_products_stream(model: ModelProto):
    before = lay_out_tokens(load(model).graph)
    after = lay_out_matmuls(before)
    after.verify()
    parts = line_channel_ranges(after, chip((16, 16)))
    views = find_views(after, parts)
    assert all(can_stream_product(after, n, parts, views) for n in after.nodes if isinstance(n.operator, Dot))
    values = {name: random(*before.tensors[name].shape) for name in before.inputs}
    one, two = (evaluate_graph(graph, values) for graph in (before, after))
    assert all(np.array_equal(one[name], two[name]) for name in before.outputs)
    check(model, cores=20, xbar=16)
