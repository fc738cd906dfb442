"""The order of work, chosen for samples that follow one another."""

from typing import Any

import numpy as np
import pytest

import models
import raptor
from raptor.compiler import mapping_search
from raptor.mapping.decision import LineFlow
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.scheduling.order_selection import (
    BALANCED_OBJECTIVE,
    WAITING_SAMPLES,
    OrderObjective,
    StepOrder,
    choose_step_order,
    measure_times,
    named_order,
)
from raptor.mapping.scheduling.sample_stages import estimate_staged_interval
from raptor.mapping.scheduling.schedule_kernel import Floats, SampleWork
from raptor.output.writer import ProgramArtifacts
from raptor.spatial.integer_operations import Requantise
from raptor.spatial.operation_costs import COST_FUNCTIONS
from raptor.spatial.operations import ApplyFilters, ApplyLine, OneResult
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from tests.pipeline import Passes, line_flow, passes

CHIP: dict[str, Any] = {"mapping": "rows", "cores": 60}
EARLY, LATE = OrderObjective("latency", (1.0, 0.4), 2), OrderObjective("throughput", (1.0, 0.4), 2)


@pytest.fixture(scope="module")
def done() -> Passes:
    return passes(models.build("resnet18", seed=0, width=0.25, image_size=64), **CHIP)


def named(done: Passes, aim: OrderObjective) -> tuple[list[int], StepOrder]:
    """The order that is chosen by an aim, and its name."""
    work = ScheduleProblem.from_graph(done.arch, done.on_chip, range(len(done.on_chip.graph.computes))).sample_work()
    best = choose_step_order(work, StepOrder(chip_patience_ns(done.arch), 0), aim)
    return best.order.tolist(), best.name


def test_every_operation_has_a_cost():
    kinds: list[type] = OneResult.__subclasses__()
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("raptor.spatial")}
    assert ours == {kind.__name__ for kind in (ApplyLine, ApplyFilters, Requantise, *COST_FUNCTIONS)}


def test_the_schedule_names_its_order(done: Passes):
    order, name = named(done, BALANCED_OBJECTIVE)
    flow = line_flow(done.decision)
    assert (flow.patience_ns, flow.sample) == (name.patience_ns, name.sample)
    assert list(done.schedule.order) == order


def test_the_name_makes_the_order_again(done: Passes):
    for aim in (EARLY, LATE, BALANCED_OBJECTIVE):
        order, name = named(done, aim)
        work = ScheduleProblem.from_graph(
            done.arch, done.on_chip, range(len(done.on_chip.graph.computes))
        ).sample_work()
        assert named_order(work, name).tolist() == order


def test_a_later_sample_has_the_better_interval(done: Passes):
    assert named(done, EARLY)[1].sample == 0
    assert named(done, LATE)[1].sample == 1


def test_each_aim_is_the_best_by_its_own_measure():
    """The simulator says so, too."""
    model = models.build("resnet18", seed=0, width=0.25, image_size=64)
    latency, throughput = (
        raptor.compile(model, cores=60, optimize=aim, effort=1, overlap=1) for aim in ("latency", "throughput")
    )
    quick, late = (p.simulate().latency_ns or 0 for p in (latency, throughput))
    assert quick < late
    fast, slow = (p.simulate(mode="throughput").samples_per_s or 0 for p in (throughput, latency))
    assert fast > slow


def test_the_search_for_throughput_tries_eight_samples(monkeypatch: pytest.MonkeyPatch):
    """The order of a sample after the fifth is at least 2 % better here, by the simulator, too."""
    model, found = models.build("lenet5", seed=0), dict[int, tuple[int, float]]()
    for samples in (5, mapping_search.SAMPLES_TRIED["throughput"]):
        monkeypatch.setitem(mapping_search.SAMPLES_TRIED, "throughput", samples)
        program = raptor.compile(model, cores=30, optimize="throughput", effort=1, overlap=1)
        assert isinstance(program.artifacts, ProgramArtifacts)
        flow = program.artifacts.mapping.decision.flow
        assert isinstance(flow, LineFlow)
        found[samples] = flow.sample, program.simulate(mode="throughput").samples_per_s or 0
    assert found[5][0] < 5 <= found[8][0]
    assert found[8][1] > 1.02 * found[5][1]


def some_work(rng: np.random.Generator, count: int, cores: int) -> SampleWork:
    """Computes that read earlier ones. Times are small whole numbers, so that many starts are equal."""
    core, peer = rng.integers(0, cores, count), rng.integers(-1, cores, count)
    peer[peer == core] = -1
    edges = np.array([(i, j) for j in range(count) for i in range(j) if rng.random() < 2 / (j + 1)], np.int64)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    times_ns = rng.integers(0, 4, (7, count)).astype(np.float64)
    first_user = np.searchsorted(edges[:, 0], np.arange(count + 1)).astype(np.int64)
    waiting, users = np.bincount(edges[:, 1], minlength=count), np.ascontiguousarray(edges[:, 1])
    columns = (core, peer, *times_ns, rng.permutation(count), waiting, first_user, users)
    return SampleWork._make(columns)


