"""The second reference: pixel by pixel, on the crossbars of the first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import models
import raptor
from raptor import spatial
from raptor.common.errors import CapacityError, UserError, VerifyError
from raptor.mapping import pixelwise_mapping
from raptor.spatial.lowering.pixel_lowering import one_pixel_rows
from raptor.target.tensor_layout import Image
from tests.all_graphs.cases import Case, cases
from tests.all_graphs.test_all_graphs import SHRUNK
from tests.graphs import models as random_models
from tests.pipeline import THESIS_CHIP, check, conv_model, passes, thesis_model
from tests.tiny_models import make_model, node, random
from tests.values import replace

PIXELWISE = {"mapping": "pixelwise"}
CHIP = {"xbar": 3, "xbars_per_core": 5, "cores": 400, **PIXELWISE}


@pytest.mark.parametrize(("channels", "filters"), [(8, 4), (4, 8)])
def test_the_thesis_layer(channels: int, filters: int):
    """A 3x3 kernel over 4x4 padded pixels meets 100 pixels; six pairs of tiles multiply each."""
    program = check(thesis_model(channels, filters), **THESIS_CHIP, **PIXELWISE)
    counts = program.report.instructions
    out_tiles = -(-filters // 3)
    assert counts["mvmul"] == 600
    assert counts["vvadd"] == 600 - 16 * out_tiles, "a sum of n products takes n - 1 additions"
    assert counts["st"] == 16 * out_tiles, "each pixel of each output tile"
    assert program.check() == ()


def test_the_same_crossbars_as_the_first_reference():
    model = thesis_model(4, 8)
    first, second = (passes(model, **THESIS_CHIP, mapping=name) for name in ("raptor", "pixelwise"))
    assert first.decision.layers == second.decision.layers
    assert [c.groups for c in first.program.cores.values()] == [c.groups for c in second.program.cores.values()]


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 3), (4, 1)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    "extra", [{}, {"pads": (1, 0, 0, 1), "relu": True}, {"dilations": (1, 2), "pads": (1, 2, 1, 2)}]
)
def test_convolutions(kernel: tuple[int, int], strides: tuple[int, int], extra: dict[str, Any]):
    check(conv_model((1, 5, 5, 6), 4, kernel, strides=strides, bias=True, **extra), **CHIP)


def test_pixels_that_read_only_padding_are_zero():
    model = conv_model((1, 2, 3, 3), 4, (1, 1), pads=(1, 1, 1, 1))
    program = check(model, **CHIP)
    assert program.report.instructions["mvmul"] == 9 * 2
    assert program.report.instructions["lldi"] == (25 - 9) * 2


def test_a_pixel_may_leave_out_padding_and_nothing_else():
    """Pixel 0 of 4x4 reads kernel positions 4, 5, 7, 8; pixel 5 all nine."""
    result = passes(thesis_model(4, 8), **THESIS_CHIP, **PIXELWISE)
    y = result.spatial.tensors["y"]
    corner, inside = y.parts[0], y.parts[5 * 3]
    assert corner.region.channels == inside.region.channels
    parts = list(y.parts)
    parts[0], parts[5 * 3] = replace(corner, tile=inside.tile), replace(inside, tile=corner.tile)
    swapped = {**result.spatial.tensors, "y": replace(y, parts=tuple(parts))}
    with pytest.raises(VerifyError, match="misses products of tap 0"):
        spatial.verify_spatial(replace(result.spatial, tensors=swapped), result.arch)


@given(random_models(), st.sampled_from([3, 4, (8, 4)]), st.integers(4, 12))
@settings(max_examples=15)
def test_random_graphs(model: ModelProto, xbar: int, xbars_per_core: int):
    check(model, tolerance=1e-4, xbar=xbar, xbars_per_core=xbars_per_core, **PIXELWISE)


@pytest.mark.slow
@given(random_models(), st.sampled_from([3, 4, (8, 4)]), st.integers(4, 12))
@settings(max_examples=500)
def test_many_random_graphs(model: ModelProto, xbar: int, xbars_per_core: int):
    check(model, tolerance=1e-4, xbar=xbar, xbars_per_core=xbars_per_core, **PIXELWISE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet5", "resnet18", "squeezenet", "mobilenet_v2"])
def test_small_models(name: str):
    size = {} if name == "lenet5" else {"width": 0.125, "image_size": 32}
    check(models.build(name, seed=0, **size), tolerance=1e-4, **PIXELWISE)


@pytest.mark.parametrize(
    ("shape", "axis", "wanted"),
    [
        ((1, 3, 4, 5), 1, Image((1, 3, 4, 5, 1), 1)),
        ((2, 4, 5, 3), 3, Image((2, 4, 5, 1, 3), 4)),
        ((6, 3), 1, Image((6, 1, 3), 2)),
        ((3,), 0, Image((3,), 0)),
    ],
)
def test_every_pixel_is_a_row(shape: tuple[int, ...], axis: int, wanted: Image):
    image = Image(shape, axis)
    found = one_pixel_rows(image)
    assert found == wanted
    assert (found.rows, found.width) == (image.pixels, 1)
    array = random(*shape)
    np.testing.assert_array_equal(found.to_pixels(array).reshape(-1), image.to_pixels(array).reshape(-1))


def test_too_many_pixels(monkeypatch: pytest.MonkeyPatch):
    nodes = [node("Conv", "x w", "t", name="conv"), node("Relu", "t", "y", name="relu")]
    model = make_model(nodes, {"x": (1, 4, 5, 5)}, ["y"], {"w": random(4, 4, 1, 1)})
    options = {"xbar": 2, "xbars_per_core": 8, "cores": 1, **PIXELWISE}
    # 25 pixels: four products and additions each, and two tiles of the ReLU
    monkeypatch.setattr(pixelwise_mapping, "MAX_OPERATIONS", 250)
    raptor.compile(model, **options)
    monkeypatch.setattr(pixelwise_mapping, "MAX_OPERATIONS", 249)
    with pytest.raises(
        UserError, match=r"250 operations on single pixels, the most is 249; 200 of them are for conv \(Conv\); try"
    ):
        raptor.compile(model, **options)


def test_a_chip_too_small():
    with pytest.raises(CapacityError, match="cores: need 11, have 10"):
        raptor.compile(thesis_model(4, 8), **{**THESIS_CHIP, "cores": 10}, **PIXELWISE)


def test_equal_inputs_give_equal_bytes():
    model = conv_model((1, 5, 4, 4), 4, bias=True, relu=True)
    first, second = (passes(model, **CHIP).streams.cores for _ in range(2))
    assert {i: s.records.tobytes() for i, s in first.items()} == {i: s.records.tobytes() for i, s in second.items()}


def test_a_renamed_tensor_is_stacked_under_its_own_name():
    """Pixels are shared between names; what needs the whole tensor under both stacks them twice."""
    nodes = [
        node("Reshape", "x s", "t", name="flat"),
        node("Softmax", "x", "a", name="first", axis=1),
        node("Softmax", "t", "b", name="second", axis=1),
        node("Reshape", "b r", "c", name="back"),
        node("Add", "a c", "y"),
    ]
    constants = {"s": np.array([1, 4, 6]), "r": np.array([1, 4, 2, 3])}
    check(make_model(nodes, {"x": (1, 4, 2, 3)}, ["y"], constants), **CHIP)


def test_constants_that_are_operands_like_any_other():
    model = make_model([node("Concat", "x c", axis=2)], {"x": (1, 4, 2, 3)}, ["y"], {"c": random(1, 4, 1, 3)})
    check(model, **CHIP)


@pytest.mark.slow
@settings(SHRUNK, max_examples=300)
@given(cases("all"))
def test_random_graphs_over_every_operator(case: Case):
    replace(case, options={**case.options, **PIXELWISE}).check()
