"""Graph to SpatialIR, operator by operator. Filters: tests/compiler/test_thesis.py."""

from collections.abc import Callable, Sequence

from onnx import ModelProto, NodeProto

from raptor.spatial import SpatialGraph
from raptor.spatial.operations import Gather
from tests.pipeline import passes
from tests.tiny_models import Array, make_model, node, random


def lowered(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int]],
    constants: dict[str, Array] | None = None,
    **ranks: int,
) -> SpatialGraph:
    return passes(model_of(nodes, inputs, constants, **ranks), xbar=4, xbars_per_core=8, cores=4).spatial


def model_of(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int]],
    constants: dict[str, Array] | None = None,
    **ranks: int,
) -> ModelProto:
    return make_model(nodes, inputs, ranks or {"y": 4}, constants)


def gathers(graph: SpatialGraph) -> list[Gather]:
    return [op for compute in graph.computes for op in compute.body if isinstance(op, Gather)]


def test_elementwise_operators_work_tile_by_tile(golden: Callable[..., None]):
    nodes = [node("Add", "a b", "t"), node("Relu", "t", "u"), node("Mul", "u c", "y")]
    shape = (1, 6, 2, 2)
    golden(str(lowered(nodes, {"a": shape, "b": shape}, {"c": random(1, 6, 1, 1)})))


def test_pooling_works_tile_by_tile(golden: Callable[..., None]):
    nodes = [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])]
    golden(str(lowered(nodes, {"x": (1, 6, 5, 5)})))


def test_fully_connected_layers_have_one_pixel(golden: Callable[..., None]):
    nodes = [node("Flatten", "x", "f"), node("Gemm", "f w b", "g"), node("Softmax", "g", "y")]
    constants = {"w": random(6, 5), "b": random(5)}
    golden(str(lowered(nodes, {"x": (1, 6, 1, 1)}, constants, y=2)))


def test_a_concatenation_on_tile_boundaries_costs_nothing():
    inputs = {"a": (1, 4, 2, 2), "b": (1, 8, 2, 2), "c": (1, 3, 2, 2)}
    graph = lowered([node("Concat", "a b c", axis=1)], inputs)
    assert graph.computes == ()
    assert [p.tile.name for p in graph.tensors["y"].parts] == ["a.0", "b.0", "b.1", "c.0"]


def test_a_concatenation_off_tile_boundaries_is_gathered():
    graph = lowered([node("Concat", "a b", axis=1)], {"a": (1, 3, 2, 2), "b": (1, 6, 2, 2)})
    # Channels of y, four to a tile: a a a b | b b b b | b.
    pieces = [[(p.value.name, p.source, p.target, p.channels) for p in op.pieces] for op in gathers(graph)]
    assert pieces == [
        [("a.0", 0, 0, 3), ("b.0", 0, 3, 1)],
        [("b.0", 1, 0, 3), ("b.1", 0, 3, 1)],
        [("b.1", 1, 0, 1)],
    ]


def test_only_the_tiles_that_cross_a_boundary_are_gathered():
    graph = lowered([node("Concat", "a b", axis=1)], {"a": (1, 6, 2, 2), "b": (1, 2, 2, 2)})
    assert [p.tile.name for p in graph.tensors["y"].parts] == ["a.0", "y.1"]
    assert len(gathers(graph)) == 1


def test_renamed_tensors_share_their_tiles():
    graph = lowered([node("Flatten", "x", "f"), node("Relu", "f", "y")], {"x": (1, 6, 1, 1)}, y=2)
    tiles = {name: [p.tile for p in graph.tensors[name].parts] for name in ("x", "f")}
    assert tiles["x"] == tiles["f"]
    assert len(graph.computes) == 2


def test_a_softmax_gathers_all_channels():
    graph = lowered([node("Softmax", "x", axis=1)], {"x": (1, 6, 1, 1)})
    (compute,) = graph.computes
    assert [p.channels for p in compute.body[0].pieces] == [4, 2]
    assert [part.tile.channels for part in graph.tensors["y"].parts] == [6]


def test_a_softmax_of_one_tile_gathers_nothing():
    assert gathers(lowered([node("Softmax", "x", axis=1)], {"x": (1, 3, 1, 1)})) == []


def test_constants_repeat_with_the_shortest_period():
    shape = (1, 6, 2, 3)
    constants = {"scalar": random(1), "channel": random(6, 1, 1), "row": random(6, 1, 3), "all": random(1, 6, 2, 3)}
    nodes = [node("Add", f"x {name}", f"y_{name}", name=name) for name in constants]
    graph = lowered(nodes, {"x": shape}, constants, **{f"y_{name}": 4 for name in constants})
    periods = {c.results[0].name: c.body[0].operands[1].period for c in graph.computes}
    # Tiles have four channels, rows three pixels, the image two rows.
    assert [periods[f"y_{name}.0"] for name in constants] == [4, 4, 12, 24]
