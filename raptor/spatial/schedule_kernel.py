"""The compiled loop of `raptor.spatial.schedule`."""

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.jit import kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@kernel
def list_schedule(
    cores: int,
    core: Ints,
    peer: Ints,
    request_ns: Floats,
    grant_ns: Floats,
    sender_ns: Floats,
    wire_ns: Floats,
    receiver_ns: Floats,
    work_ns: Floats,
    rank: Ints,
    by_rank: Ints,
    waiting: Ints,
    first_user: Ints,
    users: Ints,
    patience_ns: Floats,
) -> tuple[Ints, float]:
    """Returns the order in which computes start, and the time in ns when the last one ends.

    The next compute is the one that can start first; of several, the one of lowest rank. Its start counts as
    `patience_ns` earlier than it is. A compute occupies its `core`, and during the transfer that it begins with also
    the core `peer` (-1: no transfer from a core). It starts when both are free and its inputs are there.

    waiting: number of computes that a compute waits for. users: those that wait for compute i are at `first_user[i]` to
    `first_user[i + 1]`. request_ns to receiver_ns: see `raptor.target.timing.MessageTimes`; without a peer, only
    `receiver_ns` counts.
    """
    count = len(core)
    free = np.zeros(cores)
    switch = np.zeros(cores)
    ready = np.zeros(count)
    left = waiting.copy()
    queue: list[Any] = [(0.0, 0) for _ in range(0)]
    for i in range(count):
        if left[i] == 0:
            heapq.heappush(queue, (-patience_ns[i], rank[i]))
    ordered = np.empty(count, np.int64)
    done = 0
    while len(queue) > 0:
        start, r = heapq.heappop(queue)
        i = by_rank[r]
        now = max(ready[i], free[core[i]])
        if peer[i] >= 0:
            now = max(now, free[peer[i]])
        if now - patience_ns[i] > start:
            heapq.heappush(queue, (now - patience_ns[i], r))
            continue
        if peer[i] >= 0:
            now = max(now, switch[peer[i]]) + request_ns[i]
            now = max(now, switch[core[i]]) + grant_ns[i]
            free[peer[i]] = now + sender_ns[i]
            switch[peer[i]] = now + sender_ns[i] + wire_ns[i]
        now += receiver_ns[i] + work_ns[i]
        free[core[i]] = now
        ordered[done] = i
        done += 1
        for k in range(first_user[i], first_user[i + 1]):
            j = users[k]
            ready[j] = max(ready[j], now)
            left[j] -= 1
            if left[j] == 0:
                start = max(ready[j], free[core[j]])
                if peer[j] >= 0:
                    start = max(start, free[peer[j]])
                heapq.heappush(queue, (start - patience_ns[j], rank[j]))
    return ordered[:done], free.max()
