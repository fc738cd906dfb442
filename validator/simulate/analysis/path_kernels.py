"""Compiled walk along the critical path."""

# Kernels are untyped for numba's sake; `path` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from raptor.common.jit.decorators import helper, interpret_first, kernel


@kernel
@interpret_first(us=lambda args: 5 * len(args[0]), until_us=3e5)
def walk_critical_path(runs, core_of, first, start, end, cause, window, at, time, credit) -> None:
    """Walks back from instruction `at`, which completes at `time`, and adds the time of each one to `credit` (ps).

    The instruction before another on the path is the one that it waited for: its partner in another core if that began
    later, else the one among the `window` instructions before it that completed last before it began, else the one
    before it in the stream. `runs`: true for each instruction that enters the reorder buffer.
    """
    while True:
        began = start[at]
        partner = cause[at]
        if partner >= 0 and start[partner] > began:
            credit[at] += time - start[partner]
            time = start[partner]
            at = partner
            began = time
        best = _before(runs, first[core_of[at]], at)
        if best < 0:
            credit[at] += time
            return
        since = start[best]
        k, i = 0, best
        while i >= 0 and k < window:
            if end[i] <= began and end[i] > since:
                best, since = i, end[i]
            i = _before(runs, first[core_of[at]], i)
            k += 1
        credit[at] += time - since
        at, time = best, since


@helper
def _before(runs, first, at):
    """Returns the last instruction before `at` in its stream that a unit executes, or -1."""
    at -= 1
    while at >= first:
        if runs[at]:
            return at
        at -= 1
    return -1
