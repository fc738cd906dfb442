"""Compiled engine. It executes like `reference`, in the same order of float operations, with the same checks.

A memory is a tuple of planes: its values and, with integers, a byte for each value that is 1 if it was written. Moves
copy all planes. `integers` is None in a program of floats, `crossbars` if products are exact; numba then leaves out
the code that tests for it.

Import it only where it runs (`raptor.common.jit.decorators`). Positions in memories are unsigned. Indexing then needs
no test for negative positions, so the compiler turns the small loops into vector code. Slices would have the same
effect, but take long to make. NOTE: in numba, an operation of a signed and an unsigned integer gives a float.

The memory that an instruction reads and writes is given by `rules` (`raptor.target.opcode_tables`); the computation is
here.
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel
from raptor.target.isa import OPCODE, Timing
from raptor.target.opcode_tables import ONE, VECTOR, RuleColumn
from validator.engines.address_kernels import check_overlap, check_span, locate_local
from validator.engines.float_kernels import apply_binary, apply_unary, float_product, rectify
from validator.engines.integer_kernels import integer_product, integer_vector
from validator.engines.machine import EVENT_COUNT, UNUSED, WORD_BYTES, EngineStop
from validator.engines.scalar_kernels import compute_scalar

_DONE, _DEADLOCK, _STEPS = int(EngineStop.DONE), int(EngineStop.DEADLOCK), int(EngineStop.STEPS)
_UNALIGNED, _LOCAL, _GLOBAL = int(EngineStop.UNALIGNED), int(EngineStop.LOCAL_RANGE), int(EngineStop.GLOBAL_RANGE)
_OVERLAP, _REGISTERS, _SIZES = int(EngineStop.OVERLAP), int(EngineStop.SEND_REGISTERS), int(EngineStop.SIZES_DIFFER)
_NOT_OWNED, _NO_MEANING = int(EngineStop.NOT_OWNED), int(EngineStop.NO_MEANING)
_UNWRITTEN, _NOT_WHOLE, _NO_ROW = int(EngineStop.UNWRITTEN), int(EngineStop.NOT_WHOLE), int(EngineStop.NO_ROW)
_OK, _BLOCKED = 0, -1
_EVENTS = EVENT_COUNT
_U = np.uint64
_YES, _NO = np.True_, np.False_
"""Plain booleans would have literal types, for which numba would compile `apart` once more."""

_SLDI, _SLD, _MVMUL, _LMV, _LD, _ST, _LLDI = (OPCODE[n] for n in ("sldi", "sld", "mvmul", "lmv", "ld", "st", "lldi"))
_SEND, _RECV, _WAIT, _SYNC, _NOP, _SETBW = (OPCODE[n] for n in ("send", "recv", "wait", "sync", "nop", "setbw"))
_SETFP = OPCODE["setfp"]


@bare_kernel
def run_cores(
    block: bool,
    max_steps: int,
    rules: Any,
    cores: Any,
    memories: Any,
    weights: Any,
    probes: Any,
    integers: Any,
    crossbars: Any,
    space: Any,
    fault: Any,
) -> int:
    """Runs all cores until they have finished, none can continue, or there is a fault. Returns a `Stop`.

    `fault` receives the fields of `Fault`. A blocked core is woken by the core that it waits for, through a queue.
    `block`: run each core until it blocks, else one instruction of each core in turn.
    """
    pc, first = cores[1], cores[2]
    count = pc.size
    queue, queued, woken, scratch = space  # `queue`: a ring of the cores that may be able to continue,
    head, waiting = 0, count  # `waiting` of them from `head` on
    products = weights, crossbars, scratch
    steps = np.int64(0)
    while waiting > 0:
        core = queue[head]
        head = (head + 1) % count
        waiting -= 1
        queued[core] = False
        going = True
        while going:
            if steps >= max_steps:
                fault[0] = core
                return _STEPS
            woken[0] = -1
            limit = max_steps - steps if block else np.int64(1)
            code, done = _advance(core, limit, rules, cores, memories, probes, integers, products, woken, fault)
            steps += done
            if code > 0:
                return code
            going = code == _OK and pc[core] < first[core + 1]
            woken[1] = -1 if block or not going else core
            for other in woken:
                if other >= 0 and not queued[other]:
                    queued[other] = True
                    queue[(head + waiting) % count] = other
                    waiting += 1
            going = going and block
    for core in range(count):
        if pc[core] < first[core + 1]:
            return _DEADLOCK
    return _DONE


@bare_helper
def _advance(  # noqa: C901 the dispatch
    core, limit, rules, cores, memories, probes, integers, products, woken, fault
):
    """Executes up to `limit` instructions of a core, but none after an instruction that may wake another core.

    Returns a code (0, blocked, or a fault) and the number of instructions executed, including the partner's.
    """
    words, pc, first, registers, events = cores[0], cores[1], cores[2], cores[3][core], cores[4]
    local, local_first = memories[0], memories[1]
    at, end = pc[core], first[core + 1]
    due = _capture(core, at, local, local_first, probes)
    done, code, op = np.int64(0), _OK, np.int32(0)
    while done < limit and at < end:
        if at == due:
            due = _capture(core, at, local, local_first, probes)
        op, rd, rs1, a, b, c, d = _decode(words, at)
        if op == _SLDI:
            registers[rd] = a
        elif op == _MVMUL:
            code = _any_product(core, registers[rd], registers[rs1], b, c, memories, integers, products, fault)
        elif op == _LMV:
            target = registers[rd] + (c if b & 1 else 0)
            code = _lmv(core, target, registers[rs1] + (c if b & 2 else 0), d, memories, fault)
        elif rules[op, RuleColumn.UNIT] == VECTOR:
            code = _any_vector(core, op, rules[op], registers, rd, rs1, a, b, c, d, memories, integers, fault)
        elif rules[op, RuleColumn.TIMING] == Timing.REGISTER and op != _SLD:
            second = np.int64(registers[a]) if rules[op, RuleColumn.READS_RS2] == 1 else np.int64(0)
            registers[rd] = np.int32(compute_scalar(op, np.int64(registers[rs1]), second, a))
        elif op == _LD or op == _ST:  # noqa: SIM109 numba makes a loop of `in`
            code = _transfer(core, op, registers, rd, rs1, b, c, d, memories, fault)
        elif op == _LLDI:
            code = _lldi(core, registers[rd] + (c if b & 1 else 0), a & 255, d, memories, fault)
        elif op == _WAIT:
            code = _wait(events, core * _EVENTS + b, c)
        elif op == _SYNC:
            events[a * _EVENTS + b] += 1
            woken[0] = a
            limit = done  # the last instruction of this turn
        elif op == _SEND or op == _RECV:  # noqa: SIM109 numba makes a loop of `in`
            pc[core] = at
            code = _meet(core, op, a, cores, memories, probes, fault)
            if code == _OK:
                woken[0] = a
                done += 1  # the partner's instruction
                limit = done
        elif op == _SLD:
            code = _read_id(core, registers, rd, rs1, c, cores, memories, integers, fault)
        elif op == _SETBW or op == _SETFP:  # noqa: SIM109 numba makes a loop of `in`
            code = _set_widths(core, op, b, c, integers)
        elif op != _NOP:
            code = _NO_MEANING
        if code != _OK:
            break
        at += 1
        done += 1
    pc[core] = at
    _capture(core, at, local, local_first, probes)
    if code > 0 and op != _SEND and op != _RECV:
        fault[0] = core
    return code, done


@bare_helper
def _set_widths(core, op, ibiw, obiw, integers):
    """Executes `setbw` or `setfp`. A program of floats has one width only (`check`), and no `setfp`."""
    if integers is None:
        return _OK if op == _SETBW else _NO_MEANING
    widths = integers[0]
    widths[core, 0], widths[core, 1], widths[core, 2] = ibiw, obiw, op == _SETFP
    return _OK


@bare_helper
def _capture(core, at, local, local_first, probes):
    """Copies the spans of the probes at instruction `at`. Returns the instruction of the core's next probe, or -1."""
    pc, first, following, address, size, offset, captured = probes
    i = following[core]
    while i < first[core + 1] and pc[i] == at:
        _copy(captured, _U(offset[i]), local, _U(local_first[core] + address[i]), _U(size[i]))
        i += 1
    following[core] = i
    return pc[i] if i < first[core + 1] else np.int64(-1)


