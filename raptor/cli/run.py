"""Command `raptor run OUT`."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer

from raptor.common.errors import UserError
from raptor.common.together import refuse_given


def command(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Output directory of the compiler.", show_default=False)],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]FILE", help="A .npy, .npz or .pb file; else random numbers."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .npy for one output, .npz for all by name.")
    ] = Path("outputs.npz"),
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:ADDRESS]",
            help="Where crossbars multiply: numpy, integer, socket:PATH.",
            show_default="the compiled engine",
        ),
    ] = None,
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
    from validator.any_program import load_any, read_inputs, run_any

    storage.check_no_terminal("--output", output)
    if inputs:
        refuse_given(context, {"seed"}, "not with --input, which gives the numbers")
    if output.exists() and not force:
        raise UserError(f"--output {output}: exists; --force replaces it")
    program = load_any(out)
    with nullcontext() if device is None else Chips(device) as chips:
        placed = program if chips is None else program.on_device(chips)
        found = run_any(placed, read_inputs(placed, inputs or (), seed))
        storage.write_for("--output", output, _content(output, found))
        if not quiet:
            console = Console()
            for line in [f"{name}  {list(array.shape)}" for name, array in found.items()] + list(chips or ()):
                console.print(line)


def _content(path: Path, found: Mapping[str, Any]) -> bytes:
    """Returns arrays as numpy writes them. Raises `UserError` for a name that says neither one nor all."""
    import numpy as np

    stream = BytesIO()
    if path.suffix == ".npz":
        np.savez(stream, **found)
    elif path.suffix == ".npy" and len(found) == 1:
        np.save(stream, next(iter(found.values())), allow_pickle=False)
    else:
        raise UserError(f"--output {path}: expected a .npz file{', or .npy' if len(found) == 1 else ''}")
    return stream.getvalue()
