"""Compiled engine. It does what `reference` does, in the same order of float operations, with the same checks.

Import it only where it runs (`raptor.common.jit`). Positions in memories are unsigned. Indexing then needs no test for
negative positions, so the compiler turns the small loops into vector code. Slices would have the same effect, but they
take long to make. NOTE: in numba, an operation of a signed and an unsigned integer gives a float.

The memory that an instruction reads and writes is given by `rules` (`raptor.target.opcode_tables`); the computation is
here.
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import math
from typing import Any

import numpy as np

from raptor.common.jit import helper, kernel
from raptor.target.isa import OPCODE, Timing
from raptor.target.opcode_tables import ONE, VECTOR, Rule
from validator.machine import EVENT_COUNT, UNUSED, Stop
from validator.scalar_kernels import scalar_result

_DONE, _DEADLOCK, _STEPS = int(Stop.DONE), int(Stop.DEADLOCK), int(Stop.STEPS)
_UNALIGNED, _LOCAL, _GLOBAL = int(Stop.UNALIGNED), int(Stop.LOCAL_RANGE), int(Stop.GLOBAL_RANGE)
_OVERLAP, _REGISTERS, _SIZES = int(Stop.OVERLAP), int(Stop.SEND_REGISTERS), int(Stop.SIZES_DIFFER)
_NOT_OWNED, _NO_MEANING = int(Stop.NOT_OWNED), int(Stop.NO_MEANING)
_OK, _BLOCKED = 0, -1
_EVENTS = EVENT_COUNT
_U = np.uint64

_SLDI, _SLD, _MVMUL, _LMV, _LD, _ST, _LLDI = (OPCODE[n] for n in ("sldi", "sld", "mvmul", "lmv", "ld", "st", "lldi"))
_SEND, _RECV, _WAIT, _SYNC, _NOP, _SETBW = (OPCODE[n] for n in ("send", "recv", "wait", "sync", "nop", "setbw"))
_VVADD, _VVSUB, _VVMUL, _VVDMUL, _VVMAX = (OPCODE[n] for n in ("vvadd", "vvsub", "vvmul", "vvdmul", "vvmax"))
_VAVG, _VRELU, _VTANH, _VSIGM, _VSOFTMAX = (OPCODE[n] for n in ("vavg", "vrelu", "vtanh", "vsigm", "vsoftmax"))
_VMV, _VRSU, _VRSL, _VEXP, _VLOG = (OPCODE[n] for n in ("vmv", "vrsu", "vrsl", "vexp", "vlog"))
_VSQRT, _VERF, _VVDIV = (OPCODE[n] for n in ("vsqrt", "verf", "vvdiv"))


@kernel
def run(
    block: bool, max_steps: int, rules: Any, cores: Any, memories: Any, weights: Any, probes: Any, fault: Any
) -> int:
    """Runs all cores until they have finished, none can continue, or there is a fault. Returns a `Stop`.

    `fault` receives core, address and size (bytes). A blocked core is woken by the core that it waits for, through a
    queue. `block`: run each core until it blocks, else one instruction of each core in turn.
    """
    pc, first = cores[1], cores[2]
    count = pc.size
    queue = np.arange(count)  # a ring of the cores that may be able to continue, `waiting` of them from `head` on
    queued = np.ones(count, np.bool_)
    head, waiting = 0, count
    woken = np.zeros(2, np.int64)
    widest = np.int64(0)
    for cols in weights[3]:
        widest = max(widest, cols)
    scratch = np.empty(widest, np.float32)
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
            code, done = _advance(core, limit, rules, cores, memories, weights, probes, scratch, woken, fault)
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


@helper
def _advance(core, limit, rules, cores, memories, weights, probes, scratch, woken, fault):  # noqa: C901 the dispatch
    """Executes up to `limit` instructions of a core, but none after an instruction that may wake another core.

    Returns a code (0, blocked, or a fault) and the number of instructions executed, including that of a partner.
    """
    words, pc, first, all_registers, events = cores
    local, local_first, width = memories[0], memories[1], memories[3]
    registers = all_registers[core]
    at, end = pc[core], first[core + 1]
    due = _capture(core, at, local, local_first, probes)
    done = np.int64(0)
    code, op = _OK, np.int32(0)
    while done < limit and at < end:
        if at == due:
            due = _capture(core, at, local, local_first, probes)
        head = words[at, 0]
        op, rd, rs1 = head & 255, (head >> 8) & 255, (head >> 16) & 255
        a, b, c, d = np.int64(words[at, 1]), np.int64(words[at, 2]), np.int64(words[at, 3]), np.int64(words[at, 4])
        if op == _SLDI:
            registers[rd] = a
        elif op == _MVMUL:
            code = _mvmul(core, registers[rd], registers[rs1], b, c, memories, weights, scratch, fault)
        elif op == _LMV:
            target = registers[rd] + (c if b & 1 else 0)
            code = _lmv(core, target, registers[rs1] + (c if b & 2 else 0), d, memories, fault)
        elif rules[op, Rule.UNIT] == VECTOR:
            second = np.int64(registers[a]) if rules[op, Rule.READS_RS2] == 1 else np.int64(0)
            code = _vector(core, op, rules[op], registers[rd], registers[rs1], second, b, c, d, memories, fault)
        elif rules[op, Rule.TIMING] == Timing.REGISTER and op != _SLD:
            second = np.int64(registers[a]) if rules[op, Rule.READS_RS2] == 1 else np.int64(0)
            registers[rd] = np.int32(scalar_result(op, np.int64(registers[rs1]), second, a))
        elif op == _LD or op == _ST:  # noqa: SIM109 numba makes a loop of `in`
            code = _transfer(core, op, registers, rd, rs1, b, c, d, memories, fault)
        elif op == _LLDI:
            code, y = _place(core, registers[rd] + (c if b & 1 else 0), d, memories, fault)
            if code == _OK:
                _fill(local, y, _U(d // width))
        elif op == _WAIT:
            if events[core * _EVENTS + b] < c:
                code = _BLOCKED
            else:
                events[core * _EVENTS + b] -= c
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
        elif op != _NOP and op != _SETBW:
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


@helper
def _capture(core, at, local, local_first, probes):
    """Copies the spans of the probes at instruction `at`. Returns the instruction of the core's next probe, or -1."""
    pc, first, following, address, size, offset, captured = probes
    i = following[core]
    while i < first[core + 1] and pc[i] == at:
        _copy(captured, _U(offset[i]), local, _U(local_first[core] + address[i]), _U(size[i]))
        i += 1
    following[core] = i
    return pc[i] if i < first[core + 1] else np.int64(-1)


