"""The order of work, chosen for samples that follow one another."""

from typing import Any

import pytest

import models
import raptor
from raptor.mapping.decision import ByLine
from raptor.spatial.costs import OF_CLASS
from raptor.spatial.integer_operations import Requantise
from raptor.spatial.operations import ApplyFilters, ApplyLine, OneResult
from raptor.spatial.orders import BALANCED, STORED, Aim, Order, best_order
from raptor.spatial.schedule import Problem
from tests.pipeline import Passes, line_flow, passes

CHIP: dict[str, Any] = {"mapping": "rows", "cores": 60}
EARLY, LATE = Aim("latency", (1.0, 0.4), 2), Aim("throughput", (1.0, 0.4), 2)


@pytest.fixture(scope="module")
def done() -> Passes:
    return passes(models.build("resnet18", seed=0, width=0.25, image_size=64), **CHIP)


def named(done: Passes, aim: Aim) -> tuple[list[int], Order]:
    """The order that is chosen by an aim, and its name."""
    work = Problem.of(done.arch, done.on_chip, range(len(done.on_chip.graph.computes))).work()
    order, name = best_order(work, Order(line_flow(done.decision).patience_ns, 0), aim)
    return order.tolist(), name


def test_every_operation_has_a_cost():
    kinds: list[type] = OneResult.__subclasses__()
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("raptor.spatial")}
    assert ours == {kind.__name__ for kind in (ApplyLine, ApplyFilters, Requantise, *OF_CLASS)}


def test_the_schedule_names_its_order(done: Passes):
    order, name = named(done, BALANCED)
    flow = done.schedule.flow
    assert isinstance(flow, ByLine)
    assert (flow.patience_ns, flow.sample) == (name.patience_ns, name.sample)
    assert list(done.schedule.order) == order


def test_the_name_makes_the_order_again(done: Passes):
    for aim in (EARLY, LATE, BALANCED):
        order, name = named(done, aim)
        work = Problem.of(done.arch, done.on_chip, range(len(done.on_chip.graph.computes))).work()
        assert best_order(work, name, STORED)[0].tolist() == order


def test_a_later_sample_has_the_better_interval(done: Passes):
    assert named(done, EARLY)[1].sample == 0
    assert named(done, LATE)[1].sample == 1


def test_each_aim_is_the_best_by_its_own_measure():
    """The simulator says so, too."""
    model = models.build("resnet18", seed=0, width=0.25, image_size=64)
    latency, throughput = (raptor.compile(model, cores=60, optimize=aim, effort=1) for aim in ("latency", "throughput"))
    quick, late = (p.simulate().latency_ns or 0 for p in (latency, throughput))
    assert quick < late
    fast, slow = (p.simulate(mode="throughput").samples_per_s or 0 for p in (throughput, latency))
    assert fast > slow
