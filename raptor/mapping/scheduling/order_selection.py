"""Selection of the order of computes on each core, by latency and interval of consecutive samples.

A core runs the computes of each sample in the same order. The best order for a single sample on an idle chip starts all
work early, so a sample occupies each core from early until late and the next sample has to wait. So several consecutive
samples are scheduled, and the order of a later one is a candidate: there, work of a core begins when the core has
finished the previous sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from raptor.common.process.thread_pool import CheckedThreadPool

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Floats, Ints, SampleWork

MEASURED_SAMPLES = 1, 3
"""Samples between whose ends the interval is measured, from 0: the first one finds a chip at rest."""

WAITING_SAMPLES = 12
"""Number of samples that wait to be begun while an interval is measured, more than are on the chip at once.

Behind the last one, the port of global memory has less to do. With five, a GoogLeNet of 64 x 64 pixels on 500 cores,
which has six samples on the chip, was evaluated with 48 us for 70.
"""

COMPARED_SAMPLE = 1
"""Sample whose order counts when decisions are compared, from 0."""

WAITING_RATIO = 2.0
"""Ratio of interval to lower bound above which more samples are tried, because cores still wait for each other."""

MOST_SAMPLES = 8
"""Largest number of samples that are scheduled where cores wait; an objective may ask for more (`samples`)."""

WORTH_CHANGING = 0.98
"""Largest cost of the order of another decision, relative to the first one, for it to be better."""

FREE_GROWTH = 1.1
"""Growth of latency or interval, by the objective "both", above which it counts twice.

On 64 cores of `bench`, an image behind Unsqueeze has 166 and 82 us with lanes, and 148 and 142 us without.
"""

THREADS = 2
"""Number of threads, each for the orders of one patience. The compiled loops release the GIL."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Identifies an order: the list schedule of a sample with a patience (see `LineFlow`)."""

    patience_ns: float
    sample: int


@dataclass(frozen=True, slots=True)
class OrderObjective:
    """The objective by which an order is chosen, and the candidates.

    by: latency of one sample; interval, also for energy, because static energy is proportional to it; or latency x
    interval. patiences: candidates, as factors of the decision's patience. samples: number of samples to schedule.
    """

    criterion: Literal["latency", "throughput", "energy", "both"] = "both"
    patiences: tuple[float, ...] = (1.0,)
    samples: int = 1

    def cost(self, latency_ns: float, interval_ns: float) -> float:
        """Returns the objective; lower is better."""
        match self.criterion:
            case "latency":
                return latency_ns
            case "both":
                return latency_ns * interval_ns
            case "throughput" | "energy":
                return interval_ns

    def is_better(
        self,
        times_ns: tuple[float, float],
        than_ns: tuple[float, float],
        reference_ns: tuple[float, float] | None = None,
    ) -> bool:
        """Returns True if the cost of a latency and interval is below the cost of others by enough.

        If both count, growth of either beyond `reference_ns` by more than `FREE_GROWTH` counts twice. `reference_ns`:
        a latency and interval, too; `than_ns` if None.
        """
        reference_ns = reference_ns or than_ns
        return self._cost_beside(reference_ns, times_ns) < WORTH_CHANGING * self._cost_beside(reference_ns, than_ns)

    def _cost_beside(self, reference_ns: tuple[float, float], times_ns: tuple[float, float]) -> float:
        """Returns the cost; if both times count, what they grow beyond `reference_ns` counts twice."""
        pairs = zip(times_ns, reference_ns, strict=True)
        growth = prod(max(1.0, new / (FREE_GROWTH * old)) for new, old in pairs) if self.criterion == "both" else 1.0
        return growth * self.cost(*times_ns)


class OrderCandidate(NamedTuple):
    """An order of the steps with its identification, its latency and interval in ns, and its cost."""

    cost: float
    order: "Ints"
    name: StepOrder
    times_ns: tuple[float, float]


STORED_ORDER = OrderObjective()
"""Keep the order that the decision names."""

BALANCED_OBJECTIVE = OrderObjective("both", (1.0, 0.4), 2)
"""Default objective of a new decision."""


def named_order(work: "SampleWork", named: StepOrder) -> "Ints":
    """Returns the order of the steps that a decision names."""
    return list_orders(work, named.patience_ns, named.sample + 1)[named.sample]


def choose_step_order(work: "SampleWork", named: StepOrder, aim: OrderObjective) -> "OrderCandidate":
    """Returns the best order by `aim`, with patiences relative to that of `named`."""
    patiences_ns = [named.patience_ns * factor for factor in aim.patiences]
    with CheckedThreadPool(THREADS) as pool:
        candidates = [
            candidate for group in pool.map(partial(_candidates, work, aim), patiences_ns) for candidate in group
        ]
    return min(candidates, key=attrgetter("cost"))


def _candidates(work: "SampleWork", aim: OrderObjective, patience_ns: float) -> list[OrderCandidate]:
    """Returns the candidate orders of one patience, of at least `aim.samples` samples.

    Where values pass through many cores, each further sample is closer to the steady state. So if several samples are
    scheduled and the best interval is far above its bound, `MOST_SAMPLES` are.
    """
    candidates = _of_samples(work, aim, patience_ns, range(aim.samples))
    if 1 < len(candidates) < MOST_SAMPLES and _waits(work, min(candidates, key=attrgetter("cost"))):
        candidates += _of_samples(work, aim, patience_ns, range(len(candidates), MOST_SAMPLES))
    return candidates


