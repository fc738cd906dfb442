"""Loads and runs programs of one segment and of several in the same way."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raptor.common.errors import UserError
from raptor.common.spelling import option
from validator.hosted.listing import is_hosted
from validator.hosted.load import Hosted, load_hosted
from validator.hosted.run import run_hosted
from validator.inputs import random_inputs, read_files
from validator.load import load
from validator.program import Program
from validator.run import run

Shapes = Mapping[str, tuple[int | None, ...]]


def load_any(folder: str | Path, *, check_hashes: bool = True) -> Program | Hosted:
    """Loads an output directory. Raises `UserError` like `load`."""
    return (load_hosted if is_hosted(folder) else load)(folder, check_hashes=check_hashes)


def shapes(program: Program | Hosted) -> tuple[Shapes, Shapes]:
    """Returns the shapes of inputs and outputs, keyed by name; None for a size that depends on values."""
    listed = program.listed if isinstance(program, Hosted) else program.memory
    inputs, outputs = ({tensor.name: tuple(tensor.shape) for tensor in t} for t in (listed.inputs, listed.outputs))
    return inputs, outputs


def other_than_tensors(program: Program | Hosted) -> frozenset[str]:
    """Returns the outputs that are sequences, maps or optional values instead of tensors."""
    if not isinstance(program, Hosted):
        return frozenset()
    return frozenset(o.name for o in program.listed.outputs if not o.type.startswith("tensor("))


def read_inputs(program: Program | Hosted, given: Sequence[str], seed: int) -> Mapping[str, Any]:
    """Reads inputs from files; without files, makes standard normal numbers from `seed`.

    Raises `UserError` for files that cannot be read, and for a program in segments without files.
    """
    if isinstance(program, Hosted):
        if not given:
            raise UserError(f"{option('inputs')}: needed for a program in segments")
        return read_files(program.listed.inputs, given)
    return read_files(program.memory.inputs, given) if given else random_inputs(program.memory.inputs, seed)


def run_any(program: Program | Hosted, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the outputs in ONNX shapes, keyed by name."""
    if isinstance(program, Hosted):
        return run_hosted(program, inputs).outputs
    return run(program, inputs).outputs
