"""Evaluates a decision: latency, interval and what binds, by the list schedule of its work."""

from dataclasses import dataclass

import numpy as np

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
class Evaluation:
    """Estimated times of a decision in ns.

    latency_ns: of a single sample. interval_ns: between samples in the steady state. busiest_ns: work of the core with
    most work, `core`. port_ns: time at the port of global memory.
    """

    latency_ns: float
    interval_ns: float
    busiest_ns: float
    core: int
    port_ns: float


def evaluate(graph: Graph, decision: Decision, arch: Target, aim: OrderObjective = BALANCED_OBJECTIVE) -> Evaluation:
    """Evaluates a decision about a graph that has all rewrites."""
    return evaluate_work(decision_work(graph, decision, arch), decision, arch, aim)


def evaluate_work(
    works: list[NodeWork], decision: Decision, arch: Target, aim: OrderObjective = BALANCED_OBJECTIVE
) -> Evaluation:
    """Evaluates the work of a decision."""
    patience_ns = decision.flow.patience_ns if isinstance(decision.flow, LineFlow) else chip_patience_ns(arch)
    work = schedule_work(works, arch, MOST_ROUNDS)
    latency_ns, interval_ns = estimate_order_times(work, patience_ns, aim)
    busy: dict[int, float] = {}
    for node in works:
        for core, ns in node.core_ns(arch).items():
            busy[core] = busy.get(core, 0.0) + ns
    core = max(busy, key=busy.__getitem__, default=0)
    return Evaluation(latency_ns, interval_ns, busy.get(core, 0.0), core, float(np.sum(work.memory_ns)))
