"""Heap of threads that wait for a time, calendar of cores that wait for a clock edge, and the clock."""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from raptor.common.jit.decorators import bare_helper
from validator.simulate.cycle import state_tables
from validator.simulate.cycle.state_tables import GlobalCounter

_PATIENCE = 64  # turns of the heap, one per edge, before a cycle of turns is looked for


@bare_helper
def insert_thread(g, heap_time, heap_id, time, thread):
    """Puts a thread that waits for `time` (ps) into the heap."""
    g[GlobalCounter.HEAP] += 1
    i = g[GlobalCounter.HEAP]
    while i > 1 and heap_time[i >> 1] > time:
        heap_time[i] = heap_time[i >> 1]
        heap_id[i] = heap_id[i >> 1]
        i >>= 1
    heap_time[i] = time
    heap_id[i] = thread


@bare_helper
def extract_thread(g, heap_time, heap_id):
    """Takes the first thread out of the heap. Also returns the place to which the last one moved."""
    top = heap_id[1]
    n = g[GlobalCounter.HEAP]
    time, thread = heap_time[n], heap_id[n]
    n -= 1
    g[GlobalCounter.HEAP] = n
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
def advance_to_next_event(chip, tables, g, count):  # noqa: C901 a loop that is all cases
    """Advances the clock over edges at which nothing happens. Returns false if nothing will ever happen."""
    heap_time, heap_id, calendar, snapshot = tables.heap_time, tables.heap_thread, tables.calendar, tables.earlier_heap
    if heap_id[1] != 0:
        return True
    n = g[GlobalCounter.HEAP]
    work = calendar[0] // count if g[GlobalCounter.CALENDAR] > 0 else state_tables.NEVER
    if n == 1:
        if work == state_tables.NEVER:
            return False
        g[GlobalCounter.TICK] = work
        heap_time[1] = work * chip.period_ps
        return True
    other = heap_time[2]
    if n > 2 and heap_time[3] < other:
        other = heap_time[3]
    # The last tick up to which the clock stays the first of the heap.
    last = min(work, (other - 1) // chip.period_ps)
    turns, since = 0, 0
    while g[GlobalCounter.TICK] < last:
        _, place = extract_thread(g, heap_time, heap_id)
        g[GlobalCounter.TICK] += 1
        insert_thread(g, heap_time, heap_id, g[GlobalCounter.TICK] * chip.period_ps, 0)
        turns += 1
        if place == n >> 1:
            g[GlobalCounter.TICK] = last
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
                g[GlobalCounter.TICK] += (last - g[GlobalCounter.TICK]) // period * period
            if turns & (turns - 1) == 0:
                since = turns
                for i in range(2, n + 1):
                    snapshot[i] = heap_id[i]
        heap_time[1] = g[GlobalCounter.TICK] * chip.period_ps
    return True


@bare_helper
def schedule_core(g, tables, count, tick, c):
    """Enters core `c` into the calendar for the edge `tick`."""
    calendar = tables.calendar
    key = tick * count + c
    i = g[GlobalCounter.CALENDAR]
    g[GlobalCounter.CALENDAR] += 1
    while i > 0 and calendar[(i - 1) >> 1] > key:
        calendar[i] = calendar[(i - 1) >> 1]
        i = (i - 1) >> 1
    calendar[i] = key


@bare_helper
def pop_calendar(g, calendar):
    """Takes the earliest entry out of the calendar and returns it: tick * cores + core."""
    key = calendar[0]
    n = g[GlobalCounter.CALENDAR] - 1
    g[GlobalCounter.CALENDAR] = n
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
def push_thread(g, tables, t):
    """Lets a thread run in this instant, in the next pass."""
    tables.run[g[GlobalCounter.RUN]] = t
    g[GlobalCounter.RUN] += 1


@bare_helper
def delay_thread(g, tables, t, time):
    """Lets a thread run after `time` (ps); in the next delta cycle if `time` is 0."""
    if time == 0:
        tables.next_delta[g[GlobalCounter.ZERO]] = t
        g[GlobalCounter.ZERO] += 1
    else:
        insert_thread(g, tables.heap_time, tables.heap_thread, g[GlobalCounter.NOW] + time, t)
