"""The judge of a decoder: the original model in onnxruntime, whose states grow with every step."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.output import files
from raptor.output.decoder_files import DecoderFile, DerivedInputFile
from validator.model.ort_session import create_session, run
from validator.model.types import number_type
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]


class GrowingModel:
    """The original model with states of its own, which begin empty, at zero, or with the values in `inputs`.

    `inputs`: arrays that all steps have in common, and first values of states that do not grow.
    """

    def __init__(
        self, program: LoadedProgram, decoder: DecoderFile, inputs: Mapping[str, Array] = MappingProxyType({})
    ) -> None:
        path = program.folder / files.ORIGINAL
        self.decoder, self._session = decoder, create_session(str(path), path)
        self._types = {i.name: number_type(i.type) for i in self._session.get_inputs()}
        self._names = [o.name for o in self._session.get_outputs()]
        shapes = {place.name: list(place.shape) for place in program.memory.inputs}
        for state in decoder.states:
            stored = shapes[state.input]
            shapes[state.input] = [stored[state.permutation.index(d)] for d in range(len(stored))]
            if state.rows is None:
                shapes[state.input][state.axis] = 0
        pairs = {state.input: state.output for state in program.states}
        for stack in decoder.stacks:
            shapes[stack.input] = [len(stack.parts), *shapes[stack.parts[0].input]]
            pairs = {name: output for name, output in pairs.items() if name not in {p.input for p in stack.parts}}
            pairs[stack.input] = stack.output
        self._pairs = pairs
        self._states = {
            name: np.asarray(inputs[name] if name in inputs else np.zeros(shapes[name])).astype(self._types[name])
            for name in pairs
        }
        self._same = {name: array for name, array in inputs.items() if name not in pairs}
        self.position = 0

    @property
    def state_outputs(self) -> frozenset[str]:
        """The outputs that are the next values of states."""
        return frozenset(self._pairs.values())

    def step(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one step on inputs that are no states. Returns all outputs, the states among them."""
        feed = {name: np.asarray(array).astype(self._types[name]) for name, array in (self._same | {**inputs}).items()}
        feed |= {given.name: _derived_value(given, self.position) for given in self.decoder.derived}
        found = run(self._session, self._names, {**feed, **self._states}, "onnxruntime: ")
        self._states = {name: np.asarray(found[output]) for name, output in self._pairs.items()}
        self.position += 1
        return {name: np.asarray(array) for name, array in found.items()}


def _derived_value(given: DerivedInputFile, position: int) -> Array:
    """Returns an input that the position determines."""
    dtype = np.dtype(given.dtype)
    if given.kind == "ones":
        return np.ones((*given.shape[:-1], position + 1), dtype)
    return np.full(given.shape, position + (given.kind == "length"), dtype)
