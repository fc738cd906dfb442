"""Threads of vector units, transfer units, array groups and switches."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import Timing
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.cost_kernels import look_up_flit_cost
from validator.simulate.cycle.dispatch_kernels import enter_next_instruction
from validator.simulate.cycle.event_kernels import delay_thread, push_thread, schedule_core
from validator.simulate.cycle.state_tables import (
    CoreColumn,
    GlobalCounter,
    MessageKind,
    OpColumn,
    QueueColumn,
    RunStop,
    SwitchState,
    ThreadStep,
)

_ONE, _NOTHING = np.int64(1), np.int64(0)
"""Plain numbers would have types of their own, for which numba would compile `_post` once more."""


@bare_helper
def serve_local_memory(core, c, now, time):
    """Returns the time until the local memory has served one more request, ps. It has one port, and serves in order."""
    free = max(core[c, CoreColumn.LOCAL], now) + time
    core[c, CoreColumn.LOCAL] = free
    return free - now


@bare_helper
def run_unit(chip, program, tables, log, rounds, g, t, pipeline):  # noqa: C901 the dispatch
    """Runs a unit's thread up to its next wait, or to the end of its instruction."""
    core, op = tables.core, tables.thread[t]
    c, now, kind = op[OpColumn.CORE], g[GlobalCounter.NOW], op[OpColumn.TIMING]
    if op[OpColumn.STATE] == ThreadStep.ENDING:
        ended = True
    elif kind == Timing.VECTOR or kind == Timing.PRODUCT:
        ended = _compute(core, tables, g, t, op, c, now)
    elif kind == Timing.SEND:
        ended = _send(core, tables, log, g, t, op, c, now)
    elif kind == Timing.RECEIVE:
        ended = _receive(core, tables, log, g, t, op, c, now)
    elif kind == Timing.LOAD:
        ended = _load(core, tables, g, t, op, c, now)
    elif kind == Timing.STORE:
        ended = _store(core, tables, g, t, op, c, now)
    elif kind == Timing.COPY or kind == Timing.FILL:
        op[OpColumn.SINCE], op[OpColumn.STATE], ended = now, ThreadStep.ENDING, False
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.READ] + op[OpColumn.WRITE]))
    elif kind == Timing.WAIT:
        ended = _wait(core, tables, log, op, c, now)
    elif kind == Timing.GIVE_TOKEN:
        op[OpColumn.SINCE], op[OpColumn.STATE], ended = now, ThreadStep.ENDING, False
        _post(tables, g, c, MessageKind.TOKEN, op[OpColumn.OTHER], _ONE, op[OpColumn.PC], op[OpColumn.VALUE])
        delay_thread(g, tables, t, chip.period_ps)
    else:
        raise NotImplementedError("an instruction that no unit executes")
    if ended:
        end_instruction(chip, program, tables, log, rounds, g, t, pipeline)


# Each of these functions does the next step of an instruction and returns true if it was the last.


@bare_helper
def _compute(core, tables, g, t, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.WRITING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.READ]) + op[OpColumn.COMPUTE])
    else:
        op[OpColumn.STATE] = ThreadStep.ENDING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.WRITE]))
    return False


@bare_helper
def _load(core, tables, g, t, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.LOADED
        _post(tables, g, c, MessageKind.LOAD, core.shape[0], _ONE, op[OpColumn.PC], op[OpColumn.VALUE])
    else:
        op[OpColumn.STATE] = ThreadStep.ENDING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.WRITE]))
    return False


@bare_helper
def _store(core, tables, g, t, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.STORING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.READ]))
    elif op[OpColumn.STATE] == ThreadStep.STORING:
        op[OpColumn.STATE] = ThreadStep.STORED
        _post(tables, g, c, MessageKind.STORE, core.shape[0], op[OpColumn.SIZE], op[OpColumn.PC], op[OpColumn.VALUE])
    else:
        return True
    return False


