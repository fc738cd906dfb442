"""Decisions of `--optimize`. Every mapping gives right values, so only these tests see a wrong choice."""

from functools import cache
from typing import Any

import pytest
from onnx import ModelProto

import models
import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.common.options.option_values import Objective
from raptor.compiler.mapping_search import mapping_candidates, search_mapping
from raptor.target import arch
from tests.pipeline import conv_model, passes
from validator.simulate.simulation_report import SimulationReport

CHIP = {"cores": 20, "xbar": 256}
"""A chip on which each objective finds another mapping for LeNet-5, so that a search for a wrong objective is seen."""
EFFORT = 10
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "energy")
LESS_TIME = (
    *("neighbours x0", "neighbours x0, products x0.5", "8 lanes", "products x4", "products x2", "products x0.5"),
    *("90% of the cores", "80% of the cores", "steps of 10000 ns", "steps of 20000 ns", "steps of 40000 ns"),
)
MORE_SPEED = (
    *("neighbours x1.1, steps of 3000 ns", "8 lanes", "neighbours x0", "products x4", "products x2", "products x0.5"),
    *("90% of the cores", "80% of the cores", "steps of 10000 ns", "steps of 20000 ns", "steps of 40000 ns"),
)
LESS_ENERGY = (
    *("50% of the cores", "75% of the cores", "40% of the cores", "35% of the cores"),
    *("products x4", "products x2", "products x0.5"),
    *("steps of 10000 ns", "steps of 20000 ns", "steps of 40000 ns"),
)
ALL = {
    "latency": ("rows", "raptor", *(f"rows, {turned}" for turned in LESS_TIME)),
    "throughput": ("rows", "raptor", *(f"rows, {turned}" for turned in MORE_SPEED)),
    "energy": ("rows", "raptor", *(f"rows, {turned}" for turned in LESS_ENERGY)),
}
"""Every candidate of each objective for a graph that is not small, in order: none may be dropped."""
PACES = "bench", "products x4", "products x16", "memories x2"


def all_small(objective: Objective) -> tuple[str, ...]:
    """Returns every candidate of an objective for a small graph, in order."""
    first, *others = (f"rows, times of {pace}" for pace in PACES)
    turned = [name.removeprefix("rows, ") for name in ALL[objective][2:4]]
    return (
        *(first, "raptor", *others),
        *(f"rows, balanced, times of {pace}" for pace in PACES),
        *(f"rows, {name}, times of {pace}" for name in turned for pace in PACES),
    )


@cache
def lenet5() -> ModelProto:
    return models.build("lenet5", seed=0)


@cache
def searched(objective: Objective) -> raptor.Program:
    return raptor.compile(lenet5(), optimize=objective, effort=EFFORT, overlap=1, **CHIP)


def cost(program: raptor.Program, objective: Objective) -> float:
    """Measures by the simulator's command, not by the search: ns, or pJ of a sample in steady state."""
    if objective == "latency":
        return program.simulate().latency_ns
    found: SimulationReport = program.simulate(mode="throughput", samples=4)
    value = found.interval_ns if objective == "throughput" else found.energy_pj
    assert value is not None
    return value


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_best_of_the_trials_is_compiled(objective: Objective):
    program = searched(objective)
    costs = [trial.cost for trial in program.report.search if trial.cost is not None]
    assert len(costs) == EFFORT
    assert cost(program, objective) == min(costs)
    assert min(costs) < costs[0], "a search that takes the first candidate would not be seen"
    assert len(set(costs)) > 3


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", ["rows, times of bench", "raptor"])
def test_a_trial_costs_what_its_mapping_costs_alone(objective: Objective, strategy: str):
    """A trial of `rows` has the best order by the objective, and so has a search with this one trial."""
    (trial,) = (t for t in searched(objective).report.search if t.mapping == strategy)
    alone: dict[str, Any] = {"optimize": objective, "effort": 1, "overlap": 1}
    alone = {"mapping": "raptor"} if strategy == "raptor" else alone
    assert trial.cost == cost(raptor.compile(lenet5(), **alone, **CHIP), objective)
    figures = {"latency": trial.latency_ns, "throughput": trial.interval_ns, "energy": trial.energy_pj}
    assert trial.cost == figures[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_candidate_is_left_out(objective: Objective):
    program = raptor.compile(conv_model((1, 2, 4, 4), 3), cores=2, optimize=objective, effort=100)
    assert tuple(trial.mapping for trial in program.report.search) == all_small(objective)
    assert tuple(candidate.name for candidate in mapping_candidates(objective)) == ALL[objective]
    assert all(trial.cost is not None for trial in program.report.search)


def test_each_objective_is_the_best_by_its_own_measure():
    found = {objective: searched(objective) for objective in OBJECTIVES}
    for objective in OBJECTIVES:
        costs = {other: cost(program, objective) for other, program in found.items()}
        assert min(costs, key=lambda other: costs[other]) == objective
        assert len(set(costs.values())) == len(OBJECTIVES)


def test_a_search_in_two_processes_finds_the_same():
    chip = arch.load(None, cores=4, xbar=16, xbars_per_core=8)
    graph = passes(conv_model((1, 3, 6, 6), 4), cores=4).graph
    alone = search_mapping(graph, chip, PIMSIM_BACKEND, "latency", 3)
    assert alone.known is not None
    assert alone.known.get(PIMSIM_BACKEND.generate) is not None
    assert search_mapping(graph, chip, PIMSIM_BACKEND, "latency", 3, in_two=True) == alone
    assert [trial.name for trial in alone.trials] == ["rows, times of bench", "raptor", "rows, times of products x4"]
