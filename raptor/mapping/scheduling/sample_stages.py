"""Stages of a program that works on several samples at once.

A core runs its stream again and again, so a step may stand before the steps that it waits for: it then reads the value
that they made in the pass before. In pass k, a step of *stage* s works on sample k - s. So a core no longer waits
inside a sample, and the interval comes down to the work of the fullest core (software pipelining; Lam, PLDI 1988).

There are two ways to stages. Slices of time: a step that begins late in a schedule of one sample has a later stage. Or
a modulo schedule: each core has the time of one interval, in slots, and in a known order each step takes the first free
slots of its cores after its inputs. Slices have few copies, and gain most if layers work one after another. Then a list
schedule orders a pass, in which a step waits for steps of its own stage only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count as count_up
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import numpy as np

from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.mapping.scheduling.order_selection import (
    THREADS,
    StepOrder,
    busiest_ns,
    list_orders,
    measure_latency,
    measure_times,
    named_order,
    schedule_early,
)

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Floats, Ints, SampleWork

SLOTS = 16_384
"""Slots of an interval in the modulo schedule."""
INTERVALS = 1.05, 1.15, 1.3, 1.6, 2.0
"""Intervals of the modulo schedule that are tried, as factors of the least one; longer ones give fewer stages."""
SLICES = *(k / 20 for k in range(22, 41)), *(k / 4 for k in range(9, 17))
"""Slices of time that are tried, as the number of slices in the latency of a sample: 1.1 to 2.0, and up to 4.0.

Their estimates are uneven: VGG-16 has 3.28 ms with 1.4 slices, 3.10 with 1.45, and 4.8 with 1.8.
"""
COMPARED_SLICES = 1.2, 1.4, 1.6, 1.8, 2.0, 3.0
"""Numbers of slices into which the latency is cut (see `SLICES`) when decisions are compared before lowering."""
FIRST_PATIENCES, FIRST_SAMPLES = (1 / 20, 1.0), 3
"""Patiences and samples of the list schedules by which the stages are compared at first."""
FEWEST_FINALISTS, FINAL_STEPS = 4, 200_000
"""Fewest assignments of stages that are tried with all patiences and samples; most steps of all together above that."""
PATIENCES = 1 / 20, 1 / 3, 2 / 3, 1.0
"""Patiences of the list schedule that are tried, as factors of the decision's."""
WRAPPED_ROUNDS = 8
"""Rounds in which a step before one that it waits for is raised; afterwards, groups alone raise steps."""
SAMPLES = 8
"""Samples that the list schedule schedules: the orders of later ones are closer to the steady state."""
WORTH_STAGES = 0.98
"""Largest interval with stages, relative to the one without, that is worth the delay of the outputs.

The steady state is simulated over few samples: with a smaller gain, BERT-tiny was slower over more of them.
"""


StageMethod = Literal["modulo", "slices"]


@dataclass(frozen=True, slots=True)
class StageOrder:
    """Identifies stages and an order: the length of a slice or the interval of a modulo schedule; a list schedule."""

    interval_ns: float
    order: StepOrder
    method: StageMethod = "modulo"


@dataclass(frozen=True, slots=True, eq=False)
class StageRules:
    """Constraints on the stages of steps, without which a step would combine values of different samples.

    first: steps that read inputs of the model, which work on the sample of the pass. member, group: pairs of a step and
    a group whose steps have one stage, because they make one tile or one output.
    """

    first: "Ints"
    member: "Ints"
    group: "Ints"


@dataclass(frozen=True, slots=True, eq=False)
class StagedOrder:
    """An order of the steps with a stage for each, its estimated interval in ns, and the name that a file stores."""

    order: "Ints"
    stage: "Ints"
    interval_ns: float
    name: StageOrder


