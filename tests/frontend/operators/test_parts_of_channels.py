"""Reductions over parts of the channels, which a reshape made dimensions: nothing but small tensors moves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from raptor.compiler.analysis.unstreamed_tensors import find_unstreamed_tensors
from raptor.graph.ir import Graph, Move
from tests.pipeline import check, passes
from tests.tiny_models import compare, make_model, node, random

CHANNELS, ROWS, COLS = 12, 5, 4


def split(middle: list[NodeProto], shape: tuple[int, ...], *, images: int, rank: int, **constants: Any) -> ModelProto:
    """Builds a convolution, a reshape of its output to `shape`, the nodes `middle` from "s" to "y"."""
    nodes = [node("Conv", "x w", "a", pads=[1] * 4, name="conv"), node("Reshape", "a shape", "s"), *middle]
    weights = {"w": random(CHANNELS, 3, 3, 3), "shape": np.array((images, *shape)), **constants}
    return make_model(nodes, {"x": (images, 3, ROWS, COLS)}, {"y": rank}, weights, opset=13)


def moved(graph: Graph) -> int:
    """Returns how many elements moves make at most."""
    return max((graph.tensors[n.output].image.elements for n in graph.nodes if isinstance(n.operator, Move)), default=0)


REDUCTIONS = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("axes", [(2,), (1,), (2, 3), (2, 3, 4), (1, 4), (2, 4)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(axes: tuple[int, ...], images: int, keepdims: int):
    reduction = node("ReduceMean", "s", "y", axes=axes, keepdims=keepdims)
    compare(split([reduction], (3, 4, ROWS, COLS), images=images, rank=5 if keepdims else 5 - len(axes)))


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", [(1, 3), (2, 3, 4)])
def test_reductions(op_type: str, axes: tuple[int, ...]):
    compare(split([node(op_type, "s", "y", axes=axes)], (2, 3, 2, ROWS * COLS), images=1, rank=5))


@pytest.mark.parametrize("op_type", ["ReduceLogSumExp", "ReduceProd"])
def test_reductions_that_need_the_whole(op_type: str):
    compare(split([node(op_type, "s", "y", axes=[2, 3])], (3, 4, ROWS * COLS), images=1, rank=4))


def test_channels_in_three_parts():
    compare(split([node("ReduceMean", "s", "y", axes=[2])], (2, 3, 2, ROWS, COLS), images=1, rank=6))


def group_norm(groups: int, images: int) -> ModelProto:
    """Builds a norm of groups as PyTorch exports it for older operator sets."""
    nodes = [
        node("InstanceNormalization", "s one zero", "n", epsilon=1e-4),
        node("Reshape", "n whole", "r", name="back"),
        node("Mul", "r scale", "m"),
        node("Add", "m bias", "y"),
    ]
    scale, bias = random(CHANNELS, 1, 1), random(CHANNELS, 1, 1, seed=1)
    norm = {"one": random(groups) + 2, "zero": random(groups, seed=1), "scale": scale, "bias": bias}
    whole = np.array((images, CHANNELS, ROWS, COLS))
    return split(nodes, (groups, -1), images=images, rank=4, whole=whole, **norm)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 4, CHANNELS])
def test_a_norm_of_groups(groups: int, images: int):
    """The statistics of several images are repeated for all their pixels; those of one need not be."""
    graph = compare(group_norm(groups, images), tolerance=1e-4).graph
    assert images > 1 or moved(graph) <= CHANNELS


def test_group_normalization():
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4, name="conv"),
        node("GroupNormalization", "a scale bias", "y", num_groups=3),
    ]
    weights = {"w": random(CHANNELS, 3, 3, 3), "scale": random(CHANNELS), "bias": random(CHANNELS, seed=1)}
    graph = compare(make_model(nodes, {"x": (1, 3, ROWS, COLS)}, ["y"], weights, opset=21), tolerance=1e-4).graph
    assert moved(graph) <= CHANNELS


def between_layers(norm: Sequence[NodeProto], result: str, constants: Mapping[str, Any]) -> ModelProto:
    """A layer, a norm of its groups of channels, and a layer behind that."""
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4, name="conv"),
        *norm,
        node("Conv", f"{result} v", pads=[1] * 4, name="last"),
    ]
    weights = {"w": random(CHANNELS, 3, 3, 3), "v": random(3, CHANNELS, 3, 3), **constants}
    return make_model(nodes, {"x": (1, 3, ROWS, COLS)}, ["y"], weights, opset=21)


def reshaped() -> ModelProto:
    """The norm as models write it that have no operator for it."""
    written = group_norm(3, 1).graph
    written.node[-1].output[0] = "normed"
    constants = {t.name: numpy_helper.to_array(t) for t in written.initializer}
    return between_layers(written.node[1:], "normed", constants)


def operator(*behind: NodeProto, result: str = "n", constants: Mapping[str, Any] | None = None) -> ModelProto:
    """The norm as an operator, with nodes behind it."""
    norm = node("GroupNormalization", "a scale bias", "n", num_groups=3)
    scaled = {"scale": random(CHANNELS), "bias": random(CHANNELS, seed=1), **(constants or {})}
    return between_layers([norm, *behind], result, scaled)


def weighted_pixels() -> ModelProto:
    """The norm, and a factor for each pixel."""
    behind = (
        node("Reshape", "n line", "lines", name="a"),
        node("Mul", "lines each", "weighted"),
        node("Reshape", "weighted image", "back", name="b"),
    )
    shapes = {"line": np.array((1, CHANNELS, -1)), "image": np.array((1, CHANNELS, ROWS, COLS))}
    return operator(*behind, result="back", constants={**shapes, "each": random(1, 1, ROWS * COLS)})


@pytest.mark.parametrize("form", [reshaped, operator, weighted_pixels])
def test_a_norm_of_groups_leaves_lines_where_they_are(form: Callable[[], ModelProto]):
    """Between the norm and a layer behind it, nothing is put together."""
    check(form(), mapping="rows", xbar=16, cores=12)
    compiled = passes(form(), mapping="rows", xbar=16, cores=12)
    assert {t.tensor for t in find_unstreamed_tensors(compiled.partition.graph, compiled.arch)} <= {"y"}


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_a_norm_of_groups_in_the_streams(mapping: str):
    check(group_norm(4, 1), mapping=mapping, xbar=16, cores=12)


def test_a_sum_of_two_branches_is_computed_by_line():
    """Branches that are put beside one another, weighted and added, as in a network of selective kernels."""
    nodes = [
        node("Mul", "s weights", "m"),
        node("ReduceSum", "m axes", "r", keepdims=0),
        node("Conv", "r v", pads=[1] * 4, name="last"),
    ]
    extra = {"weights": random(1, 2, 6, 1, 1), "axes": np.array([1]), "v": random(3, 6, 3, 3)}
    model = split(nodes, (2, 6, ROWS, COLS), images=1, rank=4, **extra)
    compare(model)
    compiled = passes(model, mapping="rows", xbar=16, cores=12)
    assert moved(compiled.graph) == 0
    assert len(set(compiled.partition.cores)) > 6
