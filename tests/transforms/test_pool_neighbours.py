"""Pools over groups of neighbouring tokens run on the cores that have the tokens."""

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from benchmarks.programs.block_models import BlockBuilder
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Map, Pool
from raptor.transforms.tokens.pool_neighbours import MOST_NEIGHBOURS, pool_neighbours
from tests.pipeline import streamed


def neighbours(operator: str, points: int, near: int, *, axis: int = 1) -> ModelProto:
    """A layer of all neighbours of some points, and one result for each point."""
    b = BlockBuilder()
    x = b.op("Relu", b.linear(b.input("x", points, near, 6), 6, 8))
    given = (x, b.ints(axis)) if operator == "ReduceSum" else (x,)
    attributes = {} if operator == "ReduceSum" else {"axes": [axis]}
    return b.finish("neighbours", b.op(operator, *given, keepdims=0, **attributes))


@pytest.mark.parametrize(("operator", "function"), [("ReduceMax", "max"), ("ReduceSum", "add")])
@pytest.mark.parametrize("near", [2, 5])
def test_a_pool_over_neighbours_is_a_function_of_them(operator: str, function: str, near: int):
    model = neighbours(operator, 6, near)
    before, after = load(model).graph, streamed(load(model).graph)
    after.verify()
    assert not any(isinstance(node.operator, Pool) for node in after.nodes)
    functions = Counter(node.operator.function for node in after.nodes if isinstance(node.operator, Map))
    assert functions[function] == near - 1
    values = {"x": np.random.default_rng(3).standard_normal((6, near, 6), np.float32)}
    (name,) = before.outputs
    assert np.allclose(evaluate_graph(before, values)[name], evaluate_graph(after, values)[name], atol=1e-5)
    assert raptor.compile(model, cores=12, xbar=16).validate(samples=2).verdict == "pass"


@pytest.mark.parametrize(("near", "axis"), [(MOST_NEIGHBOURS + 1, 1), (4, 0)])
def test_other_pools_stay(near: int, axis: int):
    """Groups of many tokens, and of tokens that are no neighbours."""
    graph = streamed(load(neighbours("ReduceMax", 6, near, axis=axis)).graph)
    assert any(isinstance(node.operator, Pool) for node in graph.nodes)
    assert pool_neighbours(graph) is graph
