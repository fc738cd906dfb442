"""Compile, save, execute the streams, compare with onnxruntime: every tensor, unless a test says otherwise."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import models
from tests.graphs import chips
from tests.graphs import models as random_models
from tests.pipeline import check, conv_model
from tests.tiny_models import make_model, node, random

SMALL_CHIPS: dict[str, dict[str, Any]] = {
    "3, one a core": {"xbar": 3, "xbars_per_core": 1},
    "3, five a core": {"xbar": 3, "xbars_per_core": 5},
    "4x7": {"xbar": (4, 7), "xbars_per_core": 3},
    "7x4": {"xbar": (7, 4), "xbars_per_core": 3},
    "8x3, three side by side": {"xbar": (8, 3), "xbars_per_core": 7},
    "8, 16 bits": {"xbar": 8, "xbars_per_core": 6, "bits": 16, "cell_bits": 16},
    "8, 16 bits in cells of 8": {"xbar": 8, "xbars_per_core": 6, "bits": 16},
    "8, cells of 2": {"xbar": 8, "xbars_per_core": 8, "cell_bits": 2},
    "8, cells of 4": {"xbar": 8, "xbars_per_core": 2, "cell_bits": 4},
    "12x6, cells of 3": {"xbar": (12, 6), "xbars_per_core": 8, "cell_bits": 3},
    "16": {"xbar": 16, "xbars_per_core": 4},
}
LARGE_CHIPS: dict[str, dict[str, Any]] = {
    "32x16": {"xbar": (32, 16), "xbars_per_core": 6},
    "64": {"xbar": 64, "xbars_per_core": 4},
    "128": {"xbar": 128, "xbars_per_core": 5},
    "128x64": {"xbar": (128, 64), "xbars_per_core": 4},
    "64x128": {"xbar": (64, 128), "xbars_per_core": 4},
    "128, cells of 2": {"xbar": 128, "xbars_per_core": 8, "cell_bits": 2},
    "128, 16 bits in cells of 4": {"xbar": 128, "xbars_per_core": 3, "cell_bits": 4, "bits": 16},
}
SMALL_LAYERS: dict[str, dict[str, Any]] = {
    "kernel 1": {"shape": (1, 5, 3, 4), "filters": 7, "kernel": (1, 1)},
    "kernel 1, stride 2": {"shape": (1, 4, 5, 5), "filters": 4, "kernel": (1, 1), "strides": (2, 2)},
    "kernel 2": {"shape": (1, 3, 4, 5), "filters": 5, "kernel": (2, 2), "pads": (0, 1, 1, 0)},
    "kernel 3": {"shape": (1, 7, 5, 4), "filters": 5, "pads": (1, 1, 1, 1), "bias": True},
    "kernel 3, stride 2": {"shape": (1, 4, 6, 7), "filters": 3, "strides": (2, 2), "pads": (1, 0, 0, 1)},
    "kernel 3, dilation 2": {"shape": (1, 4, 6, 6), "filters": 4, "dilations": (2, 2), "pads": (2, 0, 1, 3)},
    "kernel 2x4": {"shape": (1, 2, 5, 7), "filters": 3, "kernel": (2, 4), "strides": (3, 1), "dilations": (3, 2)},
    "kernel 5, stride 3": {"shape": (1, 3, 8, 8), "filters": 4, "kernel": (5, 5), "strides": (3, 3), "pads": (2,) * 4},
    "kernel 1x7": {"shape": (1, 4, 2, 9), "filters": 4, "kernel": (1, 7), "pads": (0, 3, 0, 3), "relu": True},
    "kernel 7x1": {"shape": (1, 4, 9, 2), "filters": 4, "kernel": (7, 1), "pads": (3, 0, 3, 0)},
    "kernel 7, stride 2": {"shape": (1, 3, 9, 9), "filters": 4, "kernel": (7, 7), "strides": (2, 2), "pads": (3,) * 4},
    "only padding at the rim": {"shape": (1, 4, 3, 3), "filters": 4, "kernel": (2, 2), "pads": (3, 2, 4, 3)},
}
LARGE_LAYERS: dict[str, dict[str, Any]] = {
    "130 to 70": {"shape": (1, 130, 3, 4), "filters": 70, "kernel": (2, 2), "pads": (0, 1, 0, 0)},
    "65 to 129": {"shape": (1, 65, 4, 3), "filters": 129, "strides": (2, 1), "pads": (1, 1, 1, 1), "bias": True},
    "127 to 128": {"shape": (1, 127, 2, 2), "filters": 128, "kernel": (1, 1)},
}


@pytest.mark.parametrize(("layer", "chip"), list(product(SMALL_LAYERS, SMALL_CHIPS)))
def test_convolutions_on_small_crossbars(layer: str, chip: str):
    check(conv_model(**SMALL_LAYERS[layer]), **SMALL_CHIPS[chip])


@pytest.mark.parametrize(("layer", "chip"), list(product(LARGE_LAYERS, LARGE_CHIPS)))
def test_convolutions_on_large_crossbars(layer: str, chip: str):
    check(conv_model(**LARGE_LAYERS[layer]), **LARGE_CHIPS[chip])


@given(random_models(), chips())
@settings(max_examples=12)
def test_random_graphs(model: ModelProto, chip: dict[str, Any]):
    check(model, tolerance=1e-4, **chip)


@pytest.mark.slow
@given(random_models(), chips())
@settings(max_examples=500)
def test_many_random_graphs(model: ModelProto, chip: dict[str, Any]):
    check(model, tolerance=1e-4, **chip)


SMALL_MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"width": 0.1},
    "lenet5": {},
    "resnet18": {"width": 0.1, "image_size": 32, "classes": 10},
    "resnet34": {"width": 0.05, "image_size": 32, "classes": 10},
    "resnet50": {"width": 0.05, "image_size": 32, "classes": 10},
    "vgg16": {"width": 0.05, "image_size": 32, "classes": 10},
    "googlenet": {"width": 0.1, "image_size": 32, "classes": 10},
    "squeezenet": {"width": 0.1, "image_size": 32, "classes": 10},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in ("resnet34", "resnet50", "googlenet") else n
        for n in SMALL_MODELS
    ],
)
def test_small_models(name: str):
    """Crossbars of 32, so that layers are cut as those of the full size are by 128."""
    check(models.build(name, **SMALL_MODELS[name]), tolerance=1e-4, xbar=32, xbars_per_core=64)


@pytest.mark.parametrize("head", ["reduce_mean", pytest.param("global_average_pool", marks=pytest.mark.slow)])
def test_both_heads_of_a_residual_network(head: str):
    model = models.build("resnet18", width=0.1, image_size=33, classes=5, head=head)
    check(model, tolerance=1e-4, xbar=(16, 24), xbars_per_core=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_full_size_models(name: str):
    """Outputs only: rounding grows with depth, to 1.6e-4 inside the last layers of resnet50."""
    check(models.build(name), tolerance=1e-4, layers=False, xbar=128)


RESNET_CHIPS = [
    {"xbar": 64, "cores": 400},
    {"xbar": 256, "cores": 200},
    {"xbar": (128, 64), "cores": 400},
    {"xbar": 128, "cores": 136},
    {"xbar": 128, "xbars_per_core": 16, "cores": 800},
]


@pytest.mark.slow
@pytest.mark.parametrize("chip", RESNET_CHIPS)
def test_resnet18_on_other_chips(chip: dict[str, Any]):
    check(models.build("resnet18"), tolerance=1e-4, layers=False, **chip)


CHIP: dict[str, Any] = {"xbar": 4, "xbars_per_core": 6}
SHAPE = (1, 6, 3, 3)
WEIGHTS = {"w": random(6, 6, 1, 1)}


def test_several_outputs():
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("MaxPool", "c", "p", kernel_shape=[2, 2])]
    check(make_model(nodes, {"x": SHAPE}, ["r", "p"], WEIGHTS), **CHIP)


def test_an_output_that_is_read_inside_too():
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Conv", "r w", "y", name="2")]
    check(make_model(nodes, {"x": SHAPE}, ["r", "c", "y"], WEIGHTS), **CHIP)


def test_an_output_under_two_names():
    nodes = [node("Relu", "x", "r"), node("Identity", "r", "i"), node("Flatten", "r", "f")]
    check(make_model(nodes, {"x": (1, 6, 1, 1)}, {"r": 4, "i": 4, "f": 2}), **CHIP)


def test_an_output_that_is_an_input():
    nodes = [node("Relu", "x", "r"), node("Identity", "x", "y"), node("Flatten", "x", "f")]
    check(make_model(nodes, {"x": (1, 6, 1, 1)}, {"r": 4, "y": 4, "f": 2}), **CHIP)


def test_a_model_that_only_renames():
    check(make_model([node("Flatten", "x", "y")], {"x": (1, 6, 1, 1)}, {"y": 2}), **CHIP)


def test_a_model_of_only_a_relu():
    check(make_model([node("Relu", "x")], {"x": SHAPE}, ["y"]), **CHIP)


def test_a_model_without_matrices():
    nodes = [node("Add", "a b", "s"), node("MaxPool", "s", "p", kernel_shape=[2, 2]), node("Mul", "p c", "y")]
    check(make_model(nodes, {"a": SHAPE, "b": SHAPE}, ["y"], {"c": random(6, 1, 1)}), **CHIP)


def test_an_input_that_nothing_reads():
    check(make_model([node("Relu", "x")], {"x": SHAPE, "z": (1, 2, 2, 2)}, ["y"]), **CHIP)


def test_a_layer_that_two_others_read_twice():
    nodes = [node("Conv", "x w", "c"), node("Add", "c c", "a"), node("Concat", "c a c", "y", axis=1)]
    check(make_model(nodes, {"x": SHAPE}, ["y"], WEIGHTS), **CHIP)


def test_one_layer_s_weights_used_by_two_nodes():
    nodes = [node("Conv", "x w", "c", name="1"), node("Conv", "c w", "y", name="2")]
    check(make_model(nodes, {"x": SHAPE}, ["y"], WEIGHTS), **CHIP)


@pytest.mark.parametrize("batch", [2, 3])
def test_batches(batch: int):
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], pads=[0, 1, 1, 0]),
        node("Add", "p k", "a"),
        node("GlobalAveragePool", "a", "y"),
    ]
    constants = {"w": random(5, 6, 3, 3), "k": random(5, 1, 3)}
    check(make_model(nodes, {"x": (batch, *SHAPE[1:])}, ["y", "a"], constants), **CHIP)


def test_a_batch_of_vectors():
    nodes = [node("Gemm", "x w b", "g", transB=1), node("Softmax", "g", "y", axis=1)]
    constants = {"w": random(7, 10), "b": random(7)}
    check(make_model(nodes, {"x": (5, 10)}, {"y": 2}, constants), **CHIP)


@pytest.mark.parametrize(("length", "kernel"), [(9, 3), (4, 4)])
def test_one_dimension(length: int, kernel: int):
    nodes = [node("Conv", "x w", "c", pads=[1, 0]), node("MaxPool", "c", "y", kernel_shape=[2])]
    check(make_model(nodes, {"x": (1, 5, length)}, {"y": 3}, {"w": random(4, 5, kernel)}), **CHIP)


def test_three_dimensions():
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 0, 0, 1, 1]), node("MaxPool", "c", "y", kernel_shape=[2, 1, 2])]
    check(make_model(nodes, {"x": (1, 5, 4, 3, 3)}, {"y": 5}, {"w": random(4, 5, 2, 2, 2)}), **CHIP)


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=6)
def test_fully_connected_layers_of_any_size(features: int, outs: int):
    weights = {"w": random(features, outs) / np.float32(np.sqrt(features)), "b": random(outs)}
    check(make_model([node("Gemm", "x w b")], {"x": (1, features)}, {"y": 2}, weights), **CHIP)
