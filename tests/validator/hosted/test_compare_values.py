"""Integers of a whole model that depend on rounding: float64 decides, and only where they differ."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.tiny_models import make_model, node
from validator.hosted.compare_values import HostedRuns
from validator.options import ValidationSettings

FACTOR = np.float32(1 + 2**-13)
INPUT = np.array([[1 - 2**-13, 1.0]], np.float32)
"""The first product is 1 - 2^-26: just below 1, and 1 as float32."""


@pytest.mark.parametrize(
    ("got", "passed"), [((1, 1), True), ((0, 1), True), ((9, 1), False), ((0, 0), False), ((1, 2), False)]
)
def test_float64_decides_on_integers(tmp_path: Path, got: tuple[int, int], passed: bool):
    nodes = [node("Mul", "x f", "m", name="scaled"), node("Cast", "m", "y", name="cut", to=onnx.TensorProto.INT32)]
    model = make_model(nodes, {"x": (1, 2)}, {"y": 2}, {"f": np.array([FACTOR])})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, str(tmp_path / "model.onnx"))
    pair = {"y": np.array([got], np.int32)}, {"y": (INPUT * FACTOR).astype(np.int32)}
    assert pair[1]["y"].tolist() == [[1, 1]]
    sides = HostedRuns(["y"], [0], lambda _: pair, lambda _: {"x": INPUT}, tmp_path / "model.onnx", {}, frozenset())
    (found,), _ = sides.compare_all(
        ValidationSettings(1e-4, layers=False, engine="numba", schedule="block", max_steps=10**9)
    )
    assert found.passed is passed
