"""Only what cannot run on the chip goes to the host: floats beside integers are programs of their own (B14)."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

import raptor
from raptor.common.errors import UnsupportedError
from tests.segmented_models import CHIP, compiled, cut_of, sandwich
from tests.tiny_models import golden, make_model, node, random

PRODUCTS = {"m0", "m1", "m2"}


def chain() -> ModelProto:
    """Three products with functions between them."""
    nodes = [
        *(node("MatMul", "x w0", "a", name="m0"), node("Relu", "a", "b", name="relu")),
        *(node("MatMul", "b w1", "c", name="m1"), node("Tanh", "c", "d", name="tanh")),
        node("MatMul", "d w2", "y", name="m2"),
    ]
    return make_model(nodes, {"x": [2, 8]}, {"y": 2}, {f"w{k}": random(8, 8, seed=k) / 3 for k in range(3)})


class Samples(CalibrationDataReader):
    def __init__(self, shape: list[int]) -> None:
        self._left = iter([{"x": random(*shape, seed=k)} for k in range(8)])

    def get_next(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return next(self._left, None)


def quantised(model: ModelProto, folder: Path, *nodes: str, dynamic: bool) -> ModelProto:
    logging.disable(logging.WARNING)
    onnx.save(model, folder / "plain.onnx")
    files = str(folder / "plain.onnx"), str(folder / "quantised.onnx")
    if dynamic:
        quantize_dynamic(*files, nodes_to_quantize=[*nodes])
    else:
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        quantize_static(*files, Samples(shape), nodes_to_quantize=[*nodes])
    logging.disable(logging.NOTSET)
    return onnx.load(folder / "quantised.onnx")


def check(model: ModelProto, folder: Path, on_chip: set[str]) -> None:
    found = cut_of(model)
    assert {n for s in found.on_chip for n in s.nodes} >= on_chip
    verdict = compiled(model, folder / "out").validate(samples=3)
    assert verdict.passed, verdict
    assert all(s.passed for s in verdict.segments)


@pytest.mark.parametrize("which", [*sorted(PRODUCTS), "m0 m2"])
def test_floats_beside_a_dynamically_quantised_layer(which: str, tmp_path: Path):
    layers = {*which.split()}
    check(quantised(chain(), tmp_path, *layers, dynamic=True), tmp_path, PRODUCTS - layers)


@pytest.mark.parametrize("which", [*sorted(PRODUCTS), "m0 m2", "m0 m1"])
def test_floats_beside_a_statically_quantised_layer(which: str, tmp_path: Path):
    """All is on the chip, in programs of integers and of floats."""
    made = quantised(chain(), tmp_path, *which.split(), dynamic=False)
    check(made, tmp_path, PRODUCTS)
    assert not cut_of(made).host


CONVOLUTIONS: dict[str, Callable[[Path], ModelProto]] = {
    f"{'dynamic' if dynamic else 'static'} {layer}": lambda folder, layer=layer, dynamic=dynamic: quantised(
        sandwich([node("Relu", "a", "b", name="relu")]), folder, layer, dynamic=dynamic
    )
    for layer in ("first", "last")
    for dynamic in (False, True)
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_too(name: str, tmp_path: Path):
    others = {"first", "last"} - {name.split()[1]} if "dynamic" in name else {"first", "last"}
    check(CONVOLUTIONS[name](tmp_path), tmp_path, others)


def test_sums_of_integers_are_made_floats_by_the_host(tmp_path: Path):
    """They may be larger than the whole numbers that a program of floats takes."""
    plain = make_model(
        [node("MatMul", "x w", "a", name="m0"), node("MatMul", "a v", "y", name="m1")],
        {"x": [1, 2048]},
        {"y": 2},
        {"w": np.full((2048, 4), 1, np.float32) + random(2048, 4) / 99, "v": random(4, 4)},
    )
    model = quantised(plain, tmp_path, "m0", dynamic=True)
    x = np.ones((1, 2048), np.float32)
    compiled(model, tmp_path / "out", xbar=128)
    found = raptor.load(tmp_path / "out").run({"x": x})["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-4)


def test_without_the_host_it_is_refused(tmp_path: Path):
    made = quantised(chain(), tmp_path, "m0", dynamic=False)
    with pytest.raises(UnsupportedError, match="would divide the model into 2 programs, all on the chip"):
        raptor.compile(made, **CHIP)
