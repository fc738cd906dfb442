"""Layers behind space to depth read the image itself, with a larger kernel and stride."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Concat, Filter, Graph, Move
from raptor.transforms.fold_space_to_depth import fold_space_to_depth
from tests.pipeline import check
from tests.tiny_models import make_model, node, random

WEIGHTS = {
    "small": random(5, 12, 1, 1),
    "w": random(5, 12, 3, 3),
    "grouped": random(6, 4, 3, 3),
    "one": random(5, 12, 1, 1),
    "pairs": random(5, 6, 3, 3),
    "product": random(12, 5),
}
INTS = {"a0": [0], "a1": [1], "two": [2], "rows": [2], "cols": [3], "end": [99]} | {
    "last": [-1],
    "before": [-99],
    "back": [-1],
    "six": [6],
    "swapped": [0, 2, 1],
    "pads": [0, 0, 1, 0, 0, 0, 0, 0],
}
CUT = {"cut": [1, 3, 3, 2, 4, 2], "quarters": [1, 3, 2, 3, 2, 4], "joined": [1, 12, 3, 4], "tokens": [1, 12, 12]}


def moving(*nodes: Any, given: tuple[int, ...] = (1, 3, 6, 8), rank: int = 4) -> ModelProto:
    """A model in which something is moved in front of a layer."""
    for i, each in enumerate(nodes):
        each.name = each.name if each.name == "layer" else f"moved{i}"
    ints = {name: np.array(values, np.int64) for name, values in (INTS | CUT).items()}
    return make_model(list(nodes), {"x": given}, {"y": rank}, WEIGHTS | ints, opset=13)


def conv(weights: str, **attributes: Any) -> Any:
    return node("Conv", f"m {weights}", "y", name="layer", **attributes)


def cut(order: list[int], shape: str = "joined", given: str = "cut") -> list[Any]:
    """Blocks of 2x2 pixels, cut by reshapes."""
    return [
        node("Reshape", f"x {given}", "c"),
        node("Transpose", "c", "t", perm=order),
        node("Reshape", f"t {shape}", "m"),
    ]


def focus(order: str = "s0 s1 s2 s3") -> list[Any]:
    """Every second row and column four times, side by side."""
    nodes: list[Any] = []
    for i, (row, col) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        nodes.append(node("Slice", f"x a{row} end rows two", f"r{i}"))
        nodes.append(node("Slice", f"r{i} a{col} end cols two", f"s{i}"))
    return [*nodes, node("Concat", order, "m", axis=1)]


def read(model: ModelProto) -> tuple[Graph, Graph]:
    before = load(model).graph
    after = fold_space_to_depth(before)
    after.verify()
    return before, after


def layer(graph: Graph) -> Filter:
    return next(n.operator for n in graph.nodes if isinstance(n.operator, Filter))


DEPTH = [node("SpaceToDepth", "x", "m", blocksize=2)]
BLOCKS = {
    "space to depth": [*DEPTH, conv("w", pads=[1, 1, 1, 1])],
    "of one kernel position": [*DEPTH, conv("small")],
    "with a stride": [*DEPTH, conv("w", pads=[1, 0, 1, 2], strides=[2, 1])],
    "cut by reshapes": [*cut([0, 1, 3, 5, 2, 4]), conv("w", pads=[1, 1, 1, 1])],
    "columns first": [*cut([0, 5, 1, 3, 2, 4]), conv("w", pads=[1, 1, 1, 1])],
    "focus": [*focus(), conv("w", pads=[1, 1, 1, 1])],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_read_where_they_are(name: str):
    model = moving(*BLOCKS[name])
    before, after = read(model)
    assert any(isinstance(n.operator, Move) for n in before.nodes)
    assert not any(isinstance(n.operator, Move) for n in after.nodes)
    one, two = layer(before), layer(after)
    assert two.window.in_dims == (6, 8)
    assert two.window.out_dims == one.window.out_dims
    assert two.window.kernel == tuple(2 * size for size in one.window.kernel)
    assert two.window.strides == tuple(2 * size for size in one.window.strides)
    given = {"x": random(1, 3, 6, 8, seed=3).astype(np.float64)}
    assert np.allclose(evaluate_graph(before, given)["y"], evaluate_graph(after, given)["y"], rtol=1e-5, atol=1e-5)
    check(model, xbar=16, xbars_per_core=64, cores=16)


def test_every_second_column():
    """Slices side by side that onnxruntime does not join leave no concatenation behind that nobody reads."""
    slices = [node("Slice", f"x a{col} end cols two", f"s{col}") for col in (0, 1)]
    model = moving(*slices, node("Concat", "s0 s1", "m", axis=1), conv("pairs", pads=[1, 1, 1, 1]))
    before, after = read(model)
    assert any(isinstance(n.operator, Concat) for n in before.nodes)
    assert [type(n.operator) for n in after.nodes] == [Filter]
    assert layer(after).window.kernel == (3, 6)
    given = {"x": random(1, 3, 6, 8, seed=3).astype(np.float64)}
    assert np.allclose(evaluate_graph(before, given)["y"], evaluate_graph(after, given)["y"], rtol=1e-5, atol=1e-5)
    check(model, xbar=16, xbars_per_core=64, cores=16)


PATCHES = [*cut([0, 2, 4, 1, 3, 5], "tokens"), node("MatMul", "m product", "y", name="layer")]
OTHERS = {
    "a part of the image": (
        [node("Slice", "x a1 end rows two", "m"), node("Conv", "m one", "y", name="layer")],
        (1, 12, 6, 8),
    ),
    "patches as tokens": (PATCHES, (1, 3, 6, 8)),
    "in groups": ([*DEPTH, conv("grouped", group=3)], (1, 3, 6, 8)),
    "with a dilation": ([*DEPTH, conv("w", pads=[2, 2, 2, 2], dilations=[2, 2])], (1, 3, 6, 8)),
    "all in one pixel": ([node("SpaceToDepth", "x", "m", blocksize=2), conv("small")], (1, 3, 2, 2)),
    "quarters of the image": ([*cut([0, 1, 2, 4, 3, 5], given="quarters"), conv("w")], (1, 3, 6, 8)),
    "an image four times": ([node("Concat", "x x x x", "m", axis=1), conv("w")], (1, 3, 6, 8)),
    "a quarter twice": ([*focus("s0 s0 s2 s3"), conv("w")], (1, 3, 6, 8)),
    "blocks that change places": (
        [
            node("SpaceToDepth", "x", "s", blocksize=2),
            node("Gather", "s swapped", "m", axis=2),
            conv("w", pads=[1, 1, 1, 1]),
        ],
        (1, 3, 6, 8),
    ),
    "upside down": (
        [
            node("Slice", "x last before rows back", "u"),
            node("SpaceToDepth", "u", "m", blocksize=2),
            conv("w", pads=[1, 1, 1, 1]),
        ],
        (1, 3, 6, 8),
    ),
    "shifted by a row": (
        [
            node("Pad", "x pads", "p"),
            node("Slice", "p a0 six rows", "u"),
            node("SpaceToDepth", "u", "m", blocksize=2),
            conv("w", pads=[1, 1, 1, 1]),
        ],
        (1, 3, 6, 8),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_read_as_they_are(name: str):
    nodes, given = OTHERS[name]
    model = moving(*nodes, given=given, rank=3 if nodes is PATCHES else 4)
    before, after = read(model)
    assert after is before


def test_a_layer_with_a_relu_stays():
    """Its sum is one product; of the image, it would be one for each pixel of a block, each clipped by itself."""
    weights = {"w": random(8, 4), "shape": np.array([5, 8])}
    nodes = [
        *(node("Tanh", "x", "a"), node("Reshape", "a shape", "b")),
        *(node("MatMul", "b w", "c", name="layer"), node("Relu", "c", "y")),
    ]
    model = make_model(nodes, {"x": (1, 1, 1, 40)}, ["y"], weights, opset=13)
    check(model, mapping="rows", xbar=32, cores=4)
