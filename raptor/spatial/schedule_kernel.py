"""The list schedule as one compiled loop."""

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
    """The order in which computes start, and when the last one ends: the earliest that can, then the lowest rank.

    A compute keeps its `core`, and the core `peer` (-1: none) for the transfer that it begins with, and starts when
    both are free and its inputs are there. `waiting`: how many others it waits for; `users[first_user[i]:]` wait for i.
    For what transfers take see `raptor.target.timing.MessageTimes`; without a peer only `receiver_ns` counts.
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
