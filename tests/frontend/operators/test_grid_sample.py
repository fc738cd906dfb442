"""GridSample, Col2Im, Fourier transforms and affine grids against onnxruntime."""

from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from tests.pipeline import check
from tests.tiny_models import compare, make_model, node, random

GRID = random(2, 3, 4, 2) * 1.2
DEPTH = random(1, 2, 3, 2, 3)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align: int):
    op = node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=align)
    compare(make_model([op], {"x": (2, 3, 5, 4)}, ["y"], {"g": GRID}, opset=20), 1e-5)


def test_grid_sample_of_three_dimensions_and_of_one_pixel():
    op = node("GridSample", "x g", padding_mode="border")
    compare(make_model([op], {"x": (1, 3, 4, 5, 2)}, {"y": 5}, {"g": DEPTH}, opset=20), 1e-5)
    mirrored = node("GridSample", "x g", padding_mode="reflection", align_corners=1)
    compare(make_model([mirrored], {"x": (2, 1, 1, 1)}, ["y"], {"g": GRID}, opset=20), 1e-5)


def test_a_computed_grid_is_refused():
    with pytest.raises(UnsupportedError, match="'g' must be a constant"):
        load(make_model([node("GridSample", "x g")], {"x": (2, 3, 5, 4), "g": (2, 3, 4, 2)}, ["y"], opset=20))


COLUMNS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((5, 6), (2, 3), {}),
    ((5, 6), (2, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ((3, 4, 5), (1, 2, 2), {}),
]


@pytest.mark.parametrize(("dims", "block", "attributes"), COLUMNS)
def test_col2im(dims: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any]):
    rank = len(dims)
    pads = attributes.get("pads", [0] * 2 * rank)
    stride, dilation = (attributes.get(a, [1] * rank) for a in ("strides", "dilations"))
    counts = [
        (dims[i] + pads[i] + pads[rank + i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1 for i in range(rank)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(counts)))
    constants = {"d": np.array(dims), "b": np.array(block)}
    compare(make_model([node("Col2Im", "x d b", **attributes)], {"x": shape}, {"y": rank + 2}, constants, opset=18))


@pytest.mark.parametrize("attributes", [{}, {"onesided": 1}, {"inverse": 1}])
@pytest.mark.parametrize(("axis", "length"), [(1, 6), (2, 5), (-2, 9)])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(attributes: dict[str, int], axis: int, length: int, parts: int):
    if (parts, attributes) in ((2, {"onesided": 1}), (1, {"inverse": 1})):
        pytest.skip("onnxruntime takes real numbers forwards for one side, and complex ones backwards")
    constants = {"n": np.array(length), "a": np.array(axis)}
    op = node("DFT", "x n a", **attributes)
    compare(make_model([op], {"x": (2, 6, 5, parts)}, ["y"], constants, opset=20), 1e-5)


def test_a_product_of_a_transform_runs_on_crossbars():
    op = node("STFT", "x s w n", onesided=1)
    constants = {"s": np.array(3), "w": abs(random(8)), "n": np.array(8)}
    model = make_model([op], {"x": (2, 30, 1)}, ["y"], constants, opset=17)
    compare(model, 1e-5)
    check(model, base_isa=True)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (1, 2, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...], align: int):
    rank = len(size) - 2
    op = node("AffineGrid", "t s", align_corners=align)
    model = make_model([op], {"t": (size[0], rank, rank + 1)}, {"y": rank + 2}, {"s": np.array(size)}, opset=20)
    compare(model, 1e-5)
