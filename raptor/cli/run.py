"""Command `raptor run OUT`."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer

from raptor.common.errors import UserError
from raptor.common.together import refuse_given
from validator.cli_options import Device, Inputs, Out


def command(
    context: typer.Context,
    out: Out,
    inputs: Inputs = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .npy for one output, .npz for all by name.")
    ] = Path("outputs.npz"),
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Execute a compiled model on inputs of yours, and write its outputs.

    With a device, its crossbars are written once and multiply; the reference engine does all else.

    Example: raptor run out -o scores.npy --device numpy
    """
    # numpy and the engine take half a second to import; `raptor --help` does without.
    from contextlib import nullcontext

    from raptor.common import storage
    from raptor.common.console import Console
    from raptor.device.programs import Chips
    from validator.any_program import load_any, read_inputs, run_any, shapes

    if inputs:
        refuse_given(context, {"seed"}, "not with --input, which gives the numbers")
    storage.check_replaceable("--output", output, force=force)
    program = load_any(out)
    _check_format(output, len(shapes(program)[1]))
    with nullcontext() if device is None else Chips(device) as chips:
        placed = program if chips is None else program.on_device(chips)
        found = run_any(placed, read_inputs(placed, inputs or (), seed))
        storage.write_for("--output", output, _content(output, found))
        if not quiet:
            console = Console()
            for line in [f"{name}  {list(array.shape)}" for name, array in found.items()] + list(chips or ()):
                console.print(line)


def _check_format(path: Path, outputs: int) -> None:
    """Raises `UserError` for a name that says neither one output nor all. Before the run, which may take long."""
    if path.suffix != ".npz" and (path.suffix != ".npy" or outputs > 1):
        raise UserError(f"--output {path}: expected a .npz file{', or .npy' if outputs == 1 else ''}")


def _content(path: Path, found: Mapping[str, Any]) -> bytes:
    """Returns arrays as numpy writes them."""
    import numpy as np

    stream = BytesIO()
    if path.suffix == ".npz":
        np.savez(stream, **found)
    else:
        np.save(stream, next(iter(found.values())), allow_pickle=False)
    return stream.getvalue()
