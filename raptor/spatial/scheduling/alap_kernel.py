"""Compiled loops over the steps of a sample for ALAP (as late as possible) schedules."""
# pyright: reportArgumentType=false, reportReturnType=false
# pyright takes elements of these arrays for arrays; they are numbers.

import numpy as np
import numpy.typing as npt

from raptor.common.jit.decorators import bare_kernel, interpret_first
from raptor.mapping.scheduling.schedule_kernel import SampleWork

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@bare_kernel
@interpret_first(us=lambda args: 1.5 * args[0].size, until_us=1e6, by_element=True)
def delay_steps(start_ns: Floats, next_ns: Floats, work: SampleWork, occupied_ns: Floats, order: Ints) -> None:
    """Moves the start of each step as late as its readers and the next step on its core allow.

    start_ns: when the inputs of each step are ready in the forward schedule; updated in place. next_ns: for each core,
    when its next step starts; infinite at first. occupied_ns: see `SampleWork.occupied_ns`.
    """
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        limit = start_ns[i] + occupied_ns[i] if work.first_user[i] == work.first_user[i + 1] else np.inf
        for u in range(work.first_user[i], work.first_user[i + 1]):
            limit = min(limit, start_ns[work.users[u]])
        start_ns[i] = max(start_ns[i], min(limit, next_ns[work.core[i]]) - occupied_ns[i])
        next_ns[work.core[i]] = start_ns[i]


@bare_kernel
@interpret_first(us=lambda args: 2.5 * args[0].size, until_us=1e6, by_element=True)
def start_beside_operands(
    start_ns: Floats,
    own_ns: Floats,
    ready_ns: Floats,
    work: SampleWork,
    occupied_ns: Floats,
    order: Ints,
    first_transfer: Ints,
    transfers: Ints,
) -> None:
    """Moves steps forward that have an operand on their own core: they start when their last operand arrives.

    start_ns: starts of a schedule, updated in place. own_ns: when the last operand that a step has on its own core is
    made, -1 at first. ready_ns: when its last operand is made, 0 at first. transfers: the steps that take operands of
    step i from other cores are `transfers[first_transfer[i]]` to `transfers[first_transfer[i + 1] - 1]`.
    """
    for i in order:
        if own_ns[i] >= 0 and work.peer[i] < 0:
            there_ns = own_ns[i]
            for t in range(first_transfer[i], first_transfer[i + 1]):
                k = transfers[t]
                start_ns[k] = min(start_ns[k], max(ready_ns[k], own_ns[i]))
                there_ns = max(there_ns, start_ns[k] + occupied_ns[k])
            start_ns[i] = min(start_ns[i], there_ns)
        end_ns = start_ns[i] + occupied_ns[i]
        for u in range(work.first_user[i], work.first_user[i + 1]):
            j = work.users[u]
            ready_ns[j] = max(ready_ns[j], end_ns)
            if work.peer[i] < 0 and work.core[j] == work.core[i]:
                own_ns[j] = max(own_ns[j], end_ns)
