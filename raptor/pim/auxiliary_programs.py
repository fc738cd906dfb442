"""Programs beside those of a sample: after power-up, and to exchange the states of one session for those of another."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.step_columns import LOAD, STORE, Ints, StepColumns

Auxiliary = Literal["init", "save", "restore"]
"""init: fills all resident memory, once after power-up. save: stores the states in the global memory of their inputs.
restore: loads them from there."""
AUXILIARY: tuple[Auxiliary, ...] = get_args(Auxiliary)


def auxiliary_programs(program: PimProgram) -> Mapping[Auxiliary, Mapping[int, CoreProgram]]:
    """Returns what each core does in each auxiliary program; cores without work, and empty programs, are left out."""
    init = {i: core.init for i, core in program.cores.items() if core.init is not None}
    restore = {i: steps.select(_state_loads(program.cores[i], steps)) for i, steps in init.items()}
    found: dict[Auxiliary, dict[int, StepColumns]] = {"init": init, "save": _saves(restore), "restore": restore}
    return {
        name: {i: replace(program.cores[i], steps=steps, init=None) for i, steps in cores.items() if len(steps)}
        for name, cores in found.items()
        if any(map(len, cores.values()))
    }


def _state_loads(core: CoreProgram, init: StepColumns) -> Ints:
    """Returns the steps after power-up that load states."""
    loads = np.flatnonzero(init.form == LOAD)
    return loads[np.isin(init.used[init.start[loads]], core.states)]


def _saves(loads: Mapping[int, StepColumns]) -> dict[int, StepColumns]:
    """Returns the stores to where states are loaded from; the first of the cores that hold a part stores it."""
    known, found = set[int](), dict[int, StepColumns]()
    for i, steps in loads.items():
        own = [k for k, address in enumerate(steps.number.tolist()) if address not in known]
        known.update(steps.number.tolist())
        chosen = steps.select(np.array(own, np.int64))
        found[i] = replace(chosen, form=np.full(len(chosen), STORE))
    return found
