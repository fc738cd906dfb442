"""Kernels of decode: registers, the addresses that the hazard check sees, and the accesses that take energy."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import OPCODE, Timing
from raptor.target.opcode_tables import IN_BYTES, IN_INPUTS, LENGTH, NO_ACCESS, ONE, RuleColumn
from validator.engines.scalar_kernels import compute_scalar
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.state_tables import OpColumn, PortColumn

_SLD = OPCODE["sld"]


@bare_helper
def execute_scalar(program, registers, pc):
    """Executes a scalar instruction. Returns true if it changed its own operands.

    The simulator executes it again at every edge of a stall, which then gives another result.
    """
    word = program.words[pc]
    code, rs1 = word[0] & 255, (word[0] >> 16) & 255
    rs2 = np.int64(word[1]) if program.rules[code, RuleColumn.READS_RS2] else np.int64(0)
    x, y = registers[rs1], registers[rs2]
    registers[_written(word)] = compute_scalar(code, x, y, np.int64(word[1]))
    return registers[rs1] != x or registers[rs2] != y


@bare_helper
def _written(word):
    """Returns the register that a scalar instruction writes.

    NOTE: the simulator has no data, and its `sld` writes r0.
    """
    return np.int32(0) if word[0] & 255 == _SLD else (word[0] >> 8) & 255


@bare_helper
def set_hazard_ranges(chip, program, registers, ib, ob, pc, op):
    """Sets the local addresses read and written in `op`, as the simulator's hazard check sees them: ends included."""
    word = program.words[pc]
    rule, rd, rs1 = program.rules[word[0] & 255], registers[(word[0] >> 8) & 255], registers[(word[0] >> 16) & 255]
    select, value, d = word[2], np.int64(word[3]), np.int64(word[4])
    kind = rule[RuleColumn.TIMING]
    clear_hazard_ranges(op)
    if kind == Timing.PRODUCT:
        op[OpColumn.LOW1], op[OpColumn.HIGH1] = rs1, rs1 + chip.rows * ib
        op[OpColumn.LOW3] = rd
        op[OpColumn.HIGH3] = rd + chip.row_bits // np.int64(word[1]) * program.xbars[op[OpColumn.OTHER]] * ob
        return
    if kind == Timing.LOAD or kind == Timing.STORE:
        # NOTE: for ld and st, decode does not read the register that holds the address.
        rd, rs1 = np.int64(0), np.int64(0)
    elif kind == Timing.COPY and word[0] >> 24 & 1:
        d = np.int64(0)  # this form of the instruction has no size
    # NOTE: for rs1 and rs2 the simulator tests bits of the value, not of the selection.
    if rule[RuleColumn.SEEN_COUNT_RS1] != NO_ACCESS:
        width = _bytes(rule[RuleColumn.SEEN_WIDTH_RS1], ib, ob)
        op[OpColumn.LOW1] = rs1 + (width * value if value & 2 else 0)
        op[OpColumn.HIGH1] = op[OpColumn.LOW1] + width * _count(rule[RuleColumn.SEEN_COUNT_RS1], d)
    if rule[RuleColumn.SEEN_COUNT_RS2] != NO_ACCESS:
        width = _bytes(rule[RuleColumn.SEEN_WIDTH_RS2], ib, ob)
        moved = value & 4 and rule[RuleColumn.COUNT_RS2] != NO_ACCESS
        op[OpColumn.LOW2] = registers[word[1]] + (width * value if moved else 0)
        op[OpColumn.HIGH2] = op[OpColumn.LOW2] + width * _count(rule[RuleColumn.SEEN_COUNT_RS2], d)
    if rule[RuleColumn.SEEN_COUNT_RD] != NO_ACCESS:
        # A single result has no offset.
        moved = select & 1 and rule[RuleColumn.COUNT_RD] == LENGTH
        op[OpColumn.LOW3] = rd + (_bytes(rule[RuleColumn.WIDTH_RD], ib, ob) * value if moved else 0)
        op[OpColumn.HIGH3] = op[OpColumn.LOW3] + _bytes(rule[RuleColumn.SEEN_WIDTH_RD], ib, ob) * _count(
            rule[RuleColumn.SEEN_COUNT_RD], d
        )


@bare_helper
def clear_hazard_ranges(op):
    """Sets ranges that overlap no other range."""
    op[OpColumn.LOW1], op[OpColumn.LOW2], op[OpColumn.LOW3] = state_tables.NEVER, state_tables.NEVER, state_tables.NEVER
    op[OpColumn.HIGH1], op[OpColumn.HIGH2], op[OpColumn.HIGH3] = (
        -state_tables.NEVER,
        -state_tables.NEVER,
        -state_tables.NEVER,
    )


@bare_helper
def _count(count, length):
    return np.int64(1) if count == ONE else length


@bare_helper
def _bytes(width, ib, ob):
    return np.int64(1) if width == IN_BYTES else (ib if width == IN_INPUTS else ob)


