"""Searches for a good mapping: compiles candidates and runs them in the built-in simulator (docs/simulation.md).

The search is deterministic: candidates are a fixed list, and the first `effort` of them are tried in order. A candidate
that does not fit the chip is recorded and skipped. The second one is the reference mapping, so with an effort of 2 or
more, the result is never worse than the reference by the measure of the simulator.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest

from raptor.codegen import Streams
from raptor.common.beside import Copy
from raptor.common.errors import CapacityError
from raptor.common.options import Objective
from raptor.driver import Driver
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.knobs import DEFAULT, Knobs
from raptor.mapping.reference import map_raptor
from raptor.mapping.rows import map_rows
from raptor.mapping.strategies import Strategy
from raptor.mapping.trial import Cost, Trial
from raptor.pim import PimProgram
from raptor.pipeline import run
from raptor.search.cost import cost_for
from raptor.spatial import Schedule
from raptor.spatial.orders import Aim
from raptor.target.arch import Target

EFFORT = 4
"""Default number of mappings that a search tries."""

LATENCY: dict[Objective, float] = {"latency": 8.0, "throughput": 0.0, "energy": 0.0}
"""Weight of the latency against the interval where layers may share cores in turns (`Knobs.latency`)."""
PATIENCES, DEPTH = (1.0, 1 / 3, 1 / 6, 2.0), 3
"""Factors on the patience, and number of samples, of the orders from which each candidate takes its best."""


def search(
    graph: Graph, arch: Target, objective: Objective, effort: int, *, in_two: bool = False
) -> tuple[Decision, tuple[Trial, ...]]:
    """Returns the best decision (the first of equal ones), and at most `effort` trials in their order.

    `in_two`: a copy of the process tries every second candidate (see `Copy` for when there may be one). Raises the
    `CapacityError` of the first trial if none fits the chip.
    """
    chosen = [*islice(candidates(objective), effort)]
    if in_two and effort > 1:
        with Copy(partial(_tried, chosen[1::2], graph, arch, objective)) as other:
            pairs = zip_longest(_tried(chosen[::2], graph, arch, objective), other.result())
        trials = tuple(trial for pair in pairs for trial in pair if trial is not None)
    else:
        trials = _tried(chosen, graph, arch, objective)
    best = min(trials, key=lambda t: t.figure)
    if best.decision is None:
        assert trials[0].fault is not None, "a trial has a decision or a fault"
        raise trials[0].fault
    return best.decision, trials


def _tried(
    chosen: Sequence[tuple[str, Strategy]], graph: Graph, arch: Target, objective: Objective
) -> tuple[Trial, ...]:
    """Returns the trials of candidates, given by name and strategy."""
    # NOTE: the simulator runs without Python's lock, beside the compilation of the next candidate.
    with ThreadPoolExecutor(1) as pool:

        def simulated(program: PimProgram, streams: Streams) -> Future[Cost]:
            return pool.submit(cost_for, objective, program, streams, arch)

        begun = [_begin(name, strategy, graph, arch, objective, simulated) for name, strategy in chosen]
    return tuple(replace(trial, cost=cost.result()) if cost else trial for trial, cost in begun)


def _begin(
    name: str,
    strategy: Strategy,
    graph: Graph,
    arch: Target,
    objective: Objective,
    simulated: Callable[[PimProgram, Streams], Future[Cost]],
) -> tuple[Trial, Future[Cost] | None]:
    """Compiles one candidate and starts its simulation. Does not verify: the best candidate is compiled again."""
    try:
        decision = strategy(graph, arch)
        values = run(graph, decision, arch, aim=Aim(objective, PATIENCES, DEPTH), driver=Driver(verified=False))
    except CapacityError as e:
        return Trial(name, objective, fault=e), None
    ordered = replace(decision, flow=values[Schedule].flow)
    return Trial(name, objective, ordered), simulated(values[PimProgram], values[Streams])


def candidates(objective: Objective) -> Iterator[tuple[str, Strategy]]:
    """Yields names and strategies of candidates, the most promising first; the second is the reference mapping."""
    usual = replace(DEFAULT, latency=LATENCY[objective])
    yield "rows", partial(map_rows, knobs=usual)
    yield "raptor", map_raptor
    for name, knobs in _turned(usual, objective):
        yield f"rows, {name}", partial(map_rows, knobs=knobs)


def _turned(usual: Knobs, objective: Objective) -> Iterator[tuple[str, Knobs]]:
    """Yields knobs that differ from `usual` in one number, the most useful ones first.

    The order comes from measurements on the zoo (docs/performance.md, "Search").
    """
    products = [(f"products x{p:g}", replace(usual, products=p)) for p in (4, 2, 0.5)]
    steps = [(f"steps of {s} ns", replace(usual, step_ns=s)) for s in (5_000, 20_000, 40_000)]
    shares = [(f"{s:.0%} of the cores", replace(usual, share=s)) for s in (0.5, 0.75, 0.35)]
    larger_shares = [(f"{s:.0%} of the cores", replace(usual, share=s)) for s in (0.9, 0.8)]
    quicker = f"{steps[0][0]}, {products[2][0]}", replace(steps[0][1], products=0.5)
    if objective == "energy":
        yield from shares + products + steps
    elif objective == "latency":
        yield from [steps[0], quicker, *products, *larger_shares, *steps[1:]]
    else:
        yield from [products[0], steps[0], *products[1:], *larger_shares, *steps[1:]]
