"""Signals beside layers become lines, also those that exporters make of tokens only to pool them."""

from onnx import ModelProto

from raptor.compiler.pipeline import prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.graph.ir import Pool
from raptor.graph.window import Window
from raptor.mapping.strategies import ROWS
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from tests.pipeline import check, passes
from tests.tiny_models import make_model, node, random


def pooled_tokens() -> ModelProto:
    """Tokens pass a dense layer and a convolution over time; the largest value of each channel is classified."""
    nodes = [
        node("MatMul", "x w", "a", name="dense"),
        node("Transpose", "a", "b", perm=[0, 2, 1], name="channels_first"),
        node("Conv", "b k", "c", name="conv"),
        node("Transpose", "c", "d", perm=[0, 2, 1], name="channels_last"),
        node("Relu", "d", "e", name="relu"),
        node("ReduceMax", "e", "f", axes=[1], keepdims=0, name="largest"),
        node("MatMul", "f v", "y", name="classes"),
    ]
    weights = {"w": random(12, 16), "k": random(24, 16, 3), "v": random(24, 5)}
    return make_model(nodes, {"x": (1, 96, 12)}, {"y": 2}, weights)


def test_a_pool_of_renamed_tokens_is_over_lines():
    arch = load_chip(ChipOptions(arch="bench", cores=64))
    graph = rewrite_and_map(prepare_graph(load(pooled_tokens()).graph, arch), arch, ROWS.without_search()).graph
    (pool,) = (n.operator for n in graph.nodes if isinstance(n.operator, Pool))
    assert isinstance(pool.window, Window)
    assert pool.window.kernel == (1, 94)


def test_each_core_pools_the_tokens_that_it_has():
    done = passes(pooled_tokens(), arch="bench", cores=64, mapping="rows")
    placed = zip(done.spatial.computes, done.partition.cores, strict=True)
    assert len({core for compute, core in placed if compute.node == "largest"}) > 16


def test_values():
    check(pooled_tokens(), arch="bench", cores=64)
