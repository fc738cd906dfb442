"""Evaluated times are those of the simulator, and put decisions in the same order."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

import models
import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.compiler.pipeline import complete, generate_code, prepare_graph, rewrite_and_map, run_lowering
from raptor.frontend import load
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.mapping.strategies import STRATEGIES, rows_strategy
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from tests.tiny_models import make_model, node, random

MODELS = {
    "resnet18": {"image_size": 64},
    "squeezenet": {"image_size": 64},
    "mobilenet_v2": {"image_size": 64},
    "unet": {"image_size": 64},
}
CHIP = load_chip(ChipOptions(arch="bench", cores=100))
KNOBS = [
    DEFAULT_KNOBS,
    replace(DEFAULT_KNOBS, neighbours=0.0),
    replace(DEFAULT_KNOBS, products=4.0),
    replace(DEFAULT_KNOBS, share=0.5),
    replace(DEFAULT_KNOBS, share=0.25),
    replace(DEFAULT_KNOBS, latency=4.0),
]


def times(name: str, size: int, knobs: object = DEFAULT_KNOBS) -> tuple[float, float, float, float]:
    """Latency and interval of a model, evaluated and simulated."""
    return model_times(models.build(name, image_size=size), knobs)


def model_times(model: ModelProto, knobs: object = DEFAULT_KNOBS) -> tuple[float, float, float, float]:
    graph = prepare_graph(load(model).graph, CHIP)
    mapped = rewrite_and_map(graph, CHIP, rows_strategy(knobs).without_search())
    found = evaluate(mapped.graph, mapped.decision, CHIP)
    done = complete(mapped, CHIP, aim=BALANCED_OBJECTIVE)
    lowered = run_lowering(done.mapped, CHIP, known=done.known)
    cost = simulate_objective("throughput", lowered.program, generate_code(lowered, PIMSIM_BACKEND), CHIP)
    return found.latency_ns, found.interval_ns, cost.latency_ns, cost.interval_ns


@pytest.mark.parametrize("name", MODELS)
def test_times_are_near_those_of_the_simulator(name: str) -> None:
    latency_ns, interval_ns, simulated_latency_ns, simulated_interval_ns = times(name, 64)
    assert abs(interval_ns / simulated_interval_ns - 1) < 0.15
    assert abs(latency_ns / simulated_latency_ns - 1) < 0.3


def convolution(index: int, given: str, channels: int, result: str, pad: int = 1) -> tuple[NodeProto, np.ndarray]:
    weights = random(16, channels, 3, 3, seed=index)
    return node("Conv", f"{given} w{index}", result, name=result, pads=[pad] * 4), weights


def test_a_channel_does_not_wait_for_later_ones() -> None:
    """In a dense block, each layer reads all layers before it; most of its work is done before the last one."""
    nodes, weights, given, channels = [], {}, "x", 32
    for i in range(8):
        layer, weights[f"w{i}"] = convolution(i, given, channels, f"new{i}")
        nodes += [layer, node("Concat", f"{given} new{i}", f"all{i}", name=f"all{i}", axis=1)]
        given, channels = f"all{i}", channels + 16
    graph = prepare_graph(load(make_model(nodes, {"x": (1, 32, 12, 12)}, [given], weights)).graph, CHIP)
    mapped = rewrite_and_map(graph, CHIP, STRATEGIES["rows"])
    works = [work for work in decision_work(mapped.graph, mapped.decision, CHIP) if work.name.startswith("new7")]
    needed = [{need.work.name for need in work.needs} for work in works]
    assert len(works) == 8
    for i, names in enumerate(needed):
        assert [f"new{k}" for k in range(7) if f"new{k}" in names] == ([f"new{i - 1}"] if i else [])


def test_layers_without_padding_read_line_by_line() -> None:
    nodes, weights = [], {}
    for i in range(6):
        layer, weights[f"w{i}"] = convolution(i, f"t{i}", 16, f"t{i + 1}", pad=0)
        nodes.append(layer)
    latency_ns, _, simulated_ns, _ = model_times(make_model(nodes, {"t0": (1, 16, 40, 40)}, ["t6"], weights))
    assert abs(latency_ns / simulated_ns - 1) < 0.15


def test_intervals_of_decisions_differ_as_in_the_simulator() -> None:
    found = np.array([times("squeezenet", 64, knobs) for knobs in KNOBS])
    _, evaluated, _, simulated = np.log(found).T
    assert np.corrcoef(evaluated, simulated)[0, 1] >= 0.95


def test_constants_that_do_not_fit_into_free_crossbars_are_loaded() -> None:
    """The crossbars of some cores hold a part of the weights of depthwise layers; the port has to bring the others."""
    model = models.build("mobilenet_v2", image_size=64)
    mapped = rewrite_and_map(prepare_graph(load(model).graph, CHIP), CHIP, STRATEGIES["rows"])
    bounds = raptor.compile(model, arch="bench", cores=100).explain().bounds
    assert evaluate(mapped.graph, mapped.decision, CHIP).bounds.port_ns == pytest.approx(bounds.port, rel=0.03)
