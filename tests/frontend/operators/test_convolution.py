"""Grouped, depthwise and transposed convolutions against onnxruntime; some through the instruction streams."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from tests.pipeline import check
from tests.tiny_models import compare, make_model, node, random

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 60}


def model_of(
    op_type: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    *,
    bias: bool = False,
    group: int = 1,
    **attributes: Any,
):
    """x -> Conv or ConvTranspose -> y."""
    outs = weights[1] * group if op_type == "ConvTranspose" else weights[0]
    constants = {"w": random(*weights)} | ({"b": random(outs)} if bias else {})
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return make_model(
        [node(op_type, "x w b" if bias else "x w", group=group, **attributes)],
        {"x": shape},
        {"y": len(shape)},
        constants,
    )


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_groups_of_any_size(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))
    group, ins, outs = (data.draw(st.integers(1, 3)) for _ in range(3))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    dims, kernel, strides, pads = ints(2, 6), ints(1, 3), ints(1, 2), ints(0, 2, 2 * rank)
    assume(all(n + a + b >= k for n, a, b, k in zip(dims, pads[:rank], pads[rank:], kernel, strict=True)))
    shape = (data.draw(st.integers(1, 2)), group * ins, *dims)
    bias = data.draw(st.booleans())
    compare(model_of("Conv", shape, (group * outs, ins, *kernel), bias=bias, group=group, strides=strides, pads=pads))


@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_transposed_of_any_rank_and_attributes(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))
    group, ins, outs = (data.draw(st.integers(1, 2)) for _ in range(3))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    dims, kernel, strides, dilations = ints(1, 4), ints(1, 4), ints(1, 3), ints(1, 2)
    # onnxruntime wants less output padding than stride.
    extra = [data.draw(st.integers(0, s - 1)) for s in strides]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "output_padding": extra}
    sizes = [
        (n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in zip(dims, strides, kernel, dilations, extra, strict=True)
    ]
    mode = data.draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID", "output_shape"]))
    if mode == "pads":
        attributes["pads"] = pads = ints(0, 2, 2 * rank)
        assume(all(n - a - b > 0 for n, a, b in zip(sizes, pads[:rank], pads[rank:], strict=True)))
    elif mode == "output_shape":
        attributes["output_shape"] = [data.draw(st.integers(max(1, n - 3), n)) for n in sizes]
        attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "NOTSET"]))
    else:
        attributes["auto_pad"] = mode
        # onnxruntime would need negative pads.
        assume(mode == "VALID" or all(n >= s * d for n, s, d in zip(sizes, strides, dims, strict=True)))
    shape = (data.draw(st.integers(1, 2)), group * ins, *dims)
    bias = data.draw(st.booleans())
    model = model_of("ConvTranspose", shape, (group * ins, outs, *kernel), bias=bias, group=group, **attributes)
    try:
        compare(model)
    except UnsupportedError as error:
        assume("the standard infers" not in str(error))
        raise


def test_a_convolution_of_a_reshaped_image():
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "q"), node("Conv", "q w")]
    constants = {"s": np.array([1, 2, 4, 6]), "w": random(3, 2, 3, 3)}
    compare(make_model(nodes, {"x": (1, 4, 4, 3)}, ["y"], constants))


END_TO_END = {
    "grouped": model_of("Conv", (1, 12, 5, 5), (18, 6, 3, 3), group=2, bias=True, pads=[1] * 4),
    "groups across tiles": model_of("Conv", (1, 9, 4, 4), (9, 3, 1, 1), group=3),
    "1-D": model_of("Conv", (2, 6, 9), (8, 3, 3), group=2, strides=[2]),
    "3-D": model_of("Conv", (1, 4, 3, 4, 3), (6, 4, 2, 3, 2), pads=[1, 0, 1, 0, 1, 0]),
    "depthwise": model_of("Conv", (1, 10, 5, 5), (10, 1, 3, 3), group=10, bias=True),
    "multiplier": model_of("Conv", (1, 5, 4, 4), (10, 1, 3, 3), group=5),
    "transposed": model_of(
        "ConvTranspose", (1, 5, 3, 3), (5, 6, 3, 3), strides=[2, 2], bias=True, output_padding=[1, 1]
    ),
    "transposed groups": model_of(
        "ConvTranspose", (2, 6, 3, 2), (6, 2, 2, 3), group=3, strides=[3, 2], pads=[1, 0, 0, 1]
    ),
    "transposed 1-D": model_of("ConvTranspose", (1, 6, 5), (6, 5, 3), dilations=[2], output_shape=[7]),
    "transposed 3-D": model_of("ConvTranspose", (1, 2, 2, 3, 2), (2, 5, 2, 2, 2), strides=[2, 2, 2]),
}


@pytest.mark.parametrize("name", END_TO_END)
def test_through_the_streams(name: str):
    check(END_TO_END[name], **CHIP)


def test_computed_weights_are_refused():
    model = make_model([node("ConvTranspose", "x v")], {"x": (1, 2, 3, 3), "v": (2, 2, 2, 2)}, ["y"])
    with pytest.raises(UnsupportedError, match=r"my_convtranspose \(ConvTranspose\): 'v' must be a constant"):
        load(model)