@bare_helper
def _decode(words, at):
    """Returns opcode, rd and rs1 of an instruction, and its four operands."""
    head = words[at, 0]
    a, b, c, d = np.int64(words[at, 1]), np.int64(words[at, 2]), np.int64(words[at, 3]), np.int64(words[at, 4])
    return head & 255, (head >> 8) & 255, (head >> 16) & 255, a, b, c, d


@bare_helper
def _wait(events, event, count):
    """Takes `count` signals of an event. Returns 0, or `_BLOCKED` if there are fewer."""
    if events[event] < count:
        return _BLOCKED
    events[event] -= count
    return _OK


@bare_helper
def _any_product(core, target, source, relu, group, memories, integers, products, fault):
    """Executes `mvmul`, on floats or on integers. No other helper takes the many arrays of the crossbars."""
    weights, crossbars, scratch = products
    if integers is None:
        return _mvmul(core, target, source, relu, group, memories, weights, scratch, fault)
    return integer_product(core, target, source, relu, group, memories, weights, integers, crossbars, fault)


@bare_helper
def _any_vector(core, op, rule, registers, rd, rs1, a, b, c, d, memories, integers, fault):
    """Executes a vector instruction, on floats or on integers. `rule`: its row in `rules`."""
    second = np.int64(registers[a]) if rule[RuleColumn.READS_RS2] == 1 else np.int64(0)
    if integers is None:
        return _vector(core, op, rule, registers[rd], registers[rs1], second, b, c, d, memories, fault)
    return integer_vector(core, op, rule, registers[rd], registers[rs1], second, b, c, d, memories, integers, fault)


