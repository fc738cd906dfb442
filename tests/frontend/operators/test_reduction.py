"""Reductions over any axes against onnxruntime; some through the instruction streams."""

from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Filter, Map, Pool
from tests.pipeline import check
from tests.tiny_models import Array, golden, make_model, node, random, single
from tests.tiny_models import compare as compare_with

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 40}
OPS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]
OPS += ["ReduceLogSumExp", "ReduceProd"]
ALL_AXES = list(chain.from_iterable(combinations(range(4), n) for n in range(1, 5)))


def compare(model: Any):
    return compare_with(model, 5e-5)


@pytest.mark.parametrize("axes", ALL_AXES)
@pytest.mark.parametrize("op_type", OPS)
def test_any_axes(op_type: str, axes: tuple[int, ...]):
    keepdims = len(axes) % 2
    rank = 4 if keepdims else 4 - len(axes)
    axes = tuple(a - 4 if i % 2 else a for i, a in enumerate(axes))
    compare(
        make_model(
            [node(op_type, "x a", keepdims=keepdims)], {"x": (2, 3, 4, 5)}, {"y": rank}, {"a": np.array(axes)}, opset=18
        )
    )
    if op_type != "ReduceSum":
        compare(single(op_type, (2, 3, 4, 5), opset=13, rank=rank, axes=list(axes), keepdims=keepdims))


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("shape", [(6,), (2, 6), (1, 3, 1), (1, 1), (7, 1, 2, 1)])
def test_all_axes_of_any_rank(op_type: str, shape: tuple[int, ...]):
    compare(single(op_type, shape))
    compare(single(op_type, shape, opset=18, keepdims=0, rank=0))


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax"])
def test_of_a_scalar(op_type: str):
    """The sum of all elements has no axes; so has what is made of it."""
    nodes = [node("ReduceMean", "x", "s", keepdims=0), node("Tanh", "s", "t"), node(op_type, "t", "y", keepdims=0)]
    compare(make_model(nodes, {"x": (1, 2, 3)}, {"y": 0}))


def test_no_axes():
    compare(single("ReduceMean", (2, 3), opset=18, noop_with_empty_axes=1))
    empty = {"a": np.zeros(0, np.int64)}
    compare(make_model([node("ReduceMax", "x a", noop_with_empty_axes=1)], {"x": (2, 3)}, {"y": 2}, empty, opset=18))
    compare(make_model([node("ReduceMax", "x a")], {"x": (2, 3)}, {"y": 2}, empty, opset=18))


def test_log_sum_of_positive_numbers():
    nodes = [node("Sigmoid", "x", "s"), node("ReduceLogSum", "s", axes=[1])]
    compare(make_model(nodes, {"x": (2, 3, 4)}, {"y": 3}))


def test_large_exponents_do_not_overflow():
    nodes = [node("Mul", "x k", "s"), node("ReduceLogSumExp", "s", axes=[1])]
    compare(make_model(nodes, {"x": (2, 3, 4)}, {"y": 3}, {"k": np.float32(200)}))


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
def test_of_a_flattened_image(op_type: str, axes: tuple[int, ...]):
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node(op_type, "f", axes=list(axes))]
    compare(make_model(nodes, {"x": (2, 3, 4, 5)}, {"y": 2}))


@pytest.mark.parametrize("target", [(2, 6, 2, 5), (4, 3, 10), (3, 40), (2, 60)])
@pytest.mark.parametrize("axis", [0, 1])
def test_of_a_reshaped_image(target: tuple[int, ...], axis: int):
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "q"), node("ReduceMax", "q", axes=[axis])]
    compare(make_model(nodes, {"x": (2, 3, 4, 5)}, {"y": len(target)}, {"s": np.array(target)}))


def test_what_it_becomes():
    def kinds(*axes: int) -> list[type]:
        return [type(n.operator) for n in load(single("ReduceMean", (2, 3, 4, 5), axes=list(axes))).graph.nodes]

    assert kinds(2, 3) == [Pool, Map]
    assert kinds(1) == [Filter]
    assert kinds(1, 2, 3) == [Pool, Filter]


POSITIVE: dict[str, Array] = {"a": np.array([1])}


@pytest.mark.parametrize("axes", [(1,), (0, 2), (1, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("op_type", OPS)
def test_through_the_streams(op_type: str, axes: tuple[int, ...]):
    check(single(op_type, (2, 6, 3, 2), axes=list(axes)) if op_type != "ReduceSum" else summed(axes), **CHIP)


def summed(axes: tuple[int, ...]):
    return make_model([node("ReduceSum", "x a")], {"x": (2, 6, 3, 2)}, ["y"], {"a": np.array(axes)})


def test_computed_axes_are_refused():
    nodes = [node("Cast", "z", "a", to=7), node("ReduceSum", "x a", keepdims=0)]
    model = make_model(nodes, {"x": (2, 3), "z": (1,)}, {"y": 1})
    with pytest.raises(UnsupportedError, match=r"'a'|Cast"):
        load(model)
    assert golden(model, {"x": random(2, 3), "z": np.zeros(1, np.float32)})["y"].shape == (3,)


def test_a_reduction_of_nothing_leaves_what_others_read():
    """Inside of a function that onnxruntime takes apart, tensors have names that the model does not know."""
    nodes = [node("Relu", "x", "r"), node("ReduceMean", "r", "m", noop_with_empty_axes=1), node("Add", "r m")]
    compare(make_model(nodes, {"x": (2, 3)}, {"y": 2, "m": 2}, opset=18))


@pytest.mark.parametrize("op_type", OPS)
def test_no_axes_still_mean_the_norm_of_each_element(op_type: str):
    compare(single(op_type, (2, 3), opset=18, noop_with_empty_axes=1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_maximum_of_as_many_elements_as_there_are_channels(axis: int):
    """The maxima are a pixel of 3 channels too, but of the other axis."""
    compare(single("ReduceLogSumExp", (3, 3), axes=[axis]))


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("shape", [(3, 2, 3, 3), (2, 4, 5, 6), (2, 3, 3, 4, 5)])
@pytest.mark.parametrize("reader", ["Conv", "MaxPool", "Sigmoid"])
def test_a_convolution_reads_images_that_lost_their_last_axis(op_type: str, shape: tuple[int, ...], reader: str):
    """The window makes lines of one pixel; without `keepdims`, the images that are read have other lines."""
    kernel = (3,) * (len(shape) - 3)
    weights = {"w": random(4, shape[1], *kernel)} if reader == "Conv" else {}
    options: dict[str, Any] = {} if reader == "Sigmoid" else {"kernel_shape": kernel, "pads": (1,) * 2 * len(kernel)}
    nodes = [
        node(op_type, "x a", "r", keepdims=0),
        node("Mul", "r c", "m"),
        node(reader, f"m {' '.join(weights)}".strip(), **options),
    ]
    constants = {"a": np.array([-1]), "c": np.float32(0.2).reshape(()), **weights}
    check(make_model(nodes, {"x": shape}, {"y": len(shape) - 1}, constants, opset=18), tolerance=2e-5, **CHIP)
