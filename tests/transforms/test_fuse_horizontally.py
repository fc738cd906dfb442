"""Layers that multiply the same pixels of an image become one, where that saves time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter, Graph
from raptor.mapping.decision import Decision, LineUnfolding
from raptor.target import arch as architectures
from raptor.transforms.fuse_horizontally import find_fusible_groups, find_fusions, fuse_horizontally
from raptor.transforms.rewrite_choices import JoinedLayer, RewriteChoice
from tests.pipeline import check, faults, passes
from tests.tiny_models import make_model, node, random, rename_tensor

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 64, "cores": 7}
ROWS: dict[str, Any] = CHIP | {"mapping": "rows"}
ARCH = architectures.load(xbar=16, xbars_per_core=64, cores=7)


def module(*, channels: int = 3, outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    """Branches of 1x1 with a bias, of which `a` and `b` have a ReLU and `c` a sigmoid.

    `wide` is of 3x3, and `other` has a stride.
    """
    nodes = [
        node("Conv", "x p q", "image", name="first", pads=[1, 1, 1, 1]),
        *(node("Conv", f"image {i} {i}0", f"{i}1", name=i) for i in "abc"),
        *(node("Relu", f"{i}1", f"{i}2", name=f"relu of {i}") for i in "ab"),
        node("Sigmoid", "c1", "c2"),
        node("Conv", "image wide wide0", "wide1", name="wide", pads=[1, 1, 1, 1]),
        node("Conv", "image other other0", "other1", name="other", strides=[2, 2]),
        node("MaxPool", "a2", "a3", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Concat", "b2 a3 c2 wide1", "all", axis=1),
        node("Conv", "all r", "y", name="last"),
    ]
    weights: dict[str, Any] = {"p": random(5, 2, 3, 3), "q": random(5), "r": random(4, 2 * channels + 9, 1, 1)}
    for i, (name, outs, size) in enumerate(
        [("a", channels, 1), ("b", channels + 1, 1), ("c", 4, 1), ("wide", 4, 3), ("other", 2, 1)]
    ):
        weights |= {name: random(outs, 5, size, size, seed=i), f"{name}0": random(outs, seed=9 + i)}
    return make_model(nodes, {"x": (1, 2, 6, 7)}, [*outputs, "other1"], weights)


def prepared(model: ModelProto) -> Graph:
    return passes(model, **CHIP, mapping="raptor").graph


def keys(graph: Graph) -> list[set[str]]:
    return [{branch.filter.name for branch in group} for group in find_fusible_groups(graph)]


def decided(model: ModelProto) -> Decision:
    return passes(model, **ROWS).decision


def test_branches_of_one_image_may_be_one():
    assert keys(prepared(module())) == [{"a", "b", "c"}]


def test_the_sums_of_a_layer_that_are_wanted_stay_its_own():
    """The bias of `c` is an output, and of `b` the sum that the ReLU reads: both are made, and nothing is hidden."""
    graph = prepared(module(outputs=("y", "c1", "b1")))
    joined = fuse_horizontally(graph, RewriteChoice(streaming=True, layers=find_fusions(graph, ARCH)))
    assert set(graph.outputs) <= {n.output for n in joined.nodes}


def test_a_tensor_of_the_model_has_the_name_of_a_new_one():
    first = prepared(module()).nodes
    name = next(each.output for each in first if each.name == "a" and isinstance(each.operator, Filter))
    graph = prepared(rename_tensor(module(), "c2", f"{name}.0"))
    joined = fuse_horizontally(graph, RewriteChoice(streaming=True, layers=find_fusions(graph, ARCH)))
    joined.verify()


@pytest.mark.parametrize("outputs", [("y",), ("y", "c1", "b1"), ("y", "a2")])
def test_the_graph_computes_the_same(outputs: tuple[str, ...]):
    graph = prepared(module(outputs=outputs))
    joined = fuse_horizontally(graph, RewriteChoice(streaming=True, layers=find_fusions(graph, ARCH)))
    inputs = {"x": random(1, 2, 6, 7, seed=5)}
    wanted, found = evaluate_graph(graph, inputs), evaluate_graph(joined, inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)
    layers = [n for n in joined.nodes if isinstance(n.operator, Filter)]
    assert [{*n.name.split(" + ")} for n in layers if "+" in n.name] == [{"a", "b", "c"}]
    assert len(layers) == len([n for n in graph.nodes if isinstance(n.operator, Filter)]) - 2


def test_a_core_has_room_for_all_columns():
    assert find_fusions(prepared(module(channels=3)), ARCH)
    assert not find_fusions(prepared(module(channels=3)), replace_xbars(2))


def replace_xbars(xbars: int) -> Any:
    return architectures.load(xbar=16, xbars_per_core=xbars, cores=24)


@pytest.mark.parametrize("outputs", [("y",), ("y", "c1", "b1")])
def test_answers(outputs: tuple[str, ...]):
    """A program of a decision that joins layers is right, and every tensor that is still made is."""
    model = module(outputs=outputs)
    joined = {key: layer for key, layer in decided(model).layers.items() if isinstance(layer, JoinedLayer)}
    assert len(joined) == 2
    assert set(joined.values()) == {JoinedLayer(layer.layer) for layer in joined.values()}
    options: dict[str, Any] = ROWS
    program = check(model, **options)
    assert {"a", "b", "c"} in [{*layer.node.split(" + ")} for layer in program.report.layers]


def test_the_text_of_a_decision_names_the_other_layer():
    text = str(decided(module()))
    assert text.count(": joined with %") == 2


def test_a_stored_decision_that_joins_what_differs_is_refused():
    graph, decision = prepared(module()), decided(module())
    assert not [*faults(decision, graph, ARCH)]
    first = next(layer.layer for layer in decision.layers.values() if isinstance(layer, JoinedLayer))
    for name in ("wide", "other", "last"):
        key = next(n.output for n in graph.nodes if n.name == name and isinstance(n.operator, Filter))
        layers = {**decision.layers, key: JoinedLayer(first)}
        assert f"layer {key}: layer: {first}" in next(faults(replace(decision, layers=layers), graph, ARCH))
    lone = {k: JoinedLayer(k) if isinstance(v, JoinedLayer) else v for k, v in decision.layers.items()}
    assert "does not multiply the same pixels" in next(faults(replace(decision, layers=lone), graph, ARCH))


def test_layers_that_do_not_bind_stay_apart():
    """With a core for each column, the first layer takes longer than any of the branches."""
    assert any(isinstance(layer, JoinedLayer) for layer in decided(module()).layers.values())
    free = passes(module(), **ROWS | {"cores": 200}).decision
    assert not any(isinstance(layer, JoinedLayer) for layer in free.layers.values())


def test_the_reference_joins_nothing():
    found = passes(module(), **CHIP, mapping="raptor").decision.layers.values()
    assert not any(isinstance(layer, JoinedLayer | LineUnfolding) for layer in found)