@bare_helper
def _mvmul(core, target, source, relu, group, memories, weights, scratch, fault):
    values, offset, rows, cols, first_group = weights
    local, width = memories[0][0], memories[4]
    g, y = first_group[core] + group, _U(0)
    code, x = locate_local(core, np.int64(source), rows[g] * width, memories, fault)
    if code == _OK:
        code, y = locate_local(core, np.int64(target), cols[g] * width, memories, fault)
    if code != _OK:
        return code
    float_product(local, x, _U(rows[g]), values, _U(offset[g]), _U(cols[g]), scratch)
    if relu:
        rectify(local, y, scratch, _U(0), _U(cols[g]))
    else:
        for j in range(_U(cols[g])):
            local[y + j] = scratch[j]
    return _OK


@bare_helper
def _vector(core, op, rule, rd, rs1, rs2, b, c, d, memories, fault):
    """Executes a vector instruction. `rule`: its row in `rules`. `rd`, `rs1`, `rs2`: values of the registers."""
    local, width = memories[0][0], memories[4]
    single, strided = rule[RuleColumn.COUNT_RD] == ONE, rule[RuleColumn.STRIDED] == 1
    if strided and rs2 < 0:
        fault[1], fault[2] = rs1, rs2
        return _LOCAL
    step = c * width
    result = np.int64(1) if single else d
    span = (d - 1) * rs2 + 1 if strided else d
    moved = step if b & 1 and not single and not strided else 0
    code, y = locate_local(core, rd + moved, result * width, memories, fault)
    if code != _OK:
        return code
    code, x = locate_local(core, rs1 + (step if b & 2 else 0), span * width, memories, fault)
    if code == _OK and not single:
        code = check_overlap(y, _U(result), x, _U(span), not strided, memories, core, fault)
    if code != _OK:
        return code
    if rule[RuleColumn.SOURCES] == 1:
        return apply_unary(op, local, y, x, rs2, _U(d))
    code, z = locate_local(core, rs2 + (step if b & 4 else 0), span * width, memories, fault)
    if code == _OK and not single:
        code = check_overlap(y, _U(result), z, _U(span), _YES, memories, core, fault)
    return apply_binary(op, local, y, x, z, _U(d)) if code == _OK else code


@bare_helper
def _copy(target, y, source, x, n):
    """Copies `n` elements of all planes."""
    for k in range(len(target)):
        v, u = target[k], source[k]
        for i in range(n):
            v[y + i] = u[x + i]


@bare_helper
def _fill(planes, y, value, n):
    """Writes `n` elements. A program of floats fills with 0 only."""
    for k in range(len(planes)):
        v, content = planes[k], value if k == 0 else np.int64(1)
        for i in range(n):
            v[y + i] = content


