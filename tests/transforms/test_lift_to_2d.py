"""Signals beside layers become lines, also those that are made of columns and only pooled."""

import numpy as np
from onnx import ModelProto

from raptor.compiler.pipeline import prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Pool
from raptor.graph.streaming_layout import can_stream
from raptor.graph.window import Window
from raptor.mapping.strategies import ROWS
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from raptor.transforms.lift_to_2d import lift_to_2d
from tests.pipeline import by_line, check, passes
from tests.tiny_models import make_model, node, random


def pooled_column() -> ModelProto:
    """A signal is convolved as an image of one column, and the largest value of each channel is classified."""
    nodes = [
        node("Reshape", "x image", "a", name="expand"),
        node("Conv", "a k", "b", name="conv"),
        node("Reshape", "b signal", "c", name="squeeze"),
        node("Tanh", "c", "d", name="tanh"),
        node("Mul", "c d", "e", name="gate"),
        node("GlobalMaxPool", "e", "f", name="largest"),
        node("Reshape", "f classes", "g", name="flatten"),
        node("MatMul", "g v", "y", name="classes"),
    ]
    shapes = {"image": [1, 16, 96, 1], "signal": [1, 24, 94], "classes": [1, 24]}
    weights = {"k": random(24, 16, 3, 1), "v": random(24, 5)} | {name: np.array(n) for name, n in shapes.items()}
    return make_model(nodes, {"x": (1, 16, 96)}, {"y": 2}, weights)


def test_a_pool_of_a_renamed_column_is_over_lines():
    arch = load_chip(ChipOptions(arch="bench", cores=64))
    graph = rewrite_and_map(prepare_graph(load(pooled_column()).graph, arch), arch, ROWS.without_search()).graph
    (pool,) = (n.operator for n in graph.nodes if isinstance(n.operator, Pool))
    assert isinstance(pool.window, Window)
    assert pool.window.kernel == (1, 94)


def test_each_core_pools_the_pixels_that_it_has():
    done = passes(pooled_column(), arch="bench", cores=64, mapping="rows")
    placed = zip(done.spatial.computes, done.partition.cores, strict=True)
    assert len({core for compute, core in placed if compute.node == "largest"}) > 16


def test_values():
    check(pooled_column(), arch="bench", cores=64)


def test_a_product_with_the_channels_of_an_image_is_over_lines():
    """An Einsum as a layer of each pixel, between others: its pixels are those of the image."""
    nodes = [
        node("Conv", "x k", "a", name="first", pads=[1] * 4),
        node("Einsum", "w a", "b", name="mixed", equation="oc,bchw->bohw"),
        node("Conv", "b v", "y", name="last", pads=[1] * 4),
    ]
    weights = {"k": random(8, 3, 3, 3), "w": random(6, 8), "v": random(4, 6, 3, 3)}
    model = make_model(nodes, {"x": (1, 3, 12, 10)}, {"y": 4}, weights)
    done = passes(model, arch="bench", cores=64, mapping="rows")
    assert {*by_line(done.decision)} == {*done.decision.layers}
    assert len(done.decision.layers) == 3
    check(model, arch="bench", cores=64)


def test_scores_of_constant_queries_with_keys_of_one_head_are_over_lines():
    """Learned queries, as the latent ones of a Perceiver: the keys are [batch, head, channels, tokens]."""
    nodes = [
        node("MatMul", "x k", "a", name="keys"),
        node("Unsqueeze", "a one", "b", name="head"),
        node("Transpose", "b", "c", name="turn", perm=[0, 1, 3, 2]),
        node("Tanh", "c", "d", name="function"),
        node("MatMul", "q d", "y", name="scores"),
    ]
    weights = {"k": random(12, 16), "q": random(1, 1, 6, 16), "one": np.array([1])}
    model = make_model(nodes, {"x": (1, 96, 12)}, {"y": 4}, weights, opset=13)
    done = passes(model, arch="bench", cores=64, mapping="rows")
    assert {*by_line(done.decision)} == {*done.decision.layers}
    assert len(done.decision.layers) == 2
    check(model, arch="bench", cores=64)


def test_channels_of_the_same_pixels_are_lines_as_these_are():
    """The maximum over channels, by halves of them: the last halves are too small to be laid out for themselves."""
    nodes = [node("Conv", "x w", "c", name="conv"), node("ReduceMax", "c", "m", axes=[1]), node("Sub", "c m", "y")]
    before = load(make_model(nodes, {"x": [1, 8, 12]}, {"y": 3}, {"w": random(8, 8, 1)}, opset=17)).graph
    after = lift_to_2d(before)
    after.verify()
    assert all(can_stream(tensor.image) for tensor in after.tensors.values())
    given = {"x": random(1, 8, 12, seed=3)}
    assert np.array_equal(evaluate_graph(after, given)["y"], evaluate_graph(before, given)["y"])


def test_channels_of_other_pixels_are_no_lines():
    nodes = [node("Conv", "x w", "c", name="conv"), node("Gather", "c i", "y", axis=2, name="gather")]
    constants = {"w": random(8, 8, 1), "i": np.arange(12)[::-1].copy()}
    graph = lift_to_2d(load(make_model(nodes, {"x": [1, 8, 12]}, {"y": 3}, constants, opset=17)).graph)
    assert [can_stream(graph.tensors[name].image) for name in "cy"] == [True, False]
