"""Convolutions and fully connected layers against onnxruntime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Filter, Map, Rename
from tests.tiny_models import compare, make_model, node, random


def conv_model(shape: tuple[int, ...], kernel: tuple[int, ...], *, bias: bool = True, **attributes: Any):
    constants = {"w": random(5, shape[1], *kernel)} | ({"b": random(5)} if bias else {})
    return make_model(
        [node("Conv", "x w b" if bias else "x w", **attributes)], {"x": shape}, {"y": len(shape)}, constants
    )


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_auto_pad(kernel: int, stride: int, auto_pad: str):
    compare(conv_model((1, 3, 9, 8), (kernel, kernel), strides=[stride] * 2, auto_pad=auto_pad))


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_conv_of_any_rank_and_attributes(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    dims, kernel, strides, dilations, pads = ints(1, 8), ints(1, 4), ints(1, 3), ints(1, 2), ints(0, 2, 2 * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(n + a + b >= s for n, a, b, s in zip(dims, pads[:rank], pads[rank:], spans, strict=True)))
    shape = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)), *dims)
    bias = data.draw(st.booleans())
    compare(conv_model(shape, tuple(kernel), bias=bias, strides=strides, dilations=dilations, pads=pads))


def test_bias_is_a_map_and_a_zero_bias_is_nothing():
    model = conv_model((1, 2, 4, 4), (3, 3))
    products, bias = load(model).graph.nodes
    assert isinstance(products.operator, Filter)
    assert products.operator.weights.shape == (9, 2, 5)
    assert products.operator.weights.flags.c_contiguous
    assert products.operator.weights.flags.owndata
    assert isinstance(bias.operator, Map)
    assert (products.name, products.op_type, products.output) == ("my_conv", "Conv", "y.products")
    assert not load(model).graph.tensors["y.products"].in_model
    zero = make_model(
        [node("Conv", "x w b")], {"x": [1, 2, 4, 4]}, ["y"], {"w": random(5, 2, 3, 3), "b": np.zeros(5, "f4")}
    )
    assert [n.output for n in load(zero).graph.nodes] == ["y"]


def test_inner_names_avoid_the_names_of_the_model():
    nodes = [node("Relu", "x", "y.products"), node("Conv", "y.products w b")]
    graph = compare(make_model(nodes, {"x": [1, 2, 4, 4]}, ["y"], {"w": random(5, 2, 3, 3), "b": random(5)})).graph
    assert [n.output for n in graph.nodes] == ["y.products", "y.products.2", "y"]


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({}, (6, 4)),
        ({"transB": 1}, (4, 6)),
        ({"alpha": 0.5, "beta": 3.0}, (6, 4)),
        ({"alpha": 0.5, "beta": 0.0, "transB": 1}, (4, 6)),
    ],
)
@pytest.mark.parametrize("bias", [None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)])
def test_gemm(attributes: dict[str, Any], shape: tuple[int, ...], bias: tuple[int, ...] | None):
    constants = {"w": random(*shape)} | ({} if bias is None else {"b": random(*bias)})
    inputs = "x w" if bias is None else "x w b"
    compare(make_model([node("Gemm", inputs, **attributes)], {"x": [2, 6]}, {"y": 2}, constants))


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4), (1, 2, 3, 2, 2), (1, 6), (3, 7, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_matrix_on_a_flattened_image(shape: tuple[int, ...], bias: bool):
    rows = int(np.prod(shape[1:]))
    nodes = [
        node("Relu", "x", "r"),
        node("Flatten", "r", "f"),
        node("MatMul", "f w", "m"),
        node("Relu", "m", "n", name="last"),
    ]
    constants = {"w": random(rows, 5)}
    if bias:
        nodes[2:] = [node("MatMul", "f w", "m"), node("Add", "m b", "n")]
        constants["b"] = random(5)
    graph = compare(make_model(nodes, {"x": shape}, {"n": 2}, constants)).graph
    assert isinstance(graph.nodes[1].operator, Rename)
    assert graph.tensors["n"].image.shape == (shape[0], 5)


def test_matmul_then_matmul():
    nodes = [node("MatMul", "x v", "h", name="first"), node("MatMul", "h w")]
    compare(make_model(nodes, {"x": [3, 6]}, {"y": 2}, {"v": random(6, 5), "w": random(5, 4)}))


@pytest.mark.parametrize(
    ("nodes", "shape", "constants", "reason"),
    [
        ([node("Conv", "x x")], (1, 1, 5, 5), {}, r"my_conv \(Conv\): 'x' must be a constant"),
        (
            [node("Conv", "w x")],
            (1, 4, 3, 3),
            {"w": random(1, 4, 3, 3)},
            r"'x' must be a constant|'w' must not be a constant",
        ),
    ],
)
def test_refusals(nodes: list[Any], shape: tuple[int, ...], constants: dict[str, Any], reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        load(make_model(nodes, {"x": shape}, {"y": len(shape)}, constants))


@pytest.mark.parametrize(("shape", "reshaped"), [((2, 3, 4, 4), (6, 16)), ((1, 2, 8), (2, 8))])
def test_matrix_on_pixels_of_several_images(shape: tuple[int, ...], reshaped: tuple[int, int]):
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "f"), node("MatMul", "f w")]
    compare(make_model(nodes, {"x": shape}, {"y": 2}, {"s": np.array(reshaped), "w": random(reshaped[1], 3)}))


def test_an_image_of_one_channel_becomes_a_vector():
    """A kernel that covers it would take a crossbar for each of its pixels."""
    nodes = [node("Flatten", "x", "f"), node("MatMul", "f w")]
    graph = compare(make_model(nodes, {"x": [1, 1, 6, 6]}, {"y": 2}, {"w": random(36, 5)})).graph
    assert [n.operator.weights.shape for n in graph.nodes if isinstance(n.operator, Filter)] == [(1, 36, 5)]
