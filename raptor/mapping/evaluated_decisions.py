"""Decisions with their evaluated times: the best of those that a search has evaluated, and the next best ones."""

import math
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate

from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import WorkBounds
from raptor.mapping.evaluation.graph_facts import GraphFacts
from raptor.mapping.evaluation.work_schedule import schedule_work
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, COMPARED_SAMPLE, StepOrder, compare_times
from raptor.mapping.scheduling.sample_stages import estimate_staged_interval
from raptor.target.arch import Target

PORT_BINDS = 0.85
"""Least share of the interval for which the port is busy where it binds."""

FREE_LATENCY, FREE_INTERVAL = 1.03, 1.1
"""Growth of the evaluated times of a decision, relative to the first one, above which it counts twice if both count.

With an interval evaluated as 1.045, ResNet-18 has one of 0.96.
"""

WORTH_CHANGING = 0.97
"""Largest evaluated cost of a decision, relative to the first decision, for it to replace the first decision."""

MOST_COMPARED_STEPS = 36_000
"""Largest number of scheduled steps of all decisions whose computes are compared with those of the best.

To make the computes of a decision takes 0.2 s of a processor with 11,000 steps, and 1.8 s with 38,000.
"""

MOST_COMPARED = 6
"""Largest number of decisions whose computes are compared with those of the best."""

WORTH_COMPARING = 1.5
"""Largest evaluated cost, relative to that of the best decision, for the computes of another one to be compared."""


@dataclass(frozen=True, slots=True)
class EvaluatedDecision:
    """A decision with its evaluated latency and interval in ns. steps: number of scheduled steps.

    knobs, corrections: by which it was made; see `RowMapper.plan`.
    """

    decision: Decision
    knobs: TuningKnobs
    corrections: Mapping[str, float]
    bounds: WorkBounds
    latency_ns: float
    interval_ns: float
    steps: int

    @property
    def waits_for_port(self) -> bool:
        """True if the port of global memory binds the interval."""
        return self.bounds.port_ns >= PORT_BINDS * self.interval_ns

    def cost(self, latency: float) -> float:
        """Returns the cost that a search minimises: interval in ns times latency in ns to the power of `latency`."""
        return self.interval_ns * self.latency_ns**latency


Evaluation = tuple[WorkBounds, Future[EvaluatedDecision] | None]
"""Bounds of a decision, and its times, which a thread finds; none if its interval is too long."""


@dataclass(frozen=True, slots=True)
class ComparedDecisions:
    """Several decisions for one graph; each is lowered to its computes, and the best one by the list schedule is kept.

    decisions: the first stays unless a later one is better. reference_ns: latency and interval in ns. If the latency or
    the interval of a decision is longer, the excess counts twice. None: the times of the first decision.
    """

    decisions: tuple[Decision, ...]
    reference_ns: tuple[float, float] | None = None


