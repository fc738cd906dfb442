"""Compiled loops of `raptor.mapping.scheduling.order_selection`: list scheduling, and replay of a given order."""
# pyright: reportArgumentType=false, reportReturnType=false
# pyright takes elements of these arrays for arrays; they are numbers.

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.jit.decorators import bare_helper, bare_kernel, interpret_first

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SampleWork(NamedTuple):
    """The steps of one sample, as columns.

    A step occupies its `core`, and during its transfer also the core `peer` (-1: no transfer from a core). request_ns
    to receiver_ns: see `raptor.target.timing.MessageTimes`; without a peer, only `receiver_ns` counts. memory_ns: time
    that it then occupies the port of global memory, which all cores share. work_ns: the rest, for which it occupies its
    core alone. rank: priority among steps that can start at the same time; the lowest comes first.

    waiting: number of steps that each one waits for; the steps that wait for step i are `users[first_user[i]]` to
    `users[first_user[i + 1] - 1]`. pair: a number for each distinct (`core`, `peer`); the pairs of core c are
    `first_pair[c]` to `first_pair[c + 1] - 1`, and `peer_of` has the peer of each pair.
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

    @property
    def occupied_ns(self) -> Floats:
        """Time in ns for which each step occupies its core."""
        asked_ns = np.where(self.peer >= 0, self.request_ns + self.grant_ns, 0.0)
        return asked_ns + self.receiver_ns + self.memory_ns + self.work_ns


class ChipState(NamedTuple):
    """State of a chip that processes several samples.

    One entry per core: free: when its work ends. switch: when its last transfer has left. sample: the sample that it
    works on. start, turn: start time and turn of the step that it would run next; without one, `start` is infinite.
    memory: when the port of global memory is free; one entry for each sample in a list schedule, so that the order of a
    sample does not depend on the number of those after it.
    """

    free: Floats
    switch: Floats
    sample: Ints
    start: Floats
    turn: Ints
    memory: Floats


class PairHeaps(NamedTuple):
    """A binary heap of steps for each pair, ordered by `ready`, then by `turn`.

    Pair p has `size[p]` steps, stored from index `first[p]` on; its capacity is its number of steps per sample.
    """

    first: Ints
    size: Ints
    ready: Floats
    turn: Ints


class ReadyQueue(NamedTuple):
    """The steps that can start.

    here: steps whose inputs are ready before both cores are free, ordered by turn alone (`ready` is 0). later: all
    others. next: a tournament tree of cores with root `next[1]`. Its leaves, in the second half, are the cores; every
    other entry is the core below it whose next step starts first.
    """

    here: PairHeaps
    later: PairHeaps
    next: Ints


class RemainingSteps(NamedTuple):
    """The work that is left.

    ready: [samples, steps], when the inputs are ready. left: [samples, steps], number of steps still waited for. tasks:
    the steps that occupy each core; for core c, `tasks[first_task[c]]` to `tasks[first_task[c + 1] - 1]`.
    undone: number of them left in the sample that the core works on. done: number of finished steps of each sample.
    """

    ready: Floats
    left: Ints
    first_task: Ints
    tasks: Ints
    undone: Ints
    done: Ints


def idle_chip(work: SampleWork, ports: int = 1) -> ChipState:
    """Returns the state of the chip before any work. ports: entries of `ChipState.memory`."""
    cores = len(work.first_pair) - 1
    free, switch = np.zeros(cores), np.zeros(cores)
    return ChipState(
        free, switch, np.zeros(cores, np.int64), np.full(cores, np.inf), np.full(cores, -1), np.zeros(ports)
    )


def all_steps(work: SampleWork, samples: int) -> RemainingSteps:
    """Returns the bookkeeping of the remaining steps of `samples` samples, none of which has begun."""
    cores, count = len(work.first_pair) - 1, len(work.core)
    both = np.concatenate([work.core, work.peer])
    tasks = np.argsort(both, kind="stable")[int((both < 0).sum()) :] % count
    undone = np.bincount(both[both >= 0], minlength=cores)
    left = np.repeat(work.waiting[None], samples, axis=0)
    return RemainingSteps(
        np.zeros(left.shape), left, np.cumsum([0, *undone]), tasks, undone, np.zeros(samples, np.int64)
    )


def empty_queue(work: SampleWork) -> ReadyQueue:
    """Returns an empty queue."""
    leaves = 1 << (len(work.first_pair) - 2).bit_length()
    leaf = np.minimum(np.arange(leaves), len(work.first_pair) - 2)  # some cores have two leaves, so that none is empty
    levels = [leaf[:: 1 << level] for level in reversed(range(leaves.bit_length()))]
    return ReadyQueue(_empty(work), _empty(work), np.concatenate([[0], *levels]))


def _empty(work: SampleWork) -> PairHeaps:
    first = np.cumsum([0, *np.bincount(work.pair, minlength=len(work.peer_of))])
    count = len(work.core)
    return PairHeaps(first[:-1], np.zeros(len(first) - 1, np.int64), np.zeros(count), np.zeros(count, np.int64))


@bare_kernel
@interpret_first(us=lambda args: 40 * args[0].size, until_us=3e6, by_element=True)
def list_schedule(
    ordered: Ints,
    chip: ChipState,
    work: SampleWork,
    todo: RemainingSteps,
    queue: ReadyQueue,
    by_rank: Ints,
    patience_ns: float,
) -> None:
    """Sets `ordered` [samples, steps]: the order in which the steps of consecutive samples start on one chip.

    The next step is the one that can start first; on ties the one of the earlier sample, then the one of lowest rank.
    It starts when both its cores are free and its inputs are ready; a step with a peer is preferred to others that
    could start up to `patience_ns` earlier. A core begins a sample when it has done all its work of the previous one,
    sending included. by_rank: the steps in order of their rank.
    """
    count, first_sample = len(work.core), np.int64(0)  # numba would compile `_open` again for a literal 0
    for i in range(count):
        _open(i, first_sample, queue, chip, work, todo, patience_ns)
    while chip.start[queue.next[1]] < np.inf:
        c = queue.next[1]
        start, turn = chip.start[c], chip.turn[c]
        pair = _offer(c, queue, chip, work, patience_ns)
        if chip.turn[c] != turn or chip.start[c] != start:
            continue
        i, k = by_rank[turn % count], turn // count
        _pop(queue.here if queue.here.size[pair] > 0 else queue.later, pair)
        _enter(c, np.inf, turn, queue, chip)
        end = _run(i, k, todo.ready[k, i], chip, work)
        ordered[k, todo.done[k]] = i
        todo.done[k] += 1
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            todo.ready[k, j] = max(todo.ready[k, j], end)
            todo.left[k, j] -= 1
            _open(j, k, queue, chip, work, todo, patience_ns)
        _count(c, queue, chip, work, todo, patience_ns)
        if work.peer[i] >= 0:
            _count(work.peer[i], queue, chip, work, todo, patience_ns)
        _offer(c, queue, chip, work, patience_ns)


@bare_helper
def _count(
    c: int, queue: ReadyQueue, chip: ChipState, work: SampleWork, todo: RemainingSteps, patience_ns: float
) -> None:
    """Counts a finished step of core `c`. After the last one, the core begins the next sample."""
    todo.undone[c] -= 1
    if todo.undone[c] > 0 or chip.sample[c] + 1 == len(todo.left):
        return
    first, last = todo.first_task[c], todo.first_task[c + 1]
    todo.undone[c] = last - first
    chip.sample[c] += 1
    for t in range(first, last):
        _open(todo.tasks[t], chip.sample[c], queue, chip, work, todo, patience_ns)


@bare_helper
def _open(
    i: int, sample: int, queue: ReadyQueue, chip: ChipState, work: SampleWork, todo: RemainingSteps, patience_ns: float
) -> None:
    """Adds a step to the heap of its pair, if it waits for nothing and both cores work on its sample.

    It also becomes the core's next step if it comes before the current one.
    """
    c, peer = work.core[i], work.peer[i]
    if todo.left[sample, i] > 0 or chip.sample[c] != sample or (peer >= 0 and chip.sample[peer] != sample):
        return
    ready, turn = todo.ready[sample, i], sample * len(work.core) + work.rank[i]
    _push(queue.later, work.pair[i], ready, turn)
    start = max(ready, _free(c, peer, chip)) - (patience_ns if peer >= 0 else 0.0)
    if start < chip.start[c] or (start == chip.start[c] and turn < chip.turn[c]):
        _enter(c, start, turn, queue, chip)


@bare_helper
def _free(c: int, peer: int, chip: ChipState) -> float:
    """Returns the time at which a core and its peer (-1: none) are free."""
    return chip.free[c] if peer < 0 else max(chip.free[c], chip.free[peer])


@bare_helper
def _offer(c: int, queue: ReadyQueue, chip: ChipState, work: SampleWork, patience_ns: float) -> int:
    """Finds the step that core `c` would run next. Returns its pair; -1 if there is none."""
    here, later = queue.here, queue.later
    best, least, first = np.int64(-1), 0.0, np.int64(0)  # numba gives literals types of their own
    for pair in range(work.first_pair[c], work.first_pair[c + 1]):
        if here.size[pair] == 0 and later.size[pair] == 0:
            continue
        free, at = _free(c, work.peer_of[pair], chip), here.first[pair]
        while later.size[pair] > 0 and later.ready[at] <= free:
            _push(here, pair, 0.0, later.turn[at])
            _pop(later, pair)
        start, turn = (free, here.turn[at]) if here.size[pair] > 0 else (later.ready[at], later.turn[at])
        if work.peer_of[pair] >= 0:
            start -= patience_ns
        if best < 0 or start < least or (start == least and turn < first):
            best, least, first = pair, start, turn
    if best >= 0 and (chip.turn[c] != first or chip.start[c] != least):
        _enter(c, least, first, queue, chip)
    return best


@bare_helper
def _enter(c: int, start: float, turn: int, queue: ReadyQueue, chip: ChipState) -> None:
    """Sets the next step of core `c`, and updates the tournament tree."""
    chip.start[c], chip.turn[c] = start, turn
    i = (len(queue.next) // 2 + c) // 2
    while i > 0:
        a, b = queue.next[2 * i], queue.next[2 * i + 1]
        later = chip.start[b] < chip.start[a] or (chip.start[b] == chip.start[a] and chip.turn[b] < chip.turn[a])
        first = b if later else a
        if first == queue.next[i] and first != c:
            break
        queue.next[i] = first
        i //= 2


@bare_helper
def _push(heaps: PairHeaps, pair: int, ready: float, turn: int) -> None:
    first, i = heaps.first[pair], heaps.size[pair]
    heaps.size[pair] += 1
    while i > 0:
        above = first + (i - 1) // 2
        if heaps.ready[above] < ready or (heaps.ready[above] == ready and heaps.turn[above] < turn):
            break
        heaps.ready[first + i], heaps.turn[first + i] = heaps.ready[above], heaps.turn[above]
        i = (i - 1) // 2
    heaps.ready[first + i], heaps.turn[first + i] = ready, turn


@bare_helper
def _pop(heaps: PairHeaps, pair: int) -> None:
    """Removes the top of the heap of a pair."""
    heaps.size[pair] -= 1
    first, size = heaps.first[pair], heaps.size[pair]
    ready, turn = heaps.ready[first + size], heaps.turn[first + size]
    i = 0
    while 2 * i + 1 < size:
        j = first + 2 * i + 1
        if j + 1 < first + size and (
            heaps.ready[j + 1] < heaps.ready[j]
            or (heaps.ready[j + 1] == heaps.ready[j] and heaps.turn[j + 1] < heaps.turn[j])
        ):
            j += 1
        if ready < heaps.ready[j] or (ready == heaps.ready[j] and turn < heaps.turn[j]):
            break
        heaps.ready[first + i], heaps.turn[first + i] = heaps.ready[j], heaps.turn[j]
        i = j - first
    heaps.ready[first + i], heaps.turn[first + i] = ready, turn


@bare_helper
def _run(i: int, port: int, ready: float, chip: ChipState, work: SampleWork) -> float:
    """Runs a step whose inputs are ready from `ready` on. Returns its end. port: the entry of `ChipState.memory`."""
    c, p = work.core[i], work.peer[i]
    now = max(ready, _free(c, p, chip))
    if p >= 0:
        now = max(now, chip.switch[p]) + work.request_ns[i]
        now = max(now, chip.switch[c]) + work.grant_ns[i]
        chip.free[p] = now + work.sender_ns[i]
        chip.switch[p] = now + work.sender_ns[i] + work.wire_ns[i]
    now += work.receiver_ns[i]
    if work.memory_ns[i] > 0.0:
        now = max(now, chip.memory[port]) + work.memory_ns[i]
        chip.memory[port] = now
    chip.free[c] = now + work.work_ns[i]
    return chip.free[c]


@bare_kernel
@interpret_first(us=lambda args: 3 * args[0].size, until_us=1e6, by_element=True)
def run_in_order(ready_ns: Floats, chip: ChipState, work: SampleWork, order: Ints) -> None:
    """Sets when the inputs of each step are ready, in ns, if every core executes the steps of a sample in this order.

    ready_ns: zeros at first, updated in place.
    """
    for i in order:
        end = _run(i, 0, ready_ns[i], chip, work)
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            ready_ns[j] = max(ready_ns[j], end)


class CoreSequences(NamedTuple):
    """The steps of a sample on each core, in order, and the next one of each.

    The steps of core c, its own and its transfers to others, are `steps[first[c]]` to `steps[first[c + 1] - 1]`. at:
    index of the next one. left: [samples, steps], number of steps still waited for. free: cores whose own next step can
    start and does not need the port of global memory; offered: for each core, a number for the last such step.
    """

    first: Ints
    steps: Ints
    at: Ints
    left: Ints
    free: Ints
    offered: Ints


def core_sequences(work: SampleWork, order: Ints) -> CoreSequences:
    """Returns what each core does of a sample if all execute its steps in this order."""
    cores = len(work.first_pair) - 1
    both = np.stack([work.core[order], work.peer[order]], axis=1).reshape(-1)
    steps = np.repeat(order, 2)[np.argsort(both, kind="stable")][int((both < 0).sum()) :]
    first = np.cumsum([0, *np.bincount(both[both >= 0], minlength=cores)])
    return CoreSequences(first, steps, first[:-1], work.waiting[None], *np.zeros((2, cores), np.int64))


def replay(work: SampleWork, sequences: CoreSequences, samples: int, last: int) -> Floats:
    """Returns the ends of samples 0 to `last` in ns, if every core executes its sequence for one after the other.

    samples: number of samples that wait to be begun. They use the chip, too, but the replay ends with sample `last`.
    """
    left, free = np.repeat(sequences.left, samples, axis=0), np.zeros((2, len(sequences.at)), np.int64)
    begun = CoreSequences(sequences.first, sequences.steps, sequences.at.copy(), left, *free)
    ends_ns, ready_ns = np.zeros(samples), np.zeros(left.shape)
    replay_samples(ends_ns, ready_ns, idle_chip(work), work, begun, empty_queue(work), last)
    return ends_ns[: last + 1]


@bare_kernel
@interpret_first(us=lambda args: 10 * len(args[3].core) * min(len(args[0]), args[6] + 3), until_us=1e6, by_element=True)
def replay_samples(
    ends_ns: Floats,
    ready_ns: Floats,
    chip: ChipState,
    work: SampleWork,
    sequences: CoreSequences,
    queue: ReadyQueue,
    last: int,
) -> None:
    """Sets the end of each sample up to `last` in ns, if every core executes its sequence for one after the other.

    Steps at the port of global memory start in the order of time, those of all cores and samples. The others start as
    soon as they can, in any order, since nothing else is shared. ready_ns: [samples, steps], when the inputs of each
    step are ready; zeros at first, updated in place.
    """
    count, left = np.int64(0), len(work.core)
    for c in range(len(sequences.at)):
        count = _offer_next_step(c, count, ready_ns, chip, work, sequences, queue)
    while left > 0 and (count > 0 or chip.start[queue.next[1]] < np.inf):
        if count > 0:
            count -= 1
            c = sequences.free[count]
        else:
            c = queue.next[1]
            _enter(c, np.inf, 0, queue, chip)
        i, k = sequences.steps[sequences.at[c]], chip.sample[c]
        end = _run(i, 0, ready_ns[k, i], chip, work)
        ends_ns[k] = max(ends_ns[k], end)
        if k == last:
            left -= 1
        _advance_core(c, chip, sequences)
        if work.peer[i] >= 0:
            _advance_core(work.peer[i], chip, sequences)
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            ready_ns[k, j] = max(ready_ns[k, j], end)
            sequences.left[k, j] -= 1
            if sequences.left[k, j] == 0 and work.core[j] != c:
                count = _offer_next_step(work.core[j], count, ready_ns, chip, work, sequences, queue)
        if work.peer[i] >= 0:
            count = _offer_next_step(work.peer[i], count, ready_ns, chip, work, sequences, queue)
        count = _offer_next_step(c, count, ready_ns, chip, work, sequences, queue)


@bare_helper
def _advance_core(c: int, chip: ChipState, sequences: CoreSequences) -> None:
    """Goes on to the next step of a core; after the last one, to the first of the next sample."""
    sequences.at[c] += 1
    if sequences.at[c] == sequences.first[c + 1]:
        sequences.at[c] = sequences.first[c]
        chip.sample[c] += 1


@bare_helper
def _offer_next_step(
    c: int,
    count: int,
    ready_ns: Floats,
    chip: ChipState,
    work: SampleWork,
    sequences: CoreSequences,
    queue: ReadyQueue,
) -> int:
    """Offers the next step of core `c` if it waits for nothing, and both its cores have come to it.

    Returns the number of cores in `CoreSequences.free`, which was `count`.
    """
    k = chip.sample[c]
    if sequences.first[c] == sequences.first[c + 1] or k == len(sequences.left):
        return count
    i = sequences.steps[sequences.at[c]]
    own, peer = work.core[i], work.peer[i]
    other = own if peer == c else peer
    if sequences.left[k, i] > 0:
        return count
    if other >= 0 and (chip.sample[other] != k or sequences.steps[sequences.at[other]] != i):
        return count
    if work.memory_ns[i] > 0.0:
        _enter(own, max(ready_ns[k, i], _free(own, peer, chip)), work.rank[i], queue, chip)
        return count
    if sequences.offered[own] == 1 + k * len(work.core) + i:
        return count
    sequences.offered[own] = 1 + k * len(work.core) + i
    sequences.free[count] = own
    return count + 1
