"""Programs of one segment or of several: loaded and run in the same way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validator.hosted.listing import is_hosted
from validator.hosted.load import Hosted, load_hosted
from validator.hosted.run import run_hosted
from validator.load import load
from validator.program import Program
from validator.run import run

Shapes = Mapping[str, tuple[int | None, ...]]


def load_any(folder: str | Path) -> Program | Hosted:
    """Loads an output directory. Raises `UserError` as `load` does."""
    return load_hosted(folder) if is_hosted(folder) else load(folder)


def shapes(program: Program | Hosted) -> tuple[Shapes, Shapes]:
    """Returns the shapes of inputs and outputs by name; None for a size that depends on values."""
    listed = program.listed if isinstance(program, Hosted) else program.memory
    inputs, outputs = ({tensor.name: tuple(tensor.shape) for tensor in t} for t in (listed.inputs, listed.outputs))
    return inputs, outputs


def run_any(program: Program | Hosted, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the outputs by name, in ONNX shapes."""
    if isinstance(program, Hosted):
        return run_hosted(program, inputs).outputs
    return run(program, inputs).outputs
