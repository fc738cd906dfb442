"""The compiled cycle model: what pimsim-nn does in time, without its data.

The simulator is a set of SystemC threads (for each core a vector unit, a transfer unit, a switch and its array groups)
and a clock thread. A thread that waits for a time sits in one heap, together with the clock; what happens at a clock
edge happens when the clock's thread runs. Which of two threads comes first in one instant decides whether the end of
an instruction is noticed at this edge or at the next, so heap and order of running are those of SystemC, edge by edge.
Edges at which nothing happens only turn the heap; as soon as a turn changes nothing the clock jumps.

With `rob_size` 1 a core has one instruction at a time and addresses do not matter: the fast path, which reads the
stream only to count scalar instructions. Otherwise `_wake` follows dispatcher and reorder buffer of a core, at the
edges where something may change, and registers are computed for the hazard check.

Over 500 lines because kernels and their helpers share a file (see `raptor.common.jit`).
NOTE: columns and opcodes are constants in cached machine code; raise `_LAYOUT` with any change of `state`.
"""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit import bare_helper, bare_kernel
from raptor.target.isa import OPCODE
from validator.simulate import state
from validator.simulate.state import Core, Demand, Global, Op, Port, Step, Stop

_LAYOUT = 3

_NOP, _SLDI, _SLD, _SADD, _SSUB, _SMUL = (OPCODE[n] for n in ("nop", "sldi", "sld", "sadd", "ssub", "smul"))
_SADDI, _SMULI, _SETBW, _MVMUL = (OPCODE[n] for n in ("saddi", "smuli", "setbw", "mvmul"))
_VVADD, _VVSUB, _VVMUL, _VVDMUL, _VVMAX = (OPCODE[n] for n in ("vvadd", "vvsub", "vvmul", "vvdmul", "vvmax"))
_VVSLL, _VVSRA, _VAVG, _VRELU, _VTANH = (OPCODE[n] for n in ("vvsll", "vvsra", "vavg", "vrelu", "vtanh"))
_VSIGM, _VMV, _VRSU, _VRSL = (OPCODE[n] for n in ("vsigm", "vmv", "vrsu", "vrsl"))
_LD, _ST, _LLDI, _LMV = (OPCODE[n] for n in ("ld", "st", "lldi", "lmv"))
_SEND, _RECV, _WAIT, _SYNC = (OPCODE[n] for n in ("send", "recv", "wait", "sync"))

_NONE, _NEVER = state.NONE, state.NEVER
_VECTOR, _TRANSFER, _SWITCH, _GROUP = state.VECTOR, state.TRANSFER, state.SWITCH, state.GROUP
_NO_UNIT, _PER_CORE = state.NO_UNIT, state.THREADS_PER_CORE
_DONE, _BLOCKED, _QUEUE_FULL = int(Stop.DONE), int(Stop.BLOCKED), int(Stop.QUEUE_FULL)

# Columns of the tables, and what a unit's thread does when it runs next.
_PC, _FIRST, _LAST, _IB, _OB, _IBIW, _LOCAL, _ROUNDS = map(int, list(Core)[0:8])
_FINISH, _RECV_FROM, _OPEN_TO, _WAIT_EVENT, _WAIT_VALUE, _HEAD, _TAIL, _BUSY_VECTOR = map(int, list(Core)[8:16])
_BUSY_MATRIX, _BUSY_TRANSFER, _ON_SEND, _ON_RECV, _ON_TOKEN, _ARRIVED, _INSERT_AT = map(int, list(Core)[16:23])
_ROB_HEAD, _ROB_COUNT, _FREE_VECTOR, _FREE_TRANSFER, _HELD_SLOT, _HELD_GROUP, _COMMITTED = map(int, list(Core)[23:30])
_REAL, _ENDED, _LAST_START, _WAIT_PC = map(int, list(Core)[30:34])
_OP_PC, _READ, _COMPUTE, _WRITE, _SIZE, _OTHER, _OPCODE, _VALUE = map(int, list(Op)[0:8])
_STATE, _CORE, _SLOT, _SINCE, _FREE_AT, _UNIT, _DONE_AT, _LOW1 = map(int, list(Op)[8:16])
_HIGH1, _LOW2, _HIGH2, _LOW3, _HIGH3 = map(int, list(Op)[16:21])
_G_HEAP, _G_NOW, _G_TICK, _G_ZERO, _G_RUN, _G_CALENDAR, _G_MEMORY, _G_UNFINISHED = map(int, list(Global)[0:8])
_D_TIME, _D_LOCAL, _D_GLOBAL = map(int, Demand)
_G_LAST, _G_FAULT = map(int, list(Global)[8:10])
_P_RD, _P_VALUE, _O_RD, _O_VALUE, _A_RD, _A_RS1, _A_RS2, _A_DOUBLE = map(int, list(Port)[0:8])
_V_RD, _V_RS1, _V_RS2, _V_RD2, _V_RS12, _N_READS, _N_WRITES, _N_DECODES = map(int, list(Port)[8:16])
_N_SCALARS, _N_FETCHES, _A_WRITTEN = map(int, list(Port)[16:19])
_START, _WRITING, _ENDING, _PERMISSION, _SENDING = map(int, list(Step)[:5])
_DATA, _STORING, _LOADED, _STORED, _TOKEN = map(int, list(Step)[5:])
# What a switch's thread has done.
_IDLE, _ON_WIRE, _SENT, _RESPONSE = range(4)
# Messages, and the columns of the queue of a switch.
_M_REQUEST, _M_DATA, _M_PERMISSION, _M_TOKEN, _M_LOAD, _M_STORE = range(6)
_Q_KIND, _Q_TO, _Q_FLITS, _Q_PC, _Q_VALUE = range(5)

_PS = 1000.0
_TOO_MANY_ROUNDS = 10_000_000  # of a core that nothing holds, while another cannot go on
_PATIENCE = 64  # edges to turn the heap before looking for a cycle


