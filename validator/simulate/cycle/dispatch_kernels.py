"""Brings instructions from the stream to the units: the fast path, and the pipeline with a reorder buffer."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import Timing
from raptor.target.opcode_tables import MATRIX, TRANSFER, VECTOR, RuleColumn
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.cost_kernels import prepare_instruction, set_widths
from validator.simulate.cycle.decode_kernels import (
    clear_hazard_ranges,
    clock_registers,
    count_decode_accesses,
    execute_scalar,
    set_hazard_ranges,
)
from validator.simulate.cycle.event_kernels import push_thread, schedule_core
from validator.simulate.cycle.state_tables import CoreColumn, GlobalCounter, OpColumn, RunStop, ThreadStep

_TOO_MANY_ROUNDS = 10_000_000  # a core that waits for nobody begins so many only if another core is blocked


@bare_helper
def enter_next_instruction(chip, program, tables, log, rounds, g, c, tick):  # noqa: C901 as long as a stream has cases
    """Enters the next instruction of core `c` that needs the reorder buffer, which is free from `tick` (fast path)."""
    core, thread = tables.core, tables.thread
    pc, last = core[c, CoreColumn.PC] + 1, core[c, CoreColumn.LAST]
    ended_on_scalar = core[c, CoreColumn.PC] < core[c, CoreColumn.FIRST]
    at = tick + 1
    while True:
        if pc == last:
            if rounds == 0:
                core[c, CoreColumn.ENDED] = 1
                core[c, CoreColumn.PC] = last
                if not ended_on_scalar:
                    _finish(g, core, c, tick)
                return
            if not begin_round(core, log, rounds, g, c, at):
                return
            pc = core[c, CoreColumn.FIRST]
        rule = program.rules[program.words[pc, 0] & 255]
        kind = rule[RuleColumn.TIMING]
        if kind == Timing.NEVER_ENDS:
            core[c, CoreColumn.PC] = pc
            return
        if kind == Timing.SET_WIDTHS:
            set_widths(core, c, program.words[pc])
        elif kind != Timing.REGISTER:
            break
        ended_on_scalar = True
        at += 1
        pc += 1
    core[c, CoreColumn.PC] = pc
    log.start[pc] = at * chip.period_ps
    unit = rule[RuleColumn.UNIT]
    if unit == MATRIX:
        t = program.group_first[c] + program.words[pc, 3]
        at += 1
    elif unit == VECTOR:
        t = 1 + state_tables.THREADS_PER_CORE * c + state_tables.VECTOR
    elif unit == TRANSFER:
        t = 1 + state_tables.THREADS_PER_CORE * c + state_tables.TRANSFER
    else:
        raise NotImplementedError("an instruction without a unit")
    prepare_instruction(chip, program, core, c, pc, thread[t])
    thread[t, OpColumn.STATE] = ThreadStep.START
    core[c, CoreColumn.LAST_START] = t
    schedule_core(g, tables, core.shape[0], at, c)


@bare_helper
def _finish(g, core, c, tick):
    core[c, CoreColumn.FINISH] = tick
    g[GlobalCounter.LAST_FINISH] = max(g[GlobalCounter.LAST_FINISH], tick)
    g[GlobalCounter.UNFINISHED] -= 1


@bare_helper
def begin_round(core, log, rounds, g, c, tick):
    """Lets core `c` begin its stream again at `tick`.

    Returns false for a stream of one instruction, because the simulator runs it only once.
    """
    n = core[c, CoreColumn.ROUNDS]
    if n < rounds:
        log.marks[c, n] = tick
    core[c, CoreColumn.ROUNDS] = n + 1
    if n + 1 == rounds:
        g[GlobalCounter.UNFINISHED] -= 1
    elif n > _TOO_MANY_ROUNDS:
        g[GlobalCounter.FAULT] = RunStop.BLOCKED
    if core[c, CoreColumn.LAST] - core[c, CoreColumn.FIRST] == 1:
        core[c, CoreColumn.ENDED] = 1
        if n + 1 < rounds:
            core[c, CoreColumn.ROUNDS] = rounds
            g[GlobalCounter.UNFINISHED] -= 1
        return False
    return True


@bare_helper
def advance_core(chip, program, tables, log, rounds, g, count, c, tick):
    """Advances dispatcher and reorder buffer of core `c` at the edge `tick`."""
    core, thread, rob = tables.core, tables.thread, tables.rob[c]
    held, group = core[c, CoreColumn.HELD_SLOT], np.int64(state_tables.NONE)
    if (
        held >= 0
        and rob[held, OpColumn.SINCE] < tick
        and thread[core[c, CoreColumn.HELD_GROUP], OpColumn.FREE_AT] < tick
    ):
        group = core[c, CoreColumn.HELD_GROUP]
        _copy(thread[group], rob[held])
        thread[group, OpColumn.SLOT], thread[group, OpColumn.STATE], thread[group, OpColumn.FREE_AT] = (
            held,
            ThreadStep.START,
            state_tables.NEVER,
        )
        core[c, CoreColumn.HELD_SLOT] = state_tables.NONE
    if core[c, CoreColumn.INSERT_AT] == tick:
        _issue(chip, program, tables, log, g, count, c, tick)
        leave_dispatcher(chip, program, tables, log, rounds, g, c, tick)
    if group >= 0:
        push_thread(g, tables, group)
    _retire(chip, g, core, rob, rounds, c, tick)
    if core[c, CoreColumn.HELD_SLOT] >= 0 and thread[core[c, CoreColumn.HELD_GROUP], OpColumn.FREE_AT] <= tick:
        schedule_core(g, tables, count, tick + 1, c)
    if core[c, CoreColumn.ENDED] != 0 or core[c, CoreColumn.ARRIVED] > tick:
        return
    if core[c, CoreColumn.REAL] == 0:
        if core[c, CoreColumn.ROB_COUNT] == chip.rob_size:
            return
        leaves = tick + 1
        while core[c, CoreColumn.REAL] == 0 and core[c, CoreColumn.ENDED] == 0:
            leave_dispatcher(chip, program, tables, log, rounds, g, c, leaves)
            leaves += 1
        schedule_core(g, tables, count, core[c, CoreColumn.ARRIVED], c)
    elif core[c, CoreColumn.INSERT_AT] == state_tables.NONE and _dispatchable(chip, core, thread, rob, c, tick):
        core[c, CoreColumn.INSERT_AT] = tick + 1
        schedule_core(g, tables, count, tick + 1, c)


@bare_helper
def _issue(chip, program, tables, log, g, count, c, tick):
    """Moves the instruction in the dispatcher to the reorder buffer and to its unit."""
    core, thread, rob = tables.core, tables.thread, tables.rob[c]
    slot = (core[c, CoreColumn.ROB_HEAD] + core[c, CoreColumn.ROB_COUNT]) % chip.rob_size
    for i in range(rob.shape[1]):
        rob[slot, i] = rob[chip.rob_size, i]
    core[c, CoreColumn.ROB_COUNT] += 1
    core[c, CoreColumn.INSERT_AT] = state_tables.NONE
    op = rob[slot]
    op[OpColumn.DONE_AT], op[OpColumn.SINCE] = state_tables.NEVER, tick
    log.start[op[OpColumn.PC]] = tick * chip.period_ps
    unit = op[OpColumn.UNIT]
    if unit == state_tables.GROUP:
        core[c, CoreColumn.HELD_SLOT], core[c, CoreColumn.HELD_GROUP] = slot, op[OpColumn.OTHER]
        schedule_core(g, tables, count, tick + 1, c)
    elif unit != state_tables.NO_UNIT:
        t = 1 + state_tables.THREADS_PER_CORE * c + unit
        _copy(thread[t], op)
        thread[t, OpColumn.SLOT], thread[t, OpColumn.STATE] = slot, ThreadStep.START
        core[c, CoreColumn.FREE_VECTOR if unit == state_tables.VECTOR else CoreColumn.FREE_TRANSFER] = (
            state_tables.NEVER
        )
        push_thread(g, tables, t)


@bare_helper
def _copy(to, op):
    for i in range(OpColumn.VALUE + 1):
        to[i] = op[i]


@bare_helper
def _retire(chip, g, core, rob, rounds, c, tick):
    """Frees the first slots of the reorder buffer, as far as their instructions have completed."""
    while core[c, CoreColumn.ROB_COUNT] > 0 and rob[core[c, CoreColumn.ROB_HEAD], OpColumn.DONE_AT] <= tick:
        pc = rob[core[c, CoreColumn.ROB_HEAD], OpColumn.PC]
        core[c, CoreColumn.ROB_HEAD] = (core[c, CoreColumn.ROB_HEAD] + 1) % chip.rob_size
        core[c, CoreColumn.ROB_COUNT] -= 1
        if rounds == 0 and pc == core[c, CoreColumn.LAST] - 1 and core[c, CoreColumn.FINISH] < 0:
            _finish(g, core, c, tick)


@bare_helper
def _dispatchable(chip, core, thread, rob, c, tick):
    """Checks whether the instruction in the dispatcher can leave it at the edge after `tick`."""
    if core[c, CoreColumn.ROB_COUNT] == chip.rob_size:
        return False
    op = rob[chip.rob_size]
    for i in range(core[c, CoreColumn.ROB_COUNT]):
        other = rob[(core[c, CoreColumn.ROB_HEAD] + i) % chip.rob_size]
        if other[OpColumn.DONE_AT] > tick and _conflict(op, other):
            return False
    unit = op[OpColumn.UNIT]
    if unit == state_tables.VECTOR:
        return core[c, CoreColumn.FREE_VECTOR] <= tick
    if unit == state_tables.TRANSFER:
        return core[c, CoreColumn.FREE_TRANSFER] <= tick
    if unit == state_tables.GROUP:
        return core[c, CoreColumn.HELD_SLOT] < 0 or thread[core[c, CoreColumn.HELD_GROUP], OpColumn.FREE_AT] <= tick
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
        _overlap(op[OpColumn.LOW3], op[OpColumn.HIGH3], other[OpColumn.LOW1], other[OpColumn.HIGH1])
        or _overlap(op[OpColumn.LOW3], op[OpColumn.HIGH3], other[OpColumn.LOW2], other[OpColumn.HIGH2])
        or _overlap(op[OpColumn.LOW1], op[OpColumn.HIGH1], other[OpColumn.LOW3], other[OpColumn.HIGH3])
        or _overlap(op[OpColumn.LOW2], op[OpColumn.HIGH2], other[OpColumn.LOW3], other[OpColumn.HIGH3])
    )


@bare_helper
def leave_dispatcher(chip, program, tables, log, rounds, g, c, tick):  # noqa: C901 one step of a pipeline
    """Takes the instruction out of the dispatcher at `tick`, and puts the instruction that was decoded in its place."""
    core, rob = tables.core, tables.rob[c]
    edges = tick - core[c, CoreColumn.ARRIVED]
    pc = core[c, CoreColumn.PC] + 1
    core[c, CoreColumn.ARRIVED] = tick
    core[c, CoreColumn.REAL] = 0
    if pc == core[c, CoreColumn.LAST]:
        core[c, CoreColumn.PC] = pc
        if rounds == 0:
            core[c, CoreColumn.ENDED] = 1
            clock_registers(tables.port[c])
            return
        if not begin_round(core, log, rounds, g, c, tick):
            return
        pc = core[c, CoreColumn.FIRST]
    core[c, CoreColumn.PC] = pc
    registers = tables.registers[c]
    kind = program.rules[program.words[pc, 0] & 255, RuleColumn.TIMING]
    if chip.counting != 0:
        count_decode_accesses(program, registers, tables.port[c], pc, edges, tick)
    elif kind == Timing.REGISTER:
        for _ in range(edges):
            if not execute_scalar(program, registers, pc):
                break
    if kind == Timing.SET_WIDTHS:
        set_widths(core, c, program.words[pc])
    elif kind != Timing.REGISTER:
        op = rob[chip.rob_size]
        prepare_instruction(chip, program, core, c, pc, op)
        if chip.rob_size > 1:
            set_hazard_ranges(chip, program, registers, core[c, CoreColumn.IB], core[c, CoreColumn.OB], pc, op)
        else:
            clear_hazard_ranges(op)
        core[c, CoreColumn.REAL] = 1
