"""Evaluated times are those of the simulator, and put decisions in the same order."""

from dataclasses import replace

import numpy as np
import pytest

import models
import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.compiler.pipeline import complete, generate_code, prepare_graph, rewrite_and_map, run_lowering
from raptor.frontend import load
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.mapping.strategies import STRATEGIES, rows_strategy
from raptor.options import ChipOptions
from raptor.target.arch import load_chip

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
    graph = prepare_graph(load(models.build(name, image_size=size)).graph, CHIP)
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