@helper
def _place(core, address, size, memories, fault):
    """Returns a code (0 or a fault) and the position in `local` of `size` bytes at `address` of a core."""
    local_first, width = memories[1], memories[3]
    length = local_first[core + 1] - local_first[core]
    code, index = _within(np.int64(address), size, length, width, fault)
    return code, _U(local_first[core] + index)


@helper
def _within(address, size, length, width, fault):
    """Returns a code (0 or a fault) and the first element of a span. `length`: elements of the memory."""
    if width > 1 and (address % width != 0 or size % width != 0):
        code = _UNALIGNED
    elif address < 0 or size < 0 or address + size > length * width:
        code = _LOCAL
    else:
        return _OK, address // width if width > 1 else address
    fault[1], fault[2] = address, size
    return code, np.int64(0)


@helper
def _apart(target, count, source, source_count, exact, memories, core, fault):
    """Returns a fault code if a target overlaps a source. `exact`: a target that is equal to the source is allowed."""
    if target + count <= source or source + source_count <= target or (exact and target == source):
        return _OK
    width = np.int64(memories[3])
    fault[1], fault[2] = (np.int64(target) - memories[1][core]) * width, np.int64(count) * width
    return _OVERLAP


@helper
def _mvmul(core, target, source, relu, group, memories, weights, scratch, fault):
    values, offset, rows, cols, first_group = weights
    local, width = memories[0], memories[3]
    g, y = first_group[core] + group, _U(0)
    code, x = _place(core, source, rows[g] * width, memories, fault)
    if code == _OK:
        code, y = _place(core, target, cols[g] * width, memories, fault)
    if code != _OK:
        return code
    _product(local, x, _U(rows[g]), values, _U(offset[g]), _U(cols[g]), scratch)
    if relu:
        _relu(local, y, scratch, _U(0), _U(cols[g]))
    else:
        _copy(local, y, scratch, _U(0), _U(cols[g]))
    return _OK


