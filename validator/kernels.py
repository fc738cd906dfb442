"""The compiled engine. It does what `reference` does, in the same order of float operations, and checks as much.

Import only where it runs (see `raptor.jit`). Spans of memory are slices handed to small helpers: that is what lets
the compiler make vector code of them.
NOTE: opcodes and fault codes are constants in cached machine code; they are the simulator's and must not change.
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import math

import numpy as np

from raptor.isa import OPCODE
from raptor.jit import helper, kernel
from validator.machine import EVENT_COUNT, Stop

_DONE, _DEADLOCK, _STEPS = int(Stop.DONE), int(Stop.DEADLOCK), int(Stop.STEPS)
_UNALIGNED, _LOCAL, _GLOBAL = int(Stop.UNALIGNED), int(Stop.LOCAL_RANGE), int(Stop.GLOBAL_RANGE)
_OVERLAP, _REGISTERS, _SIZES = int(Stop.OVERLAP), int(Stop.SEND_REGISTERS), int(Stop.SIZES_DIFFER)
_BLOCKED = -1
_OK = 0
_EVENTS = EVENT_COUNT
_BLOCK = 1024

_NOP, _SLDI, _SADD, _SSUB, _SMUL = OPCODE["nop"], OPCODE["sldi"], OPCODE["sadd"], OPCODE["ssub"], OPCODE["smul"]
_SADDI, _SMULI, _SETBW, _MVMUL = OPCODE["saddi"], OPCODE["smuli"], OPCODE["setbw"], OPCODE["mvmul"]
_VVADD, _VVSUB, _VVMUL, _VVDMUL = OPCODE["vvadd"], OPCODE["vvsub"], OPCODE["vvmul"], OPCODE["vvdmul"]
_VVMAX, _VAVG, _VRELU, _VTANH, _VSIGM = (OPCODE[n] for n in ("vvmax", "vavg", "vrelu", "vtanh", "vsigm"))
_VSOFTMAX, _VMV, _VRSU, _VRSL = OPCODE["vsoftmax"], OPCODE["vmv"], OPCODE["vrsu"], OPCODE["vrsl"]
_LD, _ST, _LLDI, _LMV = OPCODE["ld"], OPCODE["st"], OPCODE["lldi"], OPCODE["lmv"]
_SEND, _RECV, _WAIT, _SYNC = OPCODE["send"], OPCODE["recv"], OPCODE["wait"], OPCODE["sync"]


@kernel
def run(block, max_steps, cores, memories, weights, probes, fault) -> int:
    """Runs all cores until they have finished or one of them cannot go on; returns a `Stop`.

    `fault` receives core, address and size. Blocked cores are woken by the core that they wait for, through a queue.
    """
    words, pc, first, registers, events = cores
    count = pc.size
    queue = np.arange(count + 1)  # a ring of the cores that may be able to go on; one place stays free
    queued = np.ones(count, np.bool_)
    head, tail = 0, count
    woken = np.zeros(2, np.int64)
    widest = np.int64(_BLOCK)
    for i in range(weights[3].size):
        widest = max(widest, weights[3][i])
    scratch = np.empty(widest, np.float32)
    steps = np.int64(0)
    while head != tail:
        core = queue[head]
        head = (head + 1) % (count + 1)
        queued[core] = False
        while True:
            if steps >= max_steps:
                fault[0] = core
                return _STEPS
            limit = max_steps - steps if block else 1
            woken[0] = -1
            code, done = _advance(core, limit, cores, memories, weights, probes, scratch, woken, fault)
            steps += done
            if code > 0:
                return code
            other = woken[0]
            if other >= 0 and not queued[other]:
                queued[other] = True
                queue[tail] = other
                tail = (tail + 1) % (count + 1)
            if code == _BLOCKED or pc[core] == first[core + 1]:
                break
            if not block:
                if not queued[core]:
                    queued[core] = True
                    queue[tail] = core
                    tail = (tail + 1) % (count + 1)
                break
    for core in range(count):
        if pc[core] != first[core + 1]:
            return _DEADLOCK
    return _DONE


@helper
def _advance(core, limit, cores, memories, weights, probes, scratch, woken, fault):  # noqa: C901 the dispatch
    """Executes up to `limit` instructions of a core, and returns after one that may wake another core.

    Returns a code (0, blocked, or a fault) and the number of instructions executed, those of a partner included.
    """
    words, pc, first, all_registers, events = cores
    all_local, local_first, memory, width = memories
    values, offset, rows, cols, first_group = weights
    registers = all_registers[core]
    local = all_local[local_first[core] : local_first[core + 1]]
    at, end = pc[core], first[core + 1]
    due = _capture(core, at, local, probes)
    done = np.int64(0)
    while done < limit and at < end:
        if at == due:
            due = _capture(core, at, local, probes)
        head = words[at, 0]
        op, rd, rs1 = head & 255, (head >> 8) & 255, (head >> 16) & 255
        a, b, c, d = np.int64(words[at, 1]), np.int64(words[at, 2]), np.int64(words[at, 3]), np.int64(words[at, 4])
        code = _OK
        if op == _SLDI:
            registers[rd] = a
        elif op == _MVMUL:
            g = first_group[core] + c
            n, m = rows[g], cols[g]
            code, x = _elements(registers[rs1], n, local.size, width, fault)
            if code == _OK:
                code, y = _elements(registers[rd], m, local.size, width, fault)
            if code == _OK:
                w = values[offset[g] : offset[g] + n * m]
                _product(local[y : y + m], local[x : x + n], w, b, scratch)
        elif op == _LMV:
            code = _lmv(local, registers, rd, rs1, b, c, d, width, fault)
        elif _VVADD <= op <= _VRSL:
            code = _vector(op, local, registers, rd, rs1, a, b, c, d, width, scratch, fault)
        elif op <= _SMULI:
            _scalar(op, registers, rd, rs1, a)
        elif op == _LD or op == _ST:
            code = _global(op, local, memory, registers, rd, rs1, b, c, d, width, fault)
        elif op == _LLDI:
            code, x = _span(registers[rd] + _offset(b, c, 0), d, local.size, width, fault)
            if code == _OK:
                local[x : x + d // width] = 0
        elif op == _SEND or op == _RECV:
            pc[core] = at
            code, other = _meet(core, op, a, cores, memories, probes, fault)
            if code == _OK:
                woken[0] = other
                pc[core] = at + 1
                _capture(core, at + 1, local, probes)
                return _OK, done + 2
        elif op == _WAIT:
            if events[core * _EVENTS + b] < c:
                code = _BLOCKED
            else:
                events[core * _EVENTS + b] -= c
        elif op == _SYNC:
            events[a * _EVENTS + b] += 1
            woken[0] = a
            pc[core] = at + 1
            _capture(core, at + 1, local, probes)
            return _OK, done + 1
        if code != _OK:
            pc[core] = at
            if code > 0 and op != _SEND and op != _RECV:
                fault[0] = core
            return code, done
        at += 1
        done += 1
    pc[core] = at
    _capture(core, at, local, probes)
    return _OK, done


@helper
def _capture(core, at, local, probes):
    """Copies what probes want to see just before instruction `at`; returns where the core's next probe is due."""
    pc, first, following, address, size, offset, captured = probes
    i = following[core]
    while i < first[core + 1] and pc[i] == at:
        captured[offset[i] : offset[i] + size[i]] = local[address[i] : address[i] + size[i]]
        i += 1
    following[core] = i
    return pc[i] if i < first[core + 1] else np.int64(-1)