@bare_helper
def _wait(core, tables, log, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        core[c, CoreColumn.WAIT_EVENT], core[c, CoreColumn.WAIT_VALUE] = op[OpColumn.OTHER], op[OpColumn.VALUE]
        core[c, CoreColumn.WAIT_PC] = op[OpColumn.PC]
        if tables.tokens[c, op[OpColumn.OTHER]] < op[OpColumn.VALUE]:
            op[OpColumn.STATE] = ThreadStep.TOKEN
            return False
    core[c, CoreColumn.ON_TOKEN] += now - op[OpColumn.SINCE]
    log.waited[op[OpColumn.PC]] = now - op[OpColumn.SINCE]
    tables.tokens[c, op[OpColumn.OTHER]] -= op[OpColumn.VALUE]
    core[c, CoreColumn.WAIT_EVENT] = state_tables.NONE
    op[OpColumn.SINCE] = now
    return True


@bare_helper
def _send(core, tables, log, g, t, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.PERMISSION
        _post(tables, g, c, MessageKind.REQUEST, op[OpColumn.OTHER], _ONE, op[OpColumn.PC], _NOTHING)
    elif op[OpColumn.STATE] == ThreadStep.PERMISSION:
        core[c, CoreColumn.ON_SEND] += now - op[OpColumn.SINCE]
        log.waited[op[OpColumn.PC]] = now - op[OpColumn.SINCE]
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.SENDING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.READ]))
    else:
        op[OpColumn.STATE] = ThreadStep.ENDING
        _post(tables, g, c, MessageKind.DATA, op[OpColumn.OTHER], op[OpColumn.SIZE], op[OpColumn.PC], _NOTHING)
        return True
    return False


@bare_helper
def _receive(core, tables, log, g, t, op, c, now):
    if op[OpColumn.STATE] == ThreadStep.START:
        op[OpColumn.SINCE] = now
        op[OpColumn.STATE] = ThreadStep.DATA
        sender = op[OpColumn.OTHER]
        core[c, CoreColumn.RECV_FROM] = sender
        if core[sender, CoreColumn.OPEN_TO] == c:
            core[sender, CoreColumn.OPEN_TO] = state_tables.NONE
            _post(tables, g, c, MessageKind.PERMISSION, sender, _ONE, op[OpColumn.PC], _NOTHING)
    else:
        core[c, CoreColumn.ON_RECV] += now - op[OpColumn.SINCE]
        log.waited[op[OpColumn.PC]] = now - op[OpColumn.SINCE]
        op[OpColumn.SINCE] = now
        core[c, CoreColumn.RECV_FROM] = state_tables.NONE
        op[OpColumn.STATE] = ThreadStep.ENDING
        delay_thread(g, tables, t, serve_local_memory(core, c, now, op[OpColumn.WRITE]))
    return False


@bare_helper
def end_instruction(chip, program, tables, log, rounds, g, t, pipeline):
    """Ends the work of a unit: the unit is free at the next edge, the instruction completes one edge later."""
    core, thread = tables.core, tables.thread
    op = thread[t]
    c, unit = op[OpColumn.CORE], op[OpColumn.UNIT]
    free = g[GlobalCounter.TICK]
    busy = (
        CoreColumn.BUSY_MATRIX
        if unit == state_tables.GROUP
        else (CoreColumn.BUSY_VECTOR if unit == state_tables.VECTOR else CoreColumn.BUSY_TRANSFER)
    )
    core[c, busy] += free * chip.period_ps - op[OpColumn.SINCE]
    log.busy[op[OpColumn.PC]] = free * chip.period_ps - op[OpColumn.SINCE]
    if pipeline is None:
        log.end[op[OpColumn.PC]] = (free + 1) * chip.period_ps
        enter_next_instruction(chip, program, tables, log, rounds, g, c, free + 1)
        return
    done = free + 1
    if unit == state_tables.GROUP:
        # Groups complete one at a time, in the order of their ends.
        core[c, CoreColumn.COMMITTED] = max(free, core[c, CoreColumn.COMMITTED] + 1)
        done = core[c, CoreColumn.COMMITTED] + 1
        op[OpColumn.FREE_AT] = free
    elif unit == state_tables.VECTOR:
        core[c, CoreColumn.FREE_VECTOR] = free
    else:
        core[c, CoreColumn.FREE_TRANSFER] = free
    log.end[op[OpColumn.PC]] = done * chip.period_ps
    tables.rob[c, op[OpColumn.SLOT], OpColumn.DONE_AT] = done
    schedule_core(g, tables, core.shape[0], free, c)
    schedule_core(g, tables, core.shape[0], done, c)


