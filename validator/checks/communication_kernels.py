"""Compiled execution of the sends, receives and tokens of a program alone, for the rules on messages."""

# ruff: noqa: C901 a loop in one piece compiles to faster code than readable functions
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit.decorators import interpret_first, kernel

# Kinds of steps in `run_communication`, and reasons why a core is blocked.
FREE, ON_SEND, ON_RECV, ON_WAIT = range(4)


@kernel
@interpret_first(us=lambda args: 5 * args[0][-1], until_us=4e5)
def run_communication(
    starts: Any, kind: Any, partner: Any, value: Any, event: Any, at: Any, blocked: Any, tokens: Any
) -> None:
    """Executes only sends, receives and tokens, until no core can continue.

    The steps of a core begin at `starts[core]`: `kind` is ON_SEND, ON_RECV, ON_WAIT, or FREE for sync; `partner` the
    other core, `value` the number of tokens, `event` the register. `at[core]` becomes the step reached, `blocked[core]`
    the reason why the core waits there. The order in which the cores run does not matter: a rendezvous has two fixed
    sides, and only their owner takes tokens.
    """
    cores = starts.size - 1
    queue = np.empty(cores, np.int64)
    queued = np.ones(cores, np.bool_)
    for core in range(cores):
        queue[core], at[core] = core, starts[core]
    head, waiting = 0, cores
    while waiting > 0:
        core = queue[head % cores]
        head += 1
        waiting -= 1
        queued[core] = False
        blocked[core] = FREE
        while at[core] < starts[core + 1]:
            step = at[core]
            other = partner[step]
            if kind[step] == FREE:
                at[core] += 1
                if 0 <= other < cores:
                    tokens[other, event[step] & 31] += 1
                    if blocked[other] == ON_WAIT and not queued[other]:
                        queue[(head + waiting) % cores], queued[other] = other, True
                        waiting += 1
            elif kind[step] == ON_WAIT:
                if tokens[core, event[step] & 31] < value[step]:
                    blocked[core] = ON_WAIT
                    break
                tokens[core, event[step] & 31] -= value[step]
                at[core] += 1
            else:
                meets = 0 <= other < cores and other != core and at[other] < starts[other + 1]
                if meets:
                    there = at[other]
                    meets = partner[there] == core and kind[there] + kind[step] == ON_SEND + ON_RECV
                    meets = meets and (kind[there] == ON_SEND or kind[there] == ON_RECV)
                if not meets:
                    blocked[core] = kind[step]
                    break
                at[core] += 1
                at[other] += 1
                if not queued[other]:
                    queue[(head + waiting) % cores], queued[other] = other, True
                    waiting += 1