@bare_helper
def _lldi(core, target, value, size, memories, fault):
    code, y = locate_local(core, target, size, memories, fault)
    if code == _OK:
        _fill(memories[0], y, value, _U(size // memories[4]))
    return code


@bare_helper
def _lmv(core, target, source, size, memories, fault):
    local, width = memories[0], memories[4]
    code, y = locate_local(core, target, size, memories, fault)
    if code != _OK:
        return code
    code, x = locate_local(core, source, size, memories, fault)
    count = _U(size // width)
    if code == _OK:
        code = check_overlap(y, count, x, count, _NO, memories, core, fault)
    if code == _OK:
        _copy(local, y, local, x, count)
    return code


@bare_helper
def _transfer(core, op, registers, rd, rs1, b, c, d, memories, fault):
    """Executes `ld` or `st`. The address in global memory: high word in an even register, low word in the next."""
    local, _local_first, _local_size, memory, width, owners = memories
    near, far = (rd, rs1) if op == _LD else (rs1, rd)
    near_bit, far_bit = (1, 2) if op == _LD else (2, 1)
    code, x = locate_local(core, registers[near] + (c if b & near_bit else 0), d, memories, fault)
    if code != _OK:
        return code
    address = (np.int64(registers[far]) << 32) + (np.int64(registers[far + 1]) & 0xFFFFFFFF)
    code, g = check_span(address + (c if b & far_bit else 0), d, owners.size, width, fault)
    if code != _OK:
        return _GLOBAL if code == _LOCAL else code
    start, count = _U(g), _U(d // width)
    if not _owns(core, op, owners, start, count):
        fault[1], fault[2] = g * width, d
        return _NOT_OWNED
    if op == _LD:
        _copy(local, x, memory, start, count)
    else:
        _copy(memory, start, local, x, count)
        for k in range(count):
            owners[start + _U(k)] = core
    return _OK


@bare_helper
def _read_id(core, registers, rd, rs1, offset, cores, memories, integers, fault):
    """Executes `sld`: loads the number of a row, which must exist in the table of this lookup."""
    memory, width, owners = memories[3], memories[4], memories[5]
    rows, next_id = cores[5], cores[6]
    address = (np.int64(registers[rs1]) << 32) + (np.int64(registers[rs1 + 1]) & 0xFFFFFFFF) + offset
    size = width if integers is None else np.int64(WORD_BYTES)
    code, g = check_span(address, size, owners.size, width, fault)
    if code != _OK:
        return _GLOBAL if code == _LOCAL else code
    if not _owns(core, _LD, owners, _U(g), _U(size // width)):
        code = _NOT_OWNED
    else:
        code, value = _id(memory, g, integers)
        if code == _OK and not (value >= 0 and value < rows[next_id[core]]):
            code, fault[4] = _NO_ROW, np.int64(0) if integers is None else np.int64(value)
        elif code == _OK:
            next_id[core] += 1
            registers[rd] = np.int32(value)
    if code != _OK:
        fault[1], fault[2] = address, size
    return code


@bare_helper
def _id(memory, g, integers):
    """Returns a code (0 or a fault), and the row number at element `g` of global memory."""
    if integers is None:
        value = np.float64(memory[0][_U(g)])
        return (_OK if value == np.floor(value) else _NOT_WHOLE), value
    word = np.int64(0)
    for k in range(WORD_BYTES):
        if memory[1][g + k] == 0:
            return _UNWRITTEN, 0.0
        word |= np.int64(memory[0][g + k]) << (8 * k)
    return _OK, np.float64(np.int32(word))


@bare_helper
def _owns(core, op, owners, start, count):
    """Checks whether a core may load (`ld`) or store (`st`) this part of global memory."""
    for k in range(count):
        owner = owners[start + _U(k)]
        if owner != core and owner != UNUSED and (owner >= 0 or op == _ST):
            return False
    return True


@bare_helper
def _meet(core, op, partner, cores, memories, probes, fault):
    """Executes a rendezvous: copies the data and advances the partner.

    Returns 0, `_BLOCKED` if the partner is not at the matching instruction, or a fault code.
    """
    words, pc, first, registers = cores[0], cores[1], cores[2], cores[3]
    local, local_first, width = memories[0], memories[1], memories[4]
    there = pc[partner]
    if there == first[partner + 1]:
        return _BLOCKED
    if (words[there, 0] & 255) != (_RECV if op == _SEND else _SEND) or words[there, 1] != core:
        return _BLOCKED
    _capture(partner, there, local, local_first, probes)
    sender, receiver = (core, partner) if op == _SEND else (partner, core)
    send, recv = pc[sender], pc[receiver]
    fault[0] = sender
    address = np.int64(registers[sender, (words[send, 0] >> 8) & 255])
    if address != registers[sender, (words[send, 0] >> 16) & 255]:
        return _REGISTERS
    size, recv_size = np.int64(words[send, 4]), np.int64(words[recv, 4])
    code, x = locate_local(sender, address + (words[send, 3] if words[send, 2] & 3 else 0), size, memories, fault)
    if code != _OK:
        return code
    fault[0] = receiver
    address = np.int64(registers[receiver, (words[recv, 0] >> 8) & 255])
    code, y = locate_local(
        receiver, address + (words[recv, 3] if words[recv, 2] & 1 else 0), recv_size, memories, fault
    )
    if code != _OK:
        return code
    if size != recv_size:
        fault[0], fault[1], fault[2] = sender, 0, recv_size
        return _SIZES
    _copy(local, y, local, x, _U(size // width))
    pc[partner] = there + 1
    return _OK
