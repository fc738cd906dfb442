"""Layers of one image whose results are added become one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter, Graph
from raptor.target import arch as architectures
from raptor.transforms.fuse_parallel_branches import find_branches, fuse_parallel_branches
from raptor.transforms.rewrite_choices import JoinedLayer, RewriteChoice
from tests.pipeline import check, faults, passes
from tests.tiny_models import make_model, node, random, rename_tensor

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 64, "cores": 24}
ROWS: dict[str, Any] = CHIP | {"mapping": "rows"}
ARCH = architectures.load(xbar=16, xbars_per_core=64, cores=24)
CHANNELS = 6
SCALE = {name: random(CHANNELS, seed=i) ** 2 + 0.5 for i, name in enumerate(("gamma", "mean", "variance"), 20)}


def norm(x: str, y: str, name: str) -> Any:
    return node("BatchNormalization", f"{x} gamma shift mean variance", y, name=name)


def conv(
    x: str, y: str, size: int, *, groups: int = 1, stride: int = 1, dilation: int = 1
) -> tuple[Any, dict[str, Any]]:
    """Makes a convolution with a bias whose result has the size of its image, by the stride."""
    weights = (
        random(CHANNELS, CHANNELS // groups, size, size, seed=sum(map(ord, y))),
        random(CHANNELS, seed=len(y) + size),
    )
    pads, sizes = [size // 2 * dilation] * 4, {"group": groups, "strides": [stride] * 2, "dilations": [dilation] * 2}
    return node("Conv", f"{x} {y}_w {y}_b", y, name=y, pads=pads, **sizes), {f"{y}_w": weights[0], f"{y}_b": weights[1]}


def block(*, groups: int = 1, stride: int = 1, extra: str = "") -> ModelProto:
    """Block of a RepVGG: a convolution of 3x3 and one of 1x1, and a norm of the image if the stride is 1.

    extra: what else is added.
    """
    made = [conv("x", "image", 3), conv("image", "a", 3, groups=groups, stride=stride)]
    made.append(conv("image", "b", 1, groups=groups, stride=stride))
    nodes = [n for n, _ in made] + [node("Relu", "x", "other", name="other"), node("Add", "a b", "ab", name="sum1")]
    last = "ab"
    if stride == 1:
        nodes += [norm("image", "scaled", "norm"), node("Add", "ab scaled", "abs", name="sum2")]
        last = "abs"
    if extra:
        nodes.append(node("Add", f"{last} {extra}", "all", name="sum3"))
        last = "all"
    nodes += [node("Relu", last, "c", name="c"), node("MaxPool", "c", "y", kernel_shape=[2, 2])]
    weights: dict[str, Any] = {k: v for _, some in made for k, v in some.items()} | SCALE | {"shift": random(CHANNELS)}
    return make_model(nodes, {"x": (1, CHANNELS, 8, 9)}, ["y"], weights)


def prepared(model: ModelProto) -> Graph:
    return passes(model, **CHIP, mapping="raptor").graph


def layers(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes if isinstance(n.operator, Filter)]


@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("extra", ["", "other", "image"])
def test_the_graph_computes_the_same(groups: int, stride: int, extra: str):
    model = block(groups=groups, stride=stride, extra=extra if stride == 1 else "")
    graph = prepared(model)
    joined = fuse_parallel_branches(graph, RewriteChoice(streaming=True, layers=find_branches(graph)))
    assert [{*name.split(" + ")} for name in layers(joined)] == [{"image"}, {"a", "b"}]
    inputs = {"x": random(1, CHANNELS, 8, 9, seed=5)}
    wanted, found = evaluate_graph(graph, inputs), evaluate_graph(joined, inputs)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)
    check(model, **ROWS)


def built(nodes: list[Any], weights: dict[str, Any], outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    return make_model(nodes, {"x": (1, CHANNELS, 8, 9)}, list(outputs), weights)


def two(**of_b: int) -> tuple[list[Any], dict[str, Any]]:
    """Makes two convolutions of the model input: `a` of 3x3, and `b`."""
    (a, a_weights), (b, b_weights) = conv("x", "a", 3), conv("x", "b", **{"size": 1, **of_b})
    return [a, b], a_weights | b_weights


def agree(model: ModelProto, left: list[set[str]]) -> None:
    """Checks that the joined graph has these layers, and the values of the graph before."""
    graph = prepared(model)
    joined = fuse_parallel_branches(graph, RewriteChoice(streaming=True, layers=find_branches(graph)))
    joined.verify()
    assert sorted(sorted(name.split(" + ")) for name in layers(joined)) == sorted(map(sorted, left))
    inputs = {"x": random(1, CHANNELS, 8, 9, seed=5)}
    wanted, found = evaluate_graph(graph, inputs), evaluate_graph(joined, inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def test_a_difference_with_factors_is_one_layer():
    """Adds x and g times the difference of layers of x and its norm, as FastViT does in training."""
    nodes, weights = two()
    nodes += [node("Add", "a b", "ab", name="ab"), norm("x", "n", "norm"), node("Sub", "ab n", "d", name="d")]
    nodes += [node("Mul", "d g", "gd", name="gd"), node("Add", "x gd", "y", name="last")]
    model = built(nodes, weights | SCALE | {"shift": random(CHANNELS), "g": random(CHANNELS, 1, 1, seed=3)})
    agree(model, [{"a", "b"}])
    check(model, **ROWS)


def test_a_tensor_of_the_model_has_the_name_of_a_new_sum():
    nodes, weights = two()
    nodes += [node("Relu", "x", "other", name="other"), node("Add", "a b", "ab", name="first")]
    model = built([*nodes, node("Add", "ab other", "y", name="last")], weights)
    agree(rename_tensor(model, "other", "y.sum1"), [{"a", "b"}])


def test_a_layer_and_its_image_are_one_layer():
    a, weights = conv("x", "a", 3)
    model = built([a, node("Sub", "x a", "y", name="last")], weights)
    agree(model, [{"a"}])
    check(model, **ROWS)


def test_without_a_bias_the_sum_is_another_name():
    nodes = [node("Conv", f"x {name}_w", name, name=name, pads=[1, 1, 1, 1]) for name in "ab"]
    model = built(
        [*nodes, node("Add", "a b", "y", name="last")], {f"{n}_w": random(4, CHANNELS, 3, 3, seed=ord(n)) for n in "ab"}
    )
    agree(model, [{"a", "b"}])
    check(model, **ROWS)


@pytest.mark.parametrize("of_b", [{"size": 3, "dilation": 2}, {"size": 1, "groups": 2}])
def test_other_windows_stay_apart(of_b: dict[str, int]):
    nodes, weights = two(**of_b)
    agree(built([*nodes, node("Add", "a b", "y", name="last")], weights), [{"a"}, {"b"}])


def test_what_is_read_elsewhere_stays():
    """`b` is a result of its own, so only `a` and the image are one layer; the sum of them is no result."""
    nodes, weights = two()
    nodes += [node("Add", "a x", "ax", name="ax"), node("Add", "ax b", "y", name="last")]
    agree(built(nodes, weights, outputs=("y", "b")), [{"a"}, {"b"}])
    assert "a" not in find_branches(prepared(built(nodes, weights, outputs=("y", "b"))))
    agree(built(nodes, weights, outputs=("y", "ax", "b")), [{"a"}, {"b"}])


def test_a_layer_that_is_added_to_itself_is_read_twice():
    """Random graphs found it: the layer was to be a part of itself."""
    a, weights = conv("x", "a", 3)
    model = built([a, node("Add", "a a", "y", name="last")], weights)
    agree(model, [{"a"}])
    assert not find_branches(prepared(model))
    check(model, **ROWS)


def test_a_factor_of_another_tensor_keeps_the_outer_sum():
    """2 (a + b) + g other: the others stay a product, and a and b are one layer."""
    nodes, weights = two()
    nodes += [node("Relu", "x", "r", name="r"), node("Mul", "r g", "rg", name="rg")]
    nodes += [node("Add", "a b", "ab", name="ab"), node("Add", "ab rg", "y", name="last")]
    agree(built(nodes, weights | {"g": random(CHANNELS, 1, 1, seed=3)}), [{"a", "b"}])


def test_the_mean_of_a_norm_is_no_layer_of_the_sum():
    """x - mean(x) would be a product of all channels by all."""
    nodes = [node("MatMul", "x w", "h", name="layer"), node("LayerNormalization", "h g", "y", axis=2, name="norm")]
    graph = prepared(make_model(nodes, {"x": (2, 5, 6)}, ["y"], {"w": random(6, 6), "g": random(6)}))
    assert layers(graph) == ["layer", "norm", "norm"]
    assert fuse_parallel_branches(graph, RewriteChoice(streaming=True, layers=find_branches(graph))) is graph


def test_weights_that_are_too_large_together_stay_apart():
    nodes, weights = two()
    for name in "ab":
        weights[f"{name}_w"][1:] = 2e38
    graph = prepared(built([*nodes, node("Add", "a b", "y", name="last")], weights))
    assert fuse_parallel_branches(graph, RewriteChoice(streaming=True, layers=find_branches(graph))) is graph


def test_long_sums_take_no_long_time():
    """A sum of thousands of tensors is walked once, and no deeper than Python allows."""
    nodes = [node("Relu", "x", "s0", name="s0")]
    nodes += [node("Add", f"s{i} x", f"s{i + 1}", name=f"s{i + 1}") for i in range(3000)]
    graph = prepared(built([*nodes, node("Relu", "s3000", "y", name="y")], {}))
    assert not find_branches(graph)


def test_a_stored_decision_must_name_the_first_layer_of_the_sum():
    model = block()
    graph, decision = prepared(model), passes(model, **ROWS).decision
    assert not [*faults(decision, graph, ARCH)]
    key = next(key for key, layer in decision.layers.items() if isinstance(layer, JoinedLayer))
    other = next(n.output for n in graph.nodes if n.name == "image" and isinstance(n.operator, Filter))
    wrong = replace(decision, layers={**decision.layers, key: JoinedLayer(other)})
    assert f"layer {key}: layer: {other}, which" in next(faults(wrong, graph, ARCH))


def test_the_reference_sums_nothing():
    found = passes(block(), **CHIP, mapping="raptor").decision.layers.values()
    assert not any(isinstance(layer, JoinedLayer) for layer in found)
