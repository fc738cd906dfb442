"""Checks `decoder.json` of an output directory that is not trusted."""

from collections.abc import Mapping

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.decoder_files import DecoderFile, GrowingStateFile
from raptor.output.resident_files import ResidentState
from validator.program.program import LoadedProgram

_TYPES = frozenset(("bool", "float32", "int32", "int64"))


def _model_shape(state: GrowingStateFile, states: Mapping[str, ResidentState]) -> tuple[int, ...]:
    """Returns the shape of a state as the model has it, and the axis along which it grows."""
    shape = states[state.input].shape
    return (*(shape[state.permutation.index(d)] for d in range(len(shape))), state.axis)


def check_decoder(decoder: DecoderFile, program: LoadedProgram) -> None:
    """Raises `UserError` unless a decoder file names states and a position input that the program has."""
    if files.ORIGINAL not in program.manifest.files:
        raise UserError(f"{files.MANIFEST}: {files.ORIGINAL} is not in the list of files")
    inputs = {place.name: place for place in program.memory.inputs}
    states = {state.input: state for state in program.states}
    if decoder.position not in inputs or inputs[decoder.position].shape != (1,):
        raise UserError(f"{files.DECODER}: {files.MEMORY} has no input {decoder.position!r} of one number")
    if not decoder.states:
        raise UserError(f"{files.DECODER}: no state grows")
    for state in decoder.states:
        known = states.get(state.input)
        if known is None or known.output != state.output:
            raise UserError(f"{files.DECODER}: {files.RESIDENT} has no state {state.input!r}={state.output!r}")
        axes = sorted(state.permutation)
        if axes != list(range(len(known.shape))) or state.axis not in axes:
            raise UserError(f"{files.DECODER}: state {state.input!r}: {state.permutation} are not its axes")
        rows = decoder.capacity if state.rows is None else state.rows
        if known.shape[state.permutation.index(state.axis)] != rows:
            raise UserError(f"{files.DECODER}: state {state.input!r} of {list(known.shape)} has no {rows} rows")
    _check_stacks(decoder, states)
    for derived in decoder.derived:
        if derived.dtype not in _TYPES:
            raise UserError(f"{files.DECODER}: input {derived.name!r}: no type {derived.dtype!r}")


def _check_stacks(decoder: DecoderFile, states: Mapping[str, ResidentState]) -> None:
    grown = {(state.input, state.output): _model_shape(state, states) for state in decoder.states}
    for stack in decoder.stacks:
        parts = {(part.input, part.output) for part in stack.parts}
        alike = {grown[part] for part in parts & grown.keys()}
        if len(parts) != len(stack.parts) or not parts <= grown.keys() or len(alike) != 1:
            raise UserError(f"{files.DECODER}: state {stack.input!r}: its parts are not states that grow alike")