@helper
def _offset(select, value, bit):
    return value if (select >> bit) & 1 else np.int64(0)


@helper
def _span(address, size, length, width, fault):
    """Index of the first of `size` bytes in a memory of `length` elements; a fault code other than 0 if outside."""
    fault[1], fault[2] = address, size
    if width == 1:
        if address < 0 or address + size > length:
            return _LOCAL, np.int64(0)
        return _OK, np.int64(address)
    if address % width != 0 or size % width != 0:
        return _UNALIGNED, np.int64(0)
    if address < 0 or address + size > length * width:
        return _LOCAL, np.int64(0)
    return _OK, np.int64(address // width)


@helper
def _elements(address, count, length, width, fault):
    return _span(np.int64(address), count * width, length, width, fault)


@helper
def _overlap(target, count, source, source_count, exact, width, fault):
    """The fault code for a target that overlaps a source in part, or at all unless `exact` equality is allowed."""
    if target + count <= source or source + source_count <= target:
        return _OK
    if exact and target == source and count == source_count:
        return _OK
    fault[1], fault[2] = target * width, count * width
    return _OVERLAP


@helper
def _scalar(op, registers, rd, rs1, a):
    """Integer arithmetic that wraps around: the store keeps the low 32 bits. `nop` and `setbw` do nothing."""
    x = np.int64(registers[rs1])
    if op == _SADD:
        registers[rd] = np.int32(x + registers[a])
    elif op == _SSUB:
        registers[rd] = np.int32(x - registers[a])
    elif op == _SMUL:
        registers[rd] = np.int32(x * registers[a])
    elif op == _SADDI:
        registers[rd] = np.int32(x + a)
    elif op == _SMULI:
        registers[rd] = np.int32(x * a)


@helper
def _product(y, x, w, relu, scratch):
    """y = x @ w, rows added in order; eight rows a pass leave that order as it is."""
    m = y.size
    total = scratch[:m]
    total[:] = 0
    whole = x.size - x.size % 8
    for i in range(0, whole, 8):
        _add_rows(total, x[i : i + 8], w[i * m : (i + 8) * m], m)
    for i in range(whole, x.size):
        row = w[i * m : (i + 1) * m]
        for j in range(m):
            total[j] += x[i] * row[j]
    if relu:
        _relu(y, total)
    else:
        _copy(y, total)


@helper
def _add_rows(t, x, w, m):
    x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
    w0, w1, w2, w3 = w[:m], w[m : 2 * m], w[2 * m : 3 * m], w[3 * m : 4 * m]
    w4, w5, w6, w7 = w[4 * m : 5 * m], w[5 * m : 6 * m], w[6 * m : 7 * m], w[7 * m : 8 * m]
    for j in range(t.size):
        first = (((t[j] + x0 * w0[j]) + x1 * w1[j]) + x2 * w2[j]) + x3 * w3[j]
        t[j] = (((first + x4 * w4[j]) + x5 * w5[j]) + x6 * w6[j]) + x7 * w7[j]


@helper
def _vector(op, local, registers, rd, rs1, a, b, c, d, width, scratch, fault):  # noqa: C901 the dispatch of vector operations
    step = c * width
    single = op == _VVDMUL or op == _VAVG
    count = d
    target = np.int64(registers[rd])
    if not single and op != _VMV:
        target += _offset(b, step, 0)
    span = count
    if op == _VAVG or op == _VMV:
        if registers[a] < 0:
            fault[1], fault[2] = registers[rs1], registers[a]
            return _LOCAL
        span = (count - 1) * registers[a] + 1
    result = np.int64(1) if single else count
    code, y = _elements(target, result, local.size, width, fault)
    if code != _OK:
        return code
    code, x = _elements(registers[rs1] + _offset(b, step, 1), span, local.size, width, fault)
    if code != _OK:
        return code
    if not single:
        code = _overlap(y, result, x, span, op != _VMV, width, fault)
        if code != _OK:
            return code
    out, p = local[y : y + result], local[x : x + span]
    if op <= _VVMAX:
        code, z = _elements(registers[a] + _offset(b, step, 2), count, local.size, width, fault)
        if code == _OK and not single:
            code = _overlap(y, count, z, count, True, width, fault)
        if code == _OK:
            _binary(op, out, p, local[z : z + count], scratch)
        return code
    if op == _VRELU:
        _relu(out, p)
    elif op == _VAVG:
        out[0] = _mean(p, np.int64(registers[a]), count)
    elif op == _VMV:
        for i in range(count):
            out[i] = p[i * registers[a]]
    elif op == _VRSU or op == _VRSL:
        _bound(out, p, np.float32(registers[a]), op == _VRSU)
    else:
        _transcendental(op, out, p)
    return _OK


@helper
def _binary(op, y, p, q, scratch):
    """Through `scratch`, because the compiler makes no vector code for a target that may be a source."""
    if op == _VVDMUL:
        y[0] = _dot(p, q)
        return
    for first in range(0, y.size, _BLOCK):
        last = min(first + _BLOCK, y.size)
        out, u, v = scratch[: last - first], p[first:last], q[first:last]
        if op == _VVADD:
            _add(out, u, v)
        elif op == _VVSUB:
            _subtract(out, u, v)
        elif op == _VVMUL:
            _multiply(out, u, v)
        else:
            _maximum(out, u, v)
        _copy(y[first:last], out)


@helper
def _dot(p, q):
    total = 0.0
    for i in range(p.size):
        total += np.float64(p[i]) * np.float64(q[i])
    return total


@helper
def _add(y, p, q):
    for i in range(y.size):
        y[i] = p[i] + q[i]


@helper
def _subtract(y, p, q):
    for i in range(y.size):
        y[i] = p[i] - q[i]


@helper
def _multiply(y, p, q):
    for i in range(y.size):
        y[i] = p[i] * q[i]


@helper
def _maximum(y, p, q):
    for i in range(y.size):
        y[i] = p[i] if (p[i] >= q[i]) | (p[i] != p[i]) else q[i]


@helper
def _relu(y, p):
    for i in range(y.size):
        y[i] = np.float32(0) if p[i] < 0 else p[i]


@helper
def _bound(y, p, bound, upper):
    for i in range(y.size):
        within = p[i] <= bound if upper else p[i] >= bound
        y[i] = p[i] if within or p[i] != p[i] else bound


@helper
def _mean(p, stride, count):
    total = 0.0
    for i in range(count):
        total += np.float64(p[i * stride])
    return total / count


@helper
def _transcendental(op, y, p):
    if op == _VTANH:
        for i in range(y.size):
            y[i] = math.tanh(np.float64(p[i]))
    elif op == _VSIGM:
        for i in range(y.size):
            v = np.float64(p[i])
            y[i] = 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))
    else:
        _softmax(y, p)


