"""Runs a program from step to step: its states stay on the chip, unless the caller gives other values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.execution.inputs import check_named_arrays
from validator.execution.resident_memory import LocalContent, power_up, restore_states, save_states
from validator.execution.run import run_program
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]


class SteppedRun:
    """A chip that runs one program again and again. Several of one program are sessions with states of their own."""

    def __init__(self, program: LoadedProgram) -> None:
        self.program = program
        self._content: LocalContent | None = None
        self.position = 0
        """Number of steps since power-up or the last reset."""

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one step. Returns all outputs of the model, the next values of states among them.

        Inputs that are states replace the values on the chip; without them, states go on, after power-up from 0. Raises
        as `run_program` does.
        """
        result = run_program(self.program, inputs, before=self._content)
        self._content, self.position = result.after, self.position + 1
        return result.outputs

    def save(self) -> dict[str, Array]:
        """Returns the states, by input of the model, as the streams in the folder `save` store them."""
        content = self._content or power_up(self.program)
        return {} if content is None else save_states(self.program, content)

    def restore(self, states: Mapping[str, Array]) -> None:
        """Gives the chip saved states, by the streams in the folder `restore`. Raises `UserError` for wrong shapes."""
        content = self._content or power_up(self.program)
        if content is not None and states:
            self._content = restore_states(self.program, content, states)

    def reset(self) -> None:
        """Switches the chip off and on: all states are zero."""
        self._content, self.position = None, 0


def is_sequence(program: LoadedProgram, inputs: Mapping[str, Array]) -> bool:
    """Checks whether the program has states, and some other input has one dimension more than in a step.

    Raises `UserError` for inputs that are no arrays of numbers.
    """
    states = program.state_inputs
    if not states:
        return False
    inputs = check_named_arrays(program.memory.inputs, inputs)
    others = [place for place in program.memory.inputs if place.name not in states and place.name in inputs]
    return any(np.ndim(inputs[place.name]) == len(place.shape) + 1 for place in others)


def run_sequence(program: LoadedProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a program with states on a sequence: inputs that are no states have one more dimension, the steps.

    Returns the outputs of all steps, stacked, and the last value of each state. Inputs that are states give the first
    values. Raises `UserError` for inputs of other shapes or of different numbers of steps.
    """
    inputs = check_named_arrays(program.memory.inputs, inputs)
    states = program.state_inputs
    places = [place for place in program.memory.inputs if place.name not in states]
    given = {place.name: inputs[place.name] for place in places if place.name in inputs}
    counts = {len(array) for place in places if (array := given.get(place.name)) is not None and array.ndim}
    wrong = [p for p in places if p.name in given and given[p.name].shape[1:] != p.shape]
    if wrong or len(counts) != 1 or not min(counts):
        name = wrong[0].name if wrong else min(given)
        shape = list(next(p.shape for p in places if p.name == name))
        raise UserError(f"input {name!r}: expected {shape}, or a sequence of steps, each of this shape, in all inputs")
    run, found = SteppedRun(program), list[dict[str, Array]]()
    for number in range(counts.pop()):
        first = {name: inputs[name] for name in states & inputs.keys()} if number == 0 else {}
        found.append(run.step({name: array[number] for name, array in given.items()} | first))
    last = {state.output for state in program.states}
    return {name: array if name in last else np.stack([f[name] for f in found]) for name, array in found[-1].items()}
