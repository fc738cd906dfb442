"""Stages of a program that works on several samples at once.

A core runs its stream again and again, so a step may stand before the steps that it waits for: it then reads the value
that they made in the pass before. In pass k, a step of *stage* s works on sample k - s. So a core no longer waits
inside a sample, and the interval comes down to the work of the fullest core (software pipelining; Lam, PLDI 1988).

Stages come from a modulo schedule: each core has the time of one interval, in slots, and in a known order each step
takes the first free slots of its cores after its inputs. Then a list schedule orders a pass, in which a step waits for
steps of its own stage only.
"""

from dataclasses import dataclass
from itertools import count as count_up
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from raptor.mapping.scheduling.order_selection import (
    StepOrder,
    busiest_ns,
    list_orders,
    measure_times,
    named_order,
)

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Floats, Ints, SampleWork

SLOTS = 16_384
"""Slots of an interval in the modulo schedule."""
INTERVALS = 1.05, 1.15, 1.3, 1.45, 1.6, 2.0, 2.5
"""Intervals of the modulo schedule that are tried, as factors of the least one; longer ones give fewer stages."""
PATIENCES = 1 / 20, 1 / 6, 1 / 3
"""Patiences of the list schedule that are tried, as factors of the decision's."""
WRAPPED_ROUNDS = 8
"""Rounds in which a step before one that it waits for is raised; afterwards, groups alone raise steps."""
SAMPLES = 8
"""Samples that the list schedule schedules: the orders of later ones are closer to the steady state."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """Identifies stages and an order: the modulo schedule of an interval, and the list schedule after it."""

    interval_ns: float
    order: StepOrder


@dataclass(frozen=True, slots=True, eq=False)
class StageRules:
    """The constraints on stages that keep the values of a step of one sample.

    first: steps that read inputs of the model, which work on the sample of the pass. member, group: pairs of a step and
    a group whose steps have one stage, because they make one tile or one output.
    """

    first: "Ints"
    member: "Ints"
    group: "Ints"


@dataclass(frozen=True, slots=True, eq=False)
class StagedOrder:
    """An order of the steps, the stage of each, the estimated interval in ns, and the name that makes both again."""

    order: "Ints"
    stage: "Ints"
    interval_ns: float
    name: StageOrder


def list_staged_orders(
    work: "SampleWork", order: "Ints", rules: StageRules, version_ns: "Floats", patience_ns: float, most: int
) -> list[StagedOrder]:
    """Returns orders of 2 to `most` stages, the one with the shortest estimated interval first.

    `order`: of one sample. `version_ns`: time of a copy of the results of each step; copies of older values count. At
    most one order is returned for each interval of the modulo schedule and each patience of the list schedule.
    """
    least_ns, found = max(busiest_ns(work), float(work.memory_ns.sum())), list[StagedOrder]()
    for factor in INTERVALS:
        stage = assign_stages(work, order, rules, factor * least_ns)
        if not 0 < stage.max() < most:
            continue
        inside = within_stages(work, stage)
        for patience in PATIENCES:
            tried = list[StagedOrder]()
            for sample, staged in enumerate(list_orders(inside, patience * patience_ns, SAMPLES)):
                copied_ns = count_copies(work, staged, stage) * version_ns
                interval_ns = measure_times(inside._replace(work_ns=work.work_ns + copied_ns), staged)[1]
                name = StageOrder(factor * least_ns, StepOrder(patience * patience_ns, sample))
                tried.append(StagedOrder(staged, stage, interval_ns, name))
            found.append(min(tried, key=attrgetter("interval_ns")))
    return sorted(found, key=attrgetter("interval_ns"))


def count_copies(work: "SampleWork", order: "Ints", stage: "Ints") -> "Ints":
    """Returns how many older versions of its results each step needs, for readers that are behind it."""
    place, copies = np.empty(len(order), np.int64), np.zeros(len(order), np.int64)
    place[order] = np.arange(len(order))
    maker = np.repeat(np.arange(len(order)), np.diff(work.first_user))
    late = stage[work.users] - stage[maker] - (place[work.users] < place[maker])
    np.maximum.at(copies, maker, late)
    return copies


def named_stages(work: "SampleWork", base: StepOrder, rules: StageRules, named: StageOrder) -> tuple["Ints", "Ints"]:
    """Returns the order of the steps and the stage of each that a decision names."""
    stage = assign_stages(work, named_order(work, base), rules, named.interval_ns)
    return named_order(within_stages(work, stage), named.order), stage


def assign_stages(work: "SampleWork", order: "Ints", rules: StageRules, interval_ns: float) -> "Ints":
    """Returns the stage of each step by a modulo schedule. `order`: an order of one sample."""
    from raptor.mapping.scheduling.stage_kernel import (  # loaded only where it runs
        ModuloTable,
        mark_ancestors,
        modulo_schedule,
        raise_stages,
    )

    count, cores = len(order), len(work.first_pair) - 1
    begin_ns, free = np.zeros(count), np.tile(np.arange(SLOTS + 1), (cores, 1))
    table = ModuloTable(free, np.zeros(cores, np.int64), np.zeros(cores), np.zeros(count))
    modulo_schedule(begin_ns, table, work, order, interval_ns / SLOTS)
    first = np.zeros(count, np.int64)
    first[rules.first] = 1
    groups = int(rules.group.max(initial=-1)) + 1
    while True:
        mark_ancestors(first, work, order)
        together = np.zeros(groups, np.int64)
        np.maximum.at(together, rules.group, first[rules.member])
        if (first[rules.member] == together[rules.group]).all():
            break
        np.maximum.at(first, rules.member, together[rules.group])
    place, stage, before = np.empty(count, np.int64), np.zeros(count, np.int64), np.empty(count, np.int64)
    before[order] = np.arange(count)
    place[np.lexsort((before, np.where(first > 0, -1.0, begin_ns % interval_ns)))] = np.arange(count)
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
    count = len(stage)
    earlier = np.repeat(np.arange(count), np.diff(work.first_user))
    kept = stage[earlier] == stage[work.users]
    earlier, later = earlier[kept], np.ascontiguousarray(work.users[kept])
    return work._replace(
        waiting=np.bincount(later, minlength=count),
        first_user=np.searchsorted(earlier, np.arange(count + 1)).astype(np.int64),
        users=later,
    )
