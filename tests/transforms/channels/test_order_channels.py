"""Channels between layers are put into the order that leaves most matrices of zeros."""

from typing import Any

import numpy as np
import pytest

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.target import arch
from raptor.transforms.channels.order_channels import order_channels
from raptor.transforms.channels.select_channels import verify_channels
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"xbar": 8, "cores": 40}


def scattered(seed: int, *, pixels: bool = False):
    """Layers of four blocks, whose channels between the layers are in a random order."""
    rng, blocks = np.random.default_rng(seed), np.kron(np.eye(4, dtype=np.float32), np.ones((8, 8), np.float32))
    first, second = rng.permutation(32), rng.permutation(32)
    weights = [random(32, 32, seed=seed + k) * blocks for k in range(3)]
    a, b, c = weights[0][:, first], weights[1][first][:, second], weights[2][second]
    if pixels:
        a, b, c = (np.ascontiguousarray(w.T)[:, :, None, None] for w in (a, b, c))
    kind = "Conv" if pixels else "MatMul"
    nodes = [node(kind, "x a", "h", name="one"), node("Relu", "h", "r"), node(kind, "r b", "g", name="two")]
    nodes += [node("Add", "g r", "s")] if seed % 2 and not pixels else []
    nodes.append(node(kind, "s c" if seed % 2 and not pixels else "g c", "y", name="three"))
    shape = (1, 32, 4, 4) if pixels else (1, 32)
    return make_model(nodes, {"x": shape}, ["y"], {"a": a, "b": b, "c": c})


@pytest.mark.parametrize("pixels", [False, True])
def test_blocks_are_found_again(pixels: bool):
    program = raptor.compile(scattered(2, pixels=pixels), **CHIP, mapping="raptor")
    assert program.report.xbars_used == 12
    assert program.validate(samples=2).passed


@pytest.mark.parametrize("seed", range(6))
def test_the_graph_computes_the_same(seed: int):
    graph = load(scattered(seed)).graph
    found = order_channels(graph, arch.load("bench", **CHIP))
    verify_channels(found)
    given = {"x": random(1, 32, seed=seed)}
    before, after = (evaluate_graph(g, given)["y"] for g in (graph, found.graph))
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-4)
    assert found.graph is not graph


def test_dense_layers_and_model_outputs_keep_their_order():
    chip = arch.load("bench", **CHIP)
    weights = {"w": random(32, 32), "v": random(32, 32)}
    nodes = [node("MatMul", "x w", "h", name="one"), node("MatMul", "h v", "y", name="two")]
    graph = load(make_model(nodes, {"x": (1, 32)}, ["y"], weights)).graph
    assert order_channels(graph, chip).graph is graph
    permuted = np.kron(np.eye(4, dtype=np.float32), random(8, 8))[:, np.random.default_rng(0).permutation(32)]
    single = load(make_model([node("MatMul", "x w", "y")], {"x": (1, 32)}, ["y"], {"w": permuted})).graph
    assert order_channels(single, chip).graph is single