def test_a_core_that_works_before_and_after_another_one_need_not_wait_with_stages() -> None:
    """Core 0 works for 10 ns, then core 1, then core 0 again: 30 ns for a sample, and 20 ns of work of core 0."""
    core, peer, count = np.array([0, 1, 0]), np.full(3, -1), np.zeros(3)
    dependences = np.array([0, 1, 1]), np.array([0, 1, 2, 2]), np.array([1, 2])
    works_ns = (*[count] * 6, np.full(3, 10.0))
    work = SampleWork._make((core, peer, *works_ns, np.arange(3), *dependences))
    base = StepOrder(0.0, 0)
    assert measure_times(work, named_order(work, base)) == (30, 30)
    assert [estimate_staged_interval(work, base, most) for most in (1, 2)] == [np.inf, 20]


def run_plainly(work: SampleWork, i: int, ready_ns: float, free: Floats, switch: Floats, port: Floats) -> float:
    """Runs step `i` by the definition. Returns its end. `free`, `switch`: by core. `port`: [1], when it is free."""
    c, p = int(work.core[i]), int(work.peer[i])
    now = max(ready_ns, free[c])
    if p >= 0:
        now = max(now, free[p], switch[p]) + work.request_ns[i]
        now = max(now, switch[c]) + work.grant_ns[i]
        free[p] = now + work.sender_ns[i]
        switch[p] = free[p] + work.wire_ns[i]
    now += work.receiver_ns[i]
    if work.memory_ns[i] > 0:
        now = port[0] = max(now, port[0]) + work.memory_ns[i]
    free[c] = now + work.work_ns[i]
    return free[c]


def plain_order(work: SampleWork, patience_ns: float, samples: int) -> list[list[int]]:
    """The order of `list_schedule` by its definition: looks at all computes that are left, again and again."""
    count, cores = len(work.core), work.core_count
    users = [work.users[a:b].tolist() for a, b in zip(work.first_user, work.first_user[1:], strict=False)]
    both: list[tuple[int, int]] = list(zip(work.core.tolist(), work.peer.tolist(), strict=True))
    occupied = [[c for c in cores if c >= 0] for cores in both]
    at_work = [sum(c in some for some in occupied) for c in range(cores)]
    free, switch, done = np.zeros(cores), np.zeros(cores), [0] * cores
    ready, memory, left = np.zeros((samples, count)), np.zeros(samples), np.repeat(work.waiting[None], samples, axis=0)
    order: list[list[int]] = [[] for _ in range(samples)]
    todo = {(k, i) for k in range(samples) for i in range(count)}

    def key(at: tuple[int, int]) -> tuple[float, int, int]:
        k, i = at
        start = max(ready[at], *(free[c] for c in occupied[i]))
        return start - patience_ns * (len(occupied[i]) - 1), k, work.rank[i]

    while todo:
        turn = {(k, i) for k, i in todo if all(done[c] // at_work[c] == k for c in occupied[i])}
        k, i = min((at for at in turn if left[at] == 0), key=key)
        todo.remove((k, i))
        order[k].append(i)
        end = run_plainly(work, i, ready[k, i], free, switch, memory[k:])
        for j in users[i]:
            ready[k, j] = max(ready[k, j], end)
            left[k, j] -= 1
        for d in occupied[i]:
            done[d] += 1
    return order


@pytest.mark.parametrize("seed", range(20))
def test_a_list_schedule_is_what_its_definition_says(seed: int):
    rng = np.random.default_rng(seed)
    work = some_work(rng, int(rng.integers(1, 60)), int(rng.integers(1, 8)))
    patience_ns, samples = float(rng.integers(0, 6)), int(rng.integers(1, 4))
    order = named_order(work, StepOrder(patience_ns, samples - 1))
    assert order.tolist() == plain_order(work, patience_ns, samples)[-1]


def plain_times(work: SampleWork, order: list[int], samples: int) -> list[float]:
    """The ends of samples whose steps are run in an order, by definition: looks for the next start, again and again."""
    cores = work.core_count
    both = [[c for c in at if c >= 0] for at in zip(work.core.tolist(), work.peer.tolist(), strict=True)]
    todo = [[(k, i) for k in range(samples) for i in order if c in both[i]] for c in range(cores)]
    edges = [work.users[a:b].tolist() for a, b in zip(work.first_user, work.first_user[1:], strict=False)]
    left, ready = np.repeat(work.waiting[None], samples, axis=0), np.zeros((samples, len(order)))
    free, switch, port, ends = np.zeros(cores), np.zeros(cores), np.zeros(1), [0.0] * samples
    while any(todo):
        heads = [(c, *own[0]) for c, own in enumerate(todo) if own]
        runs = [
            (max(ready[k, i], *(free[d] for d in both[i])), c, k, i)
            for c, k, i in heads
            if c == work.core[i] and not left[k, i] and all(todo[d][0] == (k, i) for d in both[i])
        ]
        _, _, k, i = min(runs, key=lambda run: (run[0], work.rank[run[3]], run[1]))
        end = run_plainly(work, i, ready[k, i], free, switch, port)
        ends[k] = max(ends[k], end)
        for d in both[i]:
            todo[d].pop(0)
        for j in edges[i]:
            ready[k, j] = max(ready[k, j], end)
            left[k, j] -= 1
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_samples_are_replayed_as_the_definition_says(seed: int):
    rng = np.random.default_rng(seed)
    work = some_work(rng, int(rng.integers(1, 60)), int(rng.integers(1, 8)))
    order = named_order(work, StepOrder(float(rng.integers(0, 6)), int(rng.integers(0, 3))))
    ends = plain_times(work, order.tolist(), WAITING_SAMPLES)
    interval = max((ends[3] - ends[1]) / 2, float(work.memory_ns.sum()))
    assert measure_times(work, order) == (plain_times(work, order.tolist(), 1)[0], interval)
