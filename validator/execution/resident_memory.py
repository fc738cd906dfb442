"""Local memory between two samples: what is resident keeps its content, everything else is lost."""

from dataclasses import dataclass

import numpy as np

from validator.engines import compiled_engine as compiled
from validator.engines import machine, reference_engine
from validator.engines.machine import EngineStop, Machine
from validator.engines.run_template import cache_per_program, make_empty_captures, make_run_template
from validator.errors import ProgramError
from validator.program.program import Bytes, LoadedProgram, Values


@dataclass(frozen=True, slots=True, eq=False)
class LocalContent:
    """Content of the local memories of all cores; `written`: which bytes are written, in an integer program."""

    local: Values
    written: Bytes | None

    def restore(self, state: Machine) -> None:
        """Gives a machine this content."""
        state.local[:] = self.local
        if state.written is not None and self.written is not None:
            state.written.local[:] = self.written


def resident_content(program: LoadedProgram, state: Machine) -> LocalContent | None:
    """Returns what a later sample finds after a run: the resident spans; None if nothing is resident."""
    if program.resident is None:
        return None
    kept, width = np.zeros(len(state.local), np.bool_), state.element_bytes
    for core, low, size in program.resident.spans.tolist():
        first = int(state.local_first[core]) + low // width
        kept[first : first + size // width] = True
    lost = np.zeros((), state.local.dtype) if program.has_integers else np.float32(np.nan)
    written = None if state.written is None else np.where(kept, state.written.local, np.uint8(0))
    return LocalContent(np.where(kept, state.local, lost), written)


@cache_per_program
def power_up(program: LoadedProgram) -> LocalContent | None:
    """Runs what runs once after power-up. Returns what the first sample finds; None if nothing is resident.

    Raises `ProgramError` for an undefined operation.
    """
    once = program.init_program
    if once is None:
        return None
    state = machine.create_machine(once, make_empty_captures(once))
    execute = compiled.execute if compiled.is_quicker(state) else reference_engine.execute
    fault = execute(state, block=True, max_steps=len(make_run_template(once).words) + 1)
    if fault.stop is not EngineStop.DONE:
        error = machine.explain_fault(state, fault)
        if isinstance(error, ProgramError):
            raise ProgramError(error.core, error.pc, error.instruction, f"after power-up: {error.reason}")
        raise error
    return resident_content(program, state)
