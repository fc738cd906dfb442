"""Activity of each core over time, in a limited number of intervals (bins)."""

import numpy as np
import numpy.typing as npt

from raptor.target.isa import Timing
from raptor.target.opcode_tables import MATRIX, TRANSFER, UNIT, VECTOR, timing_mask
from validator.profile.node_profile import count_parts
from validator.profile.profile_results import ACTIVITY_KINDS, NOBODY, CoreTimeline
from validator.profile.profiled_program import ProfiledProgram
from validator.profile.traffic import find_partners

Ints = npt.NDArray[np.int64]

MOST_BINS = 400
MOST_CELLS = 100_000
"""Most bins of all cores together, so that a page stays small for thousands of cores."""


def choose_bin_count(cores: int) -> int:
    return max(16, min(MOST_BINS, MOST_CELLS // max(cores, 1)))


def make_timeline(read: ProfiledProgram) -> CoreTimeline | None:
    """Returns the timeline of the cores that have instructions; None without times."""
    from validator.profile.profile_kernels import add_to_bins, find_longest  # pyright: ignore[reportUnknownVariableType] kernels

    machine, run = read.machine, read.run
    live = np.flatnonzero(np.diff(machine.first))
    if run is None or not len(live):
        return None
    bins = choose_bin_count(len(live))
    total_ps = run.last_tick * round(machine.period_ns * 1000)
    width = max(1, -(-total_ps // bins))
    work, waiting = _kinds(machine.opcodes)
    amounts = np.zeros((len(ACTIVITY_KINDS), machine.core_count, bins), np.int64)
    core_of = machine.core_index
    ended = run.end - round(machine.period_ns * 1000)
    add_to_bins(core_of, waiting, run.start, run.start + run.waited, width, amounts)
    add_to_bins(core_of, work, ended - run.busy, ended, width, amounts)
    part = np.full((machine.core_count, bins), NOBODY, np.int64)
    partner = np.full((machine.core_count, bins), NOBODY, np.int64)
    find_longest(machine.first, read.part_index, count_parts(read), run.start, run.end, width, part)
    find_longest(
        machine.first, find_partners(read), machine.core_count, run.start, run.start + run.waited, width, partner
    )
    partner[partner >= 0] = machine.cores[partner[partner >= 0]]
    return CoreTimeline(
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
        waiting[timing_mask(timing)] = kind
    return work[opcodes], waiting[opcodes]
