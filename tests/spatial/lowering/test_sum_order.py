"""Order of sums: all outputs of a layer are summed in one order on every core, so equal columns give equal results."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import raptor
from raptor.mapping.decision import Decision
from tests.pipeline import by_line, compile_to_fit, conv_model, in_matrices, passes
from tests.tiny_models import make_model, node, random


def _equal_columns(shape: Sequence[int], filters: int, kernel: Sequence[int], **window: Any) -> ModelProto:
    return conv_model(shape, filters, kernel, weights=_weights(filters, shape[1], *kernel), **window)


def _weights(filters: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.repeat(random(1, *shape), filters, axis=0)


def _grouped(groups: int, channels: int, filters: int) -> ModelProto:
    """The columns of a group are equal."""
    weights = np.concatenate([_weights(filters, channels, 3, 3) + group for group in range(groups)])
    conv = node("Conv", "x w", "y", group=groups, pads=[1, 1, 1, 1])
    return make_model([conv], {"x": (1, groups * channels, 4, 4)}, ["y"], {"w": weights})


def _products(rows: int, channels: int, columns: int) -> ModelProto:
    weights = np.repeat(random(channels, 1), columns, axis=1)
    return make_model([node("MatMul", "x w", "y")], {"x": (rows, channels)}, {"y": 2}, {"w": weights})


def _differing(model: ModelProto, axis: int, groups: int = 1, **chip: int) -> int:
    """Counts the outputs of a pixel that differ from the first of their group. `axis`: that of the channels."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    make = raptor.compile if "cores" in chip else compile_to_fit
    outputs = make(model, mapping="rows", **chip).run({"x": random(*shape, seed=3)})["y"]
    columns = np.moveaxis(outputs, axis, 0).reshape(groups, outputs.shape[axis] // groups, -1)
    return int((columns != columns[:, :1]).sum())


def _placements(decision: Decision) -> set[tuple[int, ...]]:
    """Returns, for the ranges of columns, the numbers of consecutive products on one core."""
    (layer,) = in_matrices(decision).values()
    placed = sorted(zip(layer.matrices, layer.cores, strict=True), key=lambda pair: pair[0].cols)
    columns = (list(run) for _, run in groupby(placed, key=lambda pair: pair[0].cols))
    return {tuple(len(list(run)) for _, run in groupby(group, key=lambda pair: pair[1])) for group in columns}


WIDE = _equal_columns((1, 40, 2, 2), 50, (2, 2))
CONVOLUTION = _equal_columns((1, 8, 7, 9), 20, (3, 3), pads=(1, 1, 1, 1))
LARGE_KERNEL = _equal_columns((1, 8, 7, 9), 20, (9, 9), pads=(4, 4, 4, 4))
"""A layer that cannot stream: a core of the test below has fewer columns than one output channel needs."""


def test_each_output_tile_is_added_up_on_another_core():
    chip = {"xbar": 16, "xbars_per_core": 12, "cores": 6}
    model = _equal_columns((1, 100, 1, 1), 90, (1, 1))
    assert _placements(passes(model, mapping="rows", **chip).decision) == {(2, 2, 2, 1)}
    assert _differing(model, 1, **chip) == 0


@pytest.mark.parametrize(("xbar", "xbars_per_core"), [(4, 6), (8, 3), (4, 7)])
def test_columns_whose_products_are_cut_at_different_places(xbar: int, xbars_per_core: int):
    chip = {"xbar": xbar, "xbars_per_core": xbars_per_core, "cores": 100}
    assert len(_placements(passes(WIDE, mapping="rows", **chip).decision)) > 1
    assert _differing(WIDE, 1, **chip) == 0


@pytest.mark.parametrize(("xbar", "xbars_per_core"), [(4, 5), (8, 8)])
def test_partial_sums_that_go_on_on_another_core(xbar: int, xbars_per_core: int):
    chip = {"xbar": xbar, "xbars_per_core": xbars_per_core, "cores": 170}
    decision = passes(LARGE_KERNEL, mapping="rows", **chip).decision
    assert not by_line(decision)
    assert len(_placements(decision)) > 1
    assert _differing(LARGE_KERNEL, 1, **chip) == 0


def test_lines_on_cores_of_one_and_of_two_ranges_of_channels():
    chip = {"xbar": 8, "xbars_per_core": 16, "cores": 10}
    (layer,) = by_line(passes(CONVOLUTION, mapping="rows", **chip).decision).values()
    assert layer.grid.outs == ((0, 8), (8, 20))
    assert _differing(CONVOLUTION, 1, **chip) == 0


@pytest.mark.parametrize("xbars_per_core", [5, 7, 8])
def test_groups_that_cross_tiles(xbars_per_core: int):
    assert _differing(_grouped(3, 5, 7), 1, groups=3, xbar=4, xbars_per_core=xbars_per_core, cores=60) == 0


@given(
    xbar=st.sampled_from([3, 4, 8]),
    xbars_per_core=st.integers(3, 16),
    channels=st.integers(8, 40),
    filters=st.integers(8, 40),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    image=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_convolution(
    xbar: int, xbars_per_core: int, channels: int, filters: int, kernel: tuple[int, int], image: tuple[int, int]
):
    shape = (1, channels, image[0] + kernel[0] - 1, image[1] + kernel[1] - 1)
    model = _equal_columns(shape, filters, kernel)
    assert _differing(model, 1, xbar=xbar, xbars_per_core=xbars_per_core) == 0


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("xbars_per_core", [3, 5, 16])
def test_products_with_a_matrix(rows: int, xbars_per_core: int):
    assert _differing(_products(rows, 50, 30), 1, xbar=4, xbars_per_core=xbars_per_core, cores=60) == 0
