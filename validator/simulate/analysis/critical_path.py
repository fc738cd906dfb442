"""Critical path: the chain of instructions, each waiting for the one before, that takes the whole latency."""

import numpy as np
import numpy.typing as npt

from raptor.target.opcode_tables import ENTERS_ROB
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import CoreColumn

Ints = npt.NDArray[np.int64]


def find_critical_times(machine: CycleModel, run: CycleRun) -> Ints:
    """Returns the time of every instruction on the critical path, ps (0 outside of it). The sum is the latency."""
    from validator.simulate.analysis.path_kernels import walk_critical_path  # pyright: ignore[reportUnknownVariableType] a kernel

    credit = np.zeros(len(machine.words), np.int64)
    finish = run.core[:, CoreColumn.FINISH]
    last_core = int(np.argmax(finish))
    if machine.first[last_core] == machine.first[last_core + 1]:
        return credit
    at = int(machine.first[last_core + 1]) - 1
    period_ps = round(machine.period_ns * 1000)
    time = run.last_tick * period_ps
    walk_critical_path(
        ENTERS_ROB[machine.opcodes],
        machine.core_index,
        machine.first,
        run.start,
        run.end,
        run.cause,
        machine.numbers.rob_size,
        at,
        time,
        credit,
    )
    return credit