@bare_helper
def _post(tables, g, c, kind, to, flits, pc, value):
    """Puts a message into the switch of core `c`. Sets `Global.FAULT` if there is no room."""
    core, thread, queue, first = tables.core, tables.thread, tables.queue, tables.queue_first
    size = first[c + 1] - first[c]
    if core[c, CoreColumn.QUEUE_TAIL] - core[c, CoreColumn.QUEUE_HEAD] >= size:
        g[GlobalCounter.FAULT] = RunStop.QUEUE_FULL
        return
    row = queue[first[c] + core[c, CoreColumn.QUEUE_TAIL] % size]
    row[QueueColumn.KIND], row[QueueColumn.TO], row[QueueColumn.FLITS], row[QueueColumn.PC], row[QueueColumn.VALUE] = (
        kind,
        to,
        flits,
        pc,
        value,
    )
    core[c, CoreColumn.QUEUE_TAIL] += 1
    t = 1 + state_tables.THREADS_PER_CORE * c + state_tables.SWITCH
    if thread[t, OpColumn.STATE] == SwitchState.IDLE:
        thread[t, OpColumn.STATE] = SwitchState.SENT
        push_thread(g, tables, t)


@bare_helper
def run_switch(program, tables, log, g, t):
    """Runs a switch's thread: its message arrives, or the next one leaves."""
    core, thread, queue, first = tables.core, tables.thread, tables.queue, tables.queue_first
    c = thread[t, OpColumn.CORE]
    size = first[c + 1] - first[c]
    if thread[t, OpColumn.STATE] == SwitchState.ON_WIRE:
        message = queue[first[c] + (core[c, CoreColumn.QUEUE_HEAD] - 1) % size]
        kind = message[QueueColumn.KIND]
        if kind >= MessageKind.LOAD:
            done = max(g[GlobalCounter.GLOBAL_MEMORY], g[GlobalCounter.NOW]) + message[QueueColumn.VALUE]
            g[GlobalCounter.GLOBAL_MEMORY] = done
            thread[t, OpColumn.STATE] = SwitchState.RESPONSE
            delay_thread(g, tables, t, done - g[GlobalCounter.NOW])
            return
        thread[t, OpColumn.STATE] = SwitchState.SENT
        delay_thread(g, tables, t, _deliver(tables, log, g, c, message))
        return
    if thread[t, OpColumn.STATE] == SwitchState.RESPONSE:
        push_thread(g, tables, 1 + state_tables.THREADS_PER_CORE * c + state_tables.TRANSFER)
    if core[c, CoreColumn.QUEUE_HEAD] == core[c, CoreColumn.QUEUE_TAIL]:
        thread[t, OpColumn.STATE] = SwitchState.IDLE
        return
    message = queue[first[c] + core[c, CoreColumn.QUEUE_HEAD] % size]
    core[c, CoreColumn.QUEUE_HEAD] += 1
    thread[t, OpColumn.STATE] = SwitchState.ON_WIRE
    # The simulator cuts the product to whole nanoseconds.
    ns = np.int64(float(message[QueueColumn.FLITS]) * look_up_flit_cost(program.flit_ns, c, message[QueueColumn.TO]))
    delay_thread(g, tables, t, ns * 1000)


@bare_helper
def _deliver(tables, log, g, c, message):
    """Delivers a message from core `c`. Returns the additional time (ps) for which its switch stays busy."""
    core, thread = tables.core, tables.thread
    to, kind, pc = message[QueueColumn.TO], message[QueueColumn.KIND], message[QueueColumn.PC]
    t = 1 + state_tables.THREADS_PER_CORE * to + state_tables.TRANSFER
    if kind == MessageKind.REQUEST:
        if core[to, CoreColumn.RECV_FROM] == c:
            _post(tables, g, to, MessageKind.PERMISSION, c, _ONE, thread[t, OpColumn.PC], _NOTHING)
        else:
            core[c, CoreColumn.OPEN_TO] = to
        return 1000
    if kind in (MessageKind.PERMISSION, MessageKind.DATA):
        log.cause[thread[t, OpColumn.PC]] = pc
        push_thread(g, tables, t)
    else:
        event = message[QueueColumn.VALUE]
        tables.tokens[to, event] += 1
        waiting = core[to, CoreColumn.WAIT_EVENT] == event and thread[t, OpColumn.STATE] == ThreadStep.TOKEN
        if waiting and tables.tokens[to, event] >= core[to, CoreColumn.WAIT_VALUE]:
            log.cause[core[to, CoreColumn.WAIT_PC]] = pc
            core[to, CoreColumn.WAIT_EVENT] = state_tables.NONE
            push_thread(g, tables, t)
    return 0
