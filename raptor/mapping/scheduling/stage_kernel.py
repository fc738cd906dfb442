"""Compiled loops of `raptor.mapping.scheduling.sample_stages`: a modulo schedule, and the stages from it."""
# pyright: reportArgumentType=false, reportReturnType=false
# pyright takes elements of these arrays for arrays; they are numbers.

from typing import NamedTuple

from raptor.common.jit.decorators import bare_helper, bare_kernel, interpret_first
from raptor.mapping.scheduling.schedule_kernel import Floats, Ints, SampleWork


class ModuloTable(NamedTuple):
    """The time of each core in one interval, in `slots` slots of `slot_ns` ns.

    next: [cores, slots + 1], a slot that is taken points to a later one; used: taken slots of each core; debt: work of
    each core, in slots, that has no whole slot yet. ready: ns at which the inputs of each step are there.
    """

    next: Ints
    used: Ints
    debt: Floats
    ready: Floats


@bare_kernel
@interpret_first(us=lambda args: 40 * args[0].size, until_us=2e6, by_element=True)
def modulo_schedule(begin_ns: Floats, table: ModuloTable, work: SampleWork, order: Ints, slot_ns: float) -> None:
    """Sets the begin of each step in ns: in `order`, each takes the first free slots of its cores after its inputs."""
    for i in order:
        c, p, ready = work.core[i], work.peer[i], table.ready[i]
        own_ns = work.receiver_ns[i] + work.memory_ns[i] + work.work_ns[i]
        if p >= 0:
            asked_ns = work.request_ns[i] + work.grant_ns[i]
            first, until = _take(p, ready, asked_ns + work.sender_ns[i], table, slot_ns)
            begin, end = _take(c, max(first, ready), asked_ns + own_ns, table, slot_ns)
            begin, end = max(first, begin), max(until, end)
        else:
            begin, end = _take(c, ready, own_ns, table, slot_ns)
        begin_ns[i] = begin
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            table.ready[j] = max(table.ready[j], end)


@bare_helper
def _take(c: int, ready: float, ns: float, table: ModuloTable, slot_ns: float) -> tuple[float, float]:
    """Takes `ns` of a core's slots from `ready` on. Returns begin and end in ns."""
    slots = table.next.shape[1] - 1
    table.debt[c] += ns / slot_ns
    wanted = int(table.debt[c])
    if wanted <= 0:
        return ready, ready + ns
    wanted = min(wanted, slots - table.used[c])
    table.debt[c] -= wanted
    at = int(ready / slot_ns)
    lap = at // slots
    at -= lap * slots
    begin, end, taken = -1.0, ready, 0
    while taken < wanted:
        free = at
        while table.next[c, free] != free:
            free = table.next[c, free]
        while table.next[c, at] != free:
            following = table.next[c, at]
            table.next[c, at] = free
            at = following
        if free == slots:
            lap += 1
            at = 0
            continue
        start = (lap * slots + free) * slot_ns
        if begin < 0:
            begin = max(start, ready)
        table.next[c, free] = free + 1
        taken += 1
        at = free
        end = start + slot_ns
    table.used[c] += taken
    if begin < 0:
        begin = ready
    return begin, max(end, begin + ns)


@bare_kernel
@interpret_first(us=lambda args: 3 * args[0].size, until_us=6e5, by_element=True)
def raise_stages(stage: Ints, place: Ints, work: SampleWork, order: Ints) -> None:
    """Raises stages: a step has at least that of each step it waits for, and one more if its `place` is before it.

    `order`: the steps, each after those that it waits for.
    """
    for i in order:
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            stage[j] = max(stage[j], stage[i] + (1 if place[j] < place[i] else 0))


@bare_kernel
@interpret_first(us=lambda args: 3 * args[0].size, until_us=6e5, by_element=True)
def mark_ancestors(marked: Ints, work: SampleWork, order: Ints) -> None:
    """Sets `marked` to 1 for each step that a marked step waits for. `order`: as for `raise_stages`."""
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        for u in range(work.first_user[i], work.first_user[i + 1]):
            if marked[work.users[u]] > 0:
                marked[i] = 1
