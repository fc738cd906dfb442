"""The judge in float64 evaluates sizes that follow from shapes (trial of real models, A4)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

import raptor
from tests.tiny_models import Array, golden, make_model, node, random
from validator.model.float64 import NoFloat64Error, load_float64
from validator.validate import validate

EMPTY = np.array([], np.float32)
LAYERS = {"w": random(4, 3, 3, 3, seed=1) / 5, "v": random(2, 4, 3, 3, seed=2) / 5}


def resized(
    *sizes: Any, resize: str, opset: int = 13, constants: Mapping[str, Array] | None = None, **how: Any
) -> ModelProto:
    """x [1, 3, 6, 6] -> a convolution -> sizes from its shape -> Resize -> a convolution."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1] * 4),
        node("Shape", "a", "shape", name="shape"),
        *sizes,
        node("Resize", resize, "r", name="resize", **how),
        node("Conv", "r v", "y", name="last", pads=[1] * 4),
    ]
    found = {"roi": EMPTY, "scales": EMPTY, "zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}
    return make_model(nodes, {"x": [1, 3, 6, 6]}, ["y"], {**LAYERS, **found, **(constants or {})}, opset=opset)


def of_tensorflow(opset: int, mode: str, **how: Any) -> ModelProto:
    """The sizes beside the first two of the shape; regions and scales are there, and empty."""
    nodes = [node("Slice", "shape zero two", "front"), node("Concat", "front new", "sizes", axis=0)]
    new = {"new": np.array([12, 9])}
    return resized(*nodes, resize="a roi scales sizes", opset=opset, constants=new, mode=mode, **how)


def of_pytorch() -> ModelProto:
    """The floor of sizes times a factor: with any error in it, a size may be one less."""
    nodes = [
        node("Slice", "shape two four", "back"),
        node("Cast", "back", "f", name="float", to=TensorProto.FLOAT),
        node("Mul", "f twice", "g"),
        node("Floor", "g", "h"),
        node("Cast", "h", "new", name="int", to=TensorProto.INT64),
        node("Slice", "shape zero two", "front", name="front"),
        node("Concat", "front new", "sizes", axis=0),
    ]
    return resized(*nodes, resize="a - - sizes", constants={"twice": np.array([2, 1.5], np.float32)}, mode="linear")


MODELS = {
    **{
        f"{mode}, opset {opset}": of_tensorflow(opset, mode)
        for mode in ("linear", "nearest", "cubic")
        for opset in (11, 13, 19)
    },
    "half pixel": of_tensorflow(13, "nearest", coordinate_transformation_mode="half_pixel", nearest_mode="floor"),
    "asymmetric": of_tensorflow(13, "linear", coordinate_transformation_mode="asymmetric"),
    "factors": of_pytorch(),
}


@pytest.mark.parametrize("name", MODELS)
def test_float64_evaluates_it(name: str, tmp_path: Path):
    """Without errors it is near onnxruntime, and with errors the shape stays."""
    model, x = MODELS[name], random(1, 3, 6, 6, seed=5)
    onnx.save(model, tmp_path / "model.onnx")
    exact = load_float64(tmp_path / "model.onnx", {})
    wanted = golden(model, {"x": x})["y"]
    assert wanted.shape == (1, 2, 12, 9)
    np.testing.assert_allclose(exact.run({"x": x}, ["y"])["y"], wanted, rtol=1e-4, atol=1e-5)
    for draw in range(4):
        moved = exact.run({"x": x}, ["y"], np.random.default_rng(draw))["y"]
        np.testing.assert_allclose(moved, wanted, rtol=1e-4, atol=1e-5)
        assert (moved != wanted).any()


@pytest.mark.parametrize("name", ["linear, opset 11", "factors"])
def test_no_false_alarm(name: str, tmp_path: Path):
    """A tolerance below float32 itself: the judge in float64 decides, and says that the program is right."""
    raptor.compile(MODELS[name], xbar=32, cores=8).save(tmp_path / "out")
    verdict = validate(tmp_path / "out", samples=2, tolerance=1e-9)
    assert verdict.passed, verdict.reason
    assert verdict.reason is not None
    assert "cannot be asked" not in verdict.reason


def normalised() -> ModelProto:
    """A large bias that a normalisation takes away again; onnxruntime joins both where it may optimise."""
    constants = {
        "w": random(4, 3, 3, 3, seed=1) / 5,
        "b": np.full(4, 1e5, np.float32),
        "m": np.full(4, 1e5, np.float32),
    }
    constants |= {"s": np.ones(4, np.float32), "z": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
    nodes = [node("Conv", "x w b", "a", pads=[1] * 4), node("BatchNormalization", "a s z m v", "y")]
    return make_model(nodes, {"x": [1, 3, 6, 6]}, ["y"], constants)


def test_levels_of_onnxruntime_that_differ_as_much_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The verdict explains itself where float64 cannot be asked, and onnxruntime does not agree with itself."""

    def unknown(*_: Any) -> Any:
        raise NoFloat64Error("for a test")

    raptor.compile(normalised(), xbar=32, cores=8).save(tmp_path / "out")
    assert validate(tmp_path / "out", samples=2).passed
    monkeypatch.setattr("validator.judge.judge_program.load_float64", unknown)
    verdict = validate(tmp_path / "out", samples=2)
    assert not verdict.passed
    assert verdict.reason is not None
    assert "float64 cannot be asked: for a test" in verdict.reason
    assert "onnxruntime's own results, with and without its optimisations, are rel" in verdict.reason


def test_a_wrong_program_gets_no_such_excuse(tmp_path: Path):
    """A weight of the model that is changed behind the compiler's back."""
    model = normalised()
    raptor.compile(model, xbar=32, cores=8).save(tmp_path / "out")
    weights = next(t for t in model.graph.initializer if t.name == "w")
    weights.raw_data = (np.frombuffer(weights.raw_data, np.float32) * np.float32(1.5)).tobytes()
    onnx.save(model, tmp_path / "out" / "model.onnx")
    verdict = validate(tmp_path / "out", samples=2, check_hashes=False)
    assert not verdict.passed
    assert "own results" not in (verdict.reason or "")


def test_a_local_normalisation_beside_large_channels(tmp_path: Path):
    """onnxruntime's sum moves from channel to channel, and keeps an error of a large one; float64 has its own."""
    model = make_model([node("LRN", "x", "y", alpha=0.5, beta=0.75, size=1)], {"x": [1, 2, 3, 5]}, ["y"])
    x = random(1, 2, 3, 5, seed=4) * np.array([1e4, 100], np.float32).reshape(1, 2, 1, 1)
    raptor.compile(model, xbar=32, cores=8).save(tmp_path / "out")
    verdict = validate(tmp_path / "out", inputs={"x": x}, tolerance=1e-6)
    assert verdict.passed, verdict.reason
    onnx.save(model, tmp_path / "model.onnx")
    wide = x.astype(np.float64)
    found = load_float64(tmp_path / "model.onnx", {}).run({"x": x}, ["y"])["y"]
    np.testing.assert_allclose(found, wide / (1 + 0.5 * wide**2) ** 0.75, rtol=1e-7)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_neighbours_of_a_local_normalisation(size: int, tmp_path: Path):
    model = make_model([node("LRN", "x", "y", alpha=0.5, bias=2.0, size=size)], {"x": [2, 6, 3, 2]}, ["y"])
    onnx.save(model, tmp_path / "model.onnx")
    x = random(2, 6, 3, 2, seed=4)
    found = load_float64(tmp_path / "model.onnx", {}).run({"x": x}, ["y"])["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-5)


def test_float64_follows_the_suite_where_onnxruntime_departs(tmp_path: Path):
    """Corners aligned to a length that is not whole: the verdict is by ONNX's suite, in float64 as well."""
    constants = {"scales": np.array([1, 1, 1.5, 0.5], np.float32)}
    how = {"coordinate_transformation_mode": "align_corners", "mode": "cubic", "exclude_outside": 1}
    model = make_model([node("Resize", "x - scales", "y", **how)], {"x": [2, 3, 3, 2]}, ["y"], constants)
    onnx.save(model, tmp_path / "model.onnx")
    x = random(2, 3, 3, 2, seed=4)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
    as_suite, as_runtime = (
        load_float64(tmp_path / "model.onnx", {}, {"x": x.shape}, leave).run({"x": x}, ["y"])["y"]
        for leave in ((), ("my_resize",))
    )
    np.testing.assert_allclose(as_suite, wanted, rtol=1e-4, atol=1e-6)
    assert np.abs(as_runtime - wanted).max() > 0.01


def test_a_nearly_singular_determinant_is_as_exact_as_its_products(tmp_path: Path):
    """Rows are nearly equal: products of 1 cancel to 1e-10."""
    model = make_model([node("Det", "x", "y")], {"x": [4, 3, 3]}, {"y": 1}, opset=11)
    raptor.compile(model, xbar=32, cores=8).save(tmp_path / "out")
    x = 1 + random(4, 3, 3) * np.float32(1e-5)
    assert validate(tmp_path / "out", inputs={"x": x}).passed
    assert not validate(tmp_path / "out", inputs={"x": x}, tolerance=0).passed


@pytest.mark.parametrize("op_type", ["Celu", "Elu", "Selu"])
def test_functions_that_round_something_as_large_as_one(op_type: str, tmp_path: Path):
    """Near zero they are as exact as their inner steps, like exp(x) - 1."""
    model = make_model([node(op_type, "x", "y")], {"x": [4, 9]}, {"y": 2})
    raptor.compile(model, xbar=32, cores=8).save(tmp_path / "out")
    assert validate(tmp_path / "out", inputs={"x": random(4, 9) * np.float32(1e-6)}).passed
    assert not validate(tmp_path / "out", inputs={"x": random(4, 9)}, tolerance=0).passed
