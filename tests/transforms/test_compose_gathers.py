"""Rearrangements by line: splits, slices, shuffles, resizing. Nothing is put together for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import ModelProto

import raptor
from raptor.common.errors import VerifyError
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph, Move
from raptor.spatial import SpatialGraph
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.verification.element_origins import ElementOrigins
from raptor.spatial.verification.verify_moves import verify_moves
from raptor.transforms.compose_gathers import compose_gathers
from tests.graphs import models as random_models
from tests.pipeline import Passes, check, passes
from tests.tiny_models import load, make_model, node, random
from tests.values import replace

CHIP: dict[str, Any] = {"xbar": (16, 16), "xbars_per_core": 40, "cores": 60, "mapping": "rows"}
CHANNELS = 20


def between(*nodes: Any, channels: int = CHANNELS, **constants: Any) -> ModelProto:
    """Makes a model of nodes from `a`, made by a convolution, to `b` of `channels`, which a convolution reads."""
    first = node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1])
    last = node("Conv", "b v", "y", name="last", pads=[1, 1, 1, 1])
    weights = {"w": random(CHANNELS, 3, 3, 3), "v": random(5, channels, 3, 3)}
    given = {name: np.array(value) for name, value in constants.items()}
    return make_model([first, *nodes, last], {"x": (1, 3, 6, 7)}, ["y"], weights | given)


def shuffled(source: str, result: str, channels: int = CHANNELS) -> list[Any]:
    """Makes the nodes of a channel shuffle of two groups."""
    return [
        node("Reshape", f"{source} apart", "r", name="apart"),
        node("Transpose", "r", "s", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "s together", result, name="together"),
    ]


APART, TOGETHER = [1, 2, CHANNELS // 2, 6, 7], [1, CHANNELS, 6, 7]
UNIT = between(
    node("Conv", "a u bias", "c", name="inner"),
    node("Concat", "a c", "d", axis=1, name="side by side"),
    *shuffled("d", "t"),
    node("Split", "t", "left right", name="split", axis=1),
    node("Conv", "right u bias", "e", name="other"),
    node("Concat", "left e", "b", axis=1),
    channels=2 * CHANNELS,
    apart=[1, 2, CHANNELS, 6, 7],
    together=[1, 2 * CHANNELS, 6, 7],
    u=random(CHANNELS, CHANNELS, 1, 1),
    bias=random(CHANNELS),
)
"""A unit of ShuffleNet."""
SLICED = {"starts": [3], "ends": [17], "axes": [1], "steps": [2]}
MODELS = {
    "unit": UNIT,
    "shuffle": between(*shuffled("a", "b"), apart=APART, together=TOGETHER),
    "part of a range": between(node("Slice", "a starts ends axes steps", "b"), channels=7, **SLICED),
    "whole range": between(node("Slice", "a starts ends axes", "b"), channels=4, starts=[16], ends=[20], axes=[1]),
    "nearest": between(node("Resize", "a - scales", "b", mode="nearest"), scales=np.array([1, 1, 3, 2], np.float32)),
    "nearest in height": between(
        node("Resize", "a - scales", "b", mode="nearest"), scales=np.array([1, 1, 2, 1], np.float32)
    ),
    "padding and cropping": between(
        node("Slice", "a starts ends axes", "c"),
        node("Pad", "c pads", "b"),
        starts=[1, 2],
        ends=[5, 7],
        axes=[2, 3],
        pads=[0, 0, 2, 1, 0, 0, 0, 3],
    ),
    "backwards": between(node("Slice", "a starts ends axes steps", "b"), starts=[-1], ends=[-99], axes=[3], steps=[-1]),
    "upsampling beside a skip": between(
        node("MaxPool", "a", "c", kernel_shape=[2, 2], strides=[2, 2]),
        node("Slice", "a starts ends axes", "d"),
        node("Resize", "c - scales", "f", mode="nearest"),
        node("Concat", "f d", "b", axis=1),
        channels=2 * CHANNELS,
        scales=np.array([1, 1, 2, 2], np.float32),
        starts=[0],
        ends=[6],
        axes=[3],
    ),
    "pixels to channels": between(
        node("Slice", "a starts ends axes", "c"),
        node("SpaceToDepth", "c", "b", blocksize=2),
        channels=4 * CHANNELS,
        starts=[0],
        ends=[6],
        axes=[3],
    ),
    "channels to pixels": between(node("DepthToSpace", "a", "b", blocksize=2), channels=5),
}


NO_SPREAD_MOVES = {"moves": 1e12}


def put_together(graph: SpatialGraph) -> list[str]:
    """Nodes for which a whole tensor is put together or cut."""
    return [compute.node for compute in graph.computes if compute.op_type == "Move"]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_put_together(name: str):
    assert not put_together(passes(MODELS[name], **CHIP).spatial)
    check(MODELS[name], **CHIP)


def test_a_transposed_image_is_put_together():
    """Each of its lines needs all lines of the image, unless cores of their own make them."""
    model = between(node("Transpose", "a", "b", perm=[0, 1, 3, 2]))
    assert put_together(passes(model, **CHIP, knobs=NO_SPREAD_MOVES).spatial)
    check(model, **CHIP)


def test_whole_ranges_of_channels_stay_where_they_are():
    graph = passes(MODELS["whole range"], **CHIP).spatial
    assert not any(isinstance(op, MoveTile) for compute in graph.computes for op in compute.body)


def moves(graph: Graph) -> list[Move]:
    return [n.operator for n in graph.nodes if isinstance(n.operator, Move)]


def test_a_shuffle_gathers_one_piece_of_each_half():
    """The channels of a part of the result are stored as they lie in the operand."""
    result = passes(UNIT, **CHIP)
    assert len(moves(result.graph)) == 3
    half, other = CHANNELS // 2, CHANNELS * 6 * 7  # number of the first element of the second operand
    assert [m.sources[0].tolist() for m in moves(result.chosen)] == [
        [*range(half), *range(other, other + half)],
        [*range(half, CHANNELS), *range(other + half, other + CHANNELS)],
    ]


def test_a_shuffle_that_all_readers_take_in_any_order_moves_nothing():
    assert not moves(passes(MODELS["shuffle"], **CHIP).chosen)


def test_an_output_keeps_the_order_of_the_model():
    nodes = [*shuffled("x", "t"), node("Slice", "t starts ends axes", "y")]
    given = {"apart": APART, "together": TOGETHER, "starts": [1], "ends": [5], "axes": [1]}
    graph = load(make_model(nodes, {"x": (1, CHANNELS, 6, 7)}, ["y"], {n: np.array(v) for n, v in given.items()})).graph
    (joined,) = moves(compose_gathers(graph))
    assert joined.sources[0].tolist() == [10, 1, 11, 2]


@given(random_models())
@settings(max_examples=20)
def test_joined_graphs_compute_the_same(model: ModelProto):
    graph = load(model).graph
    inputs = {n: random(*graph.tensors[n].shape, seed=i) for i, n in enumerate(graph.inputs)}
    wanted, found = evaluate_graph(graph, inputs), evaluate_graph(compose_gathers(graph), inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def changed(graph: SpatialGraph, kind: type[BodyOp], change: Callable[[Any], Any]) -> SpatialGraph:
    """Changes the first operation of a kind that takes part in the rearrangement of the node `split`."""
    read = {tile for c in graph.computes for op in c.body if c.node == "split" for tile in (*op.reads, op.result)}
    ops = ((i, c.body[0]) for i, c in enumerate(graph.computes) if c.body[0].result in read)
    i, op = next((i, op) for i, op in ops if isinstance(op, kind))
    computes = list(graph.computes)
    computes[i] = replace(computes[i], body=(change(op),))
    return replace(graph, computes=tuple(computes))


def plus(runs: np.ndarray[Any, Any], column: int, amount: int) -> np.ndarray[Any, Any]:
    other = runs.copy()
    other[0, column] += amount
    return other


DEFECTS: dict[str, tuple[type[BodyOp], Callable[[Any], Any]]] = {
    "a channel too far": (MoveTile, lambda op: replace(op, runs=plus(op.runs, 2, 1))),
    "another stride": (MoveTile, lambda op: replace(op, runs=plus(op.runs, 3, 1))),
    "another source": (MoveTile, lambda op: replace(op, sources=op.sources[::-1])),
    "zero": (MoveTile, lambda op: replace(op, runs=plus(op.runs, 1, -1 - op.runs[0, 1]))),
    "a copy of other pixels": (Copy, lambda op: replace(op, first=op.first + 1)),
    "a copy to another place": (Copy, lambda op: replace(op, at=op.at + 1, elements=op.elements - 1)),
}


@pytest.fixture(scope="module")
def unit() -> Passes:
    """A unit whose halves are put together on the cores of the second one, with copies from those of the first."""
    return passes(UNIT, **CHIP)


@pytest.mark.parametrize("name", DEFECTS)
def test_defects(unit: Passes, name: str):
    kind, change = DEFECTS[name]
    verify_moves(unit.spatial, ElementOrigins(unit.spatial))
    other = changed(unit.spatial, kind, change)
    with pytest.raises(VerifyError, match=r"split: element .* is not the element that the node moves there"):
        verify_moves(other, ElementOrigins(other))


def test_a_tile_may_be_filled_again_after_its_first_copy(unit: Passes):
    """A relay gets what two cores keep for others. What it gets last may be made after it got the first."""
    graph = unit.spatial
    (given, *_) = (part.tile for part in graph.tensors[graph.inputs[0]].parts)
    between, relay = replace(given, name="between"), replace(given, name="relay")
    half, count = given.elements // 2, given.elements
    copies = (Copy(relay, given, 0, 0, half), Copy(between, given, 0, 0, count))
    last = Copy(relay, between, half, half, count - half)

    def wrong(*ops: BodyOp) -> list[int]:
        computes = tuple(Compute("n", "Relay", "", (), (op,), (op.result,)) for op in ops)
        found = ElementOrigins(replace(graph, computes=computes))
        root = found.roots(graph.inputs[:1]).tiles[given.name]
        return found.find_wrong(relay, graph.inputs[:1], root).tolist()

    assert wrong(*copies, last) == []
    assert wrong(copies[0], last, copies[1]) == list(range(half, count)), "it is read before it is made"


def test_a_view_that_a_layer_makes_whole_is_a_factor_too():
    """The layer `whole` reads all of the view as one tile; the product needs its lines, and gathers them itself."""
    nodes = [
        node("Tile", "f twice", "t", name="tile"),
        node("Slice", "t from to from", "s", name="slice"),
        node("Reshape", "s shape", "v", name="view"),
        node("MatMul", "x v", "p", name="product"),
        node("Gemm", "v w", "y", name="whole", transA=1),
    ]
    nodes.insert(0, node("Reshape", "x flat", "f", name="flat"))
    constants = {
        name: np.array(v, np.int64) for name, v in (("flat", [21]), ("twice", [2]), ("from", [0]), ("to", [28]))
    }
    constants |= {"shape": np.array([7, 4], np.int64), "w": random(7, 3)}
    check(make_model(nodes, {"x": (3, 7)}, ["p", "y"], constants), xbar=(78, 199), cores=4, xbars_per_core=1)


def test_a_vector_of_an_image_is_read_pixel_by_pixel():
    """A column of an image as a vector: a layer takes its elements in the order in which the image has them."""
    nodes = [
        node("Conv", "x w", "image", pads=[1, 1, 1, 1], name="conv"),
        node("Reshape", "image flat", "columns"),
        node("Gather", "columns last", "vector", axis=2, name="last"),
        node("MatMul", "vector reads", "y", name="dense"),
    ]
    flat = np.array([1, 12, 6])
    constants = {"w": random(4, 2, 3, 3), "flat": flat, "last": np.array(5), "reads": random(12, 3)}
    model = make_model(nodes, {"x": (1, 2, 3, 6)}, {"y": 2}, constants, opset=13)
    found = passes(model, mapping="rows", cores=20, xbar=16)
    (move,) = (each.operator for each in found.chosen.nodes if isinstance(each.operator, Move))
    assert np.count_nonzero(np.diff(move.sources[0]) != 1) + 1 == 3
    assert raptor.compile(model, cores=20, xbar=16).validate(samples=2).verdict == "pass"
