"""Gates of tokens: halves of a layer's result are multiplied where the next layer reads them, and count there."""

from typing import Any

from raptor.graph.ir import Filter
from raptor.graph.layers import filter_key
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.modes.epilogue_cost import find_epilogues
from tests.pipeline import check, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 16, "cores": 16}
NODES = [
    node("MatMul", "x wide", "both", name="up"),
    node("Split", "both", "a b", axis=2, name="split"),
    node("Relu", "a", "r", name="relu"),
    node("Mul", "r b", "gated", name="gate"),
    node("MatMul", "gated narrow", "y", name="down"),
]
MODEL = make_model(NODES, {"x": (1, 12, 8)}, {"y": 3}, {"wide": random(8, 16), "narrow": random(8, 8)}, opset=12)


def test_gates_count_for_the_layer_behind_them():
    found = passes(MODEL, mapping="rows", **CHIP)
    work = find_epilogues(found.chosen, found.arch)
    up, down = (filter_key(n) for n in found.graph.nodes if isinstance(n.operator, Filter))
    assert work[up].elements_ns == 0
    assert work[down].elements_ns > 0
    layer = found.decision.layers[down]
    assert isinstance(layer, LineUnfolding)
    places = zip(found.partition.graph.computes, found.partition.cores, strict=True)
    assert {core for compute, core in places if compute.node in ("relu", "gate")} == {*layer.cores}


def test_gates_are_right():
    check(MODEL, mapping="rows", **CHIP)
