"""Channel ranges of layers whose kernels reach more outputs than a core has columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from raptor.graph.ir import Filter
from raptor.graph.window import Window
from raptor.mapping.modes.line_streaming import most_outputs_reading, output_ranges
from raptor.mapping.modes.line_unfolding import pixels_per_block
from tests.pipeline import by_line, check, chip, conv_model, passes
from tests.tiny_models import make_model, node, random

SMALL = {"xbar": 8, "xbars_per_core": 8, "cores": 60}
"""Cores of 64 columns: not enough for one pixel of a kernel of 9 positions and 8 channels."""


@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 40)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    transposed=st.booleans(),
    channels=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    xbars=st.integers(2, 30),
)
def test_a_full_block_fits_a_core_if_ranges_are_narrower(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    transposed: bool,
    channels: tuple[int, int],
    xbars: int,
):
    window = Window((50, 90), (50, 90), kernel, strides, (0, 0), dilations, transposed=transposed)
    inputs, outputs = channels
    layer = Filter(np.zeros((window.tap_count, inputs, outputs), np.float32), window)
    arch, ins = chip((8, 8), xbars_per_core=xbars), tuple((i, min(i + 8, inputs)) for i in range(0, inputs, 8))
    found = output_ranges(layer, ins, arch)
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == outputs
    widest = max(b - a for a, b in found)
    assert 0 < widest <= 8
    if any(b - a < 8 for a, b in found[:-1]):
        assert most_outputs_reading(window, 1) * min(8, outputs) > 8 * xbars, "else they stay as they are"
        block = most_outputs_reading(window, max(pixels_per_block(part, 8) for part in ins))
        assert widest == 1 or (widest - 1) * block <= 8 * xbars


def test_outputs_that_read_neighbouring_pixels_by_hand():
    """With a stride of 2, three or four of seven positions read a pixel, on each of three lines."""
    window = Window((9, 90), (9, 45), (3, 7), (1, 2), (1, 3), (1, 1))
    assert most_outputs_reading(window, 1) == 3 * 4
    assert most_outputs_reading(window, 4) == 3 * 5
    assert most_outputs_reading(Window((90,), (90,), (3,), (1,), (2,), (2,)), 2) == 6


def transposed() -> ModelProto:
    nodes = [node("ConvTranspose", "x w", "y", name="conv", strides=[1, 2], kernel_shape=[1, 10])]
    return make_model(nodes, {"x": (1, 4, 2, 12)}, ["y"], {"w": random(4, 12, 1, 10)})


WIDE = {
    "a signal": conv_model((1, 4, 1, 40), 16, (1, 11), pads=(0, 5, 0, 5), bias=True, relu=True),
    "an image": conv_model((1, 8, 9, 10), 8, (3, 3), pads=(1, 1, 1, 1)),
    "with strides and dilations": conv_model((1, 3, 5, 40), 11, (1, 20), strides=(1, 2), dilations=(1, 2)),
    "groups of input channels": conv_model((1, 20, 6, 6), 10, (3, 3), pads=(1, 1, 1, 1), bias=True),
    "transposed": transposed(),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_kernel_that_is_too_wide_for_a_core_streams(name: str):
    program = check(WIDE[name], **SMALL)
    assert program.artifacts is not None
    assert by_line(passes(WIDE[name], mapping="rows", **SMALL).decision)


def test_structured_values_of_a_wide_kernel():
    """Each output channel is a copy of one input channel, from another place each; so a swapped range shows."""
    weights = np.zeros((16, 4, 1, 11), np.float32)
    for out in range(16):
        weights[out, out % 4, 0, out % 11] = 2.0 ** (out // 4)
    check(conv_model((1, 4, 1, 30), 16, (1, 11), pads=(0, 5, 0, 5), weights=weights), tolerance=0, **SMALL)
