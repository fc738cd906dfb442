"""Counts the use of each part of the chip by a program, for its energy. Time plays no role here."""

# Kernels are untyped for numba's sake; `energy` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel, interpret_first
from raptor.target.isa import Timing
from raptor.target.opcode_tables import LENGTH, RuleColumn
from validator.simulate.cycle.cost_kernels import count_beats, look_up_flit_cost
from validator.simulate.cycle.state_tables import CountColumn


@bare_kernel
@interpret_first(us=lambda args: 20 * len(args[1].words), until_us=5e5)
def add_use_counts(chip, program, first, flit_pj, rows, widths, out) -> None:
    """Adds the columns `Count` of each instruction to row `rows[pc]` of `out`. `widths`: room for three numbers."""
    for c in range(first.size - 1):
        widths[:] = 0
        for pc in range(first[c], first[c + 1]):
            count_instruction(chip, program, c, first.size - 1, pc, widths, flit_pj, out[rows[pc]])


@bare_helper
def count_instruction(chip, program, c, memory, pc, widths, flit_pj, row):
    """Adds the columns `Count` of instruction `pc` of core `c` to `row`.

    `memory`: place of global memory on the network. `widths`: the bytes of an input and of an output and the bits of an
    input that hold at this point of the stream; a `setbw` changes them.
    """
    word = program.words[pc]
    row[CountColumn.INSTRUCTIONS] += 1
    rule, d = program.rules[word[0] & 255], np.int64(word[4])
    kind = rule[RuleColumn.TIMING]
    ib, ob = widths[0], widths[1]
    if kind == Timing.SET_WIDTHS:
        widths[2] = np.int64(word[2])
        widths[0], widths[1] = (widths[2] + 7) >> 3, (np.int64(word[3]) + 7) >> 3
    elif kind == Timing.PRODUCT:
        group = program.xbars[program.group_first[c] + word[3]]
        row[CountColumn.CROSSBAR_PASSES] += group * (widths[2] // chip.dac_resolution * chip.dac_passes)
        row[CountColumn.LOCAL_READ_BEATS] += count_beats(8 * chip.rows * ib, chip.local_width)
        row[CountColumn.LOCAL_WRITE_BEATS] += count_beats(
            chip.row_bits // np.int64(word[1]) * ob * group, chip.local_width
        )
    elif kind == Timing.VECTOR:
        row[CountColumn.VECTOR_STEPS] += count_beats(d, chip.vector_width)
        row[CountColumn.LOCAL_READ_BEATS] += count_beats(ib * d, chip.local_width) * rule[RuleColumn.SOURCES]
        width = ob if rule[RuleColumn.CHARGES_OUTPUT] else ib
        row[CountColumn.LOCAL_WRITE_BEATS] += count_beats(width * d, chip.local_width)
    elif kind != Timing.REGISTER and kind != Timing.NEVER_ENDS:
        _count_transfer(chip, program, c, memory, word, flit_pj, row)


@bare_helper
def _count_transfer(chip, program, c, memory, word, flit_pj, row):
    """Adds the counts of a load, store, copy or message. `memory`: place of global memory on the network."""
    rule, d = program.rules[word[0] & 255], np.int64(word[4])
    kind = rule[RuleColumn.TIMING]
    if rule[RuleColumn.COUNT_RS1] == LENGTH:
        row[CountColumn.LOCAL_READ_BEATS] += count_beats(d, chip.local_width)
    if rule[RuleColumn.COUNT_RD] == LENGTH:
        row[CountColumn.LOCAL_WRITE_BEATS] += count_beats(d, chip.local_width)
    if kind == Timing.LOAD:
        row[CountColumn.GLOBAL_READ_BEATS] += count_beats(d, chip.global_width)
        row[CountColumn.NETWORK_PJ] += look_up_flit_cost(flit_pj, c, memory)
    elif kind == Timing.STORE:
        row[CountColumn.GLOBAL_WRITE_BEATS] += count_beats(d, chip.global_width)
        row[CountColumn.NETWORK_PJ] += count_beats(d, chip.bus_width) * look_up_flit_cost(flit_pj, c, memory)
    elif kind == Timing.SEND:
        flits = 1 + count_beats(d, chip.bus_width)
        row[CountColumn.NETWORK_PJ] += flits * look_up_flit_cost(flit_pj, c, program.place_of[word[1]])
    elif kind == Timing.RECEIVE or kind == Timing.GIVE_TOKEN:
        row[CountColumn.NETWORK_PJ] += look_up_flit_cost(flit_pj, c, program.place_of[word[1]])
    elif kind != Timing.FILL and kind != Timing.COPY and kind != Timing.WAIT:
        raise NotImplementedError("an instruction that takes no known energy")
