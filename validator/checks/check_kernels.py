"""Compiled loops over the streams: register values, memory accesses, hazards, live bytes.

`rules` is the table of `raptor.target.opcode_tables`.
"""

# ruff: noqa: C901 loops in one piece, and comparisons, compile to faster code than readable functions
# Kernels are untyped for numba's sake; the modules that call them pass the arrays described.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit.decorators import helper, interpret_first, kernel
from raptor.target.isa import Timing
from raptor.target.opcode_tables import (
    COLUMNS,
    DEFINE,
    IN_BYTES,
    IN_INPUTS,
    IN_PARAMETERS,
    LENGTH,
    MATRIX,
    NO_ACCESS,
    NO_REGISTER,
    ONE,
    PAIR,
    PARAMETER_BYTES,
    RD,
    RS1,
    RS2,
    SCALAR,
    TABLE,
    RuleColumn,
)
from validator.engines.scalar_kernels import compute_scalar

_REGISTERS = 32

# Faults of `check_accesses`.
BELOW_ZERO, BEYOND_MEMORY, BEYOND_USED, UNWRITTEN = 1, 2, 4, 8
ANY_COLUMNS = 2**16
"""Columns assumed for a product of an unknown group: many, so that there are no false `UNWRITTEN`."""
# Faults of `find_hazards`.
UNSEEN, LOST_ORDER, ADJACENT, BOTTOM = 1, 2, 4, 8


@kernel
@interpret_first(us=lambda args: 10 * args[0][-1], until_us=5e5)
def trace_registers(
    starts: Any,
    opcode: Any,
    rd: Any,
    rs1: Any,
    a: Any,
    b: Any,
    c: Any,
    rules: Any,
    values: Any,
    widths: Any,
    unset: Any,
) -> None:
    """Computes the registers at every instruction. They are known statically because streams have no branches.

    `values[i]`: contents of rd, rs1, rs2 before the instruction. `widths[i]`: bytes of an input and an output element,
    and bits of an input element (0 before the first setbw). `unset[i]`: a bit for each operand that reads a register
    that was never written.
    """
    content = np.zeros(_REGISTERS, np.int32)
    for core in range(starts.size - 1):
        content[:] = 0
        written = np.int64(0)
        width_in, width_out, bits = np.uint8(0), np.uint8(0), np.uint8(0)
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            widths[i, 0], widths[i, 1], widths[i, 2] = width_in, width_out, bits
            for slot in range(3):
                role = rules[op, RuleColumn.ROLE_RD + slot]
                if role == NO_REGISTER:
                    continue
                register = rd[i] if slot == 0 else (rs1[i] if slot == 1 else a[i])
                if register < 0 or register >= _REGISTERS:
                    continue
                values[i, slot] = content[register]
                if role == DEFINE:
                    continue
                missing = (written >> register) & 1 == 0
                if role == PAIR and register + 1 < _REGISTERS:
                    missing = missing or (written >> (register + 1)) & 1 == 0
                if missing:
                    unset[i] |= np.uint8(1 << slot)
            if rules[op, RuleColumn.TIMING] == Timing.SET_WIDTHS:
                width_in, width_out = _bytes(b[i]), _bytes(c[i])
                bits = np.uint8(min(max(b[i], 0), 255))
            elif rules[op, RuleColumn.ROLE_RD] == DEFINE and rd[i] < _REGISTERS:
                content[rd[i]] = compute_scalar(op, np.int64(values[i, 1]), np.int64(values[i, 2]), np.int64(a[i]))
                written |= np.int64(1) << rd[i]


