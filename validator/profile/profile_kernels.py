"""Compiled loops that distribute millions of instructions over bins of time."""

# Kernels are untyped for numba's sake; `timeline` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import kernel


@kernel
def add_to_bins(core_of, kind, begin, end, width, out) -> None:
    """Adds the time from `begin` to `end` of each instruction to the bins, `width` wide, of out[kind, core]."""
    last = out.shape[2] - 1
    for i in range(len(core_of)):
        if kind[i] < 0:
            continue
        row, time = out[kind[i], core_of[i]], max(begin[i], 0)
        while time < end[i]:
            at = min(time // width, last)
            until = end[i] if at == last else min(end[i], (at + 1) * width)
            row[at] += until - time
            time = until


@kernel
def find_longest(first, item, items, begin, end, width, out) -> None:
    """Sets out[core, bin] to the item whose instructions take most of the bin; unchanged if there are none."""
    last = out.shape[1] - 1
    amount = np.zeros((out.shape[1], items), np.int64)
    for core in range(len(first) - 1):
        amount[:] = 0
        for i in range(first[core], first[core + 1]):
            time = max(begin[i], 0)
            while item[i] >= 0 and time < end[i]:
                at = min(time // width, last)
                until = end[i] if at == last else min(end[i], (at + 1) * width)
                amount[at, item[i]] += until - time
                time = until
        for at in range(last + 1):
            best = np.argmax(amount[at])
            if amount[at, best] > 0:
                out[core, at] = best
