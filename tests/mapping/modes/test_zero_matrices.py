"""Matrices of zeros take no crossbar and no product; what is left out is proved to be 0."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.spatial.verification.zero_gaps import misses_only_zeros
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"xbar": 8, "cores": 40, "xbars_per_core": 8}


def fully_connected(weights: "np.ndarray", bias: "np.ndarray | None" = None):
    more = {} if bias is None else {"b": bias}
    words = "x w" if bias is None else "x w b"
    return make_model([node("Gemm", words, "y", name="fc")], {"x": (1, len(weights))}, ["y"], {"w": weights, **more})


def pointwise(weights: "np.ndarray"):
    filters = np.ascontiguousarray(weights.T)[:, :, None, None]
    nodes = [node("Conv", "x w", "y", name="conv")]
    return make_model(nodes, {"x": (1, len(weights), 3, 3)}, ["y"], {"w": filters})


def masked(seed: int, blocks: int = 4) -> tuple["np.ndarray", "np.ndarray"]:
    """Weights of blocks of 8 x 8, of which about half are 0, and which blocks are not."""
    rng = np.random.default_rng(seed)
    kept = rng.random((blocks, blocks)) < 0.5
    weights = rng.standard_normal((8 * blocks, 8 * blocks)).astype(np.float32)
    return weights * np.kron(kept, np.ones((8, 8), np.float32)), kept


@pytest.mark.parametrize("make", [fully_connected, pointwise])
@pytest.mark.parametrize("seed", range(4))
def test_crossbars_are_those_of_the_blocks(make: Any, seed: int):
    weights, kept = masked(seed)
    program = raptor.compile(make(weights), **CHIP, mapping="raptor")
    wanted = kept.sum() + (~kept.any(axis=0)).sum()  # outputs without weights keep a matrix
    assert program.report.xbars_used == wanted
    assert program.validate(samples=2).passed


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("seed", range(2))
def test_integers_are_those_of_the_model(mapping: str, seed: int, tmp_path: Path):
    weights, _ = masked(seed)
    int8 = raptor.quantize(fully_connected(weights, random(32))).save(tmp_path / "int8.onnx")
    assert raptor.compile(int8, **CHIP, mapping=mapping).validate(samples=2).passed


def test_a_block_diagonal_layer():
    weights = np.zeros((64, 64), np.float32)
    for k in range(0, 64, 8):
        weights[k : k + 8, k : k + 8] = random(8, 8, seed=k)
    blocks, dense = (raptor.compile(fully_connected(w), **CHIP) for w in (weights, random(64, 64)))
    assert (blocks.report.xbars_used, dense.report.xbars_used) == (8, 64)
    assert blocks.simulate().latency_ns < 0.8 * dense.simulate().latency_ns
    assert blocks.validate(samples=2).passed


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_a_layer_of_zeros_gives_its_bias(mapping: str):
    program = raptor.compile(fully_connected(np.zeros((16, 16), np.float32), random(16)), **CHIP, mapping=mapping)
    assert program.validate(samples=2).passed


def test_one_weight_keeps_its_matrix():
    weights = np.zeros((16, 16), np.float32)
    weights[3, 12] = weights[0, 0] = 1
    assert raptor.compile(fully_connected(weights), **CHIP, mapping="raptor").report.xbars_used == 2
    weights[9, 12] = -1
    assert raptor.compile(fully_connected(weights), **CHIP, mapping="raptor").report.xbars_used == 3


def test_the_verifier_accepts_gaps_of_zeros_alone():
    weights = np.zeros((1, 16, 8), np.float32)
    weights[0, 8:12, 4] = 1

    class Layer:
        groups = 1

    layer: Any = Layer()
    layer.weights = weights
    assert misses_only_zeros(layer, 0, [(8, 12)], (0, 16), (0, 8))
    assert misses_only_zeros(layer, 0, [], (0, 16), (0, 4))
    assert not misses_only_zeros(layer, 0, [], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(9, 12)], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(8, 12), (8, 12)], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(0, 17)], (0, 16), (0, 8))
    layer.groups = 2
    assert not misses_only_zeros(layer, 0, [(8, 12)], (0, 16), (0, 8))
