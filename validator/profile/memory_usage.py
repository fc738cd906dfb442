"""Counts the bytes of local memory in use by each core over time, from the streams and the times of a run."""

import numpy as np

from raptor.target.opcode_tables import OPCODE_RULES, RuleColumn
from validator.checks.rule_subject import CheckSubject
from validator.checks.rules.memory_accesses import known_matrix_shapes
from validator.profile.profile_results import LocalMemoryUse
from validator.profile.profiled_program import ProfiledProgram
from validator.profile.timeline import choose_bin_count

REMEMBERED_BYTES = 2**24
"""Bytes of a core's memory that are tracked; higher addresses are left out."""
_TABLE = 2**8
"""Elements of the largest lookup table."""


def profile_local_memory(read: ProfiledProgram) -> LocalMemoryUse | None:
    """Returns the use of local memory by the cores that have instructions; None without times."""
    from validator.checks.check_kernels import count_live_bytes

    machine, run, subject = read.machine, read.run, read.subject
    live = np.flatnonzero(np.diff(machine.first))
    # The rules number the instructions of all cores, the model only those of instantiated cores. The numbers are equal
    # if the other cores have no instructions.
    if run is None or not len(live) or len(subject.columns) != len(machine.words):
        return None
    s, trace = subject.columns, subject.trace
    steps = choose_bin_count(len(live))
    step_ps = max(1, -(-run.last_tick * round(machine.period_ns * 1000) // steps))
    change = np.zeros((subject.core_count, steps + 1), np.int64)
    count_live_bytes(
        s.starts, s.opcode, s.b, s.c, s.d, trace.values, trace.widths, OPCODE_RULES,
        known_matrix_shapes(subject), subject.group_starts, run.start, run.end, step_ps,
        np.full((_address_bound(subject), 2), -1, np.int64), change,
    )  # fmt: skip
    cores = machine.cores[live]
    return LocalMemoryUse(
        cores=tuple(int(c) for c in cores),
        step_ns=step_ps / 1000,
        bytes=change.cumsum(axis=1)[cores, :steps],
        size_bytes=read.chip.memory_size_bytes if read.chip else None,
    )


def _address_bound(subject: CheckSubject) -> int:
    """Returns an upper bound on the addresses, at most `REMEMBERED_BYTES`, which keeps the table small."""
    s = subject.columns
    if (OPCODE_RULES[s.opcode, RuleColumn.STRIDED] == 1).any():
        return REMEMBERED_BYTES
    most = max(_TABLE, *(int(column.max(initial=0)) for column in (s.c, s.d, known_matrix_shapes(subject))))
    return min(REMEMBERED_BYTES, int(subject.trace.values.max(initial=0)) + 255 * 2 * most + 1)
