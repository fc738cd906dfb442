"""The compiled loops of `raptor.spatial.orders`."""
# pyright: reportArgumentType=false, reportReturnType=false
# An element of an array is a number here.

import heapq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.jit import helper, kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Work(NamedTuple):
    """The computes of one sample, as columns.

    A compute occupies its `core`, and during the transfer that it begins with also the core `peer` (-1: no transfer
    from a core). request_ns to receiver_ns: see `raptor.target.timing.MessageTimes`; without a peer, only `receiver_ns`
    counts. memory_ns: time that it then occupies the port of global memory, which all cores share. work_ns: the rest,
    for which it needs its core alone. rank: of computes that can start at the same time, the lowest comes first.

    waiting: for how many computes each waits; those that wait for compute i are `users[first_user[i]]` to
    `users[first_user[i + 1] - 1]`. pair: one number for computes of equal `core` and `peer`; those of core c are
    `first_pair[c]` to `first_pair[c + 1] - 1`, and `peer_of` has the peer of each.
    """

    core: Ints
    peer: Ints
    request_ns: Floats
    grant_ns: Floats
    sender_ns: Floats
    wire_ns: Floats
    receiver_ns: Floats
    memory_ns: Floats
    work_ns: Floats
    rank: Ints
    waiting: Ints
    first_user: Ints
    users: Ints
    pair: Ints
    first_pair: Ints
    peer_of: Ints


class Chip(NamedTuple):
    """The state of a chip that works on several samples.

    free: when the work of each core ends. switch: when its last transfer has left. sample: the one that it works on.
    start, turn: of its entry in the queue, of which older ones may be left; without an entry, `turn` is -1. memory:
    when the port of global memory is free, for each sample: it is shared by the work of one sample only, because what a
    sample stores last may come after what the next one loads first.
    """

    free: Floats
    switch: Floats
    sample: Ints
    start: Floats
    turn: Ints
    memory: Floats


class Todo(NamedTuple):
    """The work that is left.

    ready: when the inputs of each compute are there, for each sample. left: for how many computes it still waits.
    tasks: the computes that occupy each core; those of core c are `tasks[first_task[c]]` to
    `tasks[first_task[c + 1] - 1]`. undone: how many of them are left in the sample that the core works on.
    """

    ready: Floats
    left: Ints
    first_task: Ints
    tasks: Ints
    undone: Ints


def idle(work: Work, samples: int) -> Chip:
    """Returns the state of the chip before any work."""
    cores = len(work.first_pair) - 1
    free, switch, start = (np.zeros(cores) for _ in range(3))
    return Chip(free, switch, np.zeros(cores, np.int64), start, np.full(cores, -1), np.zeros(samples))


def all_of(work: Work, samples: int) -> Todo:
    """Returns all work of several samples."""
    cores, count = len(work.first_pair) - 1, len(work.core)
    both = np.concatenate([work.core, work.peer])
    tasks = np.argsort(both, kind="stable")[int((both < 0).sum()) :] % count
    undone = np.bincount(both[both >= 0], minlength=cores)
    left = np.repeat(work.waiting[None], samples, axis=0)
    return Todo(np.zeros(left.shape), left, np.cumsum([0, *undone]), tasks, undone)


@kernel
def list_schedule(chip: Chip, work: Work, todo: Todo, by_rank: Ints, patience_ns: float) -> Ints:
    """Returns for each sample, one after another on the same chip, the order in which its computes start.

    The next compute is the one that can start first; of several, that of the earlier sample, then the one of lowest
    rank. It starts when both its cores are free and its inputs are there; with a peer, it counts as if it could start
    `patience_ns` earlier. A core begins a sample when it has done all its work of the one before, sending included.
    by_rank: the computes in order of their rank.
    """
    samples, count = todo.left.shape
    pairs, first_sample = len(work.peer_of), np.int64(0)  # a plain 0 would be compiled once more, for this number alone
    # For each pair, the computes whose inputs are there before both cores are free, by turn; and all others, by time.
    here: list[Any] = [[(0.0, 0) for _ in range(0)] for _ in range(pairs)]
    later: list[Any] = [[(0.0, 0) for _ in range(0)] for _ in range(pairs)]
    queue: list[Any] = [(0.0, 0) for _ in range(0)]
    for i in range(count):
        _open(i, first_sample, queue, later, chip, work, todo, patience_ns)
    ordered, done = np.empty((samples, count), np.int64), np.zeros(samples, np.int64)
    while len(queue) > 0:
        start, turn = heapq.heappop(queue)
        i, k = by_rank[turn % count], turn // count
        c = work.core[i]
        if chip.turn[c] != turn or chip.start[c] != start:
            continue
        pair = _offer(c, queue, here, later, chip, work, patience_ns)
        if chip.turn[c] != turn or chip.start[c] != start:
            continue
        heapq.heappop(here[pair] if len(here[pair]) > 0 else later[pair])
        chip.turn[c] = -1
        end = _run(i, k, todo.ready[k, i], chip, work)
        ordered[k, done[k]] = i
        done[k] += 1
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            todo.ready[k, j] = max(todo.ready[k, j], end)
            todo.left[k, j] -= 1
            _open(j, k, queue, later, chip, work, todo, patience_ns)
        for d in (c, work.peer[i]):
            if d >= 0:
                _count(d, queue, later, chip, work, todo, patience_ns)
        _offer(c, queue, here, later, chip, work, patience_ns)
    return ordered


