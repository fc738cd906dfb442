"""Compiled loop of `run_encoding`; import it only where it runs (see `raptor.common.jit.decorators`)."""

from typing import Any

from raptor.common.jit.decorators import helper, kernel


@kernel
def collect_runs(where: Any, offset: Any, runs: Any) -> int:
    """Fills `runs` greedily from left to right with the longest runs of constant stride. Returns their number."""
    count, i, n = 0, 0, where.size
    while i < n:
        stop, stride = _run_end(where, offset, i, n)
        runs[count, 0], runs[count, 1], runs[count, 2] = i, where[i], offset[i]
        runs[count, 3], runs[count, 4] = stride, stop - i
        count += 1
        i = stop
    return count


@helper
def _run_end(where: Any, offset: Any, i: int, n: int) -> tuple[int, int]:
    """Returns the end of the run that starts at `i`, and its stride."""
    stop = i + 1
    if where[i] < 0:
        while stop < n and where[stop] < 0:
            stop += 1
        return stop, 1
    if stop == n or where[stop] != where[i] or offset[stop] < offset[i]:
        return stop, 1
    stride = offset[stop] - offset[i]
    while stop < n and where[stop] == where[i] and offset[stop] - offset[stop - 1] == stride:
        stop += 1
    # A pair with a stride is split if its second element starts a contiguous run.
    if stop - i == 2 and stride != 1 and stop < n and where[stop] == where[i] and offset[stop] - offset[stop - 1] == 1:
        return i + 1, 1
    return stop, stride
