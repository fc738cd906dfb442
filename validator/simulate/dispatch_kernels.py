"""Brings instructions from the stream to the units: the fast path, and the pipeline with a reorder buffer."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit import bare_helper
from raptor.target.isa import Timing
from raptor.target.opcode_tables import MATRIX, TRANSFER, VECTOR, Rule
from validator.simulate import state
from validator.simulate.cost_kernels import prepare, set_widths
from validator.simulate.decode_kernels import clock_registers, decode_counted, execute, hazard_ranges, no_ranges
from validator.simulate.event_kernels import call, push
from validator.simulate.state import Core, Global, Op, Step, Stop

_TOO_MANY_ROUNDS = 10_000_000  # a core that waits for nobody begins so many only if another core is blocked


@bare_helper
def next_instruction(chip, program, tables, log, rounds, g, c, tick):  # noqa: C901 as long as a stream has cases
    """Enters the next instruction of core `c` that needs the reorder buffer, which is free from `tick` (fast path)."""
    core, thread = tables.core, tables.thread
    pc, last = core[c, Core.PC] + 1, core[c, Core.LAST]
    ended_on_scalar = core[c, Core.PC] < core[c, Core.FIRST]
    at = tick + 1
    while True:
        if pc == last:
            if rounds == 0:
                core[c, Core.ENDED] = 1
                core[c, Core.PC] = last
                if not ended_on_scalar:
                    _finish(g, core, c, tick)
                return
            if not next_round(core, log, rounds, g, c, at):
                return
            pc = core[c, Core.FIRST]
        rule = program.rules[program.words[pc, 0] & 255]
        kind = rule[Rule.TIMING]
        if kind == Timing.NEVER_ENDS:
            core[c, Core.PC] = pc
            return
        if kind == Timing.SET_WIDTHS:
            set_widths(core, c, program.words[pc])
        elif kind != Timing.REGISTER:
            break
        ended_on_scalar = True
        at += 1
        pc += 1
    core[c, Core.PC] = pc
    log.start[pc] = at * chip.period_ps
    unit = rule[Rule.UNIT]
    if unit == MATRIX:
        t = program.group_first[c] + program.words[pc, 3]
        at += 1
    elif unit == VECTOR:
        t = 1 + state.THREADS_PER_CORE * c + state.VECTOR
    elif unit == TRANSFER:
        t = 1 + state.THREADS_PER_CORE * c + state.TRANSFER
    else:
        raise NotImplementedError("an instruction without a unit")
    prepare(chip, program, core, c, pc, thread[t])
    thread[t, Op.STATE] = Step.START
    core[c, Core.LAST_START] = t
    call(g, tables, core.shape[0], at, c)


@bare_helper
def _finish(g, core, c, tick):
    core[c, Core.FINISH] = tick
    g[Global.LAST_FINISH] = max(g[Global.LAST_FINISH], tick)
    g[Global.UNFINISHED] -= 1


@bare_helper
def next_round(core, log, rounds, g, c, tick):
    """Lets core `c` begin its stream again at `tick`.

    Returns false for a stream of one instruction, because the simulator runs it only once.
    """
    n = core[c, Core.ROUNDS]
    if n < rounds:
        log.marks[c, n] = tick
    core[c, Core.ROUNDS] = n + 1
    if n + 1 == rounds:
        g[Global.UNFINISHED] -= 1
    elif n > _TOO_MANY_ROUNDS:
        g[Global.FAULT] = Stop.BLOCKED
    if core[c, Core.LAST] - core[c, Core.FIRST] == 1:
        core[c, Core.ENDED] = 1
        if n + 1 < rounds:
            core[c, Core.ROUNDS] = rounds
            g[Global.UNFINISHED] -= 1
        return False
    return True


@bare_helper
def wake(chip, program, tables, log, rounds, g, count, c, tick):
    """Advances dispatcher and reorder buffer of core `c` at the edge `tick`."""
    core, thread, rob = tables.core, tables.thread, tables.rob[c]
    held, group = core[c, Core.HELD_SLOT], np.int64(state.NONE)
    if held >= 0 and rob[held, Op.SINCE] < tick and thread[core[c, Core.HELD_GROUP], Op.FREE_AT] < tick:
        group = core[c, Core.HELD_GROUP]
        _copy(thread[group], rob[held])
        thread[group, Op.SLOT], thread[group, Op.STATE], thread[group, Op.FREE_AT] = held, Step.START, state.NEVER
        core[c, Core.HELD_SLOT] = state.NONE
    if core[c, Core.INSERT_AT] == tick:
        _issue(chip, program, tables, log, g, count, c, tick)
        leave(chip, program, tables, log, rounds, g, c, tick)
    if group >= 0:
        push(g, tables, group)
    _retire(chip, g, core, rob, rounds, c, tick)
    if core[c, Core.HELD_SLOT] >= 0 and thread[core[c, Core.HELD_GROUP], Op.FREE_AT] <= tick:
        call(g, tables, count, tick + 1, c)
    if core[c, Core.ENDED] != 0 or core[c, Core.ARRIVED] > tick:
        return
    if core[c, Core.REAL] == 0:
        if core[c, Core.ROB_COUNT] == chip.rob_size:
            return
        leaves = tick + 1
        while core[c, Core.REAL] == 0 and core[c, Core.ENDED] == 0:
            leave(chip, program, tables, log, rounds, g, c, leaves)
            leaves += 1
        call(g, tables, count, core[c, Core.ARRIVED], c)
    elif core[c, Core.INSERT_AT] == state.NONE and _dispatchable(chip, core, thread, rob, c, tick):
        core[c, Core.INSERT_AT] = tick + 1
        call(g, tables, count, tick + 1, c)


@bare_helper
def _issue(chip, program, tables, log, g, count, c, tick):
    """Moves the instruction in the dispatcher to the reorder buffer and to its unit."""
    core, thread, rob = tables.core, tables.thread, tables.rob[c]
    slot = (core[c, Core.ROB_HEAD] + core[c, Core.ROB_COUNT]) % chip.rob_size
    for i in range(rob.shape[1]):
        rob[slot, i] = rob[chip.rob_size, i]
    core[c, Core.ROB_COUNT] += 1
    core[c, Core.INSERT_AT] = state.NONE
    op = rob[slot]
    op[Op.DONE_AT], op[Op.SINCE] = state.NEVER, tick
    log.start[op[Op.PC]] = tick * chip.period_ps
    unit = op[Op.UNIT]
    if unit == state.GROUP:
        core[c, Core.HELD_SLOT], core[c, Core.HELD_GROUP] = slot, op[Op.OTHER]
        call(g, tables, count, tick + 1, c)
    elif unit != state.NO_UNIT:
        t = 1 + state.THREADS_PER_CORE * c + unit
        _copy(thread[t], op)
        thread[t, Op.SLOT], thread[t, Op.STATE] = slot, Step.START
        core[c, Core.FREE_VECTOR if unit == state.VECTOR else Core.FREE_TRANSFER] = state.NEVER
        push(g, tables, t)


@bare_helper
def _copy(to, op):
    for i in range(Op.VALUE + 1):
        to[i] = op[i]


@bare_helper
def _retire(chip, g, core, rob, rounds, c, tick):
    """Frees the first slots of the reorder buffer, as far as their instructions have completed."""
    while core[c, Core.ROB_COUNT] > 0 and rob[core[c, Core.ROB_HEAD], Op.DONE_AT] <= tick:
        pc = rob[core[c, Core.ROB_HEAD], Op.PC]
        core[c, Core.ROB_HEAD] = (core[c, Core.ROB_HEAD] + 1) % chip.rob_size
        core[c, Core.ROB_COUNT] -= 1
        if rounds == 0 and pc == core[c, Core.LAST] - 1 and core[c, Core.FINISH] < 0:
            _finish(g, core, c, tick)


@bare_helper
def _dispatchable(chip, core, thread, rob, c, tick):
    """Checks whether the instruction in the dispatcher can leave it at the edge after `tick`."""
    if core[c, Core.ROB_COUNT] == chip.rob_size:
        return False
    op = rob[chip.rob_size]
    for i in range(core[c, Core.ROB_COUNT]):
        other = rob[(core[c, Core.ROB_HEAD] + i) % chip.rob_size]
        if other[Op.DONE_AT] > tick and _conflict(op, other):
            return False
    unit = op[Op.UNIT]
    if unit == state.VECTOR:
        return core[c, Core.FREE_VECTOR] <= tick
    if unit == state.TRANSFER:
        return core[c, Core.FREE_TRANSFER] <= tick
    if unit == state.GROUP:
        return core[c, Core.HELD_SLOT] < 0 or thread[core[c, Core.HELD_GROUP], Op.FREE_AT] <= tick
    return True


@bare_helper
def _overlap(low, high, other_low, other_high):
    return high >= other_low and low <= other_high


@bare_helper
def _conflict(op, other):
    """Checks whether `op` writes what `other` reads, or reads what it writes.

    Two writes to one address go unnoticed, as in the simulator.
    """
    return (
        _overlap(op[Op.LOW3], op[Op.HIGH3], other[Op.LOW1], other[Op.HIGH1])
        or _overlap(op[Op.LOW3], op[Op.HIGH3], other[Op.LOW2], other[Op.HIGH2])
        or _overlap(op[Op.LOW1], op[Op.HIGH1], other[Op.LOW3], other[Op.HIGH3])
        or _overlap(op[Op.LOW2], op[Op.HIGH2], other[Op.LOW3], other[Op.HIGH3])
    )


@bare_helper
def leave(chip, program, tables, log, rounds, g, c, tick):  # noqa: C901 one step of a pipeline
    """Takes the instruction out of the dispatcher at `tick`, and puts the instruction that was decoded in its place."""
    core, rob = tables.core, tables.rob[c]
    edges = tick - core[c, Core.ARRIVED]
    pc = core[c, Core.PC] + 1
    core[c, Core.ARRIVED] = tick
    core[c, Core.REAL] = 0
    if pc == core[c, Core.LAST]:
        core[c, Core.PC] = pc
        if rounds == 0:
            core[c, Core.ENDED] = 1
            clock_registers(tables.port[c])
            return
        if not next_round(core, log, rounds, g, c, tick):
            return
        pc = core[c, Core.FIRST]
    core[c, Core.PC] = pc
    registers = tables.registers[c]
    kind = program.rules[program.words[pc, 0] & 255, Rule.TIMING]
    if chip.counting != 0:
        decode_counted(program, registers, tables.port[c], pc, edges, tick)
    elif kind == Timing.REGISTER:
        for _ in range(edges):
            if not execute(program, registers, pc):
                break
    if kind == Timing.SET_WIDTHS:
        set_widths(core, c, program.words[pc])
    elif kind != Timing.REGISTER:
        op = rob[chip.rob_size]
        prepare(chip, program, core, c, pc, op)
        if chip.rob_size > 1:
            hazard_ranges(chip, program, registers, core[c, Core.IB], core[c, Core.OB], pc, op)
        else:
            no_ranges(op)
        core[c, Core.REAL] = 1
