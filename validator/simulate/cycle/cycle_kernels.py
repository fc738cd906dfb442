"""Compiled cycle model: the timing of pimsim-nn, without its data.

The simulator is a set of SystemC threads (for each core a vector unit, a transfer unit, a switch and its array groups)
and a clock thread. A thread that waits for a time sits in one heap, together with the clock; what happens at a clock
edge happens when the clock's thread runs. The order of two threads in one instant decides whether the end of an
instruction is noticed at this edge or at the next. So the heap and the order of the threads are as in SystemC, edge
by edge. An edge at which nothing happens only turns the heap (the clock is taken out and put back); as soon as a turn
changes nothing, the clock jumps.

With `rob_size` 1 a core has one instruction at a time and addresses do not matter. This is the fast path, which reads
the stream only to count scalar instructions. Otherwise `advance_core` follows dispatcher and reorder buffer of a core,
at the edges where something may change, and registers are computed for the hazard check.

The main loop is here. Heap, calendar and clock are in `event_kernels`, the way of an instruction to its unit is in
`dispatch_kernels`, the units and the network are in `unit_kernels`.
"""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel, interpret_first
from raptor.target.isa import Timing
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.dispatch_kernels import advance_core, enter_next_instruction, leave_dispatcher
from validator.simulate.cycle.event_kernels import (
    advance_to_next_event,
    extract_thread,
    insert_thread,
    pop_calendar,
    push_thread,
    schedule_core,
)
from validator.simulate.cycle.state_tables import CoreColumn, GlobalCounter, OpColumn, RunStop
from validator.simulate.cycle.unit_kernels import end_instruction, run_switch, run_unit, serve_local_memory

_SECOND_TICK = np.int64(2)
"""A plain 2 would have a type of its own, for which numba would compile the helpers once more."""


@bare_kernel
@interpret_first(us=lambda args: 100 * len(args[1].words) * max(1, args[4]), until_us=4e6)
def run_cycles(chip, program, tables, log, rounds, g, pipeline) -> int:  # noqa: C901 the scheduler's loop
    """Runs until all cores have finished (`rounds` 0) or begun `rounds` more rounds, or no core can continue.

    Returns a `Stop`. `tables` and `log` are declared in `state`; `g` holds the counters `Global`. `pipeline` is None
    for the fast path: numba then leaves out the branches for anything else, and compiles nothing that they call.
    """
    thread = tables.thread
    heap_time, heap_id, run, zero = tables.heap_time, tables.heap_thread, tables.run, tables.next_delta
    count = tables.core.shape[0]
    _begin(chip, program, tables, log, rounds, g, pipeline)
    while g[GlobalCounter.UNFINISHED] > 0:
        if not advance_to_next_event(chip, tables, g, count):
            return RunStop.BLOCKED
        if pipeline is None:  # noqa: SIM102 numba leaves out a branch of this test alone
            if g[GlobalCounter.HEAP] == 1 and g[GlobalCounter.CALENDAR] == 1:
                _alone(chip, program, tables, log, rounds, g, pipeline)
                if g[GlobalCounter.UNFINISHED] == 0:
                    break
                if g[GlobalCounter.FAULT] != 0:
                    return g[GlobalCounter.FAULT]
                if g[GlobalCounter.CALENDAR] == 0:
                    return RunStop.BLOCKED
        now = heap_time[1]
        g[GlobalCounter.NOW] = now
        n = 0
        while g[GlobalCounter.HEAP] > 0 and heap_time[1] == now:
            run[n], _ = extract_thread(g, heap_time, heap_id)
            n += 1
        g[GlobalCounter.RUN] = n
        i, end_of_pass, edge = 0, n, False
        while True:
            if i == end_of_pass:
                if edge:
                    edge = False
                    _edge(chip, program, tables, log, rounds, g, count, pipeline)
                if i == g[GlobalCounter.RUN]:
                    n = g[GlobalCounter.ZERO]
                    if n == 0:
                        break
                    # The next delta cycle: the threads that wait for no time, the last of them first.
                    for j in range(n):
                        run[j] = zero[n - 1 - j]
                    g[GlobalCounter.ZERO], g[GlobalCounter.RUN], i = 0, n, 0
                end_of_pass = g[GlobalCounter.RUN]
            t = run[i]
            i += 1
            if t == 0:
                g[GlobalCounter.TICK] += 1
                insert_thread(g, heap_time, heap_id, now + chip.period_ps, 0)
                edge = True
            elif thread[t, OpColumn.UNIT] == state_tables.SWITCH:
                run_switch(program, tables, log, g, t)
            else:
                run_unit(chip, program, tables, log, rounds, g, t, pipeline)
            if g[GlobalCounter.FAULT] != 0:
                return g[GlobalCounter.FAULT]
    return RunStop.DONE


