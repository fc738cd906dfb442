"""Selection of the order of computes on each core, by latency and interval of consecutive samples.

A core runs the computes of each sample in the same order. The best order for a single sample on an idle chip starts all
work early, so a sample occupies each core from early until late and the next sample has to wait. So several consecutive
samples are scheduled, and the order of a later one is a candidate: there, work of a core begins when the core has
finished the previous sample.
"""

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

import numpy as np

from raptor.common.threads import Threads

if TYPE_CHECKING:
    from raptor.spatial.schedule_kernel import Floats, Ints, Work

ROUNDS = 4
"""Number of samples that are simulated to measure an interval; the last two intervals count as steady state."""

FAR = 2.0
"""Ratio of interval to lower bound above which one more sample is tried, because cores still wait for each other."""

MOST_SAMPLES = 6
"""Largest number of samples that are scheduled."""

_THREADS = 2
"""Number of threads, each for the orders of one patience. The compiled loops release the GIL."""


@dataclass(frozen=True, slots=True)
class Order:
    """Identifies an order: the list schedule with this patience (see `ByLine`), of this one of consecutive samples."""

    patience_ns: float
    sample: int


@dataclass(frozen=True, slots=True)
class Aim:
    """The objective by which an order is chosen, and the candidates.

    by: latency of one sample; interval, also for energy, because static energy is proportional to it; or latency x
    interval. patiences: candidates, as factors of the decision's patience. samples: number of samples to schedule.
    """

    by: Literal["latency", "throughput", "energy", "both"] = "both"
    patiences: tuple[float, ...] = (1.0,)
    samples: int = 1

    def cost(self, latency_ns: float, interval_ns: float) -> float:
        """Returns the objective; lower is better."""
        match self.by:
            case "latency":
                return latency_ns
            case "both":
                return latency_ns * interval_ns
            case "throughput" | "energy":
                return interval_ns


_Candidate = tuple[float, "Ints", Order]
"""Cost, order of the steps, and its identification."""

STORED = Aim()
"""Keep the order that the decision names."""

BALANCED = Aim("both", (1.0, 0.4), 2)
"""Default objective of a new decision."""


def named_order(work: "Work", named: Order) -> "Ints":
    """Returns the order of the steps that a decision names."""
    return _orders(work, named.patience_ns, named.sample + 1)[named.sample]


def best_order(work: "Work", named: Order, aim: Aim) -> tuple["Ints", Order]:
    """Returns the best order by `aim`, with patiences relative to that of `named`, and its identification."""
    patiences_ns = [named.patience_ns * factor for factor in aim.patiences]
    with Threads(_THREADS) as pool:
        candidates = [
            candidate for group in pool.map(partial(_candidates, work, aim), patiences_ns) for candidate in group
        ]
    _, order, name = min(candidates, key=itemgetter(0))
    return order, name


def _candidates(work: "Work", aim: Aim, patience_ns: float) -> list[_Candidate]:
    """Returns the candidate orders of one patience, of at least `aim.samples` samples.

    Where values pass through many cores, each further sample is closer to the steady state. So if several samples are
    scheduled and the best interval is far above its bound, samples are added as long as they improve the objective.
    """
    candidates = _of_samples(work, aim, patience_ns, aim.samples)
    while 1 < len(candidates) < MOST_SAMPLES and _waits(work, min(candidates, key=itemgetter(0))[1]):
        more = _of_samples(work, aim, patience_ns, len(candidates) + 1)
        if more[-1][0] >= min(cost for cost, *_ in candidates):
            break
        candidates = more
    return candidates


def _of_samples(work: "Work", aim: Aim, patience_ns: float, samples: int) -> list[_Candidate]:
    """Returns the orders of `samples` consecutive samples with one patience, with their costs."""
    orders = enumerate(_orders(work, patience_ns, samples))
    return [(aim.cost(*_times(work, order)), order, Order(patience_ns, sample)) for sample, order in orders]


def _orders(work: "Work", patience_ns: float, samples: int) -> "Ints":
    """Returns [samples, steps]: the order of the steps of each of several consecutive samples."""
    from raptor.spatial.schedule_kernel import all_of, idle, list_schedule, nothing  # loaded only where it runs

    ordered = np.empty((samples, len(work.core)), np.int64)
    todo, queue = all_of(work, samples), nothing(work)
    list_schedule(ordered, idle(work, samples), work, todo, queue, np.argsort(work.rank), patience_ns)
    return ordered


def balanced_cost(work: "Work", patience_ns: float) -> float:
    """Returns latency x interval in ns2 of the order that `BALANCED` would choose for a patience."""
    orders = (_of_samples(work, BALANCED, patience_ns * factor, BALANCED.samples) for factor in BALANCED.patiences)
    return min(cost for candidates in orders for cost, *_ in candidates)


def early(work: "Work", patience_ns: float) -> tuple["Ints", "Floats"]:
    """Returns the order of one sample on an idle chip, and the ns at which the inputs of each step are ready."""
    from raptor.spatial.schedule_kernel import idle, run_in_order

    order = _orders(work, patience_ns, 1)[0]
    ready_ns = np.zeros((1, len(order)))
    run_in_order(np.zeros(1), ready_ns, idle(work, 1), work, order)
    return order, ready_ns[0]


def _times(work: "Work", order: "Ints") -> tuple[float, float]:
    """Returns latency and interval in ns of samples that follow one order.

    The interval is at least the time for which a sample occupies the port of global memory.
    """
    from raptor.spatial.schedule_kernel import idle, run_in_order

    ends_ns, ready_ns = np.zeros(ROUNDS), np.zeros((ROUNDS, len(order)))
    run_in_order(ends_ns, ready_ns, idle(work, ROUNDS), work, order)
    return float(ends_ns[0]), max(float(ends_ns[-1] - ends_ns[-3]) / 2, float(work.memory_ns.sum()))


def _waits(work: "Work", order: "Ints") -> bool:
    """True if the interval of an order is far above the load of its busiest core and of the global memory port.

    Transfers do not queue at the port here: `_times` serves the transfers of a sample in the given order, which alone
    may look like a wait in a small model.
    """
    alone = work._replace(memory_ns=np.zeros_like(work.memory_ns), work_ns=work.memory_ns + work.work_ns)
    _, interval_ns = _times(alone, order)
    return interval_ns > FAR * max(_busiest_ns(work), float(work.memory_ns.sum()))


def _busiest_ns(work: "Work") -> float:
    """Returns the time per sample of the core with most work, messages included."""
    sends = work.peer >= 0
    cores = np.concatenate([work.core, work.peer[sends]])
    return float(np.bincount(cores, np.concatenate([work.occupied_ns, work.sender_ns[sends]])).max())