@helper
def _count(c: int, queue: Any, later: Any, chip: Chip, work: Work, todo: Todo, patience_ns: float) -> None:
    """Counts a compute of a core that is done. After the last one, the core begins the next sample."""
    todo.undone[c] -= 1
    if todo.undone[c] > 0 or chip.sample[c] + 1 == len(todo.left):
        return
    first, last = todo.first_task[c], todo.first_task[c + 1]
    todo.undone[c] = last - first
    chip.sample[c] += 1
    for t in range(first, last):
        _open(todo.tasks[t], chip.sample[c], queue, later, chip, work, todo, patience_ns)


@helper
def _open(i: int, sample: int, queue: Any, later: Any, chip: Chip, work: Work, todo: Todo, patience_ns: float) -> None:
    """Adds a compute of a sample to its pair, if it waits for nothing and its cores work on this sample.

    Adds it also to the queue if it comes before what its core has there.
    """
    c, peer = work.core[i], work.peer[i]
    if todo.left[sample, i] > 0 or chip.sample[c] != sample or (peer >= 0 and chip.sample[peer] != sample):
        return
    ready, turn = todo.ready[sample, i], sample * len(work.core) + work.rank[i]
    heapq.heappush(later[work.pair[i]], (ready, turn))
    start = max(ready, _free(c, peer, chip)) - (patience_ns if peer >= 0 else 0.0)
    if chip.turn[c] < 0 or start < chip.start[c] or (start == chip.start[c] and turn < chip.turn[c]):
        chip.start[c], chip.turn[c] = start, turn
        heapq.heappush(queue, (start, turn))


@helper
def _free(c: int, peer: int, chip: Chip) -> float:
    """Returns when a core and its peer (-1: none) are free."""
    return chip.free[c] if peer < 0 else max(chip.free[c], chip.free[peer])


@helper
def _offer(c: int, queue: Any, here: Any, later: Any, chip: Chip, work: Work, patience_ns: float) -> int:
    """Puts a core into the queue with the compute that it would run next, if it is not there. Returns its pair."""
    best, least, first = -1, 0.0, 0
    for pair in range(work.first_pair[c], work.first_pair[c + 1]):
        now, then = here[pair], later[pair]
        if len(now) == 0 and len(then) == 0:
            continue
        free = _free(c, work.peer_of[pair], chip)
        while len(then) > 0 and then[0][0] <= free:
            heapq.heappush(now, (0.0, heapq.heappop(then)[1]))
        start, turn = (free, now[0][1]) if len(now) > 0 else then[0]
        if work.peer_of[pair] >= 0:
            start -= patience_ns
        if best < 0 or start < least or (start == least and turn < first):
            best, least, first = pair, start, turn
    if best >= 0 and (chip.turn[c] != first or chip.start[c] != least):
        chip.start[c], chip.turn[c] = least, first
        heapq.heappush(queue, (least, first))
    return best


@helper
def _run(i: int, sample: int, ready: float, chip: Chip, work: Work) -> float:
    """Lets a compute whose inputs are there from `ready` on occupy its cores. Returns when it ends."""
    c, p = work.core[i], work.peer[i]
    now = max(ready, _free(c, p, chip))
    if p >= 0:
        now = max(now, chip.switch[p]) + work.request_ns[i]
        now = max(now, chip.switch[c]) + work.grant_ns[i]
        chip.free[p] = now + work.sender_ns[i]
        chip.switch[p] = now + work.sender_ns[i] + work.wire_ns[i]
    now += work.receiver_ns[i]
    if work.memory_ns[i] > 0.0:
        now = max(now, chip.memory[sample]) + work.memory_ns[i]
        chip.memory[sample] = now
    chip.free[c] = now + work.work_ns[i]
    return chip.free[c]


@kernel
def ends_in_order(chip: Chip, work: Work, order: Ints) -> Floats:
    """Returns when each sample ends in ns, if every core does the work of each sample in this order."""
    ends = np.zeros(len(chip.memory))
    for k in range(len(ends)):
        ready = np.zeros(len(order))
        for i in order:
            end = _run(i, k, ready[i], chip, work)
            for u in range(work.first_user[i], work.first_user[i + 1]):
                ready[work.users[u]] = max(ready[work.users[u]], end)
            ends[k] = max(ends[k], end)
    return ends
