"""Orders of the work of a sample, and the choice of the best one for samples that follow one another.

A core does the work of each sample in the same order. An order that is quick for one sample on an idle chip begins all
work as early as it can; then a core is occupied by a sample from early on until late, and the next one has to wait. So
several samples are scheduled one after another, and the order of a later one is taken: there, work begins when the core
has done its work of the sample before.
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
"""Number of samples after which an interval is measured: the last two intervals are those of the steady state."""

FAR = 2.0
"""Times its lower bound that an interval is for one more sample to be tried: cores still wait for each other then."""

MOST_SAMPLES = 6
"""The largest number of samples that are tried so."""

_THREADS = 2
"""Number of threads, each with the orders of one patience: the compiled loops run without Python's lock."""


@dataclass(frozen=True, slots=True)
class Order:
    """The name of an order: of which of the samples that follow one another it is, and the patience (see `ByLine`)."""

    patience_ns: float
    sample: int


@dataclass(frozen=True, slots=True)
class Aim:
    """The measure by which an order is chosen, and the orders to choose from.

    by: the time of a sample alone; the interval, on which the energy of a sample depends too; or the product of both.
    patiences: those to try, as factors on the patience of the decision. samples: number of samples to schedule.
    """

    by: Literal["latency", "throughput", "energy", "both"] = "both"
    patiences: tuple[float, ...] = (1.0,)
    samples: int = 1

    def cost(self, latency_ns: float, interval_ns: float) -> float:
        """Returns the measure, of which less is better."""
        match self.by:
            case "latency":
                return latency_ns
            case "both":
                return latency_ns * interval_ns
            case "throughput" | "energy":
                return interval_ns


_Candidate = tuple[float, "Ints", Order]
"""Cost, order and its name."""

STORED = Aim()
"""Takes the order that the decision names."""

BALANCED = Aim("both", (1.0, 0.4), 2)
"""The default for a new decision."""


def best_order(work: "Work", named: Order, aim: Aim) -> tuple["Ints", Order]:
    """Returns the best order of some work, and its name; without a choice (`STORED`), the `named` one."""
    if aim == STORED:
        return _orders(work, named.patience_ns, named.sample + 1)[named.sample], named
    patiences_ns = [named.patience_ns * factor for factor in aim.patiences]
    with Threads(_THREADS) as pool:
        found = [candidate for some in pool.map(partial(_candidates, work, aim), patiences_ns) for candidate in some]
    _, order, name = min(found, key=itemgetter(0))
    return order, name


def _candidates(work: "Work", aim: Aim, patience_ns: float) -> list[_Candidate]:
    """Returns the orders of one patience to choose from, of at least as many samples as the aim says.

    Where values pass through many cores, each sample comes closer to the steady state. So if several are scheduled and
    the best order is far from the bound, one more sample is tried, and again one more as long as that is better.
    """
    found = _of_samples(work, aim, patience_ns, aim.samples)
    while 1 < len(found) < MOST_SAMPLES and _waits(work, min(found, key=itemgetter(0))[1]):
        more = _of_samples(work, aim, patience_ns, len(found) + 1)
        if more[-1][0] >= min(cost for cost, *_ in found):
            break
        found = more
    return found


def _of_samples(work: "Work", aim: Aim, patience_ns: float, samples: int) -> list[_Candidate]:
    """Returns the orders of so many samples with one patience. Of equally good ones, the first wins."""
    orders = enumerate(_orders(work, patience_ns, samples))
    return [(aim.cost(*_times(work, order)), order, Order(patience_ns, sample)) for sample, order in orders]


def _orders(work: "Work", patience_ns: float, samples: int) -> "Ints":
    """Returns the order of the work of each sample, if so many follow one another."""
    from raptor.spatial.schedule_kernel import all_of, idle, list_schedule, nothing  # loaded only where it runs

    ordered = np.empty((samples, len(work.core)), np.int64)
    todo, queue = all_of(work, samples), nothing(work)
    list_schedule(ordered, idle(work, samples), work, todo, queue, np.argsort(work.rank), patience_ns)
    return ordered


def balanced_cost(work: "Work", patience_ns: float) -> float:
    """Returns latency x interval in ns2 of the order that would be chosen by default with a patience."""
    orders = (_of_samples(work, BALANCED, patience_ns * factor, BALANCED.samples) for factor in BALANCED.patiences)
    return min(cost for found in orders for cost, *_ in found)


def early(work: "Work", patience_ns: float) -> tuple["Ints", "Floats"]:
    """Returns the order of the work of one sample on an idle chip, and when each compute has its inputs then."""
    from raptor.spatial.schedule_kernel import idle, run_in_order

    order = _orders(work, patience_ns, 1)[0]
    ready_ns = np.zeros((1, len(order)))
    run_in_order(np.zeros(1), ready_ns, idle(work, 1), work, order)
    return order, ready_ns[0]


def _times(work: "Work", order: "Ints") -> tuple[float, float]:
    """Returns latency and interval in ns of samples whose work is done in one order.

    No interval is shorter than the time that the port of global memory is busy for a sample.
    """
    from raptor.spatial.schedule_kernel import idle, run_in_order

    ends_ns, ready_ns = np.zeros(ROUNDS), np.zeros((ROUNDS, len(order)))
    run_in_order(ends_ns, ready_ns, idle(work, ROUNDS), work, order)
    return float(ends_ns[0]), max(float(ends_ns[-1] - ends_ns[-3]) / 2, float(work.memory_ns.sum()))


def _waits(work: "Work", order: "Ints") -> bool:
    """Tells whether the interval of an order is far longer than its busiest core and the port of global memory need.

    Transfers do not queue at the port here: `_times` lets those of a sample come one after another in the given order,
    and in a small model that alone may look like a wait.
    """
    alone = work._replace(memory_ns=np.zeros_like(work.memory_ns), work_ns=work.memory_ns + work.work_ns)
    _, interval_ns = _times(alone, order)
    return interval_ns > FAR * max(_busiest_ns(work), float(work.memory_ns.sum()))


def _busiest_ns(work: "Work") -> float:
    """Returns the time of a sample on the core that works and sends most."""
    sends = work.peer >= 0
    cores = np.concatenate([work.core, work.peer[sends]])
    return float(np.bincount(cores, np.concatenate([work.occupied_ns, work.sender_ns[sends]])).max())
