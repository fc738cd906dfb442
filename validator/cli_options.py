"""Command-line options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from validator.options import CrossbarKind


def list_devices() -> list[str]:
    """Returns the names of the device files that come with RAPTOR, for completion in a shell."""
    from raptor.target.device_file import device_presets

    return list(device_presets())


Out = Annotated[Path, typer.Argument(help="Output directory of the compiler.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="[NAME=]FILE", help="A .npy, .npz or .pb file; else random numbers."),
]
Crossbar = Annotated[
    CrossbarKind | None,
    typer.Option(help="How crossbars compute; sliced and noisy are for integers.", show_default="exactly"),
]
Cells = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PRESET", help="Device file of the crossbars.", show_default="ideal", autocompletion=list_devices
    ),
]
CrossbarSettings = Annotated[
    list[str] | None, typer.Option("--with", metavar="NAME=VALUE", help="A setting of the crossbars, as adc_bits=8.")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:ADDRESS]",
        help="Where crossbars multiply: numpy, integer, socket:PATH; then the engine is the reference.",
        show_default="the compiled engine",
    ),
]
