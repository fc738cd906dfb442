"""Evaluates a decision before anything is lowered: what binds, and latency and interval by a list schedule."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.work_schedule import schedule_work
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, OrderObjective, estimate_order_times
from raptor.target.arch import Target

MOST_ROUNDS = 64
"""Largest number of steps in which the work of a node is scheduled: more lines are joined."""


@dataclass(frozen=True, slots=True)
class WorkBounds:
    """Lower bounds on the interval of a decision, in ns, as `explain` shows them for a program.

    busy_ns: work of each core. port_ns: time at the port of global memory.
    """

    busy_ns: Mapping[int, float]
    port_ns: float

    @classmethod
    def from_work(cls, works: list[NodeWork], arch: Target) -> "WorkBounds":
        busy_ns = Counter[int]()
        for work in works:
            busy_ns.update(work.core_ns(arch))
        return cls(busy_ns, sum(memory.port_ns for work in works for memory in work.memory.values()))

    @property
    def busiest_ns(self) -> float:
        """Work of the core with most work."""
        return max(self.busy_ns.values(), default=0.0)

    @property
    def total_ns(self) -> float:
        """Work of all cores together."""
        return sum(self.busy_ns.values())

    @property
    def least_interval_ns(self) -> float:
        """The larger bound."""
        return max(self.busiest_ns, self.port_ns)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Estimated times of a decision in ns: of a single sample, and between samples in the steady state."""

    latency_ns: float
    interval_ns: float
    bounds: WorkBounds


def evaluate(graph: Graph, decision: Decision, arch: Target, aim: OrderObjective = BALANCED_OBJECTIVE) -> Evaluation:
    """Evaluates a decision about a graph that has all rewrites. `aim`: that of the order of work."""
    works = decision_work(graph, decision, arch)
    bounds = WorkBounds.from_work(works, arch)
    patience_ns = decision.flow.patience_ns if isinstance(decision.flow, LineFlow) else chip_patience_ns(arch)
    times = estimate_order_times(schedule_work(works, arch, MOST_ROUNDS), patience_ns, aim)
    return Evaluation(*times, bounds)
