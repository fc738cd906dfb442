"""Local memory between two samples: what is resident keeps its content, everything else is lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.engines import compiled_engine as compiled
from validator.engines import machine, reference_engine
from validator.engines.machine import EngineStop, Machine
from validator.engines.run_template import cache_per_program, make_empty_captures, make_run_template
from validator.errors import ProgramError
from validator.execution.memory_tensors import read_output, write_input
from validator.model.types import named_type
from validator.program.program import Bytes, LoadedProgram, Values

Array = npt.NDArray[Any]


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
    """Returns what the first sample finds if all states are zero; None if nothing is resident."""
    return None if program.resident is None else power_up_with(program, {})


def power_up_with(program: LoadedProgram, states: Mapping[str, Array]) -> LocalContent:
    """Runs what runs once after power-up. Returns what the first sample finds.

    `states`: first values, by input; the others are zero. Raises `ProgramError` for an undefined operation.
    """
    return _run_auxiliary(program, "init", states)[0]


def restore_states(program: LoadedProgram, before: LocalContent, states: Mapping[str, Array]) -> LocalContent:
    """Returns the content of local memory after the states were loaded from global memory, in place of those there.

    `states`: values by input; the others are zero. Raises as `power_up_with` does.
    """
    return _run_auxiliary(program, "restore", states, before)[0]


def save_states(program: LoadedProgram, before: LocalContent) -> dict[str, Array]:
    """Returns the states, by input, as the chip stores them in global memory. Raises as `power_up_with` does."""
    _, state = _run_auxiliary(program, "save", {}, before)
    places = {place.name: place for place in program.memory.inputs}
    return {kept.input: read_output(state, places[kept.input]).decode() for kept in program.states}


def _run_auxiliary(
    program: LoadedProgram, name: str, states: Mapping[str, Array], before: LocalContent | None = None
) -> tuple[LocalContent, Machine]:
    """Runs a program beside those of a sample. Returns what the next sample finds, and the machine at its end.

    `states`: their values in global memory, by input; the others are zero, except for `save`, which writes them.
    """
    beside = program.auxiliary_program(name)
    state = machine.create_machine(beside, make_empty_captures(beside))
    places = {place.name: place for place in program.memory.inputs}
    for kept in program.states if name != "save" else ():
        place = places[kept.input]
        kind = np.dtype(np.float32) if place.coding is None else named_type(place.coding.dtype)
        write_input(state, place, states.get(kept.input, np.zeros(place.shape, kind)))
    if before is not None:
        before.restore(state)
    execute = compiled.execute if compiled.is_quicker(state) else reference_engine.execute
    fault = execute(state, block=True, max_steps=len(make_run_template(beside).words) + 1)
    if fault.stop is not EngineStop.DONE:
        error = machine.explain_fault(state, fault)
        if isinstance(error, ProgramError):
            raise ProgramError(error.core, error.pc, error.instruction, f"in {name}: {error.reason}")
        raise error
    content = resident_content(program, state)
    assert content is not None, "something is resident"
    return content, state
