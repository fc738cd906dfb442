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
    `users[first_user[i + 1] - 1]`.
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

    @property
    def used_steps(self) -> Ints:
        """For each entry of `users`, the number of the step that it waits for."""
        return np.repeat(np.arange(len(self.core)), np.diff(self.first_user))

    @property
    def core_count(self) -> int:
        """Number of cores: one more than the largest number of a core that has a step."""
        return 1 + int(max(self.core.max(), self.peer.max()))

    @property
    def occupied_ns(self) -> Floats:
        """Time in ns for which each step occupies its core."""
        asked_ns = np.where(self.peer >= 0, self.request_ns + self.grant_ns, 0.0)
        return asked_ns + self.receiver_ns + self.memory_ns + self.work_ns


class ChipState(NamedTuple):
    """State of a chip that processes several samples.

    One entry per core: free: when its work ends. switch: when its last transfer has left. sample: the sample that it
    works on. memory: when the port of global memory is free; one entry for each sample in a list schedule, so that the
    order of a sample does not depend on the number of those after it.
    """

    free: Floats
    switch: Floats
    sample: Ints
    memory: Floats


class StartTree(NamedTuple):
    """A tournament tree with root `next[1]`: what could start first.

    start, turn: of each leaf, when its first step could start, and the turn of that step; without one, `start` is
    infinite. next: its second half are the leaves; every other entry is the leaf below it that comes first.
    """

    start: Floats
    turn: Ints
    next: Ints


class StepHeaps(NamedTuple):
    """Binary heaps of steps whose inputs are computed, ordered by `start`, then by `turn`.

    Heap h has `size[h]` steps, stored from index `first[h]` on. Heap 2c: transfers that wait until core c is free,
    which is free later than the other end. Heap 2c + 1: other steps that wait for core c. In both, `start` is 0. The
    last heap: steps that could start later than all these, as their inputs are ready later; `start` has the time.
    """

    first: Ints
    size: Ints
    start: Floats
    turn: Ints


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
    cores = work.core_count
    return ChipState(np.zeros(cores), np.zeros(cores), np.zeros(cores, np.int64), np.zeros(ports))


def all_steps(work: SampleWork, samples: int) -> RemainingSteps:
    """Returns the bookkeeping of the remaining steps of `samples` samples, none of which has begun."""
    count = len(work.core)
    both = np.concatenate([work.core, work.peer])
    tasks = np.argsort(both, kind="stable")[int((both < 0).sum()) :] % count
    undone = np.bincount(both[both >= 0], minlength=work.core_count)
    left = np.repeat(work.waiting[None], samples, axis=0)
    return RemainingSteps(
        np.zeros(left.shape), left, np.cumsum([0, *undone]), tasks, undone, np.zeros(samples, np.int64)
    )


def empty_tree(leaves: int) -> StartTree:
    """Returns a tournament tree of `leaves` leaves, none of which has a step to start."""
    ends = 1 << (leaves - 1).bit_length()
    leaf = np.minimum(np.arange(ends), leaves - 1)  # the last leaf stands for those that are missing, too
    levels = [leaf[:: 1 << level] for level in reversed(range(ends.bit_length()))]
    return StartTree(np.full(leaves, np.inf), np.full(leaves, -1), np.concatenate([[0], *levels]))


def empty_heaps(work: SampleWork) -> StepHeaps:
    """Returns empty heaps, each large enough for all of its steps of one sample."""
    cores, transfers = work.core_count, work.peer >= 0
    ends = np.concatenate([work.core[transfers], work.peer[transfers]])
    sizes = np.zeros(2 * cores + 1, np.int64)
    sizes[0:-1:2] = np.bincount(ends, minlength=cores)
    sizes[1:-1:2] = np.bincount(work.core[~transfers], minlength=cores)
    sizes[-1] = len(work.core)
    capacity = int(sizes.sum())
    return StepHeaps(np.cumsum(sizes) - sizes, np.zeros_like(sizes), np.zeros(capacity), np.zeros(capacity, np.int64))


