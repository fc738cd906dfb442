"""Options of the command line that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Argument(help="Output directory of the compiler.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="[NAME=]FILE", help="A .npy, .npz or .pb file; else random numbers."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:ADDRESS]",
        help="Where crossbars multiply: numpy, integer, socket:PATH; then the engine is the reference.",
        show_default="the compiled engine",
    ),
]