@helper
def _product(v, x, n, w, o, m, t):
    """Computes t = v[x : x + n] @ w[o :]. A row has `m` weights; rows are added in order, eight in one pass."""
    for j in range(m):
        t[j] = 0
    end = x + n
    while x + _U(8) <= end:
        x0, x1, x2, x3 = v[x], v[x + _U(1)], v[x + _U(2)], v[x + _U(3)]
        x4, x5, x6, x7 = v[x + _U(4)], v[x + _U(5)], v[x + _U(6)], v[x + _U(7)]
        o1 = o + m
        o2 = o1 + m
        o3 = o2 + m
        o4 = o3 + m
        o5 = o4 + m
        o6 = o5 + m
        o7 = o6 + m
        for j in range(m):
            half = (((t[j] + x0 * w[o + j]) + x1 * w[o1 + j]) + x2 * w[o2 + j]) + x3 * w[o3 + j]
            t[j] = (((half + x4 * w[o4 + j]) + x5 * w[o5 + j]) + x6 * w[o6 + j]) + x7 * w[o7 + j]
        o = o7 + m
        x += _U(8)
    while x < end:
        for j in range(m):
            t[j] += v[x] * w[o + j]
        o += m
        x += _U(1)


@helper
def _vector(core, op, rule, rd, rs1, rs2, b, c, d, memories, fault):
    """Executes a vector instruction. `rule`: its row in `rules`. `rd`, `rs1`, `rs2`: values of the registers."""
    local, width = memories[0], memories[3]
    single, strided = rule[Rule.COUNT_RD] == ONE, rule[Rule.STRIDED] == 1
    if strided and rs2 < 0:
        fault[1], fault[2] = rs1, rs2
        return _LOCAL
    step = c * width
    result = np.int64(1) if single else d
    span = (d - 1) * rs2 + 1 if strided else d
    moved = step if b & 1 and not single and not strided else 0
    code, y = _place(core, rd + moved, result * width, memories, fault)
    if code != _OK:
        return code
    code, x = _place(core, rs1 + (step if b & 2 else 0), span * width, memories, fault)
    if code == _OK and not single:
        code = _apart(y, _U(result), x, _U(span), not strided, memories, core, fault)
    if code != _OK:
        return code
    if rule[Rule.SOURCES] == 1:
        return _unary(op, local, y, x, rs2, _U(d))
    code, z = _place(core, rs2 + (step if b & 4 else 0), span * width, memories, fault)
    if code == _OK and not single:
        code = _apart(y, _U(result), z, _U(span), True, memories, core, fault)
    return _binary(op, local, y, x, z, _U(d)) if code == _OK else code


@helper
def _binary(op, v, y, p, q, n):  # noqa: C901 one branch for each loop that is worth its own vector code
    """Computes an instruction of two vectors, at `p` and `q`, with `n` elements; the result goes to `y`."""
    if op == _VVADD and y == p:
        for i in range(n):
            v[y + i] += v[q + i]
    elif op == _VVADD:
        for i in range(n):
            v[y + i] = v[p + i] + v[q + i]
    elif op == _VVSUB:
        for i in range(n):
            v[y + i] = v[p + i] - v[q + i]
    elif op == _VVMUL and y == p:
        for i in range(n):
            v[y + i] *= v[q + i]
    elif op == _VVMUL:
        for i in range(n):
            v[y + i] = v[p + i] * v[q + i]
    elif op == _VVMAX and y == p:
        for i in range(n):
            v[y + i] = v[y + i] if (v[y + i] >= v[q + i]) | (v[y + i] != v[y + i]) else v[q + i]
    elif op == _VVMAX:
        for i in range(n):
            v[y + i] = v[p + i] if (v[p + i] >= v[q + i]) | (v[p + i] != v[p + i]) else v[q + i]
    elif op == _VVDIV:
        for i in range(n):
            v[y + i] = v[p + i] / v[q + i]
    elif op == _VVDMUL:
        total = 0.0
        for i in range(n):
            total += np.float64(v[p + i]) * np.float64(v[q + i])
        v[y] = total
    else:
        return _NO_MEANING
    return _OK


@helper
def _unary(op, v, y, x, register, n):  # noqa: C901 one branch for each function
    """Computes an instruction of one vector, at `x`. `register`: value of rs2, which is a stride or a bound."""
    if op == _VRELU:
        _relu(v, y, v, x, n)
    elif op == _VAVG:
        v[y] = _mean(v, x, _U(register), n)
    elif op == _VMV:
        _gather(v, y, x, _U(register), n)
    elif op == _VRSU:
        _bound(v, y, x, np.float32(register), True, n)
    elif op == _VRSL:
        _bound(v, y, x, np.float32(register), False, n)
    elif op == _VTANH:
        for i in range(n):
            v[y + i] = math.tanh(np.float64(v[x + i]))
    elif op == _VSIGM:
        for i in range(n):
            u = np.float64(v[x + i])
            v[y + i] = 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))
    elif op == _VSOFTMAX:
        _softmax(v, y, x, n)
    elif op == _VEXP:
        for i in range(n):
            v[y + i] = math.exp(np.float64(v[x + i]))
    elif op == _VLOG:
        for i in range(n):
            v[y + i] = math.log(np.float64(v[x + i]))
    elif op == _VSQRT:
        for i in range(n):
            v[y + i] = math.sqrt(np.float64(v[x + i]))
    elif op == _VERF:
        for i in range(n):
            v[y + i] = math.erf(np.float64(v[x + i]))
    else:
        return _NO_MEANING
    return _OK