@bare_kernel
@interpret_first(us=lambda args: 40 * args[0].size, until_us=3e6, by_element=True)
def list_schedule(
    ordered: Ints,
    chip: ChipState,
    work: SampleWork,
    todo: RemainingSteps,
    heaps: StepHeaps,
    tree: StartTree,
    by_rank: Ints,
    patience_ns: float,
) -> None:
    """Sets `ordered` [samples, steps]: the order in which the steps of consecutive samples start on one chip.

    The next step is the one that can start first; on ties the one of the earlier sample, then the one of lowest rank.
    It starts when both its cores are free and its inputs are ready; a step with a peer is preferred to others that
    could start up to `patience_ns` earlier. A core begins a sample when it has done all its work of the previous one,
    sending included. by_rank: the steps in order of their rank. tree: has a leaf for each heap.

    A step is in the heap of what it waits for: its inputs, or the core that is free later. By its heap, it could start
    then, or earlier than it can: the other core may have more work meanwhile. So if the first step of all cannot start
    so early, it goes to another heap; else it is the next one.
    """
    count, first_sample = len(work.core), np.int64(0)  # numba would compile `_open_step` again for a literal 0
    for i in range(count):
        _open_step(i, first_sample, heaps, tree, chip, work, todo, patience_ns)
    while tree.start[tree.next[1]] < np.inf:
        heap = tree.next[1]
        start, turn = tree.start[heap], tree.turn[heap]
        i, k = by_rank[turn % count], turn // count
        c, peer = work.core[i], work.peer[i]
        _pop_step(heaps, heap)
        _update_leaf(heap, heaps, tree, chip, patience_ns)
        if max(todo.ready[k, i], _free(c, peer, chip)) - (patience_ns if peer >= 0 else 0.0) > start:
            _open_step(i, k, heaps, tree, chip, work, todo, patience_ns)
            continue
        end = _run(i, k, todo.ready[k, i], chip, work)
        _update_core(c, heaps, tree, chip, patience_ns)
        if peer >= 0:
            _update_core(peer, heaps, tree, chip, patience_ns)
        ordered[k, todo.done[k]] = i
        todo.done[k] += 1
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            todo.ready[k, j] = max(todo.ready[k, j], end)
            todo.left[k, j] -= 1
            _open_step(j, k, heaps, tree, chip, work, todo, patience_ns)
        _count(c, heaps, tree, chip, work, todo, patience_ns)
        if peer >= 0:
            _count(peer, heaps, tree, chip, work, todo, patience_ns)


@bare_helper
def _count(
    c: int,
    heaps: StepHeaps,
    tree: StartTree,
    chip: ChipState,
    work: SampleWork,
    todo: RemainingSteps,
    patience_ns: float,
) -> None:
    """Counts a finished step of core `c`. After the last one, the core begins the next sample."""
    todo.undone[c] -= 1
    if todo.undone[c] > 0 or chip.sample[c] + 1 == len(todo.left):
        return
    first, last = todo.first_task[c], todo.first_task[c + 1]
    todo.undone[c] = last - first
    chip.sample[c] += 1
    for t in range(first, last):
        _open_step(todo.tasks[t], chip.sample[c], heaps, tree, chip, work, todo, patience_ns)


@bare_helper
def _open_step(
    i: int,
    sample: int,
    heaps: StepHeaps,
    tree: StartTree,
    chip: ChipState,
    work: SampleWork,
    todo: RemainingSteps,
    patience_ns: float,
) -> None:
    """Adds step `i` of a sample to the heap of its inputs, or of the core for which it waits.

    Does nothing before all steps that it waits for are done and its cores work on this sample.
    """
    c, peer = work.core[i], work.peer[i]
    if todo.left[sample, i] > 0 or chip.sample[c] != sample or (peer >= 0 and chip.sample[peer] != sample):
        return
    ready, turn = todo.ready[sample, i], sample * len(work.core) + work.rank[i]
    heap, start = len(heaps.size) - 1, ready - (patience_ns if peer >= 0 else 0.0)
    if ready <= _free(c, peer, chip):
        heap, start = 2 * c + 1 if peer < 0 else 2 * peer if chip.free[peer] > chip.free[c] else 2 * c, 0.0
    _push_step(heaps, heap, start, turn)
    if heaps.turn[heaps.first[heap]] == turn:
        _update_leaf(heap, heaps, tree, chip, patience_ns)


@bare_helper
def _free(c: int, peer: int, chip: ChipState) -> float:
    """Returns the time at which a core and its peer (-1: none) are free."""
    return chip.free[c] if peer < 0 else max(chip.free[c], chip.free[peer])


@bare_helper
def _update_core(c: int, heaps: StepHeaps, tree: StartTree, chip: ChipState, patience_ns: float) -> None:
    """Updates the leaves of the two heaps of core `c`, after the time at which it is free has changed."""
    _update_leaf(2 * c, heaps, tree, chip, patience_ns)
    _update_leaf(2 * c + 1, heaps, tree, chip, patience_ns)