@bare_kernel
def simulate(chip, words, tables, log, rounds, g) -> int:  # noqa: C901 the scheduler's loop
    """Runs until all cores have finished (`rounds` 0), or begun that many rounds more, or nothing can go on.

    Returns a `Stop`. `tables` and `log` are declared in `model`; `g` holds the counters `Global`.
    """
    core, thread = tables[0], tables[1]
    heap_time, heap_id, run, zero = tables[2], tables[3], tables[4], tables[5]
    count = core.shape[0]
    fast = chip.rob_size == 1 and chip.counting == 0
    g[_G_TICK] = 1
    _insert(g, heap_time, heap_id, chip.period_ps, 0)
    for c in range(count):
        if core[c, _ENDED] == 0:
            core[c, _PC] = core[c, _FIRST] - 1
            core[c, _ARRIVED] = 1
            if fast:
                _next(chip, words, tables, log, rounds, g, c, 2)
            else:
                _leave(chip, words, tables, log, rounds, g, c, 2)
                _call(g, tables, count, 2, c)
    while g[_G_UNFINISHED] > 0:
        if not _to_next_event(chip, tables, g, count):
            return _BLOCKED
        if fast and g[_G_HEAP] == 1 and g[_G_CALENDAR] == 1:
            _alone(chip, words, tables, log, rounds, g)
            if g[_G_UNFINISHED] == 0:
                break
            if g[_G_FAULT] != 0:
                return g[_G_FAULT]
            if g[_G_CALENDAR] == 0:
                return _BLOCKED
        now = heap_time[1]
        g[_G_NOW] = now
        n = 0
        while g[_G_HEAP] > 0 and heap_time[1] == now:
            run[n], _ = _extract(g, heap_time, heap_id)
            n += 1
        g[_G_RUN] = n
        i, end_of_pass, edge = 0, n, False
        while True:
            if i == end_of_pass:
                if edge:
                    edge = False
                    _edge(chip, words, tables, log, rounds, g, count)
                if i == g[_G_RUN]:
                    n = g[_G_ZERO]
                    if n == 0:
                        break
                    # The next delta cycle: those that wait for no time, the last of them first.
                    for j in range(n):
                        run[j] = zero[n - 1 - j]
                    g[_G_ZERO], g[_G_RUN], i = 0, n, 0
                end_of_pass = g[_G_RUN]
            t = run[i]
            i += 1
            if t == 0:
                g[_G_TICK] += 1
                _insert(g, heap_time, heap_id, now + chip.period_ps, 0)
                edge = True
            elif thread[t, _UNIT] == _SWITCH:
                _switch(chip, tables, log, g, t)
            else:
                _unit(chip, words, tables, log, rounds, g, t)
            if g[_G_FAULT] != 0:
                return g[_G_FAULT]
    return _DONE


# The heap, as SystemC has it: places from 1; of equal times none moves past another on insertion.


@bare_helper
def _insert(g, heap_time, heap_id, time, thread):
    g[_G_HEAP] += 1
    i = g[_G_HEAP]
    while i > 1 and heap_time[i >> 1] > time:
        heap_time[i] = heap_time[i >> 1]
        heap_id[i] = heap_id[i >> 1]
        i >>= 1
    heap_time[i] = time
    heap_id[i] = thread


@bare_helper
def _extract(g, heap_time, heap_id):
    """Takes the first thread; also returns the place where the last one came to rest."""
    top = heap_id[1]
    n = g[_G_HEAP]
    time, thread = heap_time[n], heap_id[n]
    n -= 1
    g[_G_HEAP] = n
    i = 1
    while True:
        child = 2 * i
        if child > n:
            break
        best, best_time = i, time
        if heap_time[child] < best_time:
            best, best_time = child, heap_time[child]
        if child + 1 <= n and heap_time[child + 1] < best_time:
            best = child + 1
        if best == i:
            break
        heap_time[i], heap_id[i] = heap_time[best], heap_id[best]
        i = best
    heap_time[i], heap_id[i] = time, thread
    return top, i


