"""Compiled loops over the streams: register values, memory accesses, hazards, communication.

Opcodes are the simulator's and constants in cached machine code; the other tables are arguments (`raptor.common.jit`).
"""

# ruff: noqa: C901, SIM109 loops in one piece, and comparisons, compile to faster code than what reads better
# Kernels are untyped for numba's sake; the modules that call them pass the arrays described.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit import helper, kernel
from raptor.target.isa import OPCODE

_SLDI, _SLD, _SADD, _SSUB, _SMUL = (OPCODE[n] for n in ("sldi", "sld", "sadd", "ssub", "smul"))
_SADDI, _SMULI, _SETBW, _MVMUL, _VAVG = (OPCODE[n] for n in ("saddi", "smuli", "setbw", "mvmul", "vavg"))
_VMV, _LD, _ST, _LLDI, _LMV = (OPCODE[n] for n in ("vmv", "ld", "st", "lldi", "lmv"))
_VRSU, _VRSL, _VRELU = (OPCODE[n] for n in ("vrsu", "vrsl", "vrelu"))
_SEND, _RECV, _WAIT, _SYNC = (OPCODE[n] for n in ("send", "recv", "wait", "sync"))
_SCALAR, _MATRIX, _VECTOR, _TRANSFER = range(4)
_USE, _PAIR = 2, 3
_DEFINE = 1
_REGISTERS = 32

# Faults of `memory_accesses`.
BELOW_ZERO, BEYOND_MEMORY, BEYOND_USED, UNWRITTEN = 1, 2, 4, 8
ANY_COLUMNS = 2**16
"""What a product of an unknown group is taken to write, so that nothing is called unwritten without need."""
# Faults of `hazards`.
UNSEEN, LOST_ORDER, ADJACENT, BOTTOM = 1, 2, 4, 8
# What blocks a core in `communicate`.
FREE, ON_SEND, ON_RECV, ON_WAIT = range(4)


@kernel
def trace(
    starts: Any,
    opcode: Any,
    rd: Any,
    rs1: Any,
    a: Any,
    b: Any,
    c: Any,
    roles: Any,
    values: Any,
    widths: Any,
    unset: Any,
) -> None:
    """Register contents at every instruction: streams have no branches, so they are known.

    `values[i]`: contents of rd, rs1, rs2 as the instruction finds them. `widths[i]`: bytes of an input and an output
    element (0 before the first setbw). `unset[i]`: bits of the operands that read a register nothing has written.
    """
    content = np.zeros(_REGISTERS, np.int32)
    for core in range(starts.size - 1):
        content[:] = 0
        written = np.int64(0)
        width_in, width_out = np.uint8(0), np.uint8(0)
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            widths[i, 0], widths[i, 1] = width_in, width_out
            for slot in range(3):
                role = roles[op, slot]
                if role == 0:
                    continue
                register = rd[i] if slot == 0 else (rs1[i] if slot == 1 else a[i])
                if register < 0 or register >= _REGISTERS:
                    continue
                values[i, slot] = content[register]
                if role == _DEFINE:
                    continue
                missing = (written >> register) & 1 == 0
                if role == _PAIR and register + 1 < _REGISTERS:
                    missing = missing or (written >> (register + 1)) & 1 == 0
                if missing:
                    unset[i] |= np.uint8(1 << slot)
            if op == _SETBW:
                width_in, width_out = _bytes(b[i]), _bytes(c[i])
            elif roles[op, 0] == _DEFINE and rd[i] < _REGISTERS:
                content[rd[i]] = _result(op, values[i], a[i])
                written |= np.int64(1) << rd[i]


