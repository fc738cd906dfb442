"""Executes a program for a machine that the validator has no engine for: its back end does, on the same memories.

Only the execution is the back end's. Inputs are written, outputs are read and judged as those of any program.
"""

from typing import Protocol

import numpy as np

from raptor.common.errors import UserError
from raptor.common.machine_backends import load_backend
from raptor.common.option_spelling import spell_option
from validator.engines.machine import SHARED, Machine
from validator.program.program import LoadedProgram


class ProgramExecutor(Protocol):
    """The part of a back end that executes a program (`raptor.codegen.machine_backend.MachineBackend.execute`)."""

    def execute(self, folder: object, memory: bytes, captured: int) -> tuple[bytes, bytes]: ...


def execute_elsewhere(program: LoadedProgram, state: Machine, *, chosen: bool) -> None:
    """Runs one sample in the memories of `state`. `chosen`: the user has asked for an engine, order or limit.

    Raises `UserError` if there is no such back end, if it cannot run here, and for what only the engines can do.
    """
    name = program.manifest.backend or ""
    machine = spell_option("backend", name)
    if chosen:
        options = ", ".join(map(spell_option, ("engine", "schedule", "max_steps")))
        raise UserError(f"{program.folder}: made with {machine}, whose programs take no {options}")
    if state.products is not None or program.crossbars is not None:
        raise UserError(f"{program.folder}: made with {machine}, so that no other crossbars can compute its products")
    executor: ProgramExecutor = load_backend(name)
    captured = state.probes.captured
    memory, tensors = executor.execute(program.folder, state.memory.tobytes(), captured.nbytes)
    if len(memory) != state.memory.nbytes or len(tensors) != captured.nbytes:
        raise UserError(f"{program.folder}: {machine} returned memories of other sizes")
    state.memory[:] = np.frombuffer(memory, state.memory.dtype)
    captured[:] = np.frombuffer(tensors, captured.dtype)
    state.owners[:] = SHARED
    if state.written is not None:
        state.written.memory[:] = 1
        state.written.captured[:] = 1
