"""Search for the stages of a program whose samples overlap, by the figures of the built-in simulator.

The estimate of the list schedule alone is not enough: copies of older values delay messages, and for some models every
order with stages is worse than the one without, which therefore is a candidate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from raptor import spatial
from raptor.codegen.machine_backend import CostModel, MachineBackend
from raptor.common.errors import CapacityError, UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import Objective
from raptor.compiler.pass_driver import Driver, PassResults
from raptor.compiler.pipeline import Completed, generate_code, run_lowering
from raptor.mapping.decision import LineFlow, StageSplit
from raptor.mapping.scheduling.order_selection import StepOrder
from raptor.mapping.scheduling.sample_stages import WORTH_STAGES, list_staged_orders
from raptor.pim import PimProgram
from raptor.spatial import Schedule
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.target.arch import Target

FEWEST_SIMULATED, MOST_SIMULATED, SIMULATED_STEPS = 4, 24, 400_000
"""Number of orders with stages that are simulated, those of the shortest estimated intervals.

The more for a small program, as long as all together have at most `SIMULATED_STEPS` steps: there, estimates are off by
a tenth or two.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StagedCandidate:
    """A decision whose samples overlap in stages, and its estimated interval in ns.

    program: virtual core and core of the computes, order and stages of the steps. Decisions that differ in the order of
    one sample alone may have equal ones.
    """

    interval_ns: float
    done: Completed
    program: tuple[tuple[int, ...], ...]


def overlap_samples(
    done: Completed,
    arch: Target,
    backend: MachineBackend[Any],
    most: int,
    objective: Objective = "throughput",
    others: Sequence[Completed] = (),
) -> Completed:
    """Returns the decision with the stages, at most `most`, whose program costs a machine least for an objective.

    `others`: decisions that are worse without stages. `done` stays as it is if no program with stages is better, or if
    more cores would exceed their local memory. Raises `UserError` if its computes are not scheduled line by line.
    """
    if not _is_streamed(done):
        raise UserError(f"{spell_option('overlap', most)}: only for mappings in which lines of images stream")
    bases = [done, *filter(_is_streamed, others)]
    candidates = {found.program: found for base in bases for found in _list_candidates(base, arch, most)}
    if not candidates:
        return done
    best, (first, most_over) = done, simulate_figure(done, arch, backend, objective)
    least = WORTH_STAGES * first
    for candidate in sorted(candidates.values(), key=attrgetter("interval_ns"))[: _count_simulated(candidates)]:
        try:
            figure, over = simulate_figure(candidate.done, arch, backend, objective)
        except CapacityError:
            continue  # versions of values beyond the memory_size of the architecture file
        if figure < least and over <= most_over:
            best, least = candidate.done, figure
    return best


def _count_simulated(programs: Iterable[tuple[tuple[int, ...], ...]]) -> int:
    steps = max(max(map(len, program)) for program in programs)
    return min(max(SIMULATED_STEPS // steps, FEWEST_SIMULATED), MOST_SIMULATED)


def _is_streamed(done: Completed) -> bool:
    flow = done.mapped.decision.flow
    return isinstance(flow, LineFlow) and flow.streamed


def _list_candidates(done: Completed, arch: Target, most: int) -> list[StagedCandidate]:
    """Returns the decision with different stages, the shortest estimated intervals first."""
    # By the times of another chip, a core or the port may seem to work all the time, so that stages gain nothing.
    decision = replace(done.mapped.decision, pace="own")
    flow = decision.flow
    assert isinstance(flow, LineFlow), "streamed"
    partition = done.known.get(spatial.partition) or spatial.partition(done.mapped.graph, decision, arch)
    placed = done.known.get(spatial.place_cores) or spatial.place_cores(partition, decision, arch)
    if not placed.cores:
        return []
    problem = ScheduleProblem.from_graph(arch, placed, range(len(placed.cores)))
    base, candidates = StepOrder(flow.patience_ns, flow.sample), list[StagedCandidate]()
    found = list_staged_orders(problem.sample_work(), base, problem.stage_rules(), problem.version_ns(), most)
    for staged in found[:MOST_SIMULATED]:
        name = staged.name
        split = StageSplit(name.interval_ns, name.order.patience_ns, name.order.sample, name.method)
        known = PassResults()
        known.put(spatial.partition, partition)
        known.put(spatial.place_cores, placed)
        order, stages = tuple(staged.order.tolist()), tuple(staged.stage.tolist())
        known.put(spatial.schedule, Schedule(placed, problem.fetched, order, stages))
        mapped = replace(done.mapped, decision=replace(decision, flow=replace(flow, stages=split)))
        program = partition.cores, placed.cores, order, stages
        candidates.append(StagedCandidate(staged.interval_ns, Completed(mapped, known), program))
    return candidates


def simulate_figure(
    done: Completed, arch: Target, backend: MachineBackend[Any], objective: Objective
) -> tuple[float, int]:
    """Returns the figure of an objective, and the number of cores that exceed their local memory."""
    assert isinstance(backend, CostModel), "others refuse the option"
    quiet = Driver(verified=False)
    lowered = run_lowering(done.mapped, arch, driver=quiet, known=done.known)
    code = generate_code(lowered, backend, driver=quiet)
    cost = backend.cost(objective, lowered.program, code, arch)
    return cost.figure(objective), _cores_over(lowered.program, arch)


def _cores_over(program: PimProgram, arch: Target) -> int:
    return sum(core.local_bytes > arch.memory_size_bytes for core in program.cores.values())