@helper
def _bytes(bits):
    return np.uint8(min(max((bits + 7) // 8, 0), 255))


@helper
def _result(op, values, a):
    if op == _SLDI:
        return np.int32(a)
    if op == _SADD:
        return np.int32(values[1] + values[2])
    if op == _SSUB:
        return np.int32(values[1] - values[2])
    if op == _SMUL:
        return np.int32(values[1] * values[2])
    if op == _SADDI:
        return np.int32(values[1] + a)
    if op == _SMULI:
        return np.int32(values[1] * a)
    return np.int32(0)


@helper
def _lengths(op, width_in, width_out, a, c, d, wide, one, rows, cols):
    """Bytes read at rs1, read at rs2 and written at rd, by the text of the ISA."""
    if op == _MVMUL:
        return rows * width_in, np.int64(0), cols * width_out
    n = np.int64(d)
    if op == _LD or op == _RECV or op == _LLDI:
        return np.int64(0), np.int64(0), n
    if op == _ST or op == _SEND:
        return n, np.int64(0), np.int64(0)
    if op == _LMV:
        return n, np.int64(0), n
    written = np.int64(1) if one[op] else n
    return n * width_in, n * width_in, written * (width_out if wide[op] else width_in)


@kernel
def memory_accesses(
    starts: Any,
    opcode: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    values: Any,
    widths: Any,
    unit: Any,
    roles: Any,
    wide: Any,
    one: Any,
    shapes: Any,
    widest: Any,
    shape_first: Any,
    limit: Any,
    used: Any,
    cover: Any,
    faults: Any,
) -> None:
    """Sets `faults[i]` where an instruction leaves the local memory, or reads what nothing has written.

    `shapes[shape_first[core] + group]` is the matrix of a group (1 x 1 if unknown), `widest` the most columns it can
    have. `limit`: bytes of a memory;
    `used[core]`: bytes that the compiler says are used, or -1. `cover`: bytes for which writes are remembered.
    """
    top = np.int64(cover.size)
    for core in range(starts.size - 1):
        dirty = np.int64(0)
        groups = shape_first[core + 1] - shape_first[core]
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            if unit[op] == _SCALAR or op == _WAIT or op == _SYNC:
                continue
            # NOTE: widths that were never set are another rule's business: a byte is assumed.
            width_in, width_out = max(np.int64(widths[i, 0]), np.int64(1)), max(np.int64(widths[i, 1]), np.int64(1))
            rows, cols = np.int64(1), np.int64(1)
            if op == _MVMUL and 0 <= c[i] < groups:
                rows, cols = shapes[shape_first[core] + c[i], 0], shapes[shape_first[core] + c[i], 1]
            reads = _lengths(op, width_in, width_out, a[i], c[i], d[i], wide, one, rows, cols)
            for step in range(3):  # reads first, then the write
                slot = (step + 1) % 3
                if roles[op, slot] != _USE or (slot == 2 and not _second_is_address(op)):
                    continue
                if op == _SEND and slot == 0:
                    continue
                size = reads[step]
                if size <= 0:
                    continue
                start = np.int64(values[i, slot])
                if op != _MVMUL and (b[i] >> slot) & 1:
                    scale = (
                        np.int64(1) if unit[op] == _TRANSFER else (width_out if slot == 0 and wide[op] else width_in)
                    )
                    start += np.int64(c[i]) * scale
                end = start + size
                if (op == _VMV or op == _VAVG) and slot == 1:
                    end = start + width_in + (np.int64(d[i]) - 1) * width_in * max(np.int64(values[i, 2]), np.int64(0))
                if start < 0:
                    faults[i] |= np.uint8(BELOW_ZERO)
                    continue
                if end > limit:
                    faults[i] |= np.uint8(BEYOND_MEMORY)
                if used[core] >= 0 and end > used[core]:
                    faults[i] |= np.uint8(BEYOND_USED)
                if end > top:
                    continue
                if slot == 0:
                    if op == _MVMUL:
                        end = min(max(end, start + width_out * _columns(core, c[i], groups, shape_first, widest)), top)
                    cover[start:end] = 1
                    dirty = max(dirty, end)
                elif end - start == size and not _all_set(cover, start, end):
                    faults[i] |= np.uint8(UNWRITTEN)
        cover[:dirty] = 0


@helper
def _columns(core, group, groups, shape_first, widest):
    """The most columns that a product may write."""
    if 0 <= group < groups:
        return widest[shape_first[core] + group]
    return np.int64(ANY_COLUMNS)


@helper
def _second_is_address(op):
    return op != _VAVG and op != _VMV and op != _VRSU and op != _VRSL


@helper
def _all_set(cover, start, end):
    total = np.int64(0)
    for k in range(start, end):
        total += cover[k]
    return total == end - start


@helper
def _overlap(start, size, other, other_size):
    """Whether two half-open ranges share a byte."""
    return size > 0 and other_size > 0 and start < other + other_size and other < start + size


@helper
def _touch(start, size, other, other_size):
    """The simulator's test: both ends inclusive, and a range of no bytes is a point; absent ones have size -1."""
    return size >= 0 and other_size >= 0 and start <= other + other_size and other <= start + size


@helper
def _ranges(op, i, b, c, d, flags, values, widths, wide, one, rows, cols, full_rows, full_cols, really, seen):
    """(start, bytes) of read 1, read 2 and write, as the ISA means them and as the simulator checks them."""
    width_in, width_out = np.int64(widths[i, 0]), np.int64(widths[i, 1])
    seen[:] = -1
    really[:] = -1
    scale_in, scale_out = width_in, width_out if wide[op] else width_in
    n = np.int64(d[i])
    if op == _MVMUL:
        _set(really, values[i, 1], rows * width_in, 0, 0, values[i, 0], cols * width_out, True, False, True)
        _set(seen, values[i, 1], full_rows * width_in, 0, 0, values[i, 0], full_cols * width_out, True, False, True)
        return
    if op == _WAIT or op == _SYNC:
        return
    off = np.int64(c[i])
    select, value = np.int64(b[i]), np.int64(c[i])
    if op == _LD or op == _ST or op == _LLDI or op == _LMV or op == _SEND or op == _RECV:
        scale_in, scale_out = np.int64(1), np.int64(1)
    isa_d = np.int64(values[i, 0]) + (off * scale_out if select & 1 else 0)
    isa_1 = np.int64(values[i, 1]) + (off * scale_in if select & 2 else 0)
    isa_2 = np.int64(values[i, 2]) + (off * scale_in if select & 4 else 0)
    sim_1 = np.int64(values[i, 1]) + (off * scale_in if value & 2 else 0)
    sim_2 = np.int64(values[i, 2]) + (off * scale_in if value & 4 else 0)
    if op == _LD:
        _set(really, 0, 0, 0, 0, isa_d, n, False, False, True)
        _set(seen, 0, 0, 0, 0, off if select & 1 else 0, n, False, False, True)
    elif op == _ST:
        _set(really, isa_1, n, 0, 0, 0, 0, True, False, False)
        _set(seen, off if value & 2 else 0, n, 0, 0, 0, 0, True, False, False)
    elif op == _LLDI:
        _set(really, 0, 0, 0, 0, isa_d, n, False, False, True)
        _set(seen, 0, 0, 0, 0, isa_d, 1, False, False, True)
    elif op == _LMV:
        _set(really, isa_1, n, 0, 0, isa_d, n, True, False, True)
        checked = np.int64(0) if flags[i] & 1 else n
        _set(seen, sim_1, checked, 0, 0, isa_d, checked, True, False, True)
    elif op == _SEND:
        _set(really, isa_1, n, 0, 0, 0, 0, True, False, False)
        _set(seen, sim_1, n, 0, 0, 0, 0, True, False, False)
    elif op == _RECV:
        _set(really, 0, 0, 0, 0, isa_d, n, False, False, True)
        _set(seen, 0, 0, 0, 0, isa_d, n, False, False, True)
    else:
        stride = max(np.int64(values[i, 2]), np.int64(1)) if op == _VMV or op == _VAVG else np.int64(1)
        read = ((n - 1) * stride + 1) * width_in
        written = (np.int64(1) if one[op] else n) * scale_out
        two = _second_is_address(op)
        binary = two and op != _VRELU
        _set(really, isa_1, read, isa_2, n * width_in, isa_d, written, True, binary, True)
        if op != _VMV:
            reported = n * width_out if op == _VRELU else (scale_out if op == _VAVG else n * scale_out)
            second = binary or op == _VRSU or op == _VRSL
            _set(seen, sim_1, n * width_in, sim_2, n * width_in, isa_d, reported, True, second, True)


@helper
def _set(ranges, read1, size1, read2, size2, write, size, has1, has2, has_write):
    if has1:
        ranges[0], ranges[1] = read1, size1
    if has2:
        ranges[2], ranges[3] = read2, size2
    if has_write:
        ranges[4], ranges[5] = write, size


@helper
def _drop_absent_second(op, roles, ranges):
    if roles[op, 2] != _USE:
        ranges[2], ranges[3] = -1, -1


@kernel
def hazards(
    starts: Any,
    opcode: Any,
    b: Any,
    c: Any,
    d: Any,
    flags: Any,
    values: Any,
    widths: Any,
    unit: Any,
    roles: Any,
    wide: Any,
    one: Any,
    shapes: Any,
    full: Any,
    shape_first: Any,
    window: Any,
    faults: Any,
) -> None:
    """Sets `faults[i]` where an instruction may overlap an earlier one in flight and the simulator's check errs.

    At most `window` - 1 earlier instructions are in flight. One that a later instruction had to wait for is not.
    `shapes`: rows and columns of the matrices, `full`: what the simulator reads and writes instead.
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
            if unit[op] == _SCALAR:
                continue
            at = issued % window
            rows, cols, full_rows, full_cols = np.int64(1), np.int64(1), np.int64(1), np.int64(1)
            if op == _MVMUL and 0 <= c[i] < groups:
                g = shape_first[core] + c[i]
                rows, cols, full_rows, full_cols = shapes[g, 0], shapes[g, 1], full[g, 0], full[g, 1]
            _ranges(
                op, i, b, c, d, flags, values, widths, wide, one,
                rows, cols, full_rows, full_cols, really[at], seen[at],
            )  # fmt: skip
            if op != _MVMUL:
                _drop_absent_second(op, roles, really[at])
                if op != _VRSU and op != _VRSL:
                    _drop_absent_second(op, roles, seen[at])
            engine[at] = 16 + c[i] if op == _MVMUL else unit[op]
            done[at] = False
            for back in range(1, min(window, issued + 1)):
                j = (issued - back) % window
                if done[j]:
                    continue
                found = _judge(really[at], seen[at], engine[at], really[j], seen[j], engine[j], op == _LD or op == _ST)
                if found < 0:
                    done[j] = engine[j] < 16 or found == -2
                elif found > 0:
                    faults[i] |= np.uint8(found)
                    if found & (ADJACENT | BOTTOM):
                        done[j] = True
            issued += 1


@helper
def _judge(really, seen, engine, other, other_seen, other_engine, is_global):
    """-1: waits for the same unit, -2: waits as it should; 0: nothing in common; otherwise what is wrong."""
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
def communicate(
    starts: Any, kind: Any, partner: Any, value: Any, event: Any, at: Any, blocked: Any, tokens: Any
) -> None:
    """Runs nothing but sends, receives and tokens until no core can go on.

    Per core, from `starts[core]`: what each step is (ON_SEND, ON_RECV, ON_WAIT, or FREE for sync), with whom, how many
    tokens, which register. `at[core]` becomes the step reached, `blocked[core]` what it waits for there. The order in
    which cores are run makes no difference: a rendezvous has two fixed sides, tokens are only taken by their owner.
    """
    cores = starts.size - 1
    queue = np.empty(cores, np.int64)
    queued = np.ones(cores, np.bool_)
    for core in range(cores):
        queue[core], at[core] = core, starts[core]
    head, waiting = 0, cores
    while waiting > 0:
        core = queue[head % cores]
        head += 1
        waiting -= 1
        queued[core] = False
        blocked[core] = FREE
        while at[core] < starts[core + 1]:
            step = at[core]
            other = partner[step]
            if kind[step] == FREE:
                at[core] += 1
                if 0 <= other < cores:
                    tokens[other, event[step] & 31] += 1
                    if blocked[other] == ON_WAIT and not queued[other]:
                        queue[(head + waiting) % cores], queued[other] = other, True
                        waiting += 1
            elif kind[step] == ON_WAIT:
                if tokens[core, event[step] & 31] < value[step]:
                    blocked[core] = ON_WAIT
                    break
                tokens[core, event[step] & 31] -= value[step]
                at[core] += 1
            else:
                meets = 0 <= other < cores and other != core and at[other] < starts[other + 1]
                if meets:
                    there = at[other]
                    meets = partner[there] == core and kind[there] + kind[step] == ON_SEND + ON_RECV
                    meets = meets and (kind[there] == ON_SEND or kind[there] == ON_RECV)
                if not meets:
                    blocked[core] = kind[step]
                    break
                at[core] += 1
                at[other] += 1
                if not queued[other]:
                    queue[(head + waiting) % cores], queued[other] = other, True
                    waiting += 1


@kernel
def live_bytes(
    starts: Any,
    opcode: Any,
    b: Any,
    c: Any,
    d: Any,
    values: Any,
    widths: Any,
    roles: Any,
    wide: Any,
    one: Any,
    shapes: Any,
    shape_first: Any,
    begin: Any,
    end: Any,
    step: Any,
    lives: Any,
    change: Any,
) -> None:
    """Counts the bytes of each core that hold something at the instants 0, `step`, 2 `step`, ...

    A byte holds something from when it is written (`begin` of the instruction) to the `end` of the last that reads it
    before it is written again. `change[core, k]`: what comes and goes between instants k - 1 and k. `lives`: when each
    byte was written and last read, -1 on entry and on return; addresses beyond are left out.
    """
    flags = np.zeros(opcode.size, np.uint8)
    ranges = np.zeros(6, np.int64)
    unused = np.zeros(6, np.int64)
    for core in range(starts.size - 1):
        top = np.int64(0)
        for i in range(starts[core], starts[core + 1]):
            op = opcode[i]
            if op <= _SETBW:
                continue
            rows, cols = np.int64(1), np.int64(1)
            if op == _MVMUL and 0 <= c[i] < shape_first[core + 1] - shape_first[core]:
                rows, cols = shapes[shape_first[core] + c[i], 0], shapes[shape_first[core] + c[i], 1]
            _ranges(op, i, b, c, d, flags, values, widths, wide, one, rows, cols, rows, cols, ranges, unused)
            _drop_absent_second(op, roles, ranges)
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
    """Ends the life of what a byte holds; an instruction may read what it overwrites."""
    written, read = lives[byte, 0], min(lives[byte, 1], overwritten)
    if written >= 0 and read > written:
        change[min((written + step - 1) // step, change.size - 1)] += 1
        change[min((read + step - 1) // step, change.size - 1)] -= 1
    lives[byte, 0], lives[byte, 1] = -1, -1
