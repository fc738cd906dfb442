"""Images in another size against onnxruntime; some through the instruction streams."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import raptor
from raptor.common.errors import UnsupportedError
from raptor.common.terminal.console import LiteralConsole
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Move, Stencil
from tests.pipeline import check
from tests.tiny_models import Array, compare, golden, make_model, node, random
from validator.judge.validation_report import show
from validator.model import onnx_resize

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 40}
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
SCALES = [(1, 1, 2, 2), (1, 1, 0.6, 0.6), (1, 1, 1.5, 0.75), (1, 1, 0.2, 3), (1, 1, 2.4, 1)]


def resize(
    shape: tuple[int, ...],
    *,
    scales: tuple[float, ...] = (),
    sizes: tuple[int, ...] = (),
    roi: tuple[float, ...] = (),
    opset: int = 19,
    **attributes: Any,
):
    constants = {"s": np.array(scales, np.float32)} if scales else {"n": np.array(sizes, np.int64)}
    if roi:
        constants["r"] = np.array(roi, np.float32)
    inputs = f"x {'r' if roi else '-'} {'s' if scales else '- n'}"
    ranks = {"y": len(shape)}
    return make_model([node("Resize", inputs, **attributes)], {"x": shape}, ranks, constants, opset=opset)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("coordinates", COORDINATES[:-1])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(scales: tuple[float, ...], coordinates: str, nearest: str):
    model = resize((1, 2, 5, 6), scales=scales, coordinate_transformation_mode=coordinates, nearest_mode=nearest)
    graph = load(model).graph
    assert isinstance(graph.nodes[0].operator, Move)
    compare(model)


@pytest.mark.parametrize("scales", [(1.3, 0.3), (1.1, 0.6), (0.9, 1.2), (0.7, 28 / 13)])
@pytest.mark.parametrize("coordinates", COORDINATES[:-1])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_coordinates_that_are_nearly_half_way(scales: tuple[float, ...], coordinates: str, nearest: str):
    """19.5 / 1.3 - 0.5 is 14.500001 in float32, and 14 for onnxruntime; 33 / 1.1 is 30, but 33 * (1 / 1.1) is not."""
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    compare(resize((1, 2, 47, 52), scales=(1, 1, *scales), **attributes))


@pytest.mark.parametrize("scales", [(1, 1, 2, 0.5), (1, 1, 4, 1)])
def test_nearest_symmetric(scales: tuple[float, ...]):
    compare(resize((1, 2, 5, 6), scales=scales, coordinate_transformation_mode="half_pixel_symmetric"))


def test_a_coordinate_on_the_edge_of_rounding_is_refused():
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "floor"}
    with pytest.raises(UnsupportedError, match="half_pixel_symmetric: a coordinate lies on the edge"):
        load(resize((1, 2, 5, 6), scales=(1, 1, 0.6, 0.6), **attributes))


def test_equal_sizes_are_copied():
    compare(resize((1, 2, 2, 3), scales=(1, 1, 1.2, 1.1)))
    compare(resize((1, 2, 2, 3), scales=(1, 1, 1.2, 1.1), mode="linear"))


def test_a_size_on_the_edge_of_rounding_is_refused():
    with pytest.raises(UnsupportedError, match=r"the standard infers the shape \(1, 1, 12, 5\)"):
        load(resize((1, 1, 5, 5), scales=(1, 1, 2.6, 1)))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(scales: tuple[float, ...], coordinates: str, mode: str):
    compare(resize((2, 3, 5, 6), scales=scales, coordinate_transformation_mode=coordinates, mode=mode))


@pytest.mark.parametrize("sizes", [(1, 2, 3, 4), (1, 2, 8, 9), (1, 2, 1, 1), (1, 2, 7, 3)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_sizes(sizes: tuple[int, ...], mode: str, coordinates: str):
    if (mode, coordinates) == ("nearest", "half_pixel_symmetric"):
        # With sizes it is half_pixel.
        coordinates = "half_pixel"
    compare(resize((1, 2, 5, 6), sizes=sizes, coordinate_transformation_mode=coordinates, mode=mode))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("attributes", [{"cubic_coeff_a": -0.5}, {"exclude_outside": 1}])
def test_cubic_attributes(scales: tuple[float, ...], attributes: dict[str, Any]):
    compare(resize((1, 2, 5, 6), scales=scales, mode="cubic", **attributes))


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.6), (1, 1, 0.3, 0.5), (1, 1, 2, 0.7)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_antialias(scales: tuple[float, ...], mode: str, exclude_outside: int):
    compare(resize((1, 2, 7, 6), scales=scales, mode=mode, antialias=1, exclude_outside=exclude_outside))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [(0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8), (0, 0, 0.6, -0.2, 1, 1, 1.5, 0.9)])
def test_crop(mode: str, roi: tuple[float, ...]):
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
    compare(resize((1, 1, 4, 5), sizes=(1, 1, 3, 4), roi=roi, mode=mode, **attributes))


CROP: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 1, 4, 7), (1, 1, 4, 5)])
def test_a_crop_leaves_an_axis_of_the_same_size_alone(mode: str, sizes: tuple[int, ...]):
    compare(resize((1, 1, 4, 5), sizes=sizes, roi=(0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75), mode=mode, **CROP))


def test_a_crop_with_nothing_in_reach():
    attributes = {"mode": "cubic", "antialias": 1, "exclude_outside": 1, **CROP}
    compare(resize((1, 1, 23, 1), sizes=(1, 1, 11, 2), roi=(0, 0, 0.25, 0.25, 1, 1, 1.25, 1.25), **attributes))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_antialias_leaves_an_axis_of_the_same_size_alone(mode: str, coordinates: str):
    attributes = {"mode": mode, "antialias": 1, "coordinate_transformation_mode": coordinates}
    compare(resize((1, 1, 2, 6), scales=(1, 1, 1.3, 1.5), **attributes))


@pytest.mark.parametrize("scales", [(1, 1.3, 2, 1), (1, 1.5, 1.3, 1), (1, 1.5, 1.5, 1), (1, 1, 1.3, 1.5)])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_cubic_channels_last_leave_an_axis_of_the_same_size_alone(scales: tuple[float, ...], exclude_outside: int):
    compare(resize((2, 2, 2, 3), scales=scales, mode="cubic", exclude_outside=exclude_outside))


@pytest.mark.parametrize("axes", [(2, 3), (3, 2)])
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_axes_and_aspect_ratio(axes: tuple[int, int], policy: str):
    compare(resize((1, 2, 2, 4), sizes=(7, 8), axes=list(axes), keep_aspect_ratio_policy=policy))
    compare(resize((1, 2, 2, 4), scales=(1.5, 0.5), axes=list(axes), mode="linear"))


@pytest.mark.parametrize("shape", [(6, 5), (1, 2, 4, 5, 3)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_other_ranks(shape: tuple[int, ...], mode: str):
    scales = (1.0, 1.0, 2.0, 0.5, 1.5)[-len(shape) :]
    compare(resize(shape, scales=scales, mode=mode))


def test_channels_are_resized_by_a_product():
    compare(resize((1, 4, 3, 3), scales=(1, 2, 1, 1)))
    compare(resize((4, 6), scales=(2, 1.5), mode="linear"))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_versions(mode: str):
    scales = {"s": np.array([1, 1, 2, 3], np.float32)}
    upsample = make_model([node("Upsample", "x s", mode=mode)], {"x": (1, 2, 3, 4)}, ["y"], scales, opset=9)
    compare(upsample)
    old = make_model(
        [node("Upsample", "x", mode=mode, scales=[1.0, 1.0, 2.0, 3.0])], {"x": (1, 2, 3, 4)}, ["y"], opset=8
    )
    compare(old)
    scales = {"s": np.array([1, 1, 0.7, 1.6], np.float32)}
    compare(make_model([node("Resize", "x s", mode=mode)], {"x": (1, 2, 5, 4)}, ["y"], scales, opset=10))
    compare(resize((1, 2, 3, 4), scales=(1, 1, 2, 2), mode=mode, opset=13))


END_TO_END = {
    "nearest": resize((1, 6, 3, 3), scales=(1, 1, 2, 2)),
    "linear": resize((1, 6, 3, 3), scales=(1, 1, 2, 1.5), mode="linear"),
    "cubic": resize((1, 6, 4, 3), sizes=(1, 6, 3, 5), mode="cubic"),
    "antialias": resize((1, 6, 6, 5), scales=(1, 1, 0.5, 0.6), mode="linear", antialias=1),
}


@pytest.mark.parametrize("name", END_TO_END)
def test_through_the_streams(name: str):
    check(END_TO_END[name], **CHIP)


def test_each_axis_is_a_stencil():
    graph = load(resize((1, 6, 3, 3), scales=(1, 1, 2, 2), mode="linear")).graph
    assert [type(n.operator) for n in graph.nodes] == [Stencil, Stencil]


def test_computed_scales_are_refused():
    model = make_model([node("Resize", "x - s")], {"x": (1, 1, 2, 2), "s": (4,)}, ["y"])
    with pytest.raises(UnsupportedError, match=r"'s' must be a constant|shape of 'y'"):
        load(model)


def _by_reference(model: ModelProto) -> tuple[Array, Array]:
    """Returns the results of the graph and of the reference implementation of ONNX's own suite."""
    graph = load(model).graph
    x = random(*graph.tensors["x"].shape)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    return evaluate_graph(graph, {"x": x})["y"], wanted