@helper
def _relu(v, y, u, x, n):
    for i in range(n):
        v[y + i] = np.float32(0) if u[x + i] < 0 else u[x + i]


@helper
def _bound(v, y, x, bound, upper, n):
    for i in range(n):
        within = v[x + i] <= bound if upper else v[x + i] >= bound
        v[y + i] = v[x + i] if within or v[x + i] != v[x + i] else bound


@helper
def _mean(v, x, stride, n):
    total = 0.0
    for i in range(n):
        total += np.float64(v[x + i * stride])
    return total / np.float64(n)


@helper
def _gather(v, y, x, stride, n):
    for i in range(n):
        v[y + i] = v[x + i * stride]


@helper
def _softmax(v, y, x, n):
    largest = v[x]
    for i in range(n):
        largest = v[x + i] if v[x + i] > largest or v[x + i] != v[x + i] else largest
    powers = np.empty(n, np.float64)
    total = 0.0
    for i in range(n):
        powers[i] = math.exp(np.float64(v[x + i]) - np.float64(largest))
        total += powers[i]
    for i in range(n):
        v[y + i] = powers[i] / total


@helper
def _copy(v, y, u, x, n):
    for i in range(n):
        v[y + i] = u[x + i]


@helper
def _fill(v, y, n):
    for i in range(n):
        v[y + i] = 0


@helper
def _lmv(core, target, source, size, memories, fault):
    local, width = memories[0], memories[3]
    code, y = _place(core, target, size, memories, fault)
    if code != _OK:
        return code
    code, x = _place(core, source, size, memories, fault)
    count = _U(size // width)
    if code == _OK:
        code = _apart(y, count, x, count, False, memories, core, fault)
    if code == _OK:
        _copy(local, y, local, x, count)
    return code


@helper
def _transfer(core, op, registers, rd, rs1, b, c, d, memories, fault):
    """Executes `ld` or `st`. The address in global memory: high word in an even register, low word in the next."""
    local, _local_first, memory, width, owners = memories
    near, far = (rd, rs1) if op == _LD else (rs1, rd)
    near_bit, far_bit = (1, 2) if op == _LD else (2, 1)
    code, x = _place(core, registers[near] + (c if b & near_bit else 0), d, memories, fault)
    if code != _OK:
        return code
    address = (np.int64(registers[far]) << 32) + (np.int64(registers[far + 1]) & 0xFFFFFFFF)
    code, g = _within(address + (c if b & far_bit else 0), d, memory.size, width, fault)
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


@helper
def _owns(core, op, owners, start, count):
    """Tells whether a core may load (`ld`) or store (`st`) this part of global memory."""
    for k in range(count):
        owner = owners[start + _U(k)]
        if owner != core and owner != UNUSED and (owner >= 0 or op == _ST):
            return False
    return True


@helper
def _meet(core, op, partner, cores, memories, probes, fault):
    """Executes a rendezvous: copies the data and advances the partner.

    Returns 0, blocked if the partner is not at the matching instruction, or a fault code.
    """
    words, pc, first, registers = cores[0], cores[1], cores[2], cores[3]
    local, local_first, width = memories[0], memories[1], memories[3]
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
    code, x = _place(sender, address + (words[send, 3] if words[send, 2] & 3 else 0), size, memories, fault)
    if code != _OK:
        return code
    fault[0] = receiver
    address = np.int64(registers[receiver, (words[recv, 0] >> 8) & 255])
    code, y = _place(receiver, address + (words[recv, 3] if words[recv, 2] & 1 else 0), recv_size, memories, fault)
    if code != _OK:
        return code
    if size != recv_size:
        fault[0], fault[1], fault[2] = sender, 0, recv_size
        return _SIZES
    _copy(local, y, local, x, _U(size // width))
    pc[partner] = there + 1
    return _OK
