"""Threads of vector units, transfer units, array groups and switches."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit import bare_helper
from raptor.target.isa import Timing
from validator.simulate import state
from validator.simulate.cost_kernels import flit_cost
from validator.simulate.dispatch_kernels import next_instruction
from validator.simulate.event_kernels import call, push, sleep
from validator.simulate.state import Core, Global, Message, Op, Queue, Step, Stop, Switch

_ONE, _NOTHING = np.int64(1), np.int64(0)
"""Plain numbers would have types of their own, for which numba would compile `_post` once more."""


@bare_helper
def through_port(core, c, now, time):
    """Returns the time until the local memory has served one more request, ps. It has one port, and serves in order."""
    free = max(core[c, Core.LOCAL], now) + time
    core[c, Core.LOCAL] = free
    return free - now


@bare_helper
def run_unit(chip, program, tables, log, rounds, g, t, pipeline):  # noqa: C901 the dispatch
    """Runs a unit's thread up to its next wait, or to the end of its instruction."""
    core, op = tables.core, tables.thread[t]
    c, now, kind = op[Op.CORE], g[Global.NOW], op[Op.TIMING]
    if op[Op.STATE] == Step.ENDING:
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
        op[Op.SINCE], op[Op.STATE], ended = now, Step.ENDING, False
        sleep(g, tables, t, through_port(core, c, now, op[Op.READ] + op[Op.WRITE]))
    elif kind == Timing.WAIT:
        ended = _wait(core, tables, log, op, c, now)
    elif kind == Timing.GIVE_TOKEN:
        op[Op.SINCE], op[Op.STATE], ended = now, Step.ENDING, False
        _post(tables, g, c, Message.TOKEN, op[Op.OTHER], _ONE, op[Op.PC], op[Op.VALUE])
        sleep(g, tables, t, chip.period_ps)
    else:
        raise NotImplementedError("an instruction that no unit executes")
    if ended:
        end_instruction(chip, program, tables, log, rounds, g, t, pipeline)


# Each of these functions does the next step of an instruction and returns true if it was the last.


