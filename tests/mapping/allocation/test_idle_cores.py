"""Layers that do not stream get idle cores, as far as the evaluated times become better."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.compiler.pipeline import MappedGraph, prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.mapping.allocation.idle_cores import relieve_core
from raptor.mapping.decision import Decision, FullyConnected, record_cores
from raptor.mapping.decision_search import search_rows
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.strategies import ROWS
from raptor.options import ChipOptions
from raptor.target.arch import Target, load_chip
from tests.pipeline import chip
from tests.tiny_models import make_model, node, random


def perceptron(*widths: int) -> ModelProto:
    nodes, weights, x = [], {}, "x"
    for i, (ins, outs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        weights[f"w{i}"] = random(ins, outs)
        nodes.append(node("MatMul", f"{x} w{i}", "y" if last else f"m{i}", name=f"layer{i}"))
        if not last:
            nodes.append(node("Relu", f"m{i}", f"r{i}", name=f"relu{i}"))
            x = f"r{i}"
    return make_model(nodes, {"x": (1, widths[0])}, {"y": 2}, weights)


def mapped(model: ModelProto, arch: Target) -> MappedGraph:
    """A model with all rewrites and its decision, without a search."""
    return rewrite_and_map(prepare_graph(load(model).graph, arch), arch, ROWS.without_search())


def used(decision: Decision) -> set[int]:
    return {core for layer in decision.layers.values() if isinstance(layer, FullyConnected) for core in layer.cores}


def test_a_wide_layer_gets_idle_cores():
    """The first layer fills one core, which multiplies by 16 tiles of outputs one after another."""
    arch = load_chip(ChipOptions(arch="bench", cores=60))
    first = mapped(perceptron(100, 2000, 100), arch)
    found, *_ = search_rows(first.graph, arch, PlanCache(), DEFAULT_KNOBS)
    assert len(used(found)) > 1.5 * len(used(first.decision))
    before, after = (evaluate(first.graph, each, arch) for each in (first.decision, found))
    assert after.latency_ns * after.interval_ns < 0.7 * before.latency_ns * before.interval_ns


def test_a_layer_is_cut_finer_for_idle_cores():
    """The best candidate for the core of the wide layer takes less than half of latency x interval."""
    arch = load_chip(ChipOptions(arch="bench", cores=60))
    first = mapped(perceptron(100, 2000, 100), arch)
    (core,) = {*record_cores(first.decision.layers["r0"])}
    candidates = [*relieve_core(first.graph, first.decision, arch, core)]
    assert all(len({*record_cores(each.layers["r0"])}) > 1 for each in candidates)
    before, *after = (evaluate(first.graph, each, arch) for each in (first.decision, *candidates))
    costs = [each.latency_ns * each.interval_ns for each in after]
    assert min(costs) < 0.5 * before.latency_ns * before.interval_ns


def test_every_candidate_fits_the_chip():
    arch = chip((16, 16), xbars_per_core=4, cores=12)
    first = mapped(perceptron(64, 64, 16), arch)
    for core in used(first.decision):
        for decision in relieve_core(first.graph, first.decision, arch, core):
            held = np.zeros(arch.usable_cores, np.int64)
            for layer in decision.layers.values():
                assert isinstance(layer, FullyConnected)
                for matrix, at in zip(layer.matrices, layer.cores, strict=True):
                    held[at] += matrix.xbars
            assert held.max() <= arch.xbars_per_core


def test_a_full_chip_has_no_candidates():
    first = mapped(perceptron(16, 256, 16), chip((16, 16), xbars_per_core=16, cores=30))
    cores = len(used(first.decision))
    full = chip((16, 16), xbars_per_core=16, cores=cores)
    assert not any(True for core in range(cores) for _ in relieve_core(first.graph, first.decision, full, core))


@pytest.mark.parametrize("widths", [(16, 256, 16), (256, 32, 8), (100, 100, 100, 3)])
def test_values_stay(widths: tuple[int, ...]):
    program = raptor.compile(perceptron(*widths), cores=30, xbar=16, xbars_per_core=16)
    assert program.validate(samples=2).verdict == "pass"


def test_a_relu_does_not_take_a_layer_off_its_cores():
    """A ReLU that is folded into a layer is computed where the sums are, so that the layer stays fully connected."""
    first = mapped(perceptron(32, 32, 4), chip((16, 16), xbars_per_core=16, cores=30))
    assert all(isinstance(layer, FullyConnected) for layer in first.decision.layers.values())