@bare_helper
def count_decode_accesses(program, registers, port, pc, edges, tick):
    """Counts the accesses of an instruction that is decoded for `edges` edges of the clock.

    It enters; if it is scalar, it is then executed at each edge until its result no longer changes. The counts follow
    the simulator's processes: one read of the registers for each change of their inputs, one evaluation of decode for
    each change of the values read.
    """
    word = program.words[pc]
    code = word[0] & 255
    kind = program.rules[code, RuleColumn.TIMING]
    port[PortColumn.FETCHES] += 1
    port[PortColumn.DECODES] += 1
    written = port[PortColumn.WRITTEN] != 0
    port[PortColumn.WRITTEN] = 0
    if not written:
        clock_registers(port)
    moved = kind != Timing.NEVER_ENDS and _address(program, port, pc)
    if moved or written:
        port[PortColumn.READS] += 1
        if _values(registers, port) and tick > 2:
            port[PortColumn.DECODES] += 1
    if kind != Timing.REGISTER:
        return
    rd = _written(word)
    for edge in range(edges):
        value = compute_scalar(code, port[PortColumn.VALUE_RS1], port[PortColumn.VALUE_RS2], np.int64(word[1]))
        port[PortColumn.SCALARS] += 1
        clock_registers(port)
        if port[PortColumn.WRITE_RD] == rd and port[PortColumn.WRITE_VALUE] == value:
            return
        port[PortColumn.WRITE_RD], port[PortColumn.WRITE_VALUE] = rd, value
        registers[rd] = value
        port[PortColumn.WRITES] += 1
        if edge == edges - 1:
            # The next instruction enters at this edge: one reading sees both.
            port[PortColumn.WRITTEN] = 1
            return
        port[PortColumn.READS] += 1
        x, y = port[PortColumn.VALUE_RS1], port[PortColumn.VALUE_RS2]
        if _values(registers, port):
            port[PortColumn.DECODES] += 1
        if port[PortColumn.VALUE_RS1] == x and port[PortColumn.VALUE_RS2] == y:
            clock_registers(port)
            return


@bare_helper
def clock_registers(port):
    """Moves the last write on by a stage, as every edge does. If it differs, the registers are read once."""
    if (
        port[PortColumn.OUT_RD] != port[PortColumn.WRITE_RD]
        or port[PortColumn.OUT_VALUE] != port[PortColumn.WRITE_VALUE]
    ):
        port[PortColumn.OUT_RD], port[PortColumn.OUT_VALUE] = port[PortColumn.WRITE_RD], port[PortColumn.WRITE_VALUE]
        port[PortColumn.READS] += 1


@bare_helper
def _address(program, port, pc):
    """Sets the registers to read. Returns true if they are not the registers read before."""
    word = program.words[pc]
    code, rd, rs1 = word[0] & 255, (word[0] >> 8) & 255, (word[0] >> 16) & 255
    rs2 = word[1] if program.rules[code, RuleColumn.READS_RS2] else 0
    double = np.int64(program.rules[code, RuleColumn.READS_PAIR])
    same = (
        port[PortColumn.ADDR_RD] == rd
        and port[PortColumn.ADDR_RS1] == rs1
        and port[PortColumn.ADDR_RS2] == rs2
        and port[PortColumn.ADDR_DOUBLE] == double
    )
    port[PortColumn.ADDR_RD], port[PortColumn.ADDR_RS1], port[PortColumn.ADDR_RS2] = rd, rs1, rs2
    port[PortColumn.ADDR_DOUBLE] = double
    return not same


@bare_helper
def _values(registers, port):
    """Reads the registers. Returns true if a value has changed."""
    rd, rs1, rs2 = (
        registers[port[PortColumn.ADDR_RD]],
        registers[port[PortColumn.ADDR_RS1]],
        registers[port[PortColumn.ADDR_RS2]],
    )
    rd2, rs12 = np.int64(0), np.int64(0)
    if port[PortColumn.ADDR_DOUBLE]:
        rd2 = (rd << 32) ^ registers[(port[PortColumn.ADDR_RD] + 1) & 31]
        rs12 = (rs1 << 32) ^ registers[(port[PortColumn.ADDR_RS1] + 1) & 31]
        rd, rs1 = np.int64(0), np.int64(0)
    same = port[PortColumn.VALUE_RD] == rd and port[PortColumn.VALUE_RS1] == rs1 and port[PortColumn.VALUE_RS2] == rs2
    same = same and port[PortColumn.VALUE_RD2] == rd2 and port[PortColumn.VALUE_RS12] == rs12
    (
        port[PortColumn.VALUE_RD],
        port[PortColumn.VALUE_RS1],
        port[PortColumn.VALUE_RS2],
        port[PortColumn.VALUE_RD2],
        port[PortColumn.VALUE_RS12],
    ) = (
        rd,
        rs1,
        rs2,
        rd2,
        rs12,
    )
    return not same