@helper
def _softmax(y, p):
    largest = p[0]
    for i in range(p.size):
        largest = p[i] if p[i] > largest or p[i] != p[i] else largest
    powers = np.empty(p.size, np.float64)
    total = 0.0
    for i in range(p.size):
        powers[i] = math.exp(np.float64(p[i]) - np.float64(largest))
        total += powers[i]
    for i in range(p.size):
        y[i] = powers[i] / total


@helper
def _lmv(local, registers, rd, rs1, b, c, d, width, fault):
    code, y = _span(registers[rd] + _offset(b, c, 0), d, local.size, width, fault)
    if code != _OK:
        return code
    code, x = _span(registers[rs1] + _offset(b, c, 1), d, local.size, width, fault)
    if code != _OK:
        return code
    count = d // width
    code = _overlap(y, count, x, count, False, width, fault)
    if code == _OK:
        _copy(local[y : y + count], local[x : x + count])
    return code


@helper
def _copy(y, x):
    for i in range(y.size):
        y[i] = x[i]


@helper
def _global(op, local, memory, registers, rd, rs1, b, c, d, width, fault):
    """`ld` and `st`. The address in global memory: high word in an even register, low word in the next."""
    near, far = (rd, rs1) if op == _LD else (rs1, rd)
    near_bit = 0 if op == _LD else 1
    code, x = _span(registers[near] + _offset(b, c, near_bit), d, local.size, width, fault)
    if code != _OK:
        return code
    address = (np.int64(registers[far]) << 32) + np.int64(np.uint32(registers[far + 1]))
    code, g = _span(address + _offset(b, c, 1 - near_bit), d, memory.size, width, fault)
    if code != _OK:
        return _GLOBAL if code == _LOCAL else code
    count = d // width
    if op == _LD:
        _copy(local[x : x + count], memory[g : g + count])
    else:
        _copy(memory[g : g + count], local[x : x + count])
    return _OK


