"""Activity of each core over time, in a limited number of intervals (bins)."""

import numpy as np
import numpy.typing as npt

from raptor.target.isa import Timing
from raptor.target.opcode_tables import MATRIX, TRANSFER, UNIT, VECTOR, timed
from validator.profile.facts import KINDS, NOBODY, Timeline
from validator.profile.parts import part_count
from validator.profile.source import Source
from validator.profile.traffic import partners

Ints = npt.NDArray[np.int64]

MOST_BINS = 400
MOST_CELLS = 100_000
"""Most bins of all cores together, so that a page stays small for thousands of cores."""


def bins_for(cores: int) -> int:
    return max(16, min(MOST_BINS, MOST_CELLS // max(cores, 1)))


def timeline_of(read: Source) -> Timeline | None:
    """Returns the timeline of the cores that have instructions; None without times."""
    from validator.profile.profile_kernels import longest, spread  # pyright: ignore[reportUnknownVariableType] kernels

    machine, run = read.machine, read.run
    live = np.flatnonzero(np.diff(machine.first))
    if run is None or not len(live):
        return None
    bins = bins_for(len(live))
    total_ps = run.last_tick * round(machine.period_ns * 1000)
    width = max(1, -(-total_ps // bins))
    work, waiting = _kinds(machine.opcodes)
    amounts = np.zeros((len(KINDS), machine.count, bins), np.int64)
    core_of = machine.core_of
    ended = run.end - round(machine.period_ns * 1000)
    spread(core_of, waiting, run.start, run.start + run.waited, width, amounts)
    spread(core_of, work, ended - run.busy, ended, width, amounts)
    part = np.full((machine.count, bins), NOBODY, np.int64)
    partner = np.full((machine.count, bins), NOBODY, np.int64)
    longest(machine.first, read.part, part_count(read), run.start, run.end, width, part)
    longest(machine.first, partners(read), machine.count, run.start, run.start + run.waited, width, partner)
    partner[partner >= 0] = machine.cores[partner[partner >= 0]]
    return Timeline(
        cores=tuple(int(c) for c in machine.cores[live]),
        bin_ns=width / 1000,
        shares=(amounts[:, live] / width).astype(np.float32),
        part=part[live],
        partner=partner[live],
    )


def _kinds(opcodes: npt.NDArray[np.int32]) -> tuple[Ints, Ints]:
    """Returns for every instruction the kind (index of `KINDS`) of its work and of its waiting; `NOBODY` for none."""
    work = np.full(256, NOBODY, np.int64)
    waiting = np.full(256, NOBODY, np.int64)
    for kind, unit in enumerate((MATRIX, VECTOR, TRANSFER)):
        work[unit == UNIT] = kind
    for kind, timing in enumerate((Timing.SEND, Timing.RECEIVE, Timing.WAIT), 3):
        waiting[timed(timing)] = kind
    return work[opcodes], waiting[opcodes]