@dataclass(slots=True, eq=False)
class EvaluatedDecisions:
    """The decisions about a graph that a search has evaluated; the first one is the reference of all others.

    latency: weight of the latency in their cost. most_lines: largest number of rounds of a node. pool: a thread that
    schedules decisions while the next ones are made. known: all decisions. found: the times of those that are
    scheduled. steps: steps scheduled so far.
    """

    graph: Graph
    arch: Target
    facts: GraphFacts
    latency: float
    most_lines: int
    pool: CheckedThreadPool
    known: list[tuple[Decision, Evaluation]] = field(default_factory=list[tuple[Decision, Evaluation]])
    found: list[Future[EvaluatedDecision]] = field(default_factory=list["Future[EvaluatedDecision]"])
    steps: int = 0

    @property
    def best(self) -> EvaluatedDecision:
        """The best decision so far: the first one, unless another is better by enough."""
        first, *others = (found.result() for found in self.found)
        best = min([first, *others], key=lambda found: self.cost_beside(first, found))
        worth_changing = self.cost_beside(first, best) <= WORTH_CHANGING * first.cost(self.latency)
        return best if worth_changing else first

    def best_since(self, first: EvaluatedDecision, count: int) -> EvaluatedDecision:
        """Returns the best of `first` and of the decisions but for the first `count`, beside the times of `first`."""
        found = (found.result() for found in self.found[count:])
        return min([first, *found], key=lambda each: self.cost_beside(first, each))

    def find_compared(self) -> ComparedDecisions | None:
        """Returns the first decision and the best ones, if they are near the best one; None if no other one is near.

        Without the best one, they have `MOST_COMPARED_STEPS` steps together at most. The first one counts as if no core
        waited, because relays may save it from waiting. If it is not near even so, its evaluated times are the
        reference of the others.
        """
        first, *others = (found.result() for found in self.found)
        best, cost = self.best, {id(found): self.cost_beside(first, found) for found in others}
        cost[id(first)] = replace(first, interval_ns=first.bounds.least_interval_ns).cost(self.latency)
        most = WORTH_COMPARING * self.cost_beside(first, best)
        near = [found for found in (first, *others) if cost[id(found)] <= most]
        near = sorted((found for found in near if found is not best), key=lambda n: (n is not first, cost[id(n)]))
        fitting = sum(steps <= MOST_COMPARED_STEPS for steps in accumulate(found.steps for found in near))
        near = near[: min(fitting, MOST_COMPARED)]
        if not near:
            return None
        compared = sorted((best, *near), key=lambda found: found is not first)
        reference_ns = None if compared[0] is first else (first.latency_ns, first.interval_ns)
        return ComparedDecisions(tuple(found.decision for found in compared), reference_ns)

    def cost_beside(self, first: EvaluatedDecision, found: EvaluatedDecision) -> float:
        """Returns the cost of a decision; what its times grow beyond those of the first one counts twice."""
        growth = 1.0
        if self.latency == 1:
            growth = max(1.0, found.latency_ns / (FREE_LATENCY * first.latency_ns))
            growth *= max(1.0, found.interval_ns / (FREE_INTERVAL * first.interval_ns))
        return growth * found.cost(self.latency)

    @property
    def longest_interval_ns(self) -> float:
        """Longest lower bound of the interval with which a decision is still scheduled, in ns."""
        limited = self.found and self.latency == 1
        return FREE_INTERVAL * self.found[0].result().interval_ns if limited else math.inf

    def evaluate(
        self,
        decision: Decision,
        knobs: TuningKnobs,
        corrections: Mapping[str, float] | None = None,
        *,
        limited: bool = True,
    ) -> Evaluation:
        """Returns the bounds of a decision, and its times, which a thread finds; none if its interval is too long.

        knobs, corrections: by which it was made. limited: a decision is only scheduled if its interval may be near that
        of the first one; else, decisions like it with cores for moves may be much better.
        """
        for known, evaluation in self.known:
            if known == decision:
                return evaluation
        works = decision_work(self.graph, decision, self.arch, self.facts)
        bounds = WorkBounds.from_work(works, self.arch)
        if limited and bounds.least_interval_ns > self.longest_interval_ns:
            self.known.append((decision, (bounds, None)))
            return bounds, None
        steps = schedule_work(works, self.arch, self.most_lines)
        self.steps += len(steps.core)
        assert isinstance(decision.flow, LineFlow)
        patience_ns = decision.flow.patience_ns

        def scheduled() -> EvaluatedDecision:
            latency_ns, interval_ns = compare_times(steps, patience_ns, BALANCED_OBJECTIVE.patiences)
            if knobs.stages > 1:
                base = StepOrder(patience_ns, COMPARED_SAMPLE)
                interval_ns = min(interval_ns, estimate_staged_interval(steps, base, int(knobs.stages)))
            times_ns = latency_ns, interval_ns
            return EvaluatedDecision(decision, knobs, corrections or {}, bounds, *times_ns, len(steps.core))

        self.found.append(self.pool.submit(scheduled))
        self.known.append((decision, (bounds, self.found[-1])))
        return bounds, self.found[-1]