def list_staged_orders(
    work: "SampleWork", base: StepOrder, rules: StageRules, version_ns: "Floats", most: int
) -> list[StagedOrder]:
    """Returns orders of 2 to `most` stages, the one with the shortest estimated interval first.

    `base`: the order of one sample, whose estimated interval they are below by enough (`WORTH_STAGES`). `version_ns`:
    time of a copy of the results of each step; copies of older values count. All assignments of stages are compared by
    few list schedules, the best of them by more. At most one order is returned for each assignment and each patience.
    """
    order, least_ns = named_order(work, base), max(busiest_ns(work), float(work.memory_ns.sum()))
    enough_ns = WORTH_STAGES * measure_times(work, order)[1]
    if least_ns >= enough_ns:
        return []
    latency_ns = measure_latency(work, schedule_early(work, base.patience_ns)[0])
    ways = [StageOrder(factor * least_ns, base) for factor in INTERVALS]
    ways += [StageOrder(latency_ns / count, base, "slices") for count in SLICES]
    distinct = _distinct_stages(work, order, base, rules, ways, most)
    compared = _find_staged_orders(work, version_ns, base, [*distinct.values()], FIRST_PATIENCES, FIRST_SAMPLES)
    most_finalists = max(FINAL_STEPS // len(order), FEWEST_FINALISTS)
    finalists = [*dict.fromkeys(one.stage.tobytes() for one in compared)][:most_finalists]
    found = _find_staged_orders(work, version_ns, base, [distinct[stage] for stage in finalists], PATIENCES, SAMPLES)
    return [each for each in found if each.interval_ns < enough_ns]


def estimate_staged_interval(work: "SampleWork", base: StepOrder, most: int) -> float:
    """Returns the shortest interval in ns that a few orders with 2 to `most` stages have; infinite if there are none.

    It compares decisions whose values are not known yet: all steps are free of rules, and no copies count.
    """
    nothing, order = np.zeros(0, np.int64), named_order(work, base)
    latency_ns = measure_latency(work, schedule_early(work, base.patience_ns)[0])
    ways = [StageOrder(latency_ns / count, base, "slices") for count in COMPARED_SLICES]
    named = _distinct_stages(work, order, base, StageRules(nothing, nothing, nothing), ways, most)
    free_ns = np.zeros(len(order))
    found = _find_staged_orders(work, free_ns, base, [*named.values()], FIRST_PATIENCES, FIRST_SAMPLES)
    return min((each.interval_ns for each in found), default=math.inf)


def _distinct_stages(
    work: "SampleWork", order: "Ints", base: StepOrder, rules: StageRules, ways: Sequence[StageOrder], most: int
) -> "dict[bytes, tuple[StageOrder, Ints]]":
    """Returns the different assignments of 2 to `most` stages, by their bytes, each with the first way to it."""
    distinct: dict[bytes, tuple[StageOrder, Ints]] = {}
    for way in ways:
        stage = _assign_stages(work, order, base.patience_ns, rules, way)
        if 0 < stage.max() < most:
            distinct.setdefault(stage.tobytes(), (way, stage))
    return distinct


def _find_staged_orders(
    work: "SampleWork",
    version_ns: "Floats",
    base: StepOrder,
    named: "Sequence[tuple[StageOrder, Ints]]",
    patiences: Sequence[float],
    samples: int,
) -> list[StagedOrder]:
    """Returns the best order of each assignment of stages and patience, the shortest estimated interval first.

    `named`: assignments with their names. `patiences`: factors of the patience of `base`.
    """
    tried = [(*chosen, patience * base.patience_ns) for chosen in named for patience in patiences]
    with CheckedThreadPool(THREADS) as pool:
        found = [*pool.map(partial(_find_staged_order, work, version_ns, samples), tried)]
    return sorted(found, key=attrgetter("interval_ns"))


def _find_staged_order(
    work: "SampleWork", version_ns: "Floats", samples: int, named: "tuple[StageOrder, Ints, float]"
) -> StagedOrder:
    """Returns the order of a pass with the shortest estimated interval, of those of a list schedule's samples."""
    way, stage, patience_ns = named
    inside, tried = within_stages(work, stage), list[StagedOrder]()
    for sample, order in enumerate(list_orders(inside, patience_ns, samples)):
        copied_ns = count_copies(work, order, stage) * version_ns
        times_ns = measure_times(inside._replace(work_ns=work.work_ns + copied_ns), order)
        name = replace(way, order=StepOrder(patience_ns, sample))
        tried.append(StagedOrder(order, stage, times_ns[1], name))
    return min(tried, key=attrgetter("interval_ns"))


def count_copies(work: "SampleWork", order: "Ints", stage: "Ints") -> "Ints":
    """Returns how many older versions of its results each step needs, for readers that are behind it."""
    place, copies = np.empty(len(order), np.int64), np.zeros(len(order), np.int64)
    place[order] = np.arange(len(order))
    maker = work.used_steps
    late = stage[work.users] - stage[maker] - (place[work.users] < place[maker])
    np.maximum.at(copies, maker, late)
    return copies


def named_stages(work: "SampleWork", base: StepOrder, rules: StageRules, named: StageOrder) -> tuple["Ints", "Ints"]:
    """Returns the order of the steps and the stage of each that a decision names."""
    order = named_order(work, base)
    stage = _assign_stages(work, order, base.patience_ns, rules, named)
    return named_order(within_stages(work, stage), named.order), stage


def _assign_stages(
    work: "SampleWork", order: "Ints", patience_ns: float, rules: StageRules, named: StageOrder
) -> "Ints":
    if named.method == "slices":
        early, ready_ns = schedule_early(work, patience_ns)
        return slice_stages(work, early, rules, ready_ns, named.interval_ns)
    return modulo_stages(work, order, rules, named.interval_ns)


def slice_stages(work: "SampleWork", order: "Ints", rules: StageRules, ready_ns: "Floats", slice_ns: float) -> "Ints":
    """Returns the stage of each step: the number of the slice of time in which its inputs are there."""
    before = np.empty(len(order), np.int64)
    before[order] = np.arange(len(order))
    first = _first_steps(work, order, rules)
    return _settle_stages((ready_ns // slice_ns).astype(np.int64), work, order, rules, first, before)


def modulo_stages(work: "SampleWork", order: "Ints", rules: StageRules, interval_ns: float) -> "Ints":
    """Returns the stage of each step by a modulo schedule. `order`: an order of one sample."""
    from raptor.mapping.scheduling.stage_kernel import ModuloTable, modulo_schedule  # loaded only where it runs

    count, cores = len(order), work.core_count
    begin_ns, free = np.zeros(count), np.tile(np.arange(SLOTS + 1), (cores, 1))
    table = ModuloTable(free, np.zeros(cores, np.int64), np.zeros(cores), np.zeros(count))
    modulo_schedule(begin_ns, table, work, order, interval_ns / SLOTS)
    first = _first_steps(work, order, rules)
    place, before = np.empty(count, np.int64), np.empty(count, np.int64)
    before[order] = np.arange(count)
    place[np.lexsort((before, np.where(first > 0, -1.0, begin_ns % interval_ns)))] = np.arange(count)
    return _settle_stages(np.zeros(count, np.int64), work, order, rules, first, place)


def _first_steps(work: "SampleWork", order: "Ints", rules: StageRules) -> "Ints":
    """Returns 1 for each step that must be in stage 0, because a step in its group, or after it, reads an input."""
    from raptor.mapping.scheduling.stage_kernel import mark_ancestors  # loaded only where it runs

    first, groups = np.zeros(len(order), np.int64), int(rules.group.max(initial=-1)) + 1
    first[rules.first] = 1
    while True:
        mark_ancestors(first, work, order)
        together = np.zeros(groups, np.int64)
        np.maximum.at(together, rules.group, first[rules.member])
        if (first[rules.member] == together[rules.group]).all():
            return first
        np.maximum.at(first, rules.member, together[rules.group])


def _settle_stages(
    stage: "Ints", work: "SampleWork", order: "Ints", rules: StageRules, first: "Ints", place: "Ints"
) -> "Ints":
    """Raises stages until all rules hold. `place`: of each step in a pass, as the stages were made for."""
    from raptor.mapping.scheduling.stage_kernel import raise_stages  # loaded only where it runs

    before, groups = np.empty(len(order), np.int64), int(rules.group.max(initial=-1)) + 1
    before[order] = np.arange(len(order))
    for trial in count_up():
        # A step that is between two steps of one group would raise them again and again.
        raise_stages(stage, place if trial < WRAPPED_ROUNDS else before, work, order)
        stage[first > 0] = 0
        together = np.zeros(groups, np.int64)
        np.maximum.at(together, rules.group, stage[rules.member])
        if (stage[rules.member] == together[rules.group]).all():
            return stage
        np.maximum.at(stage, rules.member, together[rules.group])
    raise AssertionError("stages are bounded")


def within_stages(work: "SampleWork", stage: "Ints") -> "SampleWork":
    """Returns the work without dependences between steps of different stages."""
    count, earlier = len(stage), work.used_steps
    kept = stage[earlier] == stage[work.users]
    earlier, later = earlier[kept], np.ascontiguousarray(work.users[kept])
    return work._replace(
        waiting=np.bincount(later, minlength=count),
        first_user=np.searchsorted(earlier, np.arange(count + 1)).astype(np.int64),
        users=later,
    )
