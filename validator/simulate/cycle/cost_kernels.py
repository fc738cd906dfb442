"""Computes the times of instructions (reads, work, writes) and of messages on the network."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel
from raptor.target.isa import Timing
from raptor.target.opcode_tables import RuleColumn
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.state_tables import CoreColumn, DemandColumn, OpColumn

_PS = 1000.0


@bare_kernel
def fill_demands(chip, program, core, op, out) -> None:
    """Fills a row of `out` (columns `DemandColumn`) for each instruction, as if it never had to wait."""
    rules, network = program.rules, program.flit_ns
    memory = core.shape[0]
    for c in range(memory):
        for pc in range(core[c, CoreColumn.FIRST], core[c, CoreColumn.LAST]):
            kind = rules[program.words[pc, 0] & 255, RuleColumn.TIMING]
            if kind == Timing.SET_WIDTHS:
                set_widths(core, c, program.words[pc])
            if kind in (Timing.SET_WIDTHS, Timing.REGISTER, Timing.NEVER_ENDS):
                continue
            prepare_instruction(chip, program, core, c, pc, op)
            local, other = op[OpColumn.READ] + op[OpColumn.WRITE], op[OpColumn.OTHER]
            time = local + op[OpColumn.COMPUTE]
            if kind in (Timing.LOAD, Timing.STORE):
                time += _wire_ps(network, c, memory, op[OpColumn.SIZE]) + op[OpColumn.VALUE]
                out[pc, DemandColumn.GLOBAL] = op[OpColumn.VALUE]
            elif kind == Timing.SEND:
                time += _wire_ps(network, c, other, 1) + _wire_ps(network, other, c, 1)
            elif kind == Timing.RECEIVE:
                size = np.int64(program.words[pc, 4])
                time += _wire_ps(network, c, other, 1) + _local_read(chip, size)
                time += _wire_ps(network, other, c, count_beats(size, chip.bus_width))
            out[pc, DemandColumn.TIME], out[pc, DemandColumn.LOCAL] = time, local


@bare_helper
def set_widths(core, c, word):
    """Applies a `setbw` to core `c`: stores the width of elements in bits, and rounded up to bytes."""
    core[c, CoreColumn.IBIW] = word[2]
    core[c, CoreColumn.IB], core[c, CoreColumn.OB] = (word[2] + 7) >> 3, (word[3] + 7) >> 3


@bare_helper
def prepare_instruction(chip, program, core, c, pc, op):
    """Fills the row `op` with unit and times of an instruction. Uses the widths that the core has at present."""
    word = program.words[pc]
    rule = program.rules[word[0] & 255]
    kind = rule[RuleColumn.TIMING]
    d = np.int64(word[4])
    ib, ob = core[c, CoreColumn.IB], core[c, CoreColumn.OB]
    op[OpColumn.PC], op[OpColumn.TIMING] = pc, kind
    (
        op[OpColumn.READ],
        op[OpColumn.COMPUTE],
        op[OpColumn.WRITE],
        op[OpColumn.SIZE],
        op[OpColumn.OTHER],
        op[OpColumn.VALUE],
    ) = 0, 0, 0, 0, 0, 0
    if kind == Timing.PRODUCT:
        t = program.group_first[c] + np.int64(word[3])
        op[OpColumn.UNIT], op[OpColumn.OTHER] = state_tables.GROUP, t
        op[OpColumn.READ] = _local_read(chip, 8 * chip.rows * ib)
        op[OpColumn.COMPUTE] = _matrix_ps(chip, core[c, CoreColumn.IBIW])
        op[OpColumn.WRITE] = _local_write(chip, chip.row_bits // np.int64(word[1]) * ob * program.xbars[t])
    elif kind == Timing.VECTOR:
        op[OpColumn.UNIT] = state_tables.VECTOR
        op[OpColumn.READ] = rule[RuleColumn.SOURCES] * _local_read(chip, ib * d)
        op[OpColumn.COMPUTE] = count_beats(d, chip.vector_width) * chip.vector_ps
        op[OpColumn.WRITE] = _local_write(chip, (ob if rule[RuleColumn.CHARGES_OUTPUT] else ib) * d)
    elif kind == Timing.NEVER_ENDS:
        op[OpColumn.UNIT] = state_tables.NO_UNIT
    else:
        op[OpColumn.UNIT] = state_tables.TRANSFER
        _prepare_transfer(chip, program.place_of, kind, word, op)


@bare_helper
def _prepare_transfer(chip, index, kind, word, op):
    a, d = np.int64(word[1]), np.int64(word[4])
    if kind == Timing.FILL:
        op[OpColumn.WRITE] = _local_write(chip, d)
    elif kind == Timing.COPY:
        op[OpColumn.READ], op[OpColumn.WRITE] = _local_read(chip, d), _local_write(chip, d)
    elif kind == Timing.LOAD:
        op[OpColumn.VALUE] = _memory_ps(
            count_beats(d, chip.global_width), chip.global_read_cycles, chip.global_period_ns
        )
        op[OpColumn.WRITE] = _local_write(chip, d)
        op[OpColumn.SIZE] = 1
    elif kind == Timing.STORE:
        op[OpColumn.READ] = _local_read(chip, d)
        op[OpColumn.VALUE] = _memory_ps(
            count_beats(d, chip.global_width), chip.global_write_cycles, chip.global_period_ns
        )
        op[OpColumn.SIZE] = count_beats(d, chip.bus_width)
    elif kind == Timing.SEND:
        op[OpColumn.READ] = _local_read(chip, d)
        op[OpColumn.SIZE] = count_beats(d, chip.bus_width)
        op[OpColumn.OTHER] = index[a]
    elif kind == Timing.RECEIVE:
        op[OpColumn.WRITE] = _local_write(chip, d)
        op[OpColumn.OTHER] = index[a]
    elif kind == Timing.GIVE_TOKEN:
        op[OpColumn.OTHER], op[OpColumn.VALUE] = index[a], word[2]
    elif kind == Timing.WAIT:
        op[OpColumn.OTHER], op[OpColumn.VALUE] = word[2], word[3]
    else:
        raise NotImplementedError("an instruction that takes no known time")


@bare_helper
def _matrix_ps(chip, input_bits):
    """Returns the time of a product, ps. A group makes one pass for each slice of the input bits and of the rows."""
    passes = input_bits // chip.dac_resolution * chip.dac_passes
    front, back = chip.front_cycles, chip.back_cycles
    cycles = front + back + (passes - 1) * max(front, back) if chip.pipelined else (front + back) * passes
    return np.int64(float(cycles) * chip.matrix_period_ns * _PS + 0.5)


@bare_helper
def _local_read(chip, size):
    return _memory_ps(count_beats(size, chip.local_width), chip.local_read_cycles, chip.local_period_ns)


@bare_helper
def _local_write(chip, size):
    return _memory_ps(count_beats(size, chip.local_width), chip.local_write_cycles, chip.local_period_ns)


@bare_helper
def _memory_ps(beats, cycles, period_ns):
    return np.int64(float(beats * cycles) * period_ns * _PS + 0.5)


@bare_helper
def count_beats(size, width):
    """Returns the number of accesses of `width` bytes for `size` bytes."""
    return (size + width - 1) // width


@bare_helper
def _wire_ps(network, source, to, flits):
    """Returns the time of flits on the network, ps. The simulator cuts it to whole nanoseconds."""
    return np.int64(float(flits) * look_up_flit_cost(network, source, to)) * 1000


@bare_helper
def look_up_flit_cost(network, source, to):
    """Returns the cost of a flit between cores (`simulated_chip.Network`), ns or pJ; 0 for a pair without messages."""
    first, partners, costs = network
    low, high = first[source], first[source + 1]
    while low < high:
        middle = (low + high) >> 1
        if partners[middle] < to:
            low = middle + 1
        else:
            high = middle
    return costs[low] if low < first[source + 1] and partners[low] == to else 0.0
