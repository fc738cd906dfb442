"""The operand of a sum that is made last is the same wherever the nodes of shortcuts stand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from raptor.frontend import load
from raptor.graph.ir import Graph
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.modes.critical_operand import find_critical_positions
from raptor.spatial.partition import partition
from tests.pipeline import passes
from tests.tiny_models import make_model, node, random

CHIP = {"xbar": 16, "xbars_per_core": 64, "cores": 32}
NODES = [
    node("Conv", "x w", "a", name="first", pads=[1, 1, 1, 1]),
    node("Mul", "a scale", "scaled", name="scale"),
    node("Conv", "a w", "b", name="second", pads=[1, 1, 1, 1]),
    node("Relu", "b", "c", name="relu"),
    node("Conv", "c w", "d", name="third", pads=[1, 1, 1, 1]),
    node("Add", "scaled d", "y", name="sum"),
]
MODEL = make_model(NODES, {"x": (1, 8, 6, 6)}, {"y": 4}, {"w": random(8, 8, 3, 3), "scale": random(1, 8, 1, 1)})


def late(graph: Graph) -> Graph:
    """The graph with the shortcut scaled behind the layers that it passes by."""
    nodes = list(graph.nodes)
    (scale,) = (n for n in nodes if n.name == "scale")
    nodes.remove(scale)
    nodes.insert(len(nodes) - 1, scale)
    return replace(graph, nodes=tuple(nodes))


def early(graph: Graph) -> Graph:
    """The graph as it is."""
    return graph


ORDERS = pytest.mark.parametrize("reorder", [late, early])


@ORDERS
def test_a_scaled_shortcut_is_as_old_as_its_layer(reorder: Callable[[Graph], Graph]):
    graph = reorder(load(MODEL).graph)
    graph.verify()
    total = next(n for n in graph.nodes if n.name == "sum")
    scaled, third = total.inputs
    made = find_critical_positions(graph)
    assert made[third] > made[scaled] > made[graph.inputs[0]]


@ORDERS
def test_a_sum_is_on_the_cores_of_the_last_layer(reorder: Callable[[Graph], Graph]):
    given = passes(MODEL, mapping="rows", **CHIP)
    layers = given.decision.layers
    cores = {key: {*layer.cores} for key, layer in layers.items() if isinstance(layer, LineUnfolding)}
    assert len(cores) == 3
    assert not cores["a"] & cores["d"]
    found = partition(reorder(given.graph), given.decision, given.arch)
    places = zip(found.graph.computes, found.cores, strict=True)
    assert {core for compute, core in places if compute.node == "sum"} <= cores["d"]
