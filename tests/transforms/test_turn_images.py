"""High images are turned, and compute the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import models
import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph, Move
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.residency import Residency, StatePair
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.turn_images import find_high_images, turn_images
from tests.pipeline import passes, streamed
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node, random

CONSTANTS = {
    "square": random(4, 3, 3, 3),
    "flat": random(4, 3, 1, 3),
    "tall": random(4, 3, 5, 2),
    "depthwise": random(3, 1, 4, 2),
    "back": random(3, 5, 2, 3),
    "on": random(3, 3, 1, 1),
    "grey": random(4, 1, 3, 3),
    "bands": random(4, 3, 1, 6),
    "dense": random(4, 5),
    "along": random(2, 5, 3, 1),
    "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]),
    "all": random(7, 3, 20, 6),
    "by_row": random(1, 1, 20, 1),
    "by_column": random(1, 1, 1, 6),
    "by_pixel": random(1, 3, 20, 6),
    "vector": np.array([1, 360]),
    "weights": random(360, 5),
    "tokens": np.array([1, 3, 120]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "first": np.array([2]),
    "last": np.array([18]),
    "axis": np.array([2]),
}


def made(*nodes: Any, given: tuple[int, ...] = (1, 3, 20, 6), rank: int = 4) -> ModelProto:
    return make_model(list(nodes), {"x": given}, {"y": rank}, CONSTANTS, opset=13)


def conv(weights: str, x: str = "x", y: str = "y", **attributes: Any) -> Any:
    return node("Conv", f"{x} {weights}", y, name=y, **attributes)


TURNED = {
    "a layer": made(conv("square", pads=[1] * 4)),
    "unequal kernel, pads and strides": made(conv("tall", pads=[3, 1, 0, 0], strides=[2, 1])),
    "dilations": made(conv("flat", dilations=[1, 2], pads=[0, 1, 0, 3])),
    "a depthwise layer": made(conv("depthwise", group=3, strides=[3, 2])),
    "a transposed layer": made(node("ConvTranspose", "x back", "y", strides=[2, 1], pads=[0, 1, 1, 0])),
    "a layer of all pixels": made(conv("all")),
    "pools": made(
        node("MaxPool", "x", "a", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1]),
        node("AveragePool", "a", "y", kernel_shape=[2, 1], name="average", pads=[1, 0, 0, 0]),
    ),
    "constants": made(
        node("Mul", "x by_row", "a"),
        node("Add", "a by_column", "b"),
        node("Mul", "b by_pixel", "c", name="pixels"),
        conv("on", "c"),
    ),
    "a mean": made(node("GlobalAveragePool", "x", "a"), node("Mul", "x a", "y")),
    "an interpolation": made(node("Resize", "x - scales", "y", mode="linear", name="resize")),
    "repeated pixels": made(node("Resize", "x - scales", "a", mode="nearest"), conv("square", "a")),
    "a part": made(node("Slice", "x first last axis", "a"), conv("square", "a", pads=[1, 1, 1, 1])),
    "parts side by side": made(conv("on", "x", "a"), node("Concat", "x a", "y", axis=1)),
    "a vector of its pixels": made(
        node("Relu", "x", "a"), node("Reshape", "a vector", "b"), node("MatMul", "b weights", "y"), rank=2
    ),
    "tokens of its pixels": made(
        node("Relu", "x", "a"), node("Reshape", "a tokens", "b"), node("Transpose", "b", "y", perm=[0, 2, 1]), rank=3
    ),
    "channels last": made(
        node("Transpose", "x", "a", perm=[0, 3, 1, 2]), conv("square", "a", pads=[1] * 4), given=(1, 20, 6, 3)
    ),
    "a column of tokens": made(
        conv("bands", "x", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 3, 1], name="tokens"),
        node("MatMul", "b dense", "c"),
        node("Transpose", "c", "d", perm=[0, 3, 1, 2], name="channels"),
        conv("along", "d", pads=[1, 0, 1, 0]),
    ),
    "a softmax over channels": made(conv("on", "x", "a"), node("Softmax", "a", "y", axis=1)),
}
KEPT = {
    "a wide image": made(conv("square"), given=(1, 3, 6, 20)),
    "a batch": made(node("Relu", "x"), given=(2, 3, 20, 6)),
    "a signal": made(node("Relu", "x"), given=(1, 3, 20), rank=3),
    "operands of a product": made(
        node("Transpose", "x", "a", perm=[0, 1, 3, 2]), node("MatMul", "x a", "y"), given=(1, 20, 3, 6)
    ),
}
CHOICE = RewriteChoice(streaming=True, layers={}, turned=True)


def values_of(graph: Graph, *, lowest: bool = False) -> dict[str, Any]:
    found = {name: np.random.default_rng(5).standard_normal(graph.tensors[name].shape, np.float32) for name in "x"}
    found["x"].reshape(-1)[3::7] = -np.inf if lowest else 0
    return found


@pytest.mark.parametrize("name", TURNED)
def test_turned_images_compute_the_same(name: str):
    before = load(TURNED[name]).graph
    after = turn_images(before, CHOICE)
    after.verify()
    assert any(tensor.image.turned for tensor in after.tensors.values())
    values = values_of(before, lowest=name == "pools")
    given, turned = evaluate_graph(before, values), evaluate_graph(after, values)
    for tensor in given.keys() & turned.keys():
        np.testing.assert_allclose(turned[tensor], given[tensor], 1e-5, 1e-5)


@pytest.mark.parametrize("name", TURNED)
def test_programs_of_turned_images(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("raptor.mapping.decide.WORTH_TURNING", np.inf)
    found = raptor.compile(TURNED[name], arch="bench", cores=30)
    assert found.validate(samples=2).verdict == "pass"


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str):
    graph = load(KEPT[name]).graph
    assert turn_images(graph, CHOICE) is graph


def test_nothing_turns_unless_chosen():
    graph = load(TURNED["a layer"]).graph
    assert turn_images(graph, RewriteChoice(streaming=True, layers={})) is graph


def test_a_rearranged_input_is_turned_so_that_lines_come_from_lines():
    """Frames of a spectrogram come channels last and are padded. A line must not come from all lines of the input."""
    nodes = node("Pad", "x pads", "a"), node("Transpose", "a", "b", perm=[0, 3, 1, 2]), conv("grey", "b")
    graph = turn_images(streamed(load(made(*nodes, given=(1, 76, 32, 1))).graph), CHOICE)
    images = {name: tensor.image for name, tensor in graph.tensors.items()}
    assert (images["x"].rows, images["x"].width) == (32, 76)
    (pad,) = (each for each in graph.nodes if isinstance(each.operator, Move))
    assert isinstance(pad.operator, Move)
    origins = MoveOrigins.from_sources(pad.operator.sources, images[pad.output], [images["x"]])
    assert images[pad.output].rows == 34
    assert origins.most_lines(pad.inputs) == 1


def test_a_spectrogram_is_turned_and_a_mapping_file_says_so(tmp_path: Path):
    model = models.build("ds_cnn")
    assert passes(model, mapping="rows", cores=64, arch="bench").chosen.tensors["input"].image.turned
    mapping, chip = tmp_path / "mapping.json", {"arch": "bench", "cores": 64}
    first = raptor.compile(model, **chip, emit_mapping=mapping)
    again = raptor.compile(model, **chip, mapping=mapping)
    first.save(tmp_path / "first")
    again.save(tmp_path / "again")
    assert (tmp_path / "first" / "memory.json").read_bytes() == (tmp_path / "again" / "memory.json").read_bytes()
    assert '"turned": true' in mapping.read_text()
    assert again.validate(samples=1).verdict == "pass"


@pytest.mark.parametrize("per_channel", [False, True])
def test_integers(per_channel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("raptor.mapping.decide.WORTH_TURNING", np.inf)
    model = quantise(TURNED["unequal kernel, pads and strides"], tmp_path, per_channel=per_channel)
    found = raptor.compile(model, cores=30, xbar=16)
    assert found.validate(samples=8).verdict == "pass"


def test_states_are_not_turned():
    graph = load(made(conv("on"))).graph
    assert find_high_images(graph)
    for pair in (StatePair("x", "of_another"), StatePair("of_another", "y")):
        assert not find_high_images(replace(graph, residency=Residency(states=(pair,))))