@bare_helper
def _compute(core, tables, g, t, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        op[Op.STATE] = Step.WRITING
        sleep(g, tables, t, through_port(core, c, now, op[Op.READ]) + op[Op.COMPUTE])
    else:
        op[Op.STATE] = Step.ENDING
        sleep(g, tables, t, through_port(core, c, now, op[Op.WRITE]))
    return False


@bare_helper
def _load(core, tables, g, t, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        op[Op.STATE] = Step.LOADED
        _post(tables, g, c, Message.LOAD, core.shape[0], _ONE, op[Op.PC], op[Op.VALUE])
    else:
        op[Op.STATE] = Step.ENDING
        sleep(g, tables, t, through_port(core, c, now, op[Op.WRITE]))
    return False


@bare_helper
def _store(core, tables, g, t, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        op[Op.STATE] = Step.STORING
        sleep(g, tables, t, through_port(core, c, now, op[Op.READ]))
    elif op[Op.STATE] == Step.STORING:
        op[Op.STATE] = Step.STORED
        _post(tables, g, c, Message.STORE, core.shape[0], op[Op.SIZE], op[Op.PC], op[Op.VALUE])
    else:
        return True
    return False


@bare_helper
def _wait(core, tables, log, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        core[c, Core.WAIT_EVENT], core[c, Core.WAIT_VALUE] = op[Op.OTHER], op[Op.VALUE]
        core[c, Core.WAIT_PC] = op[Op.PC]
        if tables.tokens[c, op[Op.OTHER]] < op[Op.VALUE]:
            op[Op.STATE] = Step.TOKEN
            return False
    core[c, Core.ON_TOKEN] += now - op[Op.SINCE]
    log.waited[op[Op.PC]] = now - op[Op.SINCE]
    tables.tokens[c, op[Op.OTHER]] -= op[Op.VALUE]
    core[c, Core.WAIT_EVENT] = state.NONE
    op[Op.SINCE] = now
    return True


@bare_helper
def _send(core, tables, log, g, t, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        op[Op.STATE] = Step.PERMISSION
        _post(tables, g, c, Message.REQUEST, op[Op.OTHER], _ONE, op[Op.PC], _NOTHING)
    elif op[Op.STATE] == Step.PERMISSION:
        core[c, Core.ON_SEND] += now - op[Op.SINCE]
        log.waited[op[Op.PC]] = now - op[Op.SINCE]
        op[Op.SINCE] = now
        op[Op.STATE] = Step.SENDING
        sleep(g, tables, t, through_port(core, c, now, op[Op.READ]))
    else:
        op[Op.STATE] = Step.ENDING
        _post(tables, g, c, Message.DATA, op[Op.OTHER], op[Op.SIZE], op[Op.PC], _NOTHING)
        return True
    return False


@bare_helper
def _receive(core, tables, log, g, t, op, c, now):
    if op[Op.STATE] == Step.START:
        op[Op.SINCE] = now
        op[Op.STATE] = Step.DATA
        sender = op[Op.OTHER]
        core[c, Core.RECV_FROM] = sender
        if core[sender, Core.OPEN_TO] == c:
            core[sender, Core.OPEN_TO] = state.NONE
            _post(tables, g, c, Message.PERMISSION, sender, _ONE, op[Op.PC], _NOTHING)
    else:
        core[c, Core.ON_RECV] += now - op[Op.SINCE]
        log.waited[op[Op.PC]] = now - op[Op.SINCE]
        op[Op.SINCE] = now
        core[c, Core.RECV_FROM] = state.NONE
        op[Op.STATE] = Step.ENDING
        sleep(g, tables, t, through_port(core, c, now, op[Op.WRITE]))
    return False


@bare_helper
def end_instruction(chip, program, tables, log, rounds, g, t, pipeline):
    """Ends the work of a unit: the unit is free at the next edge, the instruction completes one edge later."""
    core, thread = tables.core, tables.thread
    op = thread[t]
    c, unit = op[Op.CORE], op[Op.UNIT]
    free = g[Global.TICK]
    busy = (
        Core.BUSY_MATRIX if unit == state.GROUP else (Core.BUSY_VECTOR if unit == state.VECTOR else Core.BUSY_TRANSFER)
    )
    core[c, busy] += free * chip.period_ps - op[Op.SINCE]
    log.busy[op[Op.PC]] = free * chip.period_ps - op[Op.SINCE]
    if pipeline is None:
        log.end[op[Op.PC]] = (free + 1) * chip.period_ps
        next_instruction(chip, program, tables, log, rounds, g, c, free + 1)
        return
    done = free + 1
    if unit == state.GROUP:
        # Groups complete one at a time, in the order of their ends.
        core[c, Core.COMMITTED] = max(free, core[c, Core.COMMITTED] + 1)
        done = core[c, Core.COMMITTED] + 1
        op[Op.FREE_AT] = free
    elif unit == state.VECTOR:
        core[c, Core.FREE_VECTOR] = free
    else:
        core[c, Core.FREE_TRANSFER] = free
    log.end[op[Op.PC]] = done * chip.period_ps
    tables.rob[c, op[Op.SLOT], Op.DONE_AT] = done
    call(g, tables, core.shape[0], free, c)
    call(g, tables, core.shape[0], done, c)


@bare_helper
def _post(tables, g, c, kind, to, flits, pc, value):
    """Puts a message into the switch of core `c`. Sets `Global.FAULT` if there is no room."""
    core, thread, queue, first = tables.core, tables.thread, tables.queue, tables.queue_first
    size = first[c + 1] - first[c]
    if core[c, Core.QUEUE_TAIL] - core[c, Core.QUEUE_HEAD] >= size:
        g[Global.FAULT] = Stop.QUEUE_FULL
        return
    row = queue[first[c] + core[c, Core.QUEUE_TAIL] % size]
    row[Queue.KIND], row[Queue.TO], row[Queue.FLITS], row[Queue.PC], row[Queue.VALUE] = kind, to, flits, pc, value
    core[c, Core.QUEUE_TAIL] += 1
    t = 1 + state.THREADS_PER_CORE * c + state.SWITCH
    if thread[t, Op.STATE] == Switch.IDLE:
        thread[t, Op.STATE] = Switch.SENT
        push(g, tables, t)


@bare_helper
def run_switch(program, tables, log, g, t):
    """Runs a switch's thread: its message arrives, or the next one leaves."""
    core, thread, queue, first = tables.core, tables.thread, tables.queue, tables.queue_first
    c = thread[t, Op.CORE]
    size = first[c + 1] - first[c]
    if thread[t, Op.STATE] == Switch.ON_WIRE:
        message = queue[first[c] + (core[c, Core.QUEUE_HEAD] - 1) % size]
        kind = message[Queue.KIND]
        if kind >= Message.LOAD:
            done = max(g[Global.GLOBAL_MEMORY], g[Global.NOW]) + message[Queue.VALUE]
            g[Global.GLOBAL_MEMORY] = done
            thread[t, Op.STATE] = Switch.RESPONSE
            sleep(g, tables, t, done - g[Global.NOW])
            return
        thread[t, Op.STATE] = Switch.SENT
        sleep(g, tables, t, _deliver(tables, log, g, c, message))
        return
    if thread[t, Op.STATE] == Switch.RESPONSE:
        push(g, tables, 1 + state.THREADS_PER_CORE * c + state.TRANSFER)
    if core[c, Core.QUEUE_HEAD] == core[c, Core.QUEUE_TAIL]:
        thread[t, Op.STATE] = Switch.IDLE
        return
    message = queue[first[c] + core[c, Core.QUEUE_HEAD] % size]
    core[c, Core.QUEUE_HEAD] += 1
    thread[t, Op.STATE] = Switch.ON_WIRE
    # The simulator cuts the product to whole nanoseconds.
    ns = np.int64(float(message[Queue.FLITS]) * flit_cost(program.flit_ns, c, message[Queue.TO]))
    sleep(g, tables, t, ns * 1000)


@bare_helper
def _deliver(tables, log, g, c, message):
    """Delivers a message from core `c`. Returns the additional time (ps) for which its switch stays busy."""
    core, thread = tables.core, tables.thread
    to, kind, pc = message[Queue.TO], message[Queue.KIND], message[Queue.PC]
    t = 1 + state.THREADS_PER_CORE * to + state.TRANSFER
    if kind == Message.REQUEST:
        if core[to, Core.RECV_FROM] == c:
            _post(tables, g, to, Message.PERMISSION, c, _ONE, thread[t, Op.PC], _NOTHING)
        else:
            core[c, Core.OPEN_TO] = to
        return 1000
    if kind in (Message.PERMISSION, Message.DATA):
        log.cause[thread[t, Op.PC]] = pc
        push(g, tables, t)
    else:
        event = message[Queue.VALUE]
        tables.tokens[to, event] += 1
        waiting = core[to, Core.WAIT_EVENT] == event and thread[t, Op.STATE] == Step.TOKEN
        if waiting and tables.tokens[to, event] >= core[to, Core.WAIT_VALUE]:
            log.cause[core[to, Core.WAIT_PC]] = pc
            core[to, Core.WAIT_EVENT] = state.NONE
            push(g, tables, t)
    return 0
