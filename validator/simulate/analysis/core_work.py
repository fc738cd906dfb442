"""Computes the least work of each core without any waiting, and splits the time of a core in a run.

The least time of an instruction is its time if it never has to wait. A core cannot do a sample faster than the sum of
these times (with a reorder buffer: than its busiest part). The time of a message beyond its least time is waiting.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target.isa import OPCODE, Timing
from raptor.target.opcode_tables import MATRIX, SCALAR, TRANSFER, UNIT, VECTOR, timing_mask
from validator.simulate.cycle import cycle_model
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import CoreColumn, DemandColumn

Ints = npt.NDArray[np.int64]

_IS_MEMORY = timing_mask(Timing.LOAD, Timing.STORE, Timing.FILL, Timing.COPY)
_IS_NETWORK = timing_mask(Timing.SEND, Timing.RECEIVE, Timing.GIVE_TOKEN, Timing.WAIT)
_IS_SEND = timing_mask(Timing.SEND)


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Split of the time of a core until it ends, ns; the sum is that end. Of parts that overlap, the first one counts.

    `memory`: loads, stores and local copies, with the waiting for the port. `network`: messages, without the waiting
    for their other side. `rest`: scalar instructions, the cycle between two instructions, and time without work.
    """

    matrix: float
    vector: float
    memory: float
    network: float
    wait_send: float
    wait_receive: float
    rest: float


@dataclass(frozen=True, slots=True, eq=False)
class LeastWork:
    """Least times, ps.

    `least`: least time of each instruction from entering its unit to its completion. `total`: least time of each core
    for a sample; `products`: its part on the crossbars. `port`: time at the port of global memory.
    """

    least: Ints
    total: Ints
    products: Ints
    port: int


def compute_least_work(machine: CycleModel) -> LeastWork:
    """Computes the least times from the program and the chip, without a run."""
    demand = cycle_model.compute_demands(machine)
    period = round(machine.period_ns * 1000)
    unit = machine.unit_index
    scalar, product = unit == SCALAR, unit == MATRIX
    # One cycle until the end is noticed; a product enters its group a cycle after it counts as started.
    least = np.where(scalar, 0, (-(-demand[:, DemandColumn.TIME] // period) + 1 + product) * period)
    if machine.numbers.rob_size == 1:
        total = _by_core(machine, least + period)
        products = _by_core(machine, np.where(product, least, 0))
    else:
        local = demand[:, DemandColumn.LOCAL]
        products = np.maximum(_busiest_group(machine, least - period), _by_core(machine, np.where(product, local, 0)))
        units = [_by_core(machine, np.where(unit == one, least, 0)) for one in (VECTOR, TRANSFER)]
        issue = _by_core(machine, np.full(len(least), period, np.int64))
        total = np.maximum.reduce([products, *units, _by_core(machine, local), issue])
    return LeastWork(least, total, products, int(demand[:, DemandColumn.GLOBAL].sum()))


def _by_core(machine: CycleModel, amounts: Ints) -> Ints:
    ends = np.concatenate([[0], np.cumsum(amounts)])
    return ends[machine.first[1:]] - ends[machine.first[:-1]]


def _busiest_group(machine: CycleModel, amounts: Ints) -> Ints:
    at = np.flatnonzero(machine.opcodes == OPCODE["mvmul"])
    core = machine.core_index[at]
    groups = np.zeros(len(machine.xbars), np.int64)
    np.add.at(groups, machine.group_first[core] + machine.words[at, 3], amounts[at])
    busiest = np.zeros(machine.core_count, np.int64)
    np.maximum.at(busiest, core, groups[machine.group_first[core] + machine.words[at, 3]])
    return busiest


def split_core_time(machine: CycleModel, run: CycleRun, work: LeastWork, i: int) -> TimeSplit:
    """Splits the time of core i (its place in `machine.cores`) in a run of one sample."""
    finish = int(run.core[i, CoreColumn.FINISH]) * round(machine.period_ns * 1000)
    begins, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
    times: list[int] = [0]
    for begin, end in _activities(machine, run, work, slice(machine.first[i], machine.first[i + 1])):
        begins, ends = np.concatenate([begins, begin]), np.concatenate([ends, end])
        times.append(_covered(begins, ends))
    return TimeSplit(*(float(ps) / 1000 for ps in np.diff([*times, finish])))


def _activities(machine: CycleModel, run: CycleRun, work: LeastWork, stream: slice) -> Iterator[tuple[Ints, Ints]]:
    """Yields begin and end of the activities of each field of `Split`, in its order, except `rest`."""
    opcodes, begin, end = machine.opcodes[stream], run.start[stream], run.end[stream]
    # The time of an instruction beyond its least time is waiting, and comes first.
    ready = np.maximum(begin, end - work.least[stream])
    unit = UNIT[opcodes]
    product, vector, busy = unit == MATRIX, unit == VECTOR, unit != SCALAR
    memory, network, sending = _IS_MEMORY[opcodes], _IS_NETWORK[opcodes], _IS_SEND[opcodes]
    yield begin[product], end[product]
    yield begin[vector], end[vector]
    yield begin[memory], end[memory]
    yield ready[network], end[network]
    yield begin[sending], ready[sending]
    yield begin[busy & ~sending], ready[busy & ~sending]


def _covered(begin: Ints, end: Ints) -> int:
    """Returns the time in which at least one of the activities goes on, ps."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    return int(np.maximum(end - np.maximum(begin, before), 0).sum())