@helper
def _meet(core, op, partner, cores, memories, probes, fault):
    """A rendezvous, if the partner stands at the matching instruction: copies the data and lets the partner go on."""
    words, pc, first, registers, events = cores
    local, local_first, _memory, width = memories
    there = pc[partner]
    if there == first[partner + 1]:
        return _BLOCKED, partner
    if (words[there, 0] & 255) != (_RECV if op == _SEND else _SEND) or words[there, 1] != core:
        return _BLOCKED, partner
    theirs = local[local_first[partner] : local_first[partner + 1]]
    _capture(partner, there, theirs, probes)
    sender, receiver = (core, partner) if op == _SEND else (partner, core)
    send, recv = words[pc[sender]], words[pc[receiver]]
    fault[0] = sender
    address = np.int64(registers[sender, (send[0] >> 8) & 255])
    if address != registers[sender, (send[0] >> 16) & 255]:
        return _REGISTERS, partner
    source = local[local_first[sender] : local_first[sender + 1]]
    size = np.int64(send[4])
    code, x = _span(address + (np.int64(send[3]) if send[2] & 3 else 0), size, source.size, width, fault)
    if code != _OK:
        return code, partner
    fault[0] = receiver
    target = local[local_first[receiver] : local_first[receiver + 1]]
    address = np.int64(registers[receiver, (recv[0] >> 8) & 255])
    code, y = _span(address + _offset(np.int64(recv[2]), np.int64(recv[3]), 0), np.int64(recv[4]), target.size, width, fault)
    if code != _OK:
        return code, partner
    if send[4] != recv[4]:
        fault[0], fault[1], fault[2] = sender, 0, recv[4]
        return _SIZES, partner
    _copy(target[y : y + size // width], source[x : x + size // width])
    pc[partner] = there + 1
    _capture(partner, there + 1, theirs, probes)
    return _OK, partner
