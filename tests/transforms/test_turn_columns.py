"""Images of one column become images of one line, and compute the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.transforms.turn_columns import turn_columns
from tests.pipeline import by_line, check, passes
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node, random

CONSTANTS = {
    "tall": random(4, 3, 5, 1),
    "square": random(3, 4, 3, 3),
    "slices": random(4, 3, 2, 3, 1),
    "depthwise": random(3, 1, 4, 1),
    "back": random(4, 3, 2, 1),
    "along": random(1, 1, 12, 1),
    "channels": random(1, 3, 1, 1),
    "beside": random(3, 3, 1, 3),
    "flat": np.array([1, 3, 12]),
    "column": np.array([1, 3, 12, 1]),
    "first": np.array([2]),
    "last": np.array([9]),
    "axis": np.array([2]),
}


def made(*nodes: Any, given: tuple[int, ...] = (1, 3, 12, 1), rank: int = 4) -> ModelProto:
    return make_model(list(nodes), {"x": given}, {"y": rank}, CONSTANTS, opset=13)


def conv(weights: str, x: str = "x", y: str = "y", **attributes: Any) -> Any:
    return node("Conv", f"{x} {weights}", y, name=y, **attributes)


def same(x: str = "x", y: str = "a") -> Any:
    """A layer whose result has as many lines as its input."""
    return conv("tall", x, y, pads=[2, 0, 2, 0])


TURNED = {
    "a layer": made(same(y="y")),
    "a kernel wider than the image": made(same(), conv("square", "a", pads=[1] * 4)),
    "unequal pads and strides": made(conv("tall", pads=[3, 0, 0, 0], strides=[2, 1])),
    "dilations": made(conv("tall", pads=[4, 0, 4, 0], dilations=[2, 1])),
    "a depthwise layer": made(conv("depthwise", group=3)),
    "a transposed layer": made(same(), node("ConvTranspose", "a back", "y", strides=[2, 1])),
    "a volume": made(conv("slices"), given=(1, 3, 4, 12, 1), rank=5),
    "a batch": made(same(), conv("square", "a", "b", pads=[1] * 4), node("Mul", "b along", "y"), given=(2, 3, 12, 1)),
    "pools": made(
        node("MaxPool", "x", "a", kernel_shape=[3, 1], strides=[2, 1], pads=[1, 0, 0, 0]),
        node("AveragePool", "a", "y", kernel_shape=[2, 1], name="average"),
    ),
    "element-wise functions": made(node("Mul", "x along", "a"), node("Add", "a channels", "y")),
    "a mean": made(same(), node("GlobalAveragePool", "a", "b"), node("Mul", "a b", "y")),
    "a part, and parts side by side": made(
        node("Slice", "x first last axis", "a"), same("a", "b"), node("Concat", "b a", "y", axis=1)
    ),
    "a signal of its pixels": made(node("Relu", "x", "a"), node("Reshape", "a flat", "y", name="reshape"), rank=3),
}
KEPT = {
    "a column that a layer makes of an image": made(conv("beside"), given=(1, 3, 8, 3)),
    "a column that a pool makes of an image": made(node("AveragePool", "x", kernel_shape=[1, 3]), given=(1, 3, 8, 3)),
    "pixels of many lines": made(node("Reshape", "x column", "a"), same("a", "y"), given=(1, 3, 6, 2)),
    "an image": made(conv("beside"), given=(1, 3, 8, 12)),
}


@pytest.mark.parametrize("name", TURNED)
def test_columns_become_lines(name: str):
    model = TURNED[name]
    before = load(model).graph
    after = turn_columns(before)
    after.verify()
    assert after.tensors["x"].image.width == 12
    assert after.tensors["x"].image.has_layout_of(before.tensors["x"].image)
    values = {"x": np.random.default_rng(5).standard_normal(before.tensors["x"].shape, np.float32)}
    values["x"].reshape(-1)[3::7] = -np.inf if name == "pools" else 0
    assert np.array_equal(evaluate_graph(before, values)["y"], evaluate_graph(after, values)["y"])
    check(model, cores=20, xbar=8)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str):
    graph = load(KEPT[name]).graph
    if name == "pixels of many lines":
        assert graph.tensors["y"].image.width == 1
    assert turn_columns(graph) is graph


def test_cores_share_the_pixels_of_a_sequence():
    decision = by_line(passes(TURNED["a layer"], mapping="rows", cores=20, xbar=8).decision)
    assert len(decision["y"].grid.cols) > 1


@pytest.mark.parametrize("per_channel", [False, True])
def test_integers(per_channel: bool, tmp_path: Path):
    model = quantise(TURNED["a kernel wider than the image"], tmp_path, per_channel=per_channel)
    graph = load(model).graph
    assert turn_columns(graph).tensors[graph.inputs[0]].image.width == 12
    assert raptor.compile(model, cores=30, xbar=16).validate(samples=8).verdict == "pass"
