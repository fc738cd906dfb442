"""Loads and runs programs of one segment and of several in the same way."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from validator.execution.inputs import random_inputs, read_input_files
from validator.execution.run import run_program
from validator.execution.stepped_run import is_sequence, run_sequence
from validator.hosted.run_segments import run_segmented
from validator.load.output_directory import load_output
from validator.load.segmented_program import SegmentedProgram, load_segmented
from validator.program.program import LoadedProgram
from validator.program.segment_list import has_segments

Shapes = Mapping[str, tuple[int | None, ...]]


def load_any(folder: str | Path, *, check_hashes: bool = True) -> LoadedProgram | SegmentedProgram:
    """Loads an output directory. Raises `UserError` like `load`."""
    return (load_segmented if has_segments(folder) else load_output)(folder, check_hashes=check_hashes)


def list_shapes(program: LoadedProgram | SegmentedProgram) -> tuple[Shapes, Shapes]:
    """Returns the shapes of inputs and outputs, keyed by name; None for a size that depends on values."""
    if isinstance(program, SegmentedProgram):
        pair = program.segments.inputs, program.segments.outputs
    else:
        pair = program.memory.inputs, program.outputs
    inputs, outputs = ({tensor.name: tuple(tensor.shape) for tensor in tensors} for tensors in pair)
    return inputs, outputs


def non_tensor_outputs(program: LoadedProgram | SegmentedProgram) -> frozenset[str]:
    """Returns the outputs that are sequences, maps or optional values instead of tensors."""
    if not isinstance(program, SegmentedProgram):
        return frozenset()
    return frozenset(o.name for o in program.segments.outputs if not o.type.startswith("tensor("))


def read_inputs(program: LoadedProgram | SegmentedProgram, given: Sequence[str], seed: int) -> Mapping[str, Any]:
    """Reads inputs from files; without files, makes standard normal numbers from `seed`.

    Raises `UserError` for files that cannot be read, and for a program in segments without files.
    """
    if isinstance(program, SegmentedProgram):
        if not given:
            raise UserError(f"{spell_option('inputs')}: needed for a program in segments")
        return read_input_files(program.segments.inputs, given)
    return read_input_files(program.memory.inputs, given) if given else random_inputs(program.memory.inputs, seed)


def run_any(program: LoadedProgram | SegmentedProgram, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the outputs in ONNX shapes, keyed by name.

    A program with states takes a sequence, too (see `run_sequence`).
    """
    if isinstance(program, SegmentedProgram):
        return run_segmented(program, inputs).outputs
    if is_sequence(program, inputs):
        return run_sequence(program, inputs)
    return run_program(program, inputs).outputs
