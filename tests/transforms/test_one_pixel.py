"""Rewrites for tokens: gains of norms in layers, layers for moved results, sums on one element."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from raptor.frontend import load
from raptor.graph.ir import Filter, Graph, Map
from raptor.transforms.fold_gains import fold_gains
from tests.pipeline import check
from tests.tiny_models import Array, make_model, node, random
from tests.transforms.test_goldens import norm, rewritten, turned

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 4}


def functions(graph: Graph) -> Counter[str]:
    """The number of element-wise functions of each kind."""
    return Counter(n.operator.function for n in graph.nodes if isinstance(n.operator, Map))


def filters(graph: Graph) -> list[str]:
    return [n.output for n in graph.nodes if isinstance(n.operator, Filter)]


def scaled(*readers: NodeProto, outputs: tuple[str, ...] = ("y",), **weights: Array) -> ModelProto:
    """A pixel times gains and plus biases, and what reads the sum, `s`."""
    nodes = [node("Mul", "x gain", "m", name="gain"), node("Add", "m bias", "s", name="bias"), *readers]
    weights |= {"gain": random(1, 3, 1, 1), "bias": random(1, 3, 1, 1, seed=1)}
    return make_model(nodes, {"x": (1, 3, 1, 1)}, [*outputs], weights)


LAYER = node("Conv", "s w b", "y", name="layer")
WEIGHTS = {"w": random(2, 3, 1, 1), "b": random(2)}


def test_gain_and_bias_of_a_norm_are_part_of_the_layer() -> None:
    model = norm()
    before, after = (functions(graph) for graph in (load(model).graph, fold_gains(load(model).graph)))
    assert before - after == Counter({"mul": 1, "add": 1})
    check(model, **CHIP)


def test_all_layers_that_read_a_norm_have_its_gain() -> None:
    more = [LAYER, node("Conv", "s v b", "z", name="other")]
    model = scaled(*more, outputs=("y", "z"), **WEIGHTS, v=random(2, 3, 1, 1, seed=1))
    assert functions(fold_gains(load(model).graph)) == Counter({"add": 2})
    check(model, **CHIP)


def test_a_bias_that_the_next_layer_has_takes_no_other() -> None:
    more = [
        LAYER,
        node("Conv", "y v c", "z", name="next"),
    ]
    model = scaled(*more, outputs=("z",), **WEIGHTS, v=random(4, 2, 1, 1), c=random(4))
    assert functions(fold_gains(load(model).graph)) == Counter({"mul": 1, "add": 2})
    check(model, **CHIP)


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (scaled(LAYER, node("Relu", "s", "z"), outputs=("y", "z"), **WEIGHTS), {"mul": 1, "add": 2, "relu": 1}),
        (scaled(LAYER, outputs=("y", "s"), **WEIGHTS), {"mul": 1, "add": 2}),
        (scaled(node("Conv", "s w b", "y", pads=[1] * 4), w=random(2, 3, 3, 3), b=random(2)), {"mul": 1, "add": 2}),
        (scaled(node("Conv", "s w", "y"), w=WEIGHTS["w"]), {"mul": 1, "add": 1}),
        (scaled(node("Conv", "s d b", "y", group=3), d=random(3, 1, 1, 1), b=random(3)), {"mul": 1, "add": 2}),
        (norm(tokens=2), {"mul": 2, "add": 3, "sub": 1, "sqrt": 1, "div": 1}),
    ],
    ids=["another reader", "an output", "padding", "no bias", "groups", "several pixels"],
)
def test_a_gain_stays_where_no_layer_can_have_it(model: ModelProto, left: Any) -> None:
    assert functions(fold_gains(load(model).graph)) == Counter(left)
    check(model, **CHIP)


def test_products_with_one_and_sums_with_zero_vanish() -> None:
    ones, zeros = np.ones((1, 3, 1, 1), np.float32), np.zeros((1, 3, 1, 1), np.float32)
    nodes = [
        node("Tanh", "x", "t"),
        node("Mul", "t ones", "m"),
        node("Add", "m zeros", "s"),
        node("Tanh", "s", "y", name="last"),
    ]
    model = make_model(nodes, {"x": (1, 3, 2, 2)}, ["y"], {"ones": ones, "zeros": zeros})
    assert functions(fold_gains(load(model).graph)) == Counter({"tanh": 2})
    check(model, **CHIP)


def test_a_moved_result_is_a_product() -> None:
    model = turned()
    graphs = rewritten(model)
    assert filters(graphs["multiply_moved"]) == ["p", "r.laid.products"]
    check(model, xbar=16, xbars_per_core=4, cores=8)
    assert filters(rewritten(model, cores=1)["multiply_moved"]) == ["p"], "no core is idle"


def test_halves_of_a_result_are_layers() -> None:
    """The first one replaces the layer of both, whose result nothing reads then."""
    nodes = [
        node("MatMul", "x w", "p", name="layer"),
        node("Split", "p", "a b", name="halves", axis=-1),
        node("Mul", "a b", "y", name="product"),
    ]
    model = make_model(nodes, {"x": (1, 1, 2)}, ["y"], {"w": random(2, 256)})
    graph = rewritten(model, cores=64)["multiply_moved"]
    assert len(filters(graph)) == 2
    assert filters(graph)[0] == "p"
    check(model, xbar=16, xbars_per_core=4, cores=64)


@pytest.mark.parametrize(("tokens", "sums"), [(1, 1), (3, 0)])
def test_what_follows_from_a_sum_has_one_channel(tokens: int, sums: int) -> None:
    """Only of one token: those of several are laid out as a line."""
    model = norm(tokens)
    graph = rewritten(model)["narrow_sums"]
    assert sum(n.op_type != "" and graph.tensors[n.output].image.elements == 1 for n in graph.nodes) == 3 * sums
    check(model, **CHIP)
