"""Slow fully connected layers get cores, as long as that makes the model quicker."""

from typing import Any

import pytest
from onnx import ModelProto

import models
import raptor
from raptor.mapping.decision import FullyConnected
from tests.pipeline import Passes, check, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 32, "mapping": "rows"}


def classifier(size: int, outputs: int = 10) -> ModelProto:
    """Builds a layer on an image of few channels, and a fully connected one, which has few weights for each pixel."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1] * 4),
        node("Relu", "a", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f v b", "y", name="last"),
    ]
    weights = {"w": random(4, 3, 3, 3), "v": random(4 * size * size, outputs), "b": random(outputs)}
    return make_model(nodes, {"x": (1, 3, size, size)}, {"y": 2}, weights)


def cores_of(compiled: Passes) -> int:
    (layer,) = (of for of in compiled.decision.layers.values() if isinstance(of, FullyConnected))
    return len(set(layer.cores))


@pytest.mark.parametrize("cores", [2, 5, 20, 60])
def test_values(cores: int):
    check(classifier(5), **CHIP, cores=cores)


@pytest.mark.parametrize("cores", range(48, 51))
def test_narrow_matrices_of_the_last_outputs(cores: int):
    """Matrices of 2 and of 1 output: a core holds one of the first or two of the last, so an even share needs more."""
    check(classifier(2, outputs=3), xbar=(38, 4), xbars_per_core=2, bits=8, cell_bits=2, mapping="rows", cores=cores)


def test_a_slow_layer_is_spread_over_cores():
    assert cores_of(passes(classifier(5), **CHIP, cores=40)) >= 4


def test_a_layer_that_is_not_slow_stays_on_one_core():
    """Products are few behind a pool of the whole image: one is enough."""
    nodes = [
        node("Conv", "x w", "a", name="first", pads=[1] * 4),
        node("GlobalAveragePool", "a", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f v", "y", name="last"),
    ]
    model = make_model(nodes, {"x": (1, 3, 9, 9)}, {"y": 2}, {"w": random(12, 3, 3, 3), "v": random(12, 10)})
    assert cores_of(passes(model, **CHIP, cores=40)) == 1


@pytest.mark.parametrize("cores", [10, 16, 144])
def test_lenet_is_bound_by_its_convolutions(cores: int):
    """Samples took 96 us when one core did all work of the first fully connected layer.

    On 10 and 16 cores, they took 93 and 91 us when that layer shared cores, and was not spread.
    """
    found = raptor.compile(models.build("lenet5", seed=0), xbar=128, cores=cores).simulate(mode="throughput", samples=4)
    assert found.latency_ns is not None
    assert found.interval_ns is not None
    assert found.latency_ns < 62_000
    assert found.interval_ns < 45_000


def test_more_cores_are_better():
    lenet5 = models.build("lenet5", seed=0)
    found = [raptor.compile(lenet5, xbar=128, cores=n).simulate(mode="throughput", samples=4) for n in (8, 12, 20)]
    latencies, intervals = [f.latency_ns or 0.0 for f in found], [f.interval_ns or 0.0 for f in found]
    assert latencies == sorted(latencies, reverse=True)
    assert intervals == sorted(intervals, reverse=True)
