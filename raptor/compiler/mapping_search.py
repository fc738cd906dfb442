"""Searches for a good mapping: compiles candidates and compares what they cost
on their machine (`CostModel`); for pimsim-nn, the built-in simulator says that (docs/explanation/simulation.md).

The search is deterministic: candidates are a fixed list, and the first `effort` of them are tried in order. A candidate
that does not fit the chip is recorded and skipped. The second candidate is the reference mapping, so with an effort of
2 or more the machine never finds the result worse than the reference.

Candidates for a small graph do not depend on the times of the chip (`raptor.mapping.paces`): a faster chip has the same
ones. In measurements it never had a longer latency with one of them, and rarely a longer interval.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Self

from raptor.codegen.machine_backend import CostModel, MachineBackend
from raptor.common.errors import CapacityError
from raptor.common.options.option_values import Objective
from raptor.common.process.forked_task import ForkedTask
from raptor.compiler.pass_driver import Driver, PassResults
from raptor.compiler.pipeline import MappedGraph, complete, generate_code, rewrite_and_map, run_lowering
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.modes.line_plans import MOST_LANES
from raptor.mapping.paces import SEARCHED_PACES, Pace, is_small_graph
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, OrderObjective
from raptor.mapping.search_trial import ProgramCost, SearchTrial
from raptor.mapping.strategies import RAPTOR, ROWS, Strategy, rows_strategy
from raptor.pim import PimProgram
from raptor.target.arch import Target

DEFAULT_EFFORT = 5
"""Default number of candidates for a graph that is not small; for a small graph all are tried."""

LATENCY_WEIGHT: dict[Objective, float] = {"latency": 8.0, "throughput": 0.0, "energy": 0.0}
"""Weight of the latency against the interval (`TuningKnobs.latency`)."""
PATIENCE_FACTORS = 1.0, 1 / 3, 1 / 6, 2.0
"""Factors on the patience; for each candidate, the best order of work with one of these is taken."""
SAMPLES_TRIED: dict[Objective, int] = {"latency": 3, "throughput": 8, "energy": 8}
"""Number of consecutive samples whose orders are tried: the eighth still shortens the interval, not the latency."""
KNOB_VARIATIONS = 2
"""Number of knob variations of `rows` that are tried for a small graph, with each pace."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: the best decision (the first of equal ones), and all trials in order.

    known: results of the passes for the best decision if this process tried it, else None.
    """

    decision: Decision
    trials: tuple[SearchTrial, ...]
    known: PassResults | None = field(compare=False)


@dataclass(frozen=True, slots=True)
class MappingCandidate:
    """A candidate: a mapping strategy, the aim of the order of work, and the pace (timing profile) for both."""

    name: str
    strategy: Strategy
    aim: OrderObjective
    pace: Pace = "own"

    def decide(self, graph: Graph, arch: Target) -> MappedGraph:
        """Maps a prepared graph. Raises `CapacityError` if the chip is too small."""
        return rewrite_and_map(graph, arch, self.strategy.at_pace(self.pace))


def search_mapping(
    graph: Graph,
    arch: Target,
    backend: MachineBackend[Any],
    objective: Objective,
    effort: int | None = None,
    *,
    in_two: bool = False,
) -> SearchResult:
    """Tries at most `effort` candidates and returns the best; by default `EFFORT`, or all for a small graph.

    `backend`: the machine, which has a `CostModel`.
    `in_two`: a forked copy of the process tries every second one (see `Copy` for when forking is allowed). Raises the
    `CapacityError` of the first trial if none fits the chip.
    """
    if is_small_graph(graph):
        chosen = [*islice(pace_candidates(objective), effort)]
    else:
        chosen = [*islice(mapping_candidates(objective), effort or DEFAULT_EFFORT)]
    tries = partial(_Trials, graph, arch, backend, objective)
    if in_two and len(chosen) > 1:
        with ForkedTask(lambda: tries().run(chosen[1::2]).trials) as other:
            own = tries().run(chosen[::2])
            pairs = zip_longest(own.trials, other.result())
        trials = tuple(trial for pair in pairs for trial in pair if trial is not None)
    else:
        own = tries().run(chosen)
        trials = tuple(own.trials)
    best = _best(trials)
    if best.decision is None:
        assert trials[0].fault is not None, "a trial has a decision or a fault"
        raise trials[0].fault
    return SearchResult(best.decision, trials, own.known if best is _best(own.trials) else None)


def _best(trials: Sequence[SearchTrial]) -> SearchTrial:
    return min(trials, key=lambda t: t.figure)


@dataclass(slots=True)
class _Trials:
    """Trials so far. known: results of the passes for the best of them."""

    graph: Graph
    arch: Target
    backend: MachineBackend[Any]
    objective: Objective
    trials: list[SearchTrial] = field(default_factory=list[SearchTrial])
    known: PassResults | None = None

    def run(self, chosen: Sequence[MappingCandidate]) -> Self:
        """Tries candidates; each is compiled while the previous one is simulated."""
        assert isinstance(self.backend, CostModel), "others refuse the option"
        cost_of = self.backend.cost
        # NOTE: the simulator runs without Python's lock, so the next candidate is compiled at the same time.
        with ThreadPoolExecutor(1) as pool:

            def simulated(program: PimProgram, code: Any) -> Future[ProgramCost]:
                return pool.submit(cost_of, self.objective, program, code, self.arch)

            before: _RunningTrial | None = None
            for candidate in chosen:
                begun = self.begin(candidate, simulated)
                self.end(before)
                before = begun
            self.end(before)
        return self

    def begin(
        self, candidate: MappingCandidate, simulated: Callable[[PimProgram, Any], Future[ProgramCost]]
    ) -> "_RunningTrial":
        """Compiles a candidate, without verification, and starts its simulation. The best one is verified later."""
        name, unverified, known = candidate.name, Driver(verified=False), PassResults()
        try:
            mapped = candidate.decide(self.graph, self.arch)
            completed = complete(mapped, self.arch, aim=candidate.aim, driver=unverified)
            lowered = run_lowering(completed.mapped, self.arch, driver=unverified, known=completed.known, kept=known)
        except CapacityError as e:
            return _RunningTrial(SearchTrial(name, self.objective, fault=e))
        code = generate_code(lowered, self.backend, driver=unverified, known=completed.known, kept=known)
        cost = simulated(lowered.program, code)
        return _RunningTrial(SearchTrial(name, self.objective, completed.mapped.decision), cost, known)

    def end(self, begun: "_RunningTrial | None") -> None:
        """Waits for the cost of a trial, and keeps its pass results only if it is the best so far."""
        if begun is None:
            return
        trial = begun.trial if begun.cost is None else replace(begun.trial, cost=begun.cost.result())
        self.trials.append(trial)
        if trial is _best(self.trials):
            self.known = begun.known


@dataclass(frozen=True, slots=True)
class _RunningTrial:
    """A trial whose simulation is running; no `cost` if compilation failed. known: results of the passes."""

    trial: SearchTrial
    cost: Future[ProgramCost] | None = None
    known: PassResults | None = None


def mapping_candidates(objective: Objective) -> Iterator[MappingCandidate]:
    """Yields candidates, the most promising first; the second is the reference mapping."""
    usual = replace(DEFAULT_KNOBS, latency=LATENCY_WEIGHT[objective])
    aim = _aim(objective)
    yield MappingCandidate("rows", rows_strategy(usual), aim)
    yield MappingCandidate("raptor", RAPTOR, aim)
    for name, knobs in _knob_variations(usual, objective):
        yield MappingCandidate(f"rows, {name}", rows_strategy(knobs).without_search(), aim)


def pace_candidates(objective: Objective) -> Iterator[MappingCandidate]:
    """Yields candidates for a small graph, which do not depend on the chip's times; the second is the reference."""
    usual = replace(DEFAULT_KNOBS, latency=LATENCY_WEIGHT[objective])
    first, *others = (
        MappingCandidate(f"rows, times of {pace}", rows_strategy(usual), _aim(objective), pace)
        for pace in SEARCHED_PACES
    )
    yield first
    yield MappingCandidate("raptor", RAPTOR, _aim(objective), SEARCHED_PACES[0])
    yield from others
    yield from (
        MappingCandidate(f"rows, balanced, times of {pace}", ROWS, BALANCED_OBJECTIVE, pace) for pace in SEARCHED_PACES
    )
    for name, knobs in islice(_knob_variations(usual, objective), KNOB_VARIATIONS):
        for pace in SEARCHED_PACES:
            strategy = rows_strategy(knobs).without_search()
            yield MappingCandidate(f"rows, {name}, times of {pace}", strategy, _aim(objective), pace)