@bare_helper
def _update_leaf(heap: int, heaps: StepHeaps, tree: StartTree, chip: ChipState, patience_ns: float) -> None:
    """Updates the leaf of a heap: when its first step could start, and the turn of this step."""
    first = heaps.first[heap]
    if heaps.size[heap] == 0:
        start = np.inf
    elif heap == len(heaps.size) - 1:
        start = heaps.start[first]
    else:
        start = chip.free[heap // 2] - (patience_ns if heap % 2 == 0 else 0.0)
    _set_leaf(heap, start, heaps.turn[first], tree)


@bare_helper
def _set_leaf(leaf: int, start: float, turn: int, tree: StartTree) -> None:
    """Sets start and turn of a leaf, and updates the winners above it in the tree."""
    tree.start[leaf], tree.turn[leaf] = start, turn
    i = (len(tree.next) // 2 + leaf) // 2
    while i > 0:
        a, b = tree.next[2 * i], tree.next[2 * i + 1]
        later = tree.start[b] < tree.start[a] or (tree.start[b] == tree.start[a] and tree.turn[b] < tree.turn[a])
        first = b if later else a
        if first == tree.next[i] and first != leaf:
            break
        tree.next[i] = first
        i //= 2


@bare_helper
def _push_step(heaps: StepHeaps, heap: int, start: float, turn: int) -> None:
    """Adds a step to a binary heap."""
    first, i = heaps.first[heap], heaps.size[heap]
    heaps.size[heap] += 1
    while i > 0:
        above = first + (i - 1) // 2
        if heaps.start[above] < start or (heaps.start[above] == start and heaps.turn[above] < turn):
            break
        heaps.start[first + i], heaps.turn[first + i] = heaps.start[above], heaps.turn[above]
        i = (i - 1) // 2
    heaps.start[first + i], heaps.turn[first + i] = start, turn


@bare_helper
def _pop_step(heaps: StepHeaps, heap: int) -> None:
    """Removes the first step of a binary heap."""
    heaps.size[heap] -= 1
    first, size = heaps.first[heap], heaps.size[heap]
    start, turn = heaps.start[first + size], heaps.turn[first + size]
    i = 0
    while 2 * i + 1 < size:
        j = first + 2 * i + 1
        if j + 1 < first + size and (
            heaps.start[j + 1] < heaps.start[j]
            or (heaps.start[j + 1] == heaps.start[j] and heaps.turn[j + 1] < heaps.turn[j])
        ):
            j += 1
        if start < heaps.start[j] or (start == heaps.start[j] and turn < heaps.turn[j]):
            break
        heaps.start[first + i], heaps.turn[first + i] = heaps.start[j], heaps.turn[j]
        i = j - first
    heaps.start[first + i], heaps.turn[first + i] = start, turn


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
    both = np.stack([work.core[order], work.peer[order]], axis=1).reshape(-1)
    steps = np.repeat(order, 2)[np.argsort(both, kind="stable")][int((both < 0).sum()) :]
    first = np.cumsum([0, *np.bincount(both[both >= 0], minlength=work.core_count)])
    return CoreSequences(first, steps, first[:-1], work.waiting[None], *np.zeros((2, work.core_count), np.int64))


def replay(work: SampleWork, sequences: CoreSequences, samples: int, last: int) -> Floats:
    """Returns the ends of samples 0 to `last` in ns, if every core executes its sequence for one after the other.

    samples: number of samples that wait to be begun. They use the chip, too, but the replay ends with sample `last`.
    """
    left, free = np.repeat(sequences.left, samples, axis=0), np.zeros((2, len(sequences.at)), np.int64)
    begun = CoreSequences(sequences.first, sequences.steps, sequences.at.copy(), left, *free)
    ends_ns, ready_ns = np.zeros(samples), np.zeros(left.shape)
    replay_samples(ends_ns, ready_ns, idle_chip(work), work, begun, empty_tree(work.core_count), last)
    return ends_ns[: last + 1]


@bare_kernel
@interpret_first(us=lambda args: 10 * len(args[3].core) * min(len(args[0]), args[6] + 3), until_us=1e6, by_element=True)
def replay_samples(
    ends_ns: Floats,
    ready_ns: Floats,
    chip: ChipState,
    work: SampleWork,
    sequences: CoreSequences,
    tree: StartTree,
    last: int,
) -> None:
    """Sets the end of each sample up to `last` in ns, if every core executes its sequence for one after the other.

    Steps at the port of global memory start in the order of time, those of all cores and samples. The others start as
    soon as they can, in any order, since nothing else is shared. ready_ns: [samples, steps], when the inputs of each
    step are ready; zeros at first, updated in place.
    """
    count, left = np.int64(0), len(work.core)
    for c in range(len(sequences.at)):
        count = _offer_next_step(c, count, ready_ns, chip, work, sequences, tree)
    while left > 0 and (count > 0 or tree.start[tree.next[1]] < np.inf):
        if count > 0:
            count -= 1
            c = sequences.free[count]
        else:
            c = tree.next[1]
            _set_leaf(c, np.inf, 0, tree)
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
                count = _offer_next_step(work.core[j], count, ready_ns, chip, work, sequences, tree)
        if work.peer[i] >= 0:
            count = _offer_next_step(work.peer[i], count, ready_ns, chip, work, sequences, tree)
        count = _offer_next_step(c, count, ready_ns, chip, work, sequences, tree)


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
    tree: StartTree,
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
        _set_leaf(own, max(ready_ns[k, i], _free(own, peer, chip)), work.rank[i], tree)
        return count
    if sequences.offered[own] == 1 + k * len(work.core) + i:
        return count
    sequences.offered[own] = 1 + k * len(work.core) + i
    sequences.free[count] = own
    return count + 1