@helper
def _bytes(bits):
    return np.uint8(min(max((bits + 7) // 8, 0), 255))


@helper
def _bytes_of(width, width_in, width_out):
    """Returns the bytes of an element, given its `Rule.WIDTH` and the bytes of an input and an output element."""
    if width == IN_PARAMETERS:
        return np.int64(PARAMETER_BYTES)
    return np.int64(1) if width == IN_BYTES else (width_in if width == IN_INPUTS else width_out)


@helper
def _elements(count, length, rows, cols, bits):
    """Returns the number of elements, given its `Rule.COUNT`, the operand len or size, and the group's matrix.

    `bits`: width of an input element. NOTE: tables for elements wider than 8 bits are checked when the program runs.
    """
    if count == NO_ACCESS:
        return np.int64(0)
    if count == ONE:
        return np.int64(1)
    if count == LENGTH:
        return np.int64(length)
    if count == TABLE:
        return np.int64(1) << min(np.int64(bits), 8)
    return np.int64(cols) if count == COLUMNS else np.int64(rows)


@kernel
@interpret_first(us=lambda args: 10 * args[0][-1], until_us=6e5)
def check_accesses(
    starts: Any,
    opcode: Any,
    b: Any,
    c: Any,
    d: Any,
    values: Any,
    widths: Any,
    rules: Any,
    shapes: Any,
    widest: Any,
    shape_first: Any,
    limit: Any,
    used: Any,
    resident_first: Any,
    resident: Any,
    cover: Any,
    faults: Any,
) -> None:
    """Sets `faults[i]` if an instruction leaves the local memory, or reads bytes that were never written.

    `shapes[shape_first[core] + group]` is the matrix of a group (1 x 1 if unknown), `widest` its largest possible
    number of columns. `limit`: bytes of a local memory. `used[core]`: bytes in use according to the compiler, or -1.
    `resident[resident_first[core] : resident_first[core + 1]]`: first byte and end of memory written before.
    `cover`: one entry for each byte whose writes are tracked; 0 on entry and on return.
    """
    top = np.int64(cover.size)
    for core in range(starts.size - 1):
        groups = shape_first[core + 1] - shape_first[core]
        dirty = _cover_resident(core, resident_first, resident, cover)
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            is_product = rules[op, RuleColumn.UNIT] == MATRIX
            # NOTE: widths that were never set are found by another rule; here one byte is assumed.
            width_in, width_out = max(np.int64(widths[i, 0]), np.int64(1)), max(np.int64(widths[i, 1]), np.int64(1))
            rows, cols = _matrix(shapes, shape_first[core], np.int64(c[i]), groups if is_product else 0)
            for step in range(3):  # reads first, then the write
                slot = (step + 1) % 3
                width = _bytes_of(rules[op, RuleColumn.WIDTH_RD + slot], width_in, width_out)
                size = _elements(rules[op, RuleColumn.COUNT_RD + slot], d[i], rows, cols, widths[i, 2]) * width
                if size <= 0:
                    continue
                start = np.int64(values[i, slot])
                if not is_product and (b[i] >> slot) & 1:
                    start += np.int64(c[i]) * width
                end = start + size
                if rules[op, RuleColumn.STRIDED] == 1 and slot == RS1:
                    end = start + width + (np.int64(d[i]) - 1) * width * max(np.int64(values[i, RS2]), np.int64(0))
                faults[i] |= np.uint8(BELOW_ZERO) if start < 0 else _beyond(end, limit, used[core])
                if start < 0 or end > top:
                    continue
                if slot == RD:
                    if is_product:
                        end = min(max(end, start + width_out * _columns(core, c[i], groups, shape_first, widest)), top)
                    cover[start:end] = 1
                    dirty = max(dirty, end)
                elif end - start == size and not _all_set(cover, start, end):
                    faults[i] |= np.uint8(UNWRITTEN)
        cover[:dirty] = 0


@helper
def _cover_resident(core, resident_first, resident, cover):
    """Marks what was written before the stream of a core. Returns the end of the last byte that is marked."""
    dirty = np.int64(0)
    for k in range(resident_first[core], resident_first[core + 1]):
        end = min(resident[k, 1], np.int64(cover.size))
        cover[resident[k, 0] : end] = 1
        dirty = max(dirty, end)
    return dirty


@helper
def _matrix(shapes, first, group, groups):
    """Returns the rows and columns of a group's matrix; 1 and 1 if the core has no such group."""
    if 0 <= group < groups:
        return np.int64(shapes[first + group, 0]), np.int64(shapes[first + group, 1])
    return np.int64(1), np.int64(1)


@helper
def _beyond(end, limit, used):
    """Returns the faults of an access that ends at `end`; see `check_accesses`."""
    found = np.uint8(BEYOND_MEMORY) if end > limit else np.uint8(0)
    return found | np.uint8(BEYOND_USED) if used >= 0 and end > used else found


@helper
def _columns(core, group, groups, shape_first, widest):
    """Returns the largest number of columns that a product may write."""
    if 0 <= group < groups:
        return widest[shape_first[core] + group]
    return np.int64(ANY_COLUMNS)


@helper
def _all_set(cover, start, end):
    total = np.int64(0)
    for k in range(start, end):
        total += cover[k]
    return total == end - start


@helper
def _overlap(start, size, other, other_size):
    """Checks whether two half-open ranges share a byte."""
    return size > 0 and other_size > 0 and start < other + other_size and other < start + size


@helper
def _touch(start, size, other, other_size):
    """Checks whether two ranges overlap for the simulator: both ends are included, and an empty range is a point.

    The size -1 means that there is no range.
    """
    return size >= 0 and other_size >= 0 and start <= other + other_size and other <= start + size


@helper
def _ranges(op, i, b, c, d, values, widths, rules, rows, cols, ranges):
    """Fills `ranges` with start and bytes of read 1, read 2 and write, as the ISA defines them; -1 if there is none."""
    width_in, width_out = np.int64(widths[i, 0]), np.int64(widths[i, 1])
    ranges[:] = -1
    for slot in range(3):
        count = rules[op, RuleColumn.COUNT_RD + slot]
        if count == NO_ACCESS:
            continue
        width = _bytes_of(rules[op, RuleColumn.WIDTH_RD + slot], width_in, width_out)
        moved = rules[op, RuleColumn.UNIT] != MATRIX and (b[i] >> slot) & 1
        elements = _elements(count, d[i], rows, cols, widths[i, 2])
        if rules[op, RuleColumn.STRIDED] == 1 and slot == RS1:
            elements = (elements - 1) * max(np.int64(values[i, RS2]), np.int64(1)) + 1
        at = 2 * ((slot + 2) % 3)
        ranges[at] = np.int64(values[i, slot]) + (np.int64(c[i]) * width if moved else 0)
        ranges[at + 1] = elements * width


@helper
def _seen_ranges(op, i, b, c, d, flags, values, widths, rules, rows, cols, ranges):
    """Fills `ranges` with start and bytes of read 1, read 2 and write, as the simulator checks them.

    `rows`, `cols`: size of whole crossbars.
    """
    width_in, width_out = np.int64(widths[i, 0]), np.int64(widths[i, 1])
    timing, length = rules[op, RuleColumn.TIMING], np.int64(d[i])
    if timing == Timing.COPY and flags[i] & 1:
        length = np.int64(0)  # this form of the instruction has no size
    ranges[:] = -1
    for slot in range(3):
        count = rules[op, RuleColumn.SEEN_COUNT_RD + slot]
        if count == NO_ACCESS:
            continue
        seen = _bytes_of(rules[op, RuleColumn.SEEN_WIDTH_RD + slot], width_in, width_out)
        # The offset counts elements of the instruction's own width. NOTE: for rs1 and rs2 the simulator adds it if a
        # bit of the value is set, instead of a bit of offset_select.
        width = _bytes_of(rules[op, RuleColumn.WIDTH_RD + slot], width_in, width_out) if slot == RD else seen
        chosen = b[i] if slot == RD else c[i]
        moved = rules[op, RuleColumn.UNIT] != MATRIX and (chosen >> slot) & 1
        start = np.int64(0) if timing == Timing.LOAD or timing == Timing.STORE else np.int64(values[i, slot])
        at = 2 * ((slot + 2) % 3)
        ranges[at] = start + (np.int64(c[i]) * width if moved else 0)
        ranges[at + 1] = _elements(count, length, rows, cols, widths[i, 2]) * seen


@kernel
def find_hazards(
    starts: Any,
    opcode: Any,
    b: Any,
    c: Any,
    d: Any,
    flags: Any,
    values: Any,
    widths: Any,
    rules: Any,
    shapes: Any,
    full: Any,
    shape_first: Any,
    window: Any,
    faults: Any,
) -> None:
    """Sets `faults[i]` if the simulator's hazard check misjudges an instruction and an earlier one in flight.

    At most `window` - 1 earlier instructions are in flight. An instruction for which a later one had to wait is no
    longer in flight. `shapes`: rows and columns of the matrices; `full`: rows and columns that the simulator assumes.
    """
    really = np.zeros((window, 6), np.int64)
    seen = np.zeros((window, 6), np.int64)
    engine = np.zeros(window, np.int64)
    done = np.zeros(window, np.bool_)
    for core in range(starts.size - 1):
        done[:] = True
        issued = np.int64(0)
        groups = shape_first[core + 1] - shape_first[core]
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            if rules[op, RuleColumn.UNIT] == SCALAR:
                continue
            is_product, timing = rules[op, RuleColumn.UNIT] == MATRIX, rules[op, RuleColumn.TIMING]
            is_global = timing == Timing.LOAD or timing == Timing.STORE
            at = issued % window
            rows, cols, full_rows, full_cols = np.int64(1), np.int64(1), np.int64(1), np.int64(1)
            if is_product and 0 <= c[i] < groups:
                g = shape_first[core] + c[i]
                rows, cols, full_rows, full_cols = shapes[g, 0], shapes[g, 1], full[g, 0], full[g, 1]
            _ranges(op, i, b, c, d, values, widths, rules, rows, cols, really[at])
            _seen_ranges(op, i, b, c, d, flags, values, widths, rules, full_rows, full_cols, seen[at])
            engine[at] = 16 + c[i] if is_product else rules[op, RuleColumn.UNIT]
            done[at] = False
            for back in range(1, min(window, issued + 1)):
                j = (issued - back) % window
                if done[j]:
                    continue
                found = _judge(really[at], seen[at], engine[at], really[j], seen[j], engine[j], is_global)
                if found < 0:
                    done[j] = engine[j] < 16 or found == -2
                elif found > 0:
                    faults[i] |= np.uint8(found)
                    if found & (ADJACENT | BOTTOM):
                        done[j] = True
            issued += 1


@helper
def _judge(really, seen, engine, other, other_seen, other_engine, is_global):
    """Compares an instruction with an earlier one in flight.

    Returns -1 if it waits for the same unit, -2 if it waits for a real dependency, 0 if they are independent, and else
    a fault of the hazard check.
    """
    if engine == other_engine:
        return -1
    stalls = (
        _touch(seen[4], seen[5], other_seen[0], other_seen[1])
        or _touch(seen[4], seen[5], other_seen[2], other_seen[3])
        or _touch(seen[0], seen[1], other_seen[4], other_seen[5])
        or _touch(seen[2], seen[3], other_seen[4], other_seen[5])
    )
    depends = (
        _overlap(really[4], really[5], other[0], other[1])
        or _overlap(really[4], really[5], other[2], other[3])
        or _overlap(really[0], really[1], other[4], other[5])
        or _overlap(really[2], really[3], other[4], other[5])
    )
    rewrites = _overlap(really[4], really[5], other[4], other[5])
    if stalls:
        if depends or rewrites:
            return -2
        exact = (
            _overlap(seen[4], seen[5], other_seen[0], other_seen[1])
            or _overlap(seen[4], seen[5], other_seen[2], other_seen[3])
            or _overlap(seen[0], seen[1], other_seen[4], other_seen[5])
            or _overlap(seen[2], seen[3], other_seen[4], other_seen[5])
        )
        return BOTTOM if exact or is_global else ADJACENT
    if depends:
        return UNSEEN
    return LOST_ORDER if rewrites else 0


@kernel
def count_live_bytes(
    starts: Any,
    opcode: Any,
    b: Any,
    c: Any,
    d: Any,
    values: Any,
    widths: Any,
    rules: Any,
    shapes: Any,
    shape_first: Any,
    begin: Any,
    end: Any,
    step: Any,
    lives: Any,
    change: Any,
) -> None:
    """Counts the bytes of each core that are in use at the times 0, `step`, 2 `step`, ...

    A byte is in use from the time when it is written (`begin` of the instruction) to the `end` of the last instruction
    that reads it before it is written again. `change[core, k]`: change of the number between the times k - 1 and k.
    `lives`: the times when each byte was written and last read, -1 on entry and on return; addresses beyond its end are
    left out.
    """
    ranges = np.zeros(6, np.int64)
    for core in range(starts.size - 1):
        top = np.int64(0)
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            if rules[op, RuleColumn.UNIT] == SCALAR:
                continue
            rows, cols = np.int64(1), np.int64(1)
            if rules[op, RuleColumn.UNIT] == MATRIX and 0 <= c[i] < shape_first[core + 1] - shape_first[core]:
                rows, cols = shapes[shape_first[core] + c[i], 0], shapes[shape_first[core] + c[i], 1]
            _ranges(op, i, b, c, d, values, widths, rules, rows, cols, ranges)
            for k in range(0, 4, 2):
                stop = min(ranges[k] + ranges[k + 1], lives.shape[0])
                top = max(top, stop)
                for byte in range(max(ranges[k], 0), stop):
                    lives[byte, 1] = end[i]
            stop = min(ranges[4] + ranges[5], lives.shape[0])
            top = max(top, stop)
            for byte in range(max(ranges[4], 0), stop):
                _close(lives, byte, begin[i], step, change[core])
                lives[byte, 0] = begin[i]
        for byte in range(top):
            _close(lives, byte, np.int64(2**62), step, change[core])


@helper
def _close(lives, byte, overwritten, step, change):
    """Ends the use of a byte, and counts it. An instruction may read the byte that it overwrites."""
    written, read = lives[byte, 0], min(lives[byte, 1], overwritten)
    if written >= 0 and read > written:
        change[min((written + step - 1) // step, change.size - 1)] += 1
        change[min((read + step - 1) // step, change.size - 1)] -= 1
    lives[byte, 0], lives[byte, 1] = -1, -1
