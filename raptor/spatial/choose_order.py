"""Pass that completes a decision by the order of work on each core: the best of some list schedules."""

from dataclasses import dataclass, replace

from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.scheduling.order_selection import STORED_ORDER, OrderObjective, StepOrder, choose_step_order
from raptor.spatial.mesh_placement import place_cores
from raptor.spatial.placed_graph import PlacedGraph, Schedule
from raptor.spatial.refine import Refined
from raptor.spatial.scheduling.list_schedule import ScheduleProblem, schedule
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class Ordered:
    """A complete decision.

    placed, schedule: results of `place_cores` and `schedule` for it, if deciding took them; else None.
    """

    decision: Decision
    placed: PlacedGraph | None = None
    schedule: Schedule | None = None

    def __str__(self) -> str:
        return f"{self.decision}"


def choose_order(refined: Refined, arch: Target, aim: OrderObjective) -> Ordered:
    """Names the list schedule that is best for `aim`, by its patience and sample (see `LineFlow`).

    Only a streamed decision by line has a choice. With `STORED_ORDER`, and for a decision that was complete before, the
    order that the decision names stays.
    """
    decision, flow = refined.decision, refined.decision.flow
    if refined.partition is None:
        return Ordered(decision)
    placed = place_cores(refined.partition, decision, arch)
    if aim == STORED_ORDER or not isinstance(flow, LineFlow) or not flow.streamed or not placed.cores:
        return Ordered(decision, placed, schedule(placed, decision, arch))
    problem = ScheduleProblem.from_graph(arch, placed, range(len(placed.cores)))
    order, name = choose_step_order(problem.work(), StepOrder(flow.patience_ns, flow.sample), aim)
    chosen = replace(decision, flow=replace(flow, patience_ns=name.patience_ns, sample=name.sample))
    return Ordered(chosen, placed, Schedule(placed, problem.fetched, tuple(order.tolist())))