@bare_helper
def _to_next_event(chip, tables, g, count):  # noqa: C901 a loop that is all cases
    """Advances the clock over edges at which nothing happens; false if nothing will ever happen."""
    heap_time, heap_id, calendar, snapshot = tables[2], tables[3], tables[6], tables[7]
    if heap_id[1] != 0:
        return True
    n = g[_G_HEAP]
    work = calendar[0] // count if g[_G_CALENDAR] > 0 else _NEVER
    if n == 1:
        if work == _NEVER:
            return False
        g[_G_TICK] = work
        heap_time[1] = work * chip.period_ps
        return True
    other = heap_time[2]
    if n > 2 and heap_time[3] < other:
        other = heap_time[3]
    # The last tick up to which the clock stays the first of the heap.
    last = min(work, (other - 1) // chip.period_ps)
    turns, since = 0, 0
    while g[_G_TICK] < last:
        _, place = _extract(g, heap_time, heap_id)
        g[_G_TICK] += 1
        _insert(g, heap_time, heap_id, g[_G_TICK] * chip.period_ps, 0)
        turns += 1
        if place == n >> 1:
            g[_G_TICK] = last
        elif turns >= _PATIENCE:
            # A longer cycle of turns (threads with equal times): compare with an earlier heap (Brent).
            same = turns > _PATIENCE
            if same:
                for i in range(2, n + 1):
                    if snapshot[i] != heap_id[i]:
                        same = False
                        break
            if same:
                period = turns - since
                g[_G_TICK] += (last - g[_G_TICK]) // period * period
            if turns & (turns - 1) == 0:
                since = turns
                for i in range(2, n + 1):
                    snapshot[i] = heap_id[i]
        heap_time[1] = g[_G_TICK] * chip.period_ps
    return True


@bare_helper
def _alone(chip, words, tables, log, rounds, g):
    """One core runs, all others wait for messages: its instructions one after another, up to one that concerns others.

    Same outcome as the main loop. The thread and the clock alone in the heap: in an instant that both reach the thread
    comes first, unless the clock had been entered for that very instant when the thread fell asleep.
    """
    core, thread, calendar, heap_time = tables[0], tables[1], tables[6], tables[2]
    period, count = chip.period_ps, core.shape[0]
    while g[_G_CALENDAR] == 1 and g[_G_UNFINISHED] > 0 and g[_G_FAULT] == 0:
        tick, c = calendar[0] // count, calendar[0] % count
        t = core[c, _LAST_START]
        op = thread[t]
        if op[_OPCODE] > _VRSL and op[_OPCODE] != _LLDI and op[_OPCODE] != _LMV:
            break
        g[_G_CALENDAR] = 0
        now = tick * period
        op[_SINCE] = now
        # The edge to come, and whether the clock waits for it already or runs after the thread in this instant.
        tick, waits = tick + 1, True
        phases = 1 if op[_OPCODE] > _VRSL else 2
        for phase in range(phases):
            if phases == 1:
                time = _through_port(core, c, now, op[_READ] + op[_WRITE])
            elif phase == 0:
                time = _through_port(core, c, now, op[_READ]) + op[_COMPUTE]
            else:
                time = _through_port(core, c, now, op[_WRITE])
            first = waits
            if not waits:
                tick, waits = tick + 1, True
            now += time
            if time == 0 or now < tick * period:
                continue
            if now == tick * period and first:
                tick += 1
            else:
                tick = (now + period - 1) // period
                waits = now < tick * period
        g[_G_TICK] = tick
        _end(chip, words, tables, log, rounds, g, t)
        if g[_G_CALENDAR] == 1:
            g[_G_TICK] = calendar[0] // count
        heap_time[1] = g[_G_TICK] * period


# The calendar: a heap of tick * cores + core, so that cores have their turn in order of number.


@bare_helper
def _call(g, tables, count, tick, c):
    """Enters core `c` for an edge."""
    calendar = tables[6]
    key = tick * count + c
    i = g[_G_CALENDAR]
    g[_G_CALENDAR] += 1
    while i > 0 and calendar[(i - 1) >> 1] > key:
        calendar[i] = calendar[(i - 1) >> 1]
        i = (i - 1) >> 1
    calendar[i] = key


@bare_helper
def _take(g, calendar):
    key = calendar[0]
    n = g[_G_CALENDAR] - 1
    g[_G_CALENDAR] = n
    last = calendar[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and calendar[child + 1] < calendar[child]:
            child += 1
        if calendar[child] >= last:
            break
        calendar[i] = calendar[child]
        i = child
    calendar[i] = last
    return key


@bare_helper
def _edge(chip, words, tables, log, rounds, g, count):
    """What is entered for the edge that the clock has just reached."""
    calendar = tables[6]
    tick = g[_G_TICK] - 1
    before = np.int64(-1)
    while g[_G_CALENDAR] > 0 and calendar[0] // count <= tick:
        key = _take(g, calendar)
        if key == before:
            continue
        before = key
        c = key % count
        if chip.rob_size == 1 and chip.counting == 0:
            _push(g, tables, tables[0][c, _LAST_START])
        else:
            _wake(chip, words, tables, log, rounds, g, count, c, tick)


@bare_helper
def _push(g, tables, t):
    """Lets a thread run in the next pass."""
    tables[4][g[_G_RUN]] = t
    g[_G_RUN] += 1


@bare_helper
def _sleep(g, tables, t, time):
    """Lets a thread run after a time, or in the next delta cycle if that is 0."""
    if time == 0:
        tables[5][g[_G_ZERO]] = t
        g[_G_ZERO] += 1
    else:
        _insert(g, tables[2], tables[3], g[_G_NOW] + time, t)


# Instructions: what they take.


@bare_helper
def _beats(size, width):
    return (size + width - 1) // width


@bare_helper
def _memory_ps(beats, cycles, period_ns):
    return np.int64(float(beats * cycles) * period_ns * _PS + 0.5)


@bare_helper
def _local_read(chip, size):
    return _memory_ps(_beats(size, chip.local_width), chip.local_read_cycles, chip.local_period_ns)


@bare_helper
def _local_write(chip, size):
    return _memory_ps(_beats(size, chip.local_width), chip.local_write_cycles, chip.local_period_ns)


@bare_helper
def _matrix_ps(chip, input_bits):
    """Time of the crossbars of a group: one pass for each slice of the input bits and of the rows."""
    passes = input_bits // chip.dac_resolution * chip.dac_passes
    front, back = chip.front_cycles, chip.back_cycles
    cycles = front + back + (passes - 1) * max(front, back) if chip.pipelined else (front + back) * passes
    return np.int64(float(cycles) * chip.matrix_period_ns * _PS + 0.5)


@bare_helper
def _writes_wide(code):
    """Whether a vector instruction is charged for writing elements of the output width."""
    return code in (_VVMUL, _VVSLL, _VVSRA) or _VTANH <= code <= _VSIGM or code >= _VRSU


@bare_helper
def _prepare(chip, words, tables, core, c, pc, op):  # noqa: C901 one branch for each kind of instruction
    """Fills the row `op` with unit and times of an instruction; widths are those of the core now."""
    index, group_first, xbars = tables[8], tables[9], tables[10]
    head = words[pc, 0]
    code = head & 255
    a, b, c_, d = np.int64(words[pc, 1]), np.int64(words[pc, 2]), np.int64(words[pc, 3]), np.int64(words[pc, 4])
    ib, ob = core[c, _IB], core[c, _OB]
    op[_OP_PC], op[_OPCODE] = pc, code
    op[_READ], op[_COMPUTE], op[_WRITE], op[_SIZE], op[_OTHER], op[_VALUE] = 0, 0, 0, 0, 0, 0
    if code == _MVMUL:
        t = group_first[c] + c_
        op[_UNIT] = _GROUP
        op[_OTHER] = t
        op[_READ] = _local_read(chip, 8 * chip.rows * ib)
        op[_COMPUTE] = _matrix_ps(chip, core[c, _IBIW])
        op[_WRITE] = _local_write(chip, chip.row_bits // a * ob * xbars[t])
    elif _VVADD <= code <= _VRSL:
        op[_UNIT] = _VECTOR
        read = _local_read(chip, ib * d)
        op[_READ] = 2 * read if code <= _VVSRA else read
        op[_COMPUTE] = _beats(d, chip.vector_width) * chip.vector_ps
        op[_WRITE] = _local_write(chip, (ob if _writes_wide(code) else ib) * d)
    elif code == _NOP:
        op[_UNIT] = _NO_UNIT
    else:
        op[_UNIT] = _TRANSFER
        if code == _LLDI:
            op[_WRITE] = _local_write(chip, d)
        elif code == _LMV:
            op[_READ], op[_WRITE] = _local_read(chip, d), _local_write(chip, d)
        elif code == _LD:
            op[_VALUE] = _memory_ps(_beats(d, chip.global_width), chip.global_read_cycles, chip.global_period_ns)
            op[_WRITE] = _local_write(chip, d)
            op[_SIZE] = 1
        elif code == _ST:
            op[_READ] = _local_read(chip, d)
            op[_VALUE] = _memory_ps(_beats(d, chip.global_width), chip.global_write_cycles, chip.global_period_ns)
            op[_SIZE] = _beats(d, chip.bus_width)
        elif code == _SEND:
            op[_READ] = _local_read(chip, d)
            op[_SIZE] = _beats(d, chip.bus_width)
            op[_OTHER] = index[a]
        elif code == _RECV:
            op[_WRITE] = _local_write(chip, d)
            op[_OTHER] = index[a]
        elif code == _SYNC:
            op[_OTHER] = index[a]
            op[_VALUE] = b
        else:
            op[_OTHER] = b
            op[_VALUE] = c_


@bare_kernel
def demands(chip, words, tables, network, op, out) -> None:
    """Fills a row of `out` (columns `Demand`) for each instruction, as if nothing else were in its way."""
    core = tables[0]
    memory = core.shape[0]
    for c in range(memory):
        for pc in range(core[c, _FIRST], core[c, _LAST]):
            code = words[pc, 0] & 255
            if code == _SETBW:
                core[c, _IBIW] = words[pc, 2]
                core[c, _IB], core[c, _OB] = (words[pc, 2] + 7) >> 3, (words[pc, 3] + 7) >> 3
            if code <= _SETBW:
                continue
            _prepare(chip, words, tables, core, c, pc, op)
            local, other = op[_READ] + op[_WRITE], op[_OTHER]
            time = local + op[_COMPUTE]
            if code in (_LD, _ST):
                time += _wire_ps(network, c, memory, op[_SIZE]) + op[_VALUE]
                out[pc, _D_GLOBAL] = op[_VALUE]
            elif code == _SEND:
                time += _wire_ps(network, c, other, 1) + _wire_ps(network, other, c, 1)
            elif code == _RECV:
                size = np.int64(words[pc, 4])
                time += _wire_ps(network, c, other, 1) + _local_read(chip, size)
                time += _wire_ps(network, other, c, _beats(size, chip.bus_width))
            out[pc, _D_TIME], out[pc, _D_LOCAL] = time, local


@bare_helper
def _wire_ps(network, source, to, flits):
    """The simulator cuts the product to whole nanoseconds."""
    return np.int64(float(flits) * _cost(network, source, to)) * 1000


@bare_helper
def _cost(network, source, to):
    """Of a flit from one core to another (`chip.Network`); nothing for a pair that does not talk."""
    first, partners, costs = network
    low, high = first[source], first[source + 1]
    while low < high:
        middle = (low + high) >> 1
        if partners[middle] < to:
            low = middle + 1
        else:
            high = middle
    return costs[low] if low < first[source + 1] and partners[low] == to else 0.0


@bare_helper
def _copy(to, op):
    for i in range(_VALUE + 1):
        to[i] = op[i]


# The fast path.


@bare_helper
def _next(chip, words, tables, log, rounds, g, c, tick):  # noqa: C901 as long as a stream has cases
    """The reorder buffer of core `c` is free from `tick`: enters the next instruction that needs it."""
    core, thread = tables[0], tables[1]
    pc, last = core[c, _PC] + 1, core[c, _LAST]
    ended_on_scalar = core[c, _PC] < core[c, _FIRST]
    at = tick + 1
    while True:
        if pc == last:
            if rounds == 0:
                core[c, _ENDED] = 1
                core[c, _PC] = last
                if not ended_on_scalar:
                    _finish(g, core, c, tick)
                return
            if not _round(core, log, rounds, g, c, at):
                return
            pc = core[c, _FIRST]
        code = words[pc, 0] & 255
        if code > _SETBW:
            break
        if code == _NOP:
            core[c, _PC] = pc
            return
        if code == _SETBW:
            core[c, _IBIW] = words[pc, 2]
            core[c, _IB], core[c, _OB] = (words[pc, 2] + 7) >> 3, (words[pc, 3] + 7) >> 3
        ended_on_scalar = True
        at += 1
        pc += 1
    core[c, _PC] = pc
    log[0][pc] = at * chip.period_ps
    if code == _MVMUL:
        t = tables[9][c] + words[pc, 3]
        at += 1
    elif code <= _VRSL:
        t = 1 + _PER_CORE * c + _VECTOR
    else:
        t = 1 + _PER_CORE * c + _TRANSFER
    _prepare(chip, words, tables, core, c, pc, thread[t])
    thread[t, _STATE] = _START
    core[c, _LAST_START] = t
    _call(g, tables, core.shape[0], at, c)


@bare_helper
def _finish(g, core, c, tick):
    core[c, _FINISH] = tick
    g[_G_LAST] = max(g[_G_LAST], tick)
    g[_G_UNFINISHED] -= 1


@bare_helper
def _round(core, log, rounds, g, c, tick):
    """Core `c` begins its stream again at `tick`; false for a stream of one instruction, which runs only once."""
    n = core[c, _ROUNDS]
    if n < rounds:
        log[3][c, n] = tick
    core[c, _ROUNDS] = n + 1
    if n + 1 == rounds:
        g[_G_UNFINISHED] -= 1
    elif n > _TOO_MANY_ROUNDS:
        g[_G_FAULT] = _BLOCKED
    if core[c, _LAST] - core[c, _FIRST] == 1:
        core[c, _ENDED] = 1
        if n + 1 < rounds:
            core[c, _ROUNDS] = rounds
            g[_G_UNFINISHED] -= 1
        return False
    return True


# Units.


@bare_helper
def _through_port(core, c, now, time):
    """Time from now until the local memory has served one more request; one port, first come, first served."""
    free = max(core[c, _LOCAL], now) + time
    core[c, _LOCAL] = free
    return free - now


@bare_helper
def _unit(chip, words, tables, log, rounds, g, t):  # noqa: C901 the states of a unit
    """A unit's thread runs: on to its next wait, or to the end of its instruction."""
    core, thread = tables[0], tables[1]
    op = thread[t]
    c, now, step, code = op[_CORE], g[_G_NOW], op[_STATE], op[_OPCODE]
    if step == _ENDING:
        _end(chip, words, tables, log, rounds, g, t)
    elif code <= _VRSL:
        if step == _START:
            op[_SINCE] = now
            op[_STATE] = _WRITING
            _sleep(g, tables, t, _through_port(core, c, now, op[_READ]) + op[_COMPUTE])
        else:
            op[_STATE] = _ENDING
            _sleep(g, tables, t, _through_port(core, c, now, op[_WRITE]))
    elif code == _SEND:
        _send(core, tables, log, g, t, op, c, now, step)
        if op[_STATE] == _ENDING:
            _end(chip, words, tables, log, rounds, g, t)
    elif code == _RECV:
        _receive(core, tables, log, g, t, op, c, now, step)
    elif code == _SYNC:
        op[_SINCE] = now
        _post(tables, log, g, c, _M_TOKEN, op[_OTHER], 1, op[_OP_PC], op[_VALUE])
        op[_STATE] = _ENDING
        _sleep(g, tables, t, chip.period_ps)
    elif code == _WAIT:
        if step == _START:
            op[_SINCE] = now
            core[c, _WAIT_EVENT], core[c, _WAIT_VALUE], core[c, _WAIT_PC] = op[_OTHER], op[_VALUE], op[_OP_PC]
            if tables[11][c, op[_OTHER]] < op[_VALUE]:
                op[_STATE] = _TOKEN
                return
        core[c, _ON_TOKEN] += now - op[_SINCE]
        log[4][op[_OP_PC]] = now - op[_SINCE]
        tables[11][c, op[_OTHER]] -= op[_VALUE]
        core[c, _WAIT_EVENT] = _NONE
        op[_SINCE] = now
        _end(chip, words, tables, log, rounds, g, t)
    elif step == _START:
        op[_SINCE] = now
        if code == _LD:
            op[_STATE] = _LOADED
            _post(tables, log, g, c, _M_LOAD, core.shape[0], 1, op[_OP_PC], op[_VALUE])
        elif code == _ST:
            op[_STATE] = _STORING
            _sleep(g, tables, t, _through_port(core, c, now, op[_READ]))
        else:
            op[_STATE] = _ENDING
            _sleep(g, tables, t, _through_port(core, c, now, op[_READ] + op[_WRITE]))
    elif step == _STORING:
        op[_STATE] = _STORED
        _post(tables, log, g, c, _M_STORE, core.shape[0], op[_SIZE], op[_OP_PC], op[_VALUE])
    elif step == _LOADED:
        op[_STATE] = _ENDING
        _sleep(g, tables, t, _through_port(core, c, now, op[_WRITE]))
    else:
        _end(chip, words, tables, log, rounds, g, t)


@bare_helper
def _send(core, tables, log, g, t, op, c, now, step):
    if step == _START:
        op[_SINCE] = now
        op[_STATE] = _PERMISSION
        _post(tables, log, g, c, _M_REQUEST, op[_OTHER], 1, op[_OP_PC], 0)
    elif step == _PERMISSION:
        core[c, _ON_SEND] += now - op[_SINCE]
        log[4][op[_OP_PC]] = now - op[_SINCE]
        op[_SINCE] = now
        op[_STATE] = _SENDING
        _sleep(g, tables, t, _through_port(core, c, now, op[_READ]))
    else:
        op[_STATE] = _ENDING
        _post(tables, log, g, c, _M_DATA, op[_OTHER], op[_SIZE], op[_OP_PC], 0)


@bare_helper
def _receive(core, tables, log, g, t, op, c, now, step):
    if step == _START:
        op[_SINCE] = now
        op[_STATE] = _DATA
        sender = op[_OTHER]
        core[c, _RECV_FROM] = sender
        if core[sender, _OPEN_TO] == c:
            core[sender, _OPEN_TO] = _NONE
            _post(tables, log, g, c, _M_PERMISSION, sender, 1, op[_OP_PC], 0)
    else:
        core[c, _ON_RECV] += now - op[_SINCE]
        log[4][op[_OP_PC]] = now - op[_SINCE]
        op[_SINCE] = now
        core[c, _RECV_FROM] = _NONE
        op[_STATE] = _ENDING
        _sleep(g, tables, t, _through_port(core, c, now, op[_WRITE]))


@bare_helper
def _end(chip, words, tables, log, rounds, g, t):
    """The unit has done its work: it is free at the next edge, the instruction completes one edge later."""
    core, thread = tables[0], tables[1]
    op = thread[t]
    c, unit = op[_CORE], op[_UNIT]
    free = g[_G_TICK]
    busy = _BUSY_MATRIX if unit == _GROUP else (_BUSY_VECTOR if unit == _VECTOR else _BUSY_TRANSFER)
    core[c, busy] += free * chip.period_ps - op[_SINCE]
    log[5][op[_OP_PC]] = free * chip.period_ps - op[_SINCE]
    if chip.rob_size == 1 and chip.counting == 0:
        log[1][op[_OP_PC]] = (free + 1) * chip.period_ps
        _next(chip, words, tables, log, rounds, g, c, free + 1)
        return
    done = free + 1
    if unit == _GROUP:
        # Groups complete one at a time, in the order of their ends.
        core[c, _COMMITTED] = max(free, core[c, _COMMITTED] + 1)
        done = core[c, _COMMITTED] + 1
        op[_FREE_AT] = free
    elif unit == _VECTOR:
        core[c, _FREE_VECTOR] = free
    else:
        core[c, _FREE_TRANSFER] = free
    log[1][op[_OP_PC]] = done * chip.period_ps
    tables[13][c, op[_SLOT], _DONE_AT] = done
    _call(g, tables, core.shape[0], free, c)
    _call(g, tables, core.shape[0], done, c)


# Switches. One message at a time; what arrives never waits.


@bare_helper
def _post(tables, log, g, c, kind, to, flits, pc, value):
    """Puts a message into the switch of core `c`."""
    core, thread, queue, first = tables[0], tables[1], tables[12], tables[14]
    size = first[c + 1] - first[c]
    if core[c, _TAIL] - core[c, _HEAD] >= size:
        g[_G_FAULT] = _QUEUE_FULL
        return
    row = queue[first[c] + core[c, _TAIL] % size]
    row[_Q_KIND], row[_Q_TO], row[_Q_FLITS], row[_Q_PC], row[_Q_VALUE] = kind, to, flits, pc, value
    core[c, _TAIL] += 1
    t = 1 + _PER_CORE * c + _SWITCH
    if thread[t, _STATE] == _IDLE:
        thread[t, _STATE] = _SENT
        _push(g, tables, t)


@bare_helper
def _switch(chip, tables, log, g, t):
    """A switch's thread runs: its message arrives, or the next one leaves."""
    core, thread, queue, first = tables[0], tables[1], tables[12], tables[14]
    c = thread[t, _CORE]
    size = first[c + 1] - first[c]
    if thread[t, _STATE] == _ON_WIRE:
        message = queue[first[c] + (core[c, _HEAD] - 1) % size]
        kind = message[_Q_KIND]
        if kind >= _M_LOAD:
            done = max(g[_G_MEMORY], g[_G_NOW]) + message[_Q_VALUE]
            g[_G_MEMORY] = done
            thread[t, _STATE] = _RESPONSE
            _sleep(g, tables, t, done - g[_G_NOW])
            return
        thread[t, _STATE] = _SENT
        _sleep(g, tables, t, _deliver(tables, log, g, c, message))
        return
    if thread[t, _STATE] == _RESPONSE:
        _push(g, tables, 1 + _PER_CORE * c + _TRANSFER)
    if core[c, _HEAD] == core[c, _TAIL]:
        thread[t, _STATE] = _IDLE
        return
    message = queue[first[c] + core[c, _HEAD] % size]
    core[c, _HEAD] += 1
    thread[t, _STATE] = _ON_WIRE
    # The simulator cuts the product to whole nanoseconds.
    ns = np.int64(float(message[_Q_FLITS]) * _cost(tables[15], c, message[_Q_TO]))
    _sleep(g, tables, t, ns * 1000)


@bare_helper
def _deliver(tables, log, g, c, message):
    """A message from core `c` arrives; returns the time that its switch stays busy besides."""
    core, thread = tables[0], tables[1]
    to, kind, pc = message[_Q_TO], message[_Q_KIND], message[_Q_PC]
    t = 1 + _PER_CORE * to + _TRANSFER
    if kind == _M_REQUEST:
        if core[to, _RECV_FROM] == c:
            _post(tables, log, g, to, _M_PERMISSION, c, 1, thread[t, _OP_PC], 0)
        else:
            core[c, _OPEN_TO] = to
        return 1000
    if kind in (_M_PERMISSION, _M_DATA):
        log[2][thread[t, _OP_PC]] = pc
        _push(g, tables, t)
    else:
        event = message[_Q_VALUE]
        tables[11][to, event] += 1
        waiting = core[to, _WAIT_EVENT] == event and thread[t, _STATE] == _TOKEN
        if waiting and tables[11][to, event] >= core[to, _WAIT_VALUE]:
            log[2][core[to, _WAIT_PC]] = pc
            core[to, _WAIT_EVENT] = _NONE
            _push(g, tables, t)
    return 0


# The pipeline with a reorder buffer. Rows of `rob[c]`: the slots of a ring, then the instruction in the dispatcher.


@bare_helper
def _wake(chip, words, tables, log, rounds, g, count, c, tick):
    core, thread, rob = tables[0], tables[1], tables[13][c]
    held, group = core[c, _HELD_SLOT], np.int64(_NONE)
    if held >= 0 and rob[held, _SINCE] < tick and thread[core[c, _HELD_GROUP], _FREE_AT] < tick:
        group = core[c, _HELD_GROUP]
        _copy(thread[group], rob[held])
        thread[group, _SLOT], thread[group, _STATE], thread[group, _FREE_AT] = held, _START, _NEVER
        core[c, _HELD_SLOT] = _NONE
    if core[c, _INSERT_AT] == tick:
        _issue(chip, words, tables, log, g, count, c, tick)
        _leave(chip, words, tables, log, rounds, g, c, tick)
    if group >= 0:
        _push(g, tables, group)
    _retire(chip, g, core, rob, rounds, c, tick)
    if core[c, _HELD_SLOT] >= 0 and thread[core[c, _HELD_GROUP], _FREE_AT] <= tick:
        _call(g, tables, count, tick + 1, c)
    if core[c, _ENDED] != 0 or core[c, _ARRIVED] > tick:
        return
    if core[c, _REAL] == 0:
        if core[c, _ROB_COUNT] == chip.rob_size:
            return
        leaves = tick + 1
        while core[c, _REAL] == 0 and core[c, _ENDED] == 0:
            _leave(chip, words, tables, log, rounds, g, c, leaves)
            leaves += 1
        _call(g, tables, count, core[c, _ARRIVED], c)
    elif core[c, _INSERT_AT] == _NONE and _dispatchable(chip, core, thread, rob, c, tick):
        core[c, _INSERT_AT] = tick + 1
        _call(g, tables, count, tick + 1, c)


@bare_helper
def _issue(chip, words, tables, log, g, count, c, tick):
    """The instruction in the dispatcher enters the reorder buffer and its unit."""
    core, thread, rob = tables[0], tables[1], tables[13][c]
    slot = (core[c, _ROB_HEAD] + core[c, _ROB_COUNT]) % chip.rob_size
    for i in range(rob.shape[1]):
        rob[slot, i] = rob[chip.rob_size, i]
    core[c, _ROB_COUNT] += 1
    core[c, _INSERT_AT] = _NONE
    op = rob[slot]
    op[_DONE_AT], op[_SINCE] = _NEVER, tick
    log[0][op[_OP_PC]] = tick * chip.period_ps
    unit = op[_UNIT]
    if unit == _GROUP:
        core[c, _HELD_SLOT], core[c, _HELD_GROUP] = slot, op[_OTHER]
        _call(g, tables, count, tick + 1, c)
    elif unit != _NO_UNIT:
        t = 1 + _PER_CORE * c + unit
        _copy(thread[t], op)
        thread[t, _SLOT], thread[t, _STATE] = slot, _START
        core[c, _FREE_VECTOR if unit == _VECTOR else _FREE_TRANSFER] = _NEVER
        _push(g, tables, t)


@bare_helper
def _retire(chip, g, core, rob, rounds, c, tick):
    """Frees the slots at the head of the ring whose instructions have completed."""
    while core[c, _ROB_COUNT] > 0 and rob[core[c, _ROB_HEAD], _DONE_AT] <= tick:
        pc = rob[core[c, _ROB_HEAD], _OP_PC]
        core[c, _ROB_HEAD] = (core[c, _ROB_HEAD] + 1) % chip.rob_size
        core[c, _ROB_COUNT] -= 1
        if rounds == 0 and pc == core[c, _LAST] - 1 and core[c, _FINISH] < 0:
            _finish(g, core, c, tick)


@bare_helper
def _dispatchable(chip, core, thread, rob, c, tick):
    """Whether the instruction in the dispatcher can leave it at the edge after `tick`."""
    if core[c, _ROB_COUNT] == chip.rob_size:
        return False
    op = rob[chip.rob_size]
    for i in range(core[c, _ROB_COUNT]):
        other = rob[(core[c, _ROB_HEAD] + i) % chip.rob_size]
        if other[_DONE_AT] > tick and _conflict(op, other):
            return False
    unit = op[_UNIT]
    if unit == _VECTOR:
        return core[c, _FREE_VECTOR] <= tick
    if unit == _TRANSFER:
        return core[c, _FREE_TRANSFER] <= tick
    if unit == _GROUP:
        return core[c, _HELD_SLOT] < 0 or thread[core[c, _HELD_GROUP], _FREE_AT] <= tick
    return True


@bare_helper
def _overlap(low, high, other_low, other_high):
    return high >= other_low and low <= other_high


@bare_helper
def _conflict(op, other):
    """Write after read, or read after write. Write after write goes unnoticed, as in the simulator."""
    return (
        _overlap(op[_LOW3], op[_HIGH3], other[_LOW1], other[_HIGH1])
        or _overlap(op[_LOW3], op[_HIGH3], other[_LOW2], other[_HIGH2])
        or _overlap(op[_LOW1], op[_HIGH1], other[_LOW3], other[_HIGH3])
        or _overlap(op[_LOW2], op[_HIGH2], other[_LOW3], other[_HIGH3])
    )


@bare_helper
def _leave(chip, words, tables, log, rounds, g, c, tick):  # noqa: C901 one step of a pipeline
    """The dispatcher's instruction leaves at `tick`; the one being decoded takes its place."""
    core, rob = tables[0], tables[13][c]
    edges = tick - core[c, _ARRIVED]
    pc = core[c, _PC] + 1
    core[c, _ARRIVED] = tick
    core[c, _REAL] = 0
    if pc == core[c, _LAST]:
        core[c, _PC] = pc
        if rounds == 0:
            core[c, _ENDED] = 1
            _clock_registers(tables[17][c])
            return
        if not _round(core, log, rounds, g, c, tick):
            return
        pc = core[c, _FIRST]
    core[c, _PC] = pc
    registers = tables[16][c]
    code = words[pc, 0] & 255
    if chip.counting != 0:
        _decode_counted(words, registers, tables[17][c], pc, edges, tick)
    elif _SLDI <= code <= _SMULI:
        for _ in range(edges):
            if not _scalar(words, registers, pc):
                break
    if code == _SETBW:
        core[c, _IBIW] = words[pc, 2]
        core[c, _IB], core[c, _OB] = (words[pc, 2] + 7) >> 3, (words[pc, 3] + 7) >> 3
    elif code == _NOP or code > _SETBW:
        op = rob[chip.rob_size]
        _prepare(chip, words, tables, core, c, pc, op)
        if chip.rob_size > 1:
            _ranges(chip, words, registers, core[c, _IB], core[c, _OB], tables[10], pc, op)
        else:
            for i in range(_LOW1, _HIGH3 + 1):
                op[i] = _NEVER if (i - _LOW1) % 2 == 0 else -_NEVER
        core[c, _REAL] = 1


@bare_helper
def _wrap(value):
    return ((value + 2147483648) & 4294967295) - 2147483648


@bare_helper
def _result(code, x, y, a):
    if code == _SLDI:
        return np.int64(a)
    if code == _SADD:
        return _wrap(x + y)
    if code == _SSUB:
        return _wrap(x - y)
    if code == _SMUL:
        return _wrap(x * y)
    if code == _SADDI:
        return _wrap(x + a)
    if code == _SMULI:
        return _wrap(x * a)
    return np.int64(0)


@bare_helper
def _scalar(words, registers, pc):
    """Executes a scalar instruction; true if it changed an operand of its own, so that a stall would repeat it."""
    head, a = words[pc, 0], np.int64(words[pc, 1])
    code, rd, rs1 = head & 255, (head >> 8) & 255, (head >> 16) & 255
    rs2 = a if _SADD <= code <= _SMUL else np.int64(0)
    x, y = registers[rs1], registers[rs2]
    if code == _SLD:
        rd = 0
    registers[rd] = _result(code, x, y, a)
    return registers[rs1] != x or registers[rs2] != y


@bare_helper
def _ranges(chip, words, registers, ib, ob, xbars, pc, op):
    """Local addresses read and written, both ends included, as the simulator's hazard check sees them."""
    head = words[pc, 0]
    code, rd, rs1 = head & 255, registers[(head >> 8) & 255], registers[(head >> 16) & 255]
    a, select, value, d = np.int64(words[pc, 1]), words[pc, 2], np.int64(words[pc, 3]), np.int64(words[pc, 4])
    for i in range(_LOW1, _HIGH3 + 1):
        op[i] = _NEVER if (i - _LOW1) % 2 == 0 else -_NEVER
    if code == _MVMUL:
        op[_LOW1], op[_HIGH1] = rs1, rs1 + chip.rows * ib
        op[_LOW3], op[_HIGH3] = rd, rd + chip.row_bits // a * xbars[op[_OTHER]] * ob
        return
    if code in (_NOP, _VMV, _SYNC, _WAIT):
        return
    on_rd = value if select & 1 else np.int64(0)
    # NOTE: for rs1 and rs2 the simulator tests bits of the value, not of the selection.
    on_rs1 = value if value & 2 else np.int64(0)
    on_rs2 = value if value & 4 else np.int64(0)
    if code > _VRSL:
        if code in (_LD, _ST):
            rd, rs1 = np.int64(0), np.int64(0)
        if code in (_ST, _LMV, _SEND):
            op[_LOW1] = rs1 + on_rs1
            op[_HIGH1] = op[_LOW1] + (0 if code == _LMV and head >> 24 & 1 else d)
        if code in (_LD, _LLDI, _LMV, _RECV):
            size = np.int64(1) if code == _LLDI else (np.int64(0) if code == _LMV and head >> 24 & 1 else d)
            op[_LOW3] = rd + on_rd
            op[_HIGH3] = op[_LOW3] + size
        return
    rs1 += ib * on_rs1
    op[_LOW1], op[_HIGH1] = rs1, rs1 + d * ib
    if code <= _VVSRA or code >= _VRSU:
        rs2 = registers[a] + (ib * on_rs2 if code <= _VVSRA else 0)
        op[_LOW2], op[_HIGH2] = rs2, rs2 + d * ib
    narrow = code in (_VVADD, _VVSUB, _VVMAX)
    if code != _VVDMUL and code != _VAVG:
        rd += (ib if narrow or code == _VRELU else ob) * on_rd
    op[_LOW3], op[_HIGH3] = rd, rd + (ob if code == _VAVG else d * (ib if narrow else ob))


# Accesses of decode, register file and scalar unit, counted as their energy is.


@bare_helper
def _decode_counted(words, registers, port, pc, edges, tick):
    """An instruction is decoded for `edges` edges: it enters, then (if scalar) executes at each edge while it changes.

    Counting follows the simulator's processes: one read of the registers for each change of their inputs, one
    evaluation of decode for each change of the values read.
    """
    code = words[pc, 0] & 255
    port[_N_FETCHES] += 1
    port[_N_DECODES] += 1
    written = port[_A_WRITTEN] != 0
    port[_A_WRITTEN] = 0
    if not written:
        _clock_registers(port)
    moved = code != _NOP and _address(words, port, pc)
    if moved or written:
        port[_N_READS] += 1
        if _values(registers, port) and tick > 2:
            port[_N_DECODES] += 1
    if not (_SLDI <= code <= _SMULI):
        return
    rd = 0 if code == _SLD else (words[pc, 0] >> 8) & 255
    for edge in range(edges):
        value = _result(code, port[_V_RS1], port[_V_RS2], np.int64(words[pc, 1]))
        port[_N_SCALARS] += 1
        _clock_registers(port)
        if port[_P_RD] == rd and port[_P_VALUE] == value:
            return
        port[_P_RD], port[_P_VALUE] = rd, value
        registers[rd] = value
        port[_N_WRITES] += 1
        if edge == edges - 1:
            # The next instruction enters at this edge: one reading sees both.
            port[_A_WRITTEN] = 1
            return
        port[_N_READS] += 1
        x, y = port[_V_RS1], port[_V_RS2]
        if _values(registers, port):
            port[_N_DECODES] += 1
        if port[_V_RS1] == x and port[_V_RS2] == y:
            _clock_registers(port)
            return


@bare_helper
def _clock_registers(port):
    """The last write moves on by a stage at every edge, which is a reading of the registers if it differs."""
    if port[_O_RD] != port[_P_RD] or port[_O_VALUE] != port[_P_VALUE]:
        port[_O_RD], port[_O_VALUE] = port[_P_RD], port[_P_VALUE]
        port[_N_READS] += 1


@bare_helper
def _address(words, port, pc):
    """Sets the registers to read; true if they are others than before."""
    head = words[pc, 0]
    code = head & 255
    rd, rs1 = (head >> 8) & 255, (head >> 16) & 255
    has_rs2 = _SADD <= code <= _SMUL or _VVADD <= code <= _VAVG or code in (_VMV, _VRSU, _VRSL)
    rs2 = words[pc, 1] if has_rs2 else 0
    double = 1 if code in (_SLD, _LD, _ST) else 0
    same = port[_A_RD] == rd and port[_A_RS1] == rs1 and port[_A_RS2] == rs2 and port[_A_DOUBLE] == double
    port[_A_RD], port[_A_RS1], port[_A_RS2] = rd, rs1, rs2
    port[_A_DOUBLE] = double
    return not same


@bare_helper
def _values(registers, port):
    """Reads the registers; true if the values are others than before."""
    rd, rs1, rs2 = registers[port[_A_RD]], registers[port[_A_RS1]], registers[port[_A_RS2]]
    rd2, rs12 = np.int64(0), np.int64(0)
    if port[_A_DOUBLE]:
        rd2 = (rd << 32) ^ registers[(port[_A_RD] + 1) & 31]
        rs12 = (rs1 << 32) ^ registers[(port[_A_RS1] + 1) & 31]
        rd, rs1 = np.int64(0), np.int64(0)
    same = port[_V_RD] == rd and port[_V_RS1] == rs1 and port[_V_RS2] == rs2
    same = same and port[_V_RD2] == rd2 and port[_V_RS12] == rs12
    port[_V_RD], port[_V_RS1], port[_V_RS2], port[_V_RD2], port[_V_RS12] = rd, rs1, rs2, rd2, rs12
    return not same