def _aim(objective: Objective) -> OrderObjective:
    return OrderObjective(objective, PATIENCE_FACTORS, SAMPLES_TRIED[objective])


def _knob_variations(usual: TuningKnobs, objective: Objective) -> Iterator[tuple[str, TuningKnobs]]:
    """Yields variations of the knobs `usual`, the most useful first.

    The order comes from measurements on the zoo (docs/lab/performance.md, "Search").
    """
    products = [(f"products x{p:g}", replace(usual, products=p)) for p in (4, 2, 0.5)]
    steps = [(f"steps of {s} ns", replace(usual, step_ns=s)) for s in (10_000, 20_000, 40_000)]
    shares = [(f"{s:.0%} of the cores", replace(usual, share=s)) for s in (0.5, 0.75, 0.4, 0.35)]
    larger_shares = [(f"{s:.0%} of the cores", replace(usual, share=s)) for s in (0.9, 0.8)]
    apart = "neighbours x0", replace(usual, neighbours=0.0)
    quicker = f"{apart[0]}, {products[2][0]}", replace(apart[1], products=0.5)
    lanes = f"{MOST_LANES} lanes", replace(usual, lanes=MOST_LANES)
    closely = "neighbours x1.1, steps of 3000 ns", replace(usual, neighbours=1.1, step_ns=3_000)
    if objective == "energy":
        yield from shares + products + steps
    elif objective == "latency":
        yield from [apart, quicker, lanes, *products, *larger_shares, *steps]
    else:
        yield from [closely, lanes, apart, *products, *larger_shares, *steps]
