"""Pools and reductions against onnxruntime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Constant, Map, Pool
from raptor.integrations.onnx_backend import RaptorBackend
from tests.tiny_models import compare, golden, make_model, node, single


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
# onnxruntime fails to run pools with a stride above the kernel here.
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (7, 1), (7, 2), (7, 3)])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pool_auto_pad(op_type: str, kernel: int, stride: int, auto_pad: str):
    compare(single(op_type, (1, 3, 9, 8), kernel_shape=[kernel] * 2, strides=[stride] * 2, auto_pad=auto_pad))


@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_pool_of_any_rank_and_attributes(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    dims, kernel, strides, dilations = ints(1, 8), ints(1, 4), ints(1, 3), ints(1, 2)
    op_type = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    opset = data.draw(st.sampled_from([10, 13, 19, 22]))
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if op_type == "MaxPool" or opset >= 19:
        attributes["dilations"] = dilations
    else:
        dilations = [1] * rank
    if op_type == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    # onnxruntime wants pads smaller than the kernel.
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    assume(all(n + a + b >= s for n, a, b, s in zip(dims, pads[:rank], pads[rank:], spans, strict=True)))
    shape = (data.draw(st.integers(1, 2)), 2, *dims)
    model = single(op_type, shape, opset=opset, pads=pads, **attributes)
    try:
        compare(model)
    except UnsupportedError as error:
        assume("wholly in the padding" not in str(error) and "use opset 22" not in str(error))
        raise


def operators(model: Any) -> list[Any]:
    return [n.operator for n in load(model).graph.nodes]


def test_uniform_mean_has_one_constant():
    pool, scale = operators(single("AveragePool", (1, 3, 4, 4), kernel_shape=[2, 2]))
    assert isinstance(pool, Pool)
    assert isinstance(scale, Map)
    factor = scale.operands[1]
    assert isinstance(factor, Constant)
    np.testing.assert_array_equal(factor.pixels, np.full((1, 1, 1), 0.25))


@pytest.mark.parametrize("batch", [1, 2])
def test_mean_at_the_border_has_a_constant_per_pixel(batch: int):
    _, scale = operators(single("AveragePool", (batch, 3, 4, 5), kernel_shape=[3, 3], pads=[1] * 4))
    assert scale.operands[1].pixels.shape == (4 * batch, 5, 1)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(op_type: str, shape: tuple[int, ...]):
    compare(single(op_type, shape))


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceSum", "ReduceMax"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(2, 3), (-1, -2), (2,), (-1,)])
@pytest.mark.parametrize("opset", [11, 18])
def test_reduction(op_type: str, keepdims: int, axes: tuple[int, ...], opset: int, shape: tuple[int, ...]):
    rank = 4 if keepdims else 4 - len(axes)
    if opset == 18 or (op_type == "ReduceSum" and opset == 13):
        compare(
            make_model(
                [node(op_type, "x axes", keepdims=keepdims)],
                {"x": shape},
                {"y": rank},
                {"axes": np.array(axes)},
                opset=opset,
            )
        )
    else:
        compare(single(op_type, shape, opset=opset, rank=rank, axes=list(axes), keepdims=keepdims))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            single("MaxPool", (1, 1, 2, 2), kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1),
            r"infers \(2, 2\) outputs, there are",
        ),
        (
            single("MaxPool", (1, 1, 1), kernel_shape=[2], dilations=[2], pads=[1, 1]),
            "a window lies wholly in the padding",
        ),
        (
            make_model(
                [node("MaxPool", "x", "y i", kernel_shape=[2, 2]), node("Cast", "i", "z", to=1)],
                {"x": [1, 1, 4, 4]},
                ["y", "z"],
            ),
            r"my_maxpool \(MaxPool\): its output 'i' is used, only the first",
        ),
    ],
)
def test_refusals(model: Any, reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        load(model)


def test_unused_indices_are_no_obstacle():
    compare(make_model([node("MaxPool", "x", "y i", kernel_shape=[2, 2])], {"x": [1, 1, 4, 4]}, ["y"]))


@pytest.mark.parametrize("shape", [(1, 3, 6, 7), (2, 2, 5)])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_norms(p: int, shape: tuple[int, ...]):
    rank = len(shape) - 2
    pool = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank, "p": p}
    compare(single("LpPool", shape, opset=18, **pool))
    compare(single("GlobalLpPool", shape, p=p))


@pytest.mark.parametrize("op_type", ["LpPool", "GlobalLpPool"])
def test_roots_of_small_sums_are_exact(op_type: str):
    """A cube of 1e-13 is no normal float32 any more; zeros stay zeros."""
    x = np.array([[[1e-13, 3e-14, 0, 0, 1e-5, 2]]], np.float32)
    pool = {"kernel_shape": [2], "strides": [2]} if op_type == "LpPool" else {}
    model = single(op_type, x.shape, opset=18, p=3, **pool)
    (got,) = RaptorBackend.run_model(model, [x])
    np.testing.assert_allclose(got, golden(model, {"x": x})["y"], rtol=1e-4)


def test_norm_of_zeros():
    nodes = [node("Relu", "x", "r"), node("LpPool", "r", kernel_shape=[2], p=3)]
    compare(make_model(nodes, {"x": (1, 2, 9)}, {"y": 3}))


@pytest.mark.parametrize("op_type", ["GlobalMaxPool", "GlobalAveragePool", "MaxPool"])
def test_pool_of_a_reshaped_image(op_type: str):
    attributes = {"kernel_shape": [2, 2]} if op_type == "MaxPool" else {}
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "q"), node(op_type, "q", **attributes)]
    compare(make_model(nodes, {"x": (1, 4, 2, 2)}, ["y"], {"s": np.array([1, 2, 4, 2])}))


def test_a_refused_pool_is_told_and_not_what_its_shape_breaks_behind_it():
    nodes = [
        node("AveragePool", "x", "p", kernel_shape=[3, 1], strides=[2, 2], pads=[1, 0, 1, 0], ceil_mode=1),
        node("Reshape", "p shape", "r"),
        node("Gemm", "r w", "y"),
    ]
    constants = {"shape": np.array([1, 12]), "w": np.ones((12, 5), np.float32)}
    with pytest.raises(UnsupportedError, match="ceil_mode: the standard infers"):
        load(make_model(nodes, {"x": (1, 2, 4, 4)}, {"y": 2}, constants, opset=21, ir_version=10))
