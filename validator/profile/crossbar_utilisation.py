"""Utilisation of each crossbar, from the sizes of the matrices."""

import numpy as np
import numpy.typing as npt

from raptor.target.isa import OPCODE
from validator.checks.rules.memory_accesses import known_matrix_shapes
from validator.profile.profile_results import NOBODY, CrossbarUse
from validator.profile.profiled_program import ProfiledProgram

Ints = npt.NDArray[np.int64]

_MBIW, _GROUP = 1, 3
"""Indices of the words of an `mvmul` that hold the bits of a weight and the array group."""


def profile_crossbars(read: ProfiledProgram) -> CrossbarUse | None:
    """Returns the facts of every crossbar of every array group, in order; None without weights or architecture."""
    subject = read.subject
    if subject.shapes is None or read.chip is None:
        return None
    counts = np.array([n for g in subject.groups for n in g or ()], np.int64)
    core = np.repeat(np.arange(subject.core_count), np.diff(subject.group_starts))
    shapes, (part, products, bits) = known_matrix_shapes(subject), _uses(read, len(counts))
    outputs = read.chip.cell_bits * read.chip.xbar_cols // np.maximum(bits, 1)
    of = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    cols = np.clip(shapes[of, 1] - nth * outputs[of], 0, outputs[of])
    fill = shapes[of, 0] * cols / np.maximum(read.chip.xbar_rows * outputs[of], 1)
    first = np.searchsorted(core[of], np.arange(subject.core_count))
    return CrossbarUse(
        core=core[of],
        slot=np.arange(len(of)) - first[core[of]],
        group=of - subject.group_starts[core[of]],
        rows=shapes[of, 0],
        cols=cols,
        fill=fill,
        part=part[of],
        products=products[of],
    )


def _uses(read: ProfiledProgram, groups: int) -> tuple[Ints, Ints, Ints]:
    """Returns for each array group the part of its last product (or `NOBODY`), its products, and its weight bits.

    A group without products is assumed to have the widest weights of the program.
    """
    machine, starts = read.machine, read.subject.group_starts
    at = np.flatnonzero(machine.opcodes == OPCODE["mvmul"])
    group = starts[machine.cores[machine.core_index[at]]] + machine.words[at, _GROUP]
    widest = int(machine.words[at, _MBIW].max(initial=1))
    part, bits = np.full(groups, NOBODY, np.int64), np.full(groups, widest, np.int64)
    part[group], bits[group] = read.part_index[at], machine.words[at, _MBIW]
    return part, np.bincount(group, minlength=groups).astype(np.int64), bits
