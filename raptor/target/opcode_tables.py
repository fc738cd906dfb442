"""Tables of the instruction set as numpy arrays indexed by opcode, for column operations and compiled loops.

Everything is in one table, `RULES`, with a row for each of the 256 opcodes and the columns `Rule`. An opcode without an
instruction has `MISSING` in all columns. Compiled loops take the table as an argument.
"""

from collections.abc import Callable, Iterator
from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt

from raptor.target.isa import (
    INSTRUCTIONS,
    AccessCount,
    AccessWidth,
    Instruction,
    LocalAccess,
    Operand,
    OperandKind,
    Timing,
    Unit,
)

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

MISSING = 255

REGISTER_SLOTS = ("rd", "rs1", "a")
"""Slots of a record that may name a register; groups of three columns of `RULES` have this order."""
RD, RS1, RS2 = range(3)

SCALAR, MATRIX, VECTOR, TRANSFER = range(4)
"""Values of `Rule.UNIT`: positions in `Unit`."""
NO_REGISTER, DEFINE, USE, PAIR = range(4)
"""Values of `Rule.ROLE`: what happens to the register of an operand."""
NO_ACCESS, ONE, LENGTH, ROWS, COLUMNS, TABLE = range(6)
"""Values of `Rule.COUNT` and `Rule.SEEN_COUNT`: none, or 1 + the position in `Count`."""
IN_BYTES, IN_INPUTS, IN_OUTPUTS, IN_PARAMETERS = range(4)
"""Values of `Rule.WIDTH` and `Rule.SEEN_WIDTH`: positions in `AccessWidth`."""
PARAMETER_BYTES = 16
"""Bytes of an element of `IN_PARAMETERS`."""


class RuleColumn(IntEnum):
    """Columns of `RULES`. A column that ends in `_RD` is followed by the columns for rs1 and rs2.

    `TIMING`: a value of `Timing`. `SOURCES`: number of operands read from local memory. `CHARGES_OUTPUT`: 1 if
    pimsim-nn counts time to write elements of the output width. `COUNT`, `WIDTH`: elements accessed at the address of
    an operand. `STRIDED`: 1 if register rs2 holds the distance of the elements at rs1. `SEEN_*`: the elements that the
    hazard check assumes.
    """

    TIMING = 0
    UNIT = 1
    SOURCES = 2
    CHARGES_OUTPUT = 3
    READS_RS2 = 4
    READS_PAIR = 5
    STRIDED = 6
    ROLE_RD = 7
    COUNT_RD = 10
    COUNT_RS1 = 11
    COUNT_RS2 = 12
    WIDTH_RD = 13
    WIDTH_RS1 = 14
    WIDTH_RS2 = 15
    SEEN_COUNT_RD = 16
    SEEN_COUNT_RS1 = 17
    SEEN_COUNT_RS2 = 18
    SEEN_WIDTH_RD = 19
    SEEN_WIDTH_RS1 = 20
    SEEN_WIDTH_RS2 = 21
    END = 22


_ROLES = {
    OperandKind.DEFINE: DEFINE,
    OperandKind.USE: USE,
    OperandKind.SOURCE: USE,
    OperandKind.TARGET: USE,
    OperandKind.USE_PAIR: PAIR,
}


def _columns(row: Instruction) -> Iterator[tuple[int, int]]:
    """Yields column and value of a row; columns that are not named are 0."""
    yield RuleColumn.TIMING, row.timing
    yield RuleColumn.UNIT, _place(Unit, row.unit)
    yield RuleColumn.CHARGES_OUTPUT, _charges_output(row)
    yield RuleColumn.READS_RS2, any(o.slot == "a" and o.is_register for o in row.operands)
    yield RuleColumn.READS_PAIR, any(o.kind is OperandKind.USE_PAIR for o in row.operands)
    yield RuleColumn.SOURCES, sum(o.slot != "rd" and o.kind is OperandKind.SOURCE for o in row.operands)
    for operand in row.operands:
        if operand.is_register:
            yield from _columns_of_operand(operand, REGISTER_SLOTS.index(operand.slot))


def _columns_of_operand(operand: Operand, slot: int) -> Iterator[tuple[int, int]]:
    """Yields column and value for the register operand in `SLOTS[slot]`."""
    yield RuleColumn.ROLE_RD + slot, _ROLES[operand.kind]
    # A send names its data twice, by rd and rs1: only rs1 counts. The address of a result is always in rd.
    access = operand.access if (operand.kind is OperandKind.TARGET) == (slot == RD) else None
    for found, count, width in (
        (access, RuleColumn.COUNT_RD, RuleColumn.WIDTH_RD),
        (operand.seen, RuleColumn.SEEN_COUNT_RD, RuleColumn.SEEN_WIDTH_RD),
    ):
        if found is not None:
            yield count + slot, 1 + _place(AccessCount, found.count)
            yield width + slot, _place(AccessWidth, found.width)
    if operand.access is not None and operand.access.strided:
        yield RuleColumn.STRIDED, 1


def _charges_output(row: Instruction) -> bool:
    """True if pimsim-nn counts time to write elements of the output width.

    NOTE: for a single result, pimsim-nn counts as many elements of the input width as are read.
    """
    return any(
        o.kind is OperandKind.TARGET and o.access == LocalAccess(AccessCount.LENGTH, AccessWidth.OUTPUT)
        for o in row.operands
    )


def _place(members: type[Enum], member: Enum) -> int:
    return list[Enum](members).index(member)


def _rules() -> Bytes:
    found = np.full((256, RuleColumn.END), MISSING, np.uint8)
    for row in INSTRUCTIONS:
        found[row.opcode] = 0
        for column, value in _columns(row):
            found[row.opcode, column] = value
    return found


OPCODE_RULES = _rules()
TIMING, UNIT = OPCODE_RULES[:, RuleColumn.TIMING], OPCODE_RULES[:, RuleColumn.UNIT]
ROLES = OPCODE_RULES[:, RuleColumn.ROLE_RD : RuleColumn.ROLE_RD + len(REGISTER_SLOTS)]
"""Role of each register: opcode x position in `REGISTER_SLOTS`."""


def opcode_mask(holds: Callable[[Instruction], bool]) -> Mask:
    """Returns a mask over opcodes: True for instructions for which `holds` is true."""
    found = np.zeros(256, np.bool_)
    found[[row.opcode for row in INSTRUCTIONS if holds(row)]] = True
    return found


def timing_mask(*timings: Timing) -> Mask:
    """Returns a mask over opcodes: True for instructions with one of these timings."""
    return opcode_mask(lambda row: row.timing in timings)


def operand_mask(name: str) -> Mask:
    """Returns a mask over opcodes: True for instructions with an operand of this name."""
    return opcode_mask(lambda row: any(o.name == name for o in row.operands))


HAS_OFFSET = operand_mask("offset_select")
IS_SIZED = opcode_mask(lambda row: any(o.slot == "d" for o in row.operands))
NEEDS_WIDTH = opcode_mask(lambda row: row.unit in (Unit.MATRIX, Unit.VECTOR))
SETS_WIDTH = timing_mask(Timing.SET_WIDTHS)
ENTERS_ROB = opcode_mask(lambda row: row.timing not in (Timing.REGISTER, Timing.SET_WIDTHS))
"""Mask of opcodes that enter the reorder buffer: all except those that decode does by itself."""
