"""Pass that completes a decision by the order of work on each core: the best of some list schedules."""

from dataclasses import replace

from raptor.mapping.decision import LineFlow
from raptor.mapping.scheduling.order_selection import STORED_ORDER, OrderObjective, StepOrder, choose_step_order
from raptor.spatial.placed_graph import Schedule
from raptor.spatial.refine import DecisionProgress
from raptor.spatial.scheduling.list_schedule import ScheduleProblem, schedule
from raptor.target.arch import Target


def choose_order(done: DecisionProgress, arch: Target, aim: OrderObjective) -> DecisionProgress:
    """Names the list schedule that is best for `aim`, by its patience and sample (see `LineFlow`).

    Only a streamed decision by line has a choice. With `STORED_ORDER`, and for a decision that was complete before, the
    order that the decision names stays.
    """
    decision, flow, placed = done.decision, done.decision.flow, done.placed
    if placed is None:
        return done
    if aim == STORED_ORDER or not isinstance(flow, LineFlow) or not flow.streamed or not placed.cores:
        return replace(done, schedule=schedule(placed, decision, arch))
    problem = ScheduleProblem.from_graph(arch, placed, range(len(placed.cores)))
    best = choose_step_order(problem.sample_work(), StepOrder(flow.patience_ns, flow.sample), aim)
    chosen = replace(decision, flow=replace(flow, patience_ns=best.name.patience_ns, sample=best.name.sample))
    ordered = Schedule(placed, problem.fetched, tuple(problem.finished(best.order).tolist()))
    return replace(done, decision=chosen, schedule=ordered, times_ns=best.times_ns)