LENGTHS_THAT_ARE_NOT_WHOLE = [(1, 1, 0.6, 0.6), (1, 1, 1.5, 1.3), (1, 1, 2.3, 1), (1, 1, 1.1, 1.1)]


@pytest.mark.parametrize("scales", LENGTHS_THAT_ARE_NOT_WHOLE)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_corners_are_aligned_as_the_suite_does(scales: tuple[float, ...], mode: str):
    """onnxruntime rounds the length down first."""
    model = resize((1, 2, 7, 9), scales=scales, mode=mode, coordinate_transformation_mode="align_corners")
    got, wanted = _by_reference(model)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    x = random(1, 2, 7, 9)
    assert mode == "nearest" or np.abs(golden(model, {"x": x})["y"] - wanted).max() > 1e-2


CROPPED = (0, 0.6, -0.2, 0, 1, 1.5, 0.9, 1)
CHANNELS_LAST: dict[str, dict[str, Any]] = {
    "cubic": {"mode": "cubic"},
    "cubic antialias": {"mode": "cubic", "antialias": 1},
    "linear antialias": {"mode": "linear", "antialias": 1, "exclude_outside": 1},
}


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_a_crop_of_channels_last(name: str):
    """onnxruntime extrapolates other elements than those that lie outside."""
    model = resize((1, 4, 5, 2), sizes=(1, 7, 4, 2), roi=CROPPED, **CHANNELS_LAST[name], **CROP)
    got, wanted = _by_reference(model)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("model", ["aligned", "cropped"])