@bare_helper
def _begin(chip, program, tables, log, rounds, g, pipeline):
    """Starts the clock, and lets each core that has not ended fetch its first instruction in the second tick."""
    core, count = tables.core, tables.core.shape[0]
    g[GlobalCounter.TICK] = 1
    insert_thread(g, tables.heap_time, tables.heap_thread, chip.period_ps, 0)
    for c in range(count):
        if core[c, CoreColumn.ENDED] == 0:
            core[c, CoreColumn.PC] = core[c, CoreColumn.FIRST] - 1
            core[c, CoreColumn.ARRIVED] = 1
            if pipeline is None:
                enter_next_instruction(chip, program, tables, log, rounds, g, c, _SECOND_TICK)
            else:
                leave_dispatcher(chip, program, tables, log, rounds, g, c, _SECOND_TICK)
                schedule_core(g, tables, count, _SECOND_TICK, c)


@bare_helper
def _alone(chip, program, tables, log, rounds, g, pipeline):
    """Runs the only core that does not wait for a message, up to an instruction that concerns other cores.

    The result is the same as in the main loop. Only the thread and the clock are in the heap. If both reach the
    same instant, the thread comes first, unless the clock was already waiting for that instant when the thread began to
    wait.
    """
    core, thread, calendar, heap_time = tables.core, tables.thread, tables.calendar, tables.heap_time
    period, count = chip.period_ps, core.shape[0]
    while g[GlobalCounter.CALENDAR] == 1 and g[GlobalCounter.UNFINISHED] > 0 and g[GlobalCounter.FAULT] == 0:
        tick, c = calendar[0] // count, calendar[0] % count
        t = core[c, CoreColumn.LAST_START]
        op = thread[t]
        kind = op[OpColumn.TIMING]
        phases = 2 if kind == Timing.VECTOR or kind == Timing.PRODUCT else 1
        if phases == 1 and kind != Timing.FILL and kind != Timing.COPY:
            break
        g[GlobalCounter.CALENDAR] = 0
        now = tick * period
        op[OpColumn.SINCE] = now
        # The next edge, and whether the clock waits for it already; else it runs after the thread in this instant.
        tick, waits = tick + 1, True
        for phase in range(phases):
            if phases == 1:
                time = serve_local_memory(core, c, now, op[OpColumn.READ] + op[OpColumn.WRITE])
            elif phase == 0:
                time = serve_local_memory(core, c, now, op[OpColumn.READ]) + op[OpColumn.COMPUTE]
            else:
                time = serve_local_memory(core, c, now, op[OpColumn.WRITE])
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
        g[GlobalCounter.TICK] = tick
        end_instruction(chip, program, tables, log, rounds, g, t, pipeline)
        if g[GlobalCounter.CALENDAR] == 1:
            g[GlobalCounter.TICK] = calendar[0] // count
        heap_time[1] = g[GlobalCounter.TICK] * period


@bare_helper
def _edge(chip, program, tables, log, rounds, g, count, pipeline):
    """Lets the cores run that are in the calendar for the edge that the clock has just reached."""
    calendar = tables.calendar
    tick = g[GlobalCounter.TICK] - 1
    before = np.int64(-1)
    while g[GlobalCounter.CALENDAR] > 0 and calendar[0] // count <= tick:
        key = pop_calendar(g, calendar)
        if key == before:
            continue
        before = key
        c = key % count
        if pipeline is None:
            push_thread(g, tables, tables.core[c, CoreColumn.LAST_START])
        else:
            advance_core(chip, program, tables, log, rounds, g, count, c, tick)
