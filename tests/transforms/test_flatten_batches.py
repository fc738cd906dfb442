"""Layers of whole images of a batch are layers of tokens, and pools over stacks are element-wise functions."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter, Graph, Map, Move, Pool
from raptor.transforms.tokens.flatten_batches import flatten_batches
from raptor.transforms.tokens.pool_stacks import pool_stacks
from tests.pipeline import by_line, passes
from tests.tiny_models import make_model, node, random

CONSTANTS = {
    "w": random(4, 1, 3, 3),
    "frames": np.array([12, 24]),
    "axis": np.array([2]),
    "last": np.array([3]),
    "weights": random(24, 5),
    "k": random(4, 3, 3),
}


def made(*nodes: Any, given: tuple[int, ...], rank: int) -> ModelProto:
    return make_model(list(nodes), {"x": given}, {"y": rank}, CONSTANTS, opset=13)


def frames(perm: list[int]) -> ModelProto:
    """A layer, and a dense layer for each of its twelve lines, with the channels of the lines first or last."""
    return made(
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], name="conv"),
        node("Transpose", "a", "b", perm=perm),
        node("Reshape", "b frames", "c"),
        node("MatMul", "c weights", "y", name="dense"),
        given=(1, 1, 12, 6),
        rank=2,
    )


def stack(operator: str, *names: str, axis: str = "last") -> ModelProto:
    """A pool over the tensors `names`, side by side along a new axis, of which `c` has a layout of its own."""
    parts = [node("Unsqueeze", f"{name} {axis}", f"{name}{i}", name=f"part{i}") for i, name in enumerate(names)]
    joined = " ".join(f"{name}{i}" for i, name in enumerate(names))
    return made(
        node("Conv", "x k", "a", pads=[1, 1], name="first"),
        node("Tanh", "a", "b"),
        node("Concat", "b b", "c", axis=1, name="wide"),
        *parts,
        node("Concat", joined, "stack", axis=int(CONSTANTS[axis][0])),
        node(operator, "stack", "y", axes=[int(CONSTANTS[axis][0])], keepdims=0, name="pool")
        if operator != "ReduceSum"
        else node(operator, f"stack {axis}", "y", keepdims=0, name="pool"),
        given=(1, 3, 10),
        rank=3,
    )


def same_values(before: Graph, after: Graph) -> bool:
    values = {"x": np.random.default_rng(3).standard_normal(before.tensors["x"].shape, np.float32)}
    return np.allclose(evaluate_graph(before, values)["y"], evaluate_graph(after, values)["y"], atol=1e-5)


@pytest.mark.parametrize("perm", [[0, 2, 1, 3], [0, 2, 3, 1]])
def test_lines_of_an_image_are_tokens(perm: list[int]):
    before = load(frames(perm)).graph
    after = flatten_batches(before)
    after.verify()
    (dense,) = (each.operator for each in after.nodes if each.output == "y")
    assert isinstance(dense, Filter)
    assert dense.weights.shape == (1, 24, 5)
    assert same_values(before, after)


def test_cores_share_the_tokens():
    found = passes(frames([0, 2, 1, 3]), mapping="rows", cores=20, xbar=16)
    assert len(by_line(found.decision)["y"].grid.cols) > 1
    assert raptor.compile(frames([0, 2, 1, 3]), cores=20, xbar=16).validate(samples=2).verdict == "pass"


def test_a_layer_of_one_image_stays():
    graph = load(made(node("Conv", "x k", "y"), given=(1, 3, 3), rank=3)).graph
    assert flatten_batches(graph) is graph


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceSum"])
@pytest.mark.parametrize("axis", ["last", "axis"])
def test_a_pool_over_a_stack_moves_nothing(operator: str, axis: str):
    before = load(stack(operator, "a", "b", "b", axis=axis)).graph if operator == "ReduceSum" else None
    before = before or load(stack(operator, "a", "b", axis=axis)).graph
    after = pool_stacks(before)
    after.verify()
    assert same_values(before, after)


def test_the_largest_of_two_tensors_is_a_function_of_both():
    graph = pool_stacks(load(stack("ReduceMax", "a", "b")).graph)
    assert not any(isinstance(each.operator, Pool) for each in graph.nodes)
    functions = [each.operator.function for each in graph.nodes if isinstance(each.operator, Map)]
    assert functions.count("max") == 1
    moves = [each for each in graph.nodes if isinstance(each.operator, Move)]
    assert all(len(each.inputs) == 1 for each in moves)
    assert raptor.compile(stack("ReduceMax", "a", "b"), cores=20).validate(samples=2).verdict == "pass"


def test_a_pool_over_elements_of_one_tensor_stays():
    model = made(node("MaxPool", "x", "y", kernel_shape=[2], strides=[2]), given=(1, 3, 10), rank=3)
    graph = load(model).graph
    assert pool_stacks(graph) is graph
