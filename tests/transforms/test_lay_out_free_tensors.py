"""Layouts of tensors that no layer fixes: they stream, and everything computes the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph, Move
from raptor.graph.streaming_layout import can_stream
from raptor.transforms.lay_out_free_tensors import lay_out_free_tensors
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from tests.pipeline import check, line_flow, passes, streamed
from tests.quantised_models import quantise
from tests.tiny_models import Array, make_model, node, random, rename_tensor

CHIP = {"cores": 24, "xbar": 16}


def made(
    nodes: list[Any],
    given: dict[str, tuple[int, ...]],
    rank: int = 4,
    outputs: dict[str, int] | None = None,
    **more: Array,
) -> ModelProto:
    constants = {"w": random(4, 1, 3, 3), "rgb": random(4, 3, 3, 3), "zero": np.array([0]), "one": np.array([1])}
    return make_model(nodes, given, outputs or {"y": rank}, constants | more, opset=13)


def layer(x: str, weights: str = "w") -> Any:
    return node("Conv", f"{x} {weights}", "y", name="layer", strides=[2, 2])


FRAMES = np.arange(80)[:, None] * 16 + np.arange(30)
HALVES = {"start": np.array([32]), "end": np.array([64]), "axis": np.array([2]), "begin": np.array([0])}
STREAMING = {
    "a grey image": made([node("Unsqueeze", "x one", "i"), layer("i")], {"x": (1, 34, 36)}),
    "no batch": made([node("Unsqueeze", "x zero", "i"), layer("i", "rgb")], {"x": (3, 34, 36)}),
    "one channel behind": made([node("Transpose", "x", "i", perm=[0, 3, 1, 2]), layer("i")], {"x": (1, 34, 36, 1)}),
    "a vector": made(
        [node("Reshape", "x shape", "i"), layer("i", "rgb")], {"x": (1, 3 * 34 * 36)}, shape=np.array([1, 3, 34, 36])
    ),
    "a scaled vector": made(
        [node("Mul", "x scale", "s"), node("Reshape", "s shape", "i"), layer("i")],
        {"x": (1, 34 * 36)},
        shape=np.array([1, 1, 34, 36]),
        scale=random(1, 34 * 36),
    ),
    "frames": made(
        [node("Gather", "x index", "f", axis=1), node("Mul", "f window", "m"), node("Tanh", "m", "y")],
        {"x": (1, 1294)},
        3,
        index=FRAMES,
        window=random(30),
    ),
    "constants for each element": made(
        [node("Add", "x a", "s"), node("Mul", "s b", "t"), node("Sub", "t x", "y")],
        {"x": (1, 1260)},
        2,
        a=random(1, 1260),
        b=random(1),
    ),
    "two inputs": made([node("Mul", "x z", "m"), node("Tanh", "m", "y")], {"x": (1, 1280), "z": (1, 1280)}, 2),
    "halves of rows": made(
        [
            node("Slice", "x begin start axis", "a", name="first"),
            node("Slice", "x start end axis", "b", name="second"),
            node("Mul", "a angle", "m"),
            node("Sub", "m b", "n"),
            node("Concat", "n a", "y", axis=2),
        ],
        {"x": (1, 40, 64), "angle": (1, 40, 32)},
        3,
        **HALVES,
    ),
    "a result that a layer reads, too": made(
        [node("Mul", "x x", "r"), node("Reshape", "r shape", "i"), layer("i")],
        {"x": (34, 36)},
        outputs={"y": 4, "r": 2},
        shape=np.array([1, 1, 34, 36]),
    ),
}


def picked(vector: str, count: int) -> list[Any]:
    """Two elements of a vector for each of `count` indices, and a function of them: "d"."""
    return [
        node("Gather", f"{vector} first", "f", axis=1, name="first"),
        node("Gather", f"{vector} second", "s", axis=1, name="second"),
        node("Sub", "f s", "e", name="difference"),
        node("Tanh", "e", "d", name="tanh"),
    ]


COUNT = 300
VECTORS = {"first": np.arange(COUNT) * 7 % 40, "second": np.arange(COUNT) * 3 % 40, "v": random(COUNT, 9)}
BETWEEN_LAYERS = {
    "elements of an input": made(
        [*picked("x", COUNT), node("MatMul", "d v", "y", name="last")], {"x": (1, 40)}, 2, **VECTORS
    ),
    "elements of a result": made(
        [node("MatMul", "x u", "h", name="layer"), *picked("h", COUNT), node("MatMul", "d v", "y", name="last")],
        {"x": (1, 6)},
        2,
        **VECTORS | {"u": random(6, 40)},
    ),
    "functions of a result": made(
        [
            node("MatMul", "x u", "a", name="layer"),
            node("Sin", "a", "b", name="sine"),
            node("Cos", "b", "c", name="cosine"),
            node("MatMul", "c v", "y", name="last"),
        ],
        {"x": (1, 6)},
        2,
        u=random(6, 1280),
        v=random(1280, 9),
    ),
}


@pytest.mark.parametrize("name", BETWEEN_LAYERS)
def test_vectors_between_layers_are_cut_into_pixels(name: str):
    before = load(BETWEEN_LAYERS[name]).graph
    after = lay_out_free_tensors(before)
    after.verify()
    last = next(n for n in after.nodes if n.output == "y")
    copied = next(n for n in after.nodes if n.output == last.inputs[0])
    assert isinstance(copied.operator, Move)
    assert can_stream(after.tensors[copied.inputs[0]].image)
    one, two = (evaluate_graph(graph, inputs(before))["y"] for graph in (before, after))
    assert np.array_equal(one, two)
    flow = line_flow(passes(BETWEEN_LAYERS[name], mapping="rows", **CHIP).decision)
    assert max(len(loaders) for loaders in flow.loaders.values()) > 6
    check(BETWEEN_LAYERS[name], **CHIP)


@pytest.mark.parametrize(("old", "new"), [("b", "y.operand"), ("b", "a.lines")])
def test_a_tensor_of_the_model_has_the_name_of_a_copy(old: str, new: str):
    before = load(rename_tensor(BETWEEN_LAYERS["functions of a result"], old, new)).graph
    after = lay_out_free_tensors(before)
    after.verify()
    makers = {each.output: each.operator for each in after.nodes}
    assert isinstance(makers[after.nodes[-1].inputs[0]], Move)
    one, two = (evaluate_graph(graph, inputs(before))["y"] for graph in (before, after))
    assert np.array_equal(one, two)


def test_what_is_only_moved_behind_the_last_layer_streams():
    """A signal without its ends, as a vector."""
    nodes = [
        node("Conv", "x v", "c", name="conv"),
        node("Slice", "c start end axis", "s", name="slice"),
        node("Squeeze", "s one", "y", name="squeeze"),
    ]
    constants = HALVES | {"v": random(1, 2, 5), "start": np.array([30]), "end": np.array([1054])}
    model = made(nodes, {"x": (1, 2, 1084)}, 2, **constants)
    before = load(model).graph
    after = lay_out_free_tensors(before)
    after.verify()
    assert can_stream(after.tensors["y"].image)
    one, two = (evaluate_graph(graph, inputs(before))["y"] for graph in (before, after))
    assert np.array_equal(one, two)
    check(model, **CHIP)


def inputs(graph: Graph, seed: int = 3) -> dict[str, Array]:
    return {name: random(*graph.tensors[name].shape, seed=seed) for name in graph.inputs}


@pytest.mark.parametrize("name", STREAMING)
def test_free_tensors_stream(name: str):
    before = load(STREAMING[name]).graph
    after = lay_out_free_tensors(before)
    after.verify()
    assert all(can_stream(after.tensors[n].image) for n in after.inputs)
    one, two = (evaluate_graph(graph, inputs(before)) for graph in (before, after))
    for tensor in one.keys() & two.keys():
        assert np.array_equal(one[tensor], two[tensor]), tensor
    check(STREAMING[name], **CHIP)


@pytest.mark.parametrize("name", ["a grey image", "no batch", "one channel behind", "a vector", "a scaled vector"])
def test_nothing_moves_where_another_layout_is_enough(name: str):
    before = load(STREAMING[name]).graph
    assert [n for n in before.nodes if isinstance(n.operator, Move)]
    assert not [n for n in streamed(before).nodes if isinstance(n.operator, Move)]


def test_infinities_stay_where_they_are():
    """Places of structured values: a row of -infinity, in frames that overlap."""
    graph = load(STREAMING["frames"]).graph
    after = lay_out_free_tensors(graph)
    values = np.zeros((1, 1294), np.float32)
    values[0, 100:130], values[0, 400] = -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        one, two = (evaluate_graph(g, {"x": values})["y"] for g in (graph, after))
    assert np.array_equal(one, two, equal_nan=True)
    assert 0 < np.count_nonzero(one) < one.size


KEPT = {
    "little work between layers": made(
        [node("MatMul", "x u", "a", name="one"), node("Tanh", "a", "t"), node("MatMul", "t v", "y", name="two")],
        {"x": (1, 20)},
        2,
        u=random(20, 1500),
        v=random(1500, 9),
    ),
    "two elements of each pixel": made(
        [
            node("MatMul", "x u", "a", name="one"),
            node("Gather", "a pair", "g", axis=1),
            node("MatMul", "g v", "y", name="two"),
        ],
        {"x": (1, 20)},
        2,
        u=random(20, 60),
        pair=np.arange(40) // 2 * 3 + np.arange(40) % 2,
        v=random(40, 9),
    ),
    "an image that a layer reads": made([layer("x", "rgb")], {"x": (1, 3, 34, 36)}),
    "channels last, which tokens are": made(
        [node("Transpose", "x", "i", perm=[0, 3, 1, 2]), layer("i", "rgb")], {"x": (1, 34, 36, 3)}
    ),
    "a small tensor": made([node("Unsqueeze", "x one", "i"), layer("i")], {"x": (1, 8, 9)}),
    "functions of what a layer makes": made(
        [node("MatMul", "x v", "s"), node("Tanh", "s", "t"), node("Mul", "t s", "y")],
        {"x": (1, 20)},
        2,
        v=random(20, 1500),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str):
    graph = lay_out_tokens(load(KEPT[name]).graph)
    assert lay_out_free_tensors(graph) is graph


def test_integers(tmp_path: Path):
    model = quantise(STREAMING["a grey image"], tmp_path)
    graph = lay_out_free_tensors(load(model).graph)
    graph.verify()
    assert can_stream(graph.tensors[graph.inputs[0]].image)
    assert raptor.compile(model, **CHIP).validate(samples=8).verdict == "pass"


@pytest.mark.parametrize("name", ["elements of an input", "elements of a result"])
def test_integers_between_layers(name: str, tmp_path: Path):
    model = quantise(BETWEEN_LAYERS[name], tmp_path)
    assert raptor.compile(model, **CHIP).validate(samples=4).verdict == "pass"
