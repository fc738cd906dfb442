"""Plain Python engine: the definition of what streams compute. It is slow; the compiled engine is compared with it.

The meaning of the instructions is in `reference_core`, `float_meanings` and `integer_meanings`.
"""

import numpy as np

from raptor.target.isa import OPCODE
from validator import float_meanings, integer_meanings
from validator.machine import Fault, Machine, Stop
from validator.reference_core import Core, FaultError


def execute(machine: Machine, *, block: bool, max_steps: int) -> Fault:
    """Runs all cores to the end, or until `max_steps` instructions; returns the reason why it stopped.

    `block`: run each core until it blocks, else one instruction of each core in turn (thesis, algorithm 5.1).
    """
    try:
        with np.errstate(all="ignore"):
            return _run_all(machine, block=block, max_steps=max_steps)
    except FaultError as e:
        return e.fault


def _run_all(machine: Machine, *, block: bool, max_steps: int) -> Fault:
    meanings = (float_meanings if machine.written is None else integer_meanings).MEANINGS
    by_opcode = {OPCODE[name]: meaning for name, meaning in meanings.items()}
    cores = [Core(machine, number, by_opcode) for number in range(machine.core_count)]
    while True:
        before = machine.executed
        for core in cores:
            going = True
            while going:
                if machine.executed >= max_steps and not core.finished:
                    return Fault(Stop.STEPS, core.number)
                going = core.step() and block
        if all(core.finished for core in cores):
            return Fault(Stop.DONE)
        if machine.executed == before:
            return Fault(Stop.DEADLOCK)