def _of_samples(
    work: "SampleWork", aim: OrderObjective, patience_ns: float, samples: Sequence[int]
) -> list[OrderCandidate]:
    """Returns the orders of some of consecutive samples with one patience, with their costs."""
    found, orders = list[OrderCandidate](), list_orders(work, patience_ns, samples[-1] + 1)
    for sample in samples:
        times_ns = measure_times(work, orders[sample])
        name = StepOrder(patience_ns, sample)
        found.append(OrderCandidate(aim.cost(*times_ns), orders[sample], name, times_ns))
    return found


def list_orders(work: "SampleWork", patience_ns: float, samples: int) -> "Ints":
    """Returns [samples, steps]: the order of the steps of each of several consecutive samples."""
    from raptor.mapping.scheduling.schedule_kernel import (  # loaded only where it runs
        all_steps,
        empty_heaps,
        empty_tree,
        idle_chip,
        list_schedule,
    )

    ordered = np.empty((samples, len(work.core)), np.int64)
    todo, heaps = all_steps(work, samples), empty_heaps(work)
    chip, tree = idle_chip(work, samples), empty_tree(len(heaps.size))
    list_schedule(ordered, chip, work, todo, heaps, tree, np.argsort(work.rank), patience_ns)
    return ordered


def estimate_order_times(work: "SampleWork", patience_ns: float, aim: OrderObjective) -> tuple[float, float]:
    """Returns latency and interval in ns of the order that `choose_step_order` would choose."""
    candidates = [c for factor in aim.patiences for c in _candidates(work, aim, patience_ns * factor)]
    return min(candidates, key=attrgetter("cost")).times_ns


def compare_times(work: "SampleWork", patience_ns: float, factors: Sequence[float]) -> tuple[float, float]:
    """Returns latency and interval in ns by which decisions are compared: means over patiences, of a later sample.

    `factors`: on the patience. The best of several orders would depend on chance: for a decision with few messages
    more, it may be better by a tenth. The order of a first sample is no candidate, as it occupies each core from the
    beginning, when constants are loaded. Means are geometric.
    """
    orders = [list_orders(work, patience_ns * factor, COMPARED_SAMPLE + 1)[COMPARED_SAMPLE] for factor in factors]
    latency_ns, interval_ns = np.exp(np.log([measure_times(work, order) for order in orders]).mean(axis=0)).tolist()
    return latency_ns, interval_ns


def balanced_cost(work: "SampleWork", patience_ns: float) -> float:
    """Returns latency x interval in ns2 of the order that `BALANCED_OBJECTIVE` would choose for a patience."""
    orders = (
        _of_samples(work, BALANCED_OBJECTIVE, patience_ns * factor, range(BALANCED_OBJECTIVE.samples))
        for factor in BALANCED_OBJECTIVE.patiences
    )
    return min(candidate.cost for candidates in orders for candidate in candidates)


def schedule_early(work: "SampleWork", patience_ns: float) -> tuple["Ints", "Floats"]:
    """Returns the order of one sample on an idle chip, and the ns at which the inputs of each step are ready."""
    from raptor.mapping.scheduling.schedule_kernel import idle_chip, run_in_order

    order = list_orders(work, patience_ns, 1)[0]
    ready_ns = np.zeros(len(order))
    run_in_order(ready_ns, idle_chip(work), work, order)
    return order, ready_ns


def measure_latency(work: "SampleWork", order: "Ints") -> float:
    """Returns the latency in ns of one sample alone that follows an order."""
    from raptor.mapping.scheduling.schedule_kernel import core_sequences, replay

    return float(replay(work, core_sequences(work, order), 1, 0)[0])


def measure_times(work: "SampleWork", order: "Ints") -> tuple[float, float]:
    """Returns latency and interval in ns of samples that follow one order: of one alone, and of several.

    The interval is at least the time for which a sample occupies the port of global memory.
    """
    from raptor.mapping.scheduling.schedule_kernel import core_sequences, replay

    sequences = core_sequences(work, order)
    first, last = MEASURED_SAMPLES
    (latency_ns,), ends_ns = replay(work, sequences, 1, 0), replay(work, sequences, WAITING_SAMPLES, last)
    interval_ns = float(ends_ns[last] - ends_ns[first]) / (last - first)
    return float(latency_ns), max(interval_ns, float(work.memory_ns.sum()))


def _waits(work: "SampleWork", found: OrderCandidate) -> bool:
    """True if the interval of an order is far above the load of its busiest core and of the global memory port."""
    return found.times_ns[1] > WAITING_RATIO * max(busiest_ns(work), float(work.memory_ns.sum()))


def busiest_ns(work: "SampleWork") -> float:
    """Returns the time per sample of the core with most work, messages included."""
    sends = work.peer >= 0
    cores = np.concatenate([work.core, work.peer[sends]])
    return float(np.bincount(cores, np.concatenate([work.occupied_ns, work.sender_ns[sends]])).max())
