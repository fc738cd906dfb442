"""Plain Python engine: the definition of what streams compute. It is slow; the compiled engine is compared with it.

The meaning of the instructions is in `reference_core`, `float_semantics` and `integer_semantics`.
"""

import numpy as np

from raptor.target.isa import OPCODE
from validator.engines import float_semantics, integer_semantics
from validator.engines.machine import EngineFault, EngineStop, Machine
from validator.engines.reference_core import FaultError, ReferenceCore


def execute(machine: Machine, *, block: bool, max_steps: int) -> EngineFault:
    """Runs all cores to the end, or until `max_steps` instructions; returns the reason why it stopped.

    `block`: run each core until it blocks, else one instruction of each core in turn (thesis, algorithm 5.1).
    """
    try:
        with np.errstate(all="ignore"):
            return _run_all(machine, block=block, max_steps=max_steps)
    except FaultError as e:
        return e.fault


def _run_all(machine: Machine, *, block: bool, max_steps: int) -> EngineFault:
    semantics = float_semantics.FLOAT_SEMANTICS if machine.written is None else integer_semantics.INTEGER_SEMANTICS
    by_opcode = {OPCODE[name]: meaning for name, meaning in semantics.items()}
    cores = [ReferenceCore(machine, number, by_opcode) for number in range(machine.core_count)]
    while True:
        before = machine.executed_count
        for core in cores:
            going = True
            while going:
                if machine.executed_count >= max_steps and not core.is_finished:
                    return EngineFault(EngineStop.STEPS, core.number)
                going = core.step() and block
        if all(core.is_finished for core in cores):
            return EngineFault(EngineStop.DONE)
        if machine.executed_count == before:
            return EngineFault(EngineStop.DEADLOCK)