def test_the_suite_judges_where_onnxruntime_departs_from_it(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    aligned = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    models = {
        "aligned": resize((1, 2, 7, 9), scales=(1, 1, 0.6, 0.6), **aligned),
        "cropped": resize((1, 4, 5, 2), sizes=(1, 7, 8, 2), roi=CROPPED, mode="cubic", **CROP),
    }
    program = raptor.compile(models[model], **CHIP)
    verdict = program.validate(layers=True)
    assert verdict.passed
    assert verdict.by_suite == ("my_resize",)
    show(verdict, LiteralConsole())
    assert "node my_resize: judged by ONNX's own suite, from which onnxruntime departs\n" in capsys.readouterr().out
    monkeypatch.setattr(onnx_resize, "rewrite_resizes", lambda *_: ())
    assert program.validate().verdict == "mismatch"


def test_the_suite_judges_behind_a_function():
    """onnx infers no shapes behind this operator, which is a function of others; onnxruntime does."""
    nodes = [
        node("GroupNormalization", "x scale bias", "g", num_groups=1),
        node("ConvTranspose", "g w", "c", kernel_shape=[1]),
        node(
            "Resize",
            "c - factors",
            "y",
            mode="nearest",
            coordinate_transformation_mode="align_corners",
            name="my_resize",
        ),
    ]
    constants = {"scale": random(3), "bias": random(3), "w": random(3, 3, 1), "factors": np.array([0.5, 1, 1])}
    model = make_model(
        nodes, {"x": (7, 3, 2)}, {"y": 3}, {k: v.astype(np.float32) for k, v in constants.items()}, opset=21
    )
    verdict = raptor.compile(model, **CHIP).validate()
    assert verdict.by_suite == ("my_resize",)
    assert verdict.passed


def test_the_suite_judges_a_tensor_of_the_shape_that_onnxruntime_infers():
    """onnx takes all 6 bins for the shape of this spectrum, onnxruntime the 4 of one side, as the standard says."""
    aligned = {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}
    nodes = [node("STFT", "x step window length", "t"), node("Resize", "t - factors", "y", name="my_resize", **aligned)]
    constants = {"window": random(6), "factors": np.array([1, 1, 0.6, 1], np.float32)}
    constants |= {"step": np.array(4), "length": np.array(6)}
    verdict = raptor.compile(make_model(nodes, {"x": (1, 12, 1)}, {"y": 4}, constants, opset=20), **CHIP).validate()
    assert verdict.by_suite == ("my_resize",)
    assert verdict.passed


def test_a_shape_that_onnxruntime_does_not_infer():
    """Behind an operator that it runs as a function, it says the shape of a number where it knows none."""
    aligned = {"coordinate_transformation_mode": "align_corners", "mode": "linear"}
    normed = node("MeanVarianceNormalization", "x", "t", axes=[2, 3])
    nodes = [normed, node("Resize", "t - - sizes", "y", name="my_resize", **aligned)]
    model = make_model(nodes, {"x": (1, 2, 3, 4)}, {"y": 4}, {"sizes": np.array([1, 2, 4, 5])}, opset=20)
    assert raptor.compile(model, **CHIP).validate().passed


def test_onnxruntime_judges_all_else():
    model = resize((1, 2, 6, 6), scales=(1, 1, 0.5, 1.5), mode="linear", coordinate_transformation_mode="align_corners")
    before = model.SerializeToString()
    assert onnx_resize.rewrite_resizes(model, {"x": (1, 2, 6, 6)}) == ()
    assert model.SerializeToString() == before


@pytest.mark.parametrize("kind", ["initializer", "Constant", "float16"])
def test_scales_of_a_rewritten_node(kind: str):
    """Scales may be a node's result, and numbers of another type."""
    model = resize((1, 2, 7, 9), scales=(1, 1, 0.6, 0.6), mode="linear", coordinate_transformation_mode="align_corners")
    graph = model.graph
    if kind == "Constant":
        graph.node.insert(0, helper.make_node("Constant", [], ["s"], value=graph.initializer.pop()))
    if kind == "float16":
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    x = random(1, 2, 7, 9).astype(np.float16 if kind == "float16" else np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert onnx_resize.rewrite_resizes(model, {"x": x.shape}) == ("my_resize",)
    np.testing.assert_allclose(golden(model, {"x": x})["y"], wanted, atol=5e-3 if kind == "float16" else 1e-5)
