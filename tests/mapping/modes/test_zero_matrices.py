"""Matrices of zeros take no crossbar and no product; what is left out is proved to be 0."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.graph.ir import Filter
from raptor.graph.window import Window
from raptor.mapping.modes.line_unfolding import find_summed_groups, outputs_reading
from raptor.spatial.verification.zero_gaps import misses_only_zeros
from tests.tiny_models import make_model, node, random
from validator.crossbar.chip_programming import list_group_uses
from validator.load.output_directory import load_output

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


def convolution(weights: "np.ndarray", kernel: int = 3, size: int = 6, groups: int = 1):
    """A layer with `weights` [inputs, outputs] at each kernel position, on an image of size x size pixels."""
    values = random(*weights.T.shape, kernel, kernel) * (weights.T != 0)[:, :, None, None]
    nodes = [node("Conv", "x w b", "y", name="conv", pads=[kernel // 2] * 4, group=groups)]
    given = {"w": values.astype(np.float32), "b": random(weights.shape[1])}
    return make_model(nodes, {"x": (1, len(weights) * groups, size, size)}, ["y"], given)


LINES: dict[str, Any] = {"xbar": 16, "cores": 40, "xbars_per_core": 32, "mapping": "rows"}


@pytest.mark.parametrize("seed", range(4))
def test_line_layers_leave_blocks_of_zeros_out(seed: int, tmp_path: Path):
    kept = np.random.default_rng(seed).random((3, 3)) < (0.3, 0.6)[seed % 2]
    weights, size = np.kron(kept, np.ones((16, 16), np.float32)), (6, 5, 9)[seed % 3]
    program = raptor.compile(convolution(weights, (1, 3)[seed // 2], size), **LINES)
    (layer,) = [layer for layer in program.report.layers if layer.matrices]
    assert str(layer.unfolding).startswith("line")
    assert program.validate(samples=2).passed
    loaded = load_output(program.save(tmp_path / "out"))
    assert all(loaded.weights.matrix(use.core, use.group).any() for use in list_group_uses(loaded))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_line_layer_of_zeros_gives_its_bias(kernel: int):
    program = raptor.compile(convolution(np.zeros((32, 32), np.float32), kernel), **LINES)
    assert program.report.xbars_used == 0
    assert program.validate(samples=2).passed


def test_kernel_positions_of_zeros_take_no_product():
    """Only the first of seven kernel positions has weights: the last pixels of a block reach no output by it."""

    def compile_layer(values: "np.ndarray"):
        nodes = [node("Conv", "x w", "y", name="conv", strides=[1, 7])]
        model = make_model(nodes, {"x": (1, 8, 4, 56)}, ["y"], {"w": values})
        return raptor.compile(model, xbar=16, cores=8, xbars_per_core=64, mapping="rows")

    weights = random(8, 8, 1, 7)
    full = compile_layer(weights)
    weights[..., 2:] = 0
    zeros = compile_layer(weights)
    assert zeros.validate(samples=2).passed
    assert zeros.report.instructions["mvmul"] < full.report.instructions["mvmul"]


@pytest.mark.parametrize("size", [1, 4])
def test_groups_are_blocks(size: int):
    """A layer with groups takes as many crossbars, and as much time, as the same weights with zeros around them."""
    full = random(64, 64)
    blocks = full * np.kron(np.eye(4, dtype=np.float32), np.ones((16, 16), np.float32))
    grouped = np.concatenate([blocks[k : k + 16, k : k + 16] for k in range(0, 64, 16)], axis=1)

    def compile_layer(weights: "np.ndarray", groups: int):
        nodes = [node("Conv", "x w", "y", name="conv", group=groups)]
        filters = np.ascontiguousarray(weights.T)[:, :, None, None]
        model = make_model(nodes, {"x": (1, 64, size, size)}, ["y"], {"w": filters})
        return raptor.compile(model, xbar=16, cores=16, xbars_per_core=16)

    apart, zeros, dense = compile_layer(grouped, 4), compile_layer(blocks, 1), compile_layer(full, 1)
    assert apart.validate(samples=2).passed
    assert apart.report.xbars_used == zeros.report.xbars_used < dense.report.xbars_used
    assert apart.simulate().latency_ns == zeros.simulate().latency_ns < dense.simulate().latency_ns


def test_one_weight_keeps_its_matrix():
    weights = np.zeros((16, 16), np.float32)
    weights[3, 12] = weights[0, 0] = 1
    assert raptor.compile(fully_connected(weights), **CHIP, mapping="raptor").report.xbars_used == 2
    weights[9, 12] = -1
    assert raptor.compile(fully_connected(weights), **CHIP, mapping="raptor").report.xbars_used == 3


def test_products_of_zeros_are_not_made():
    weights = np.zeros((1, 8, 12), np.float32)
    weights[0, 0:4, 0:4] = weights[0, 4:8, 4:8] = 1
    layer, tiles = Filter(weights, Window.pointwise((1, 1))), [(0, 4), (4, 8), (8, 12)]
    assert outputs_reading(layer, (0, 4), (0, 12), tiles) == ((0, 4),)
    assert outputs_reading(layer, (0, 8), (0, 12), tiles) == ((0, 8),)
    assert outputs_reading(layer, (0, 8), (0, 4), tiles) == ((0, 4),)
    halves = [[(0, 4)], [(4, 8)]]
    assert [find_summed_groups(layer, halves, tile) for tile in tiles] == [(0,), (1,), (0,)]
    groups = Filter(np.ones((1, 4, 8), np.float32), Window.pointwise((1, 1)), groups=2)
    assert outputs_reading(groups, (0, 4), (0, 8), tiles[:2]) == ((0, 4),)
    assert find_summed_groups(groups, halves, (4, 8)) == (1,)


def test_the_verifier_accepts_gaps_of_zeros_alone():
    weights = np.zeros((1, 16, 8), np.float32)
    weights[0, 8:12, 4] = 1

    layer = Filter(weights, Window.pointwise((1, 1)))
    assert misses_only_zeros(layer, 0, [(8, 12)], (0, 16), (0, 8))
    assert misses_only_zeros(layer, 0, [], (0, 16), (0, 4))
    assert not misses_only_zeros(layer, 0, [], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(9, 12)], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(8, 12), (8, 12)], (0, 16), (0, 8))
    assert not misses_only_zeros(layer, 0, [(0, 17)], (0, 16), (0, 8))
    groups = Filter(weights[:, 8:], Window.pointwise((1, 1)), groups=2)  # outputs 4 to 8 read inputs 8 to 16
    assert misses_only_zeros(groups, 0, [], (0, 8), (4, 8))
    assert misses_only_zeros(groups, 0, [(8, 12)], (0, 16), (0, 8))
    assert not misses_only_zeros(groups, 0, [], (8, 16), (4, 8))
