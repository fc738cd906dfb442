"""Command `raptor trim OUT`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.common.options.option_conflicts import is_on_command_line
from raptor.tools.cli.option_parameters import QuietOption
from validator.cli_options import Cells, CrossbarSettings, Device, Out

Data = Annotated[
    Path,
    typer.Option(
        metavar="FILE.npz|DIR", help="Inputs, as for raptor accuracy; labels are not read.", show_default=False
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Directory to write.", show_default="OUT-trimmed")]


def trim_command(
    context: typer.Context,
    out: Out,
    data: Data,
    cells: Cells = None,
    chip: Annotated[int, typer.Option(min=0, max=2**62, help="Seed of the simulated chip.")] = 0,
    settings: CrossbarSettings = None,
    device: Device = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many.", show_default="all")] = None,
    output: Output = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing directory.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Fit the gain and the bias of each channel to a chip, from inputs without labels.

    The sums of each layer on the chip are compared with exact sums. Crossbars and streams stay as they are; the
    constants in memory change. The model must be compiled with --trimmable.

    Example: raptor compile int8.onnx --trimmable -o die -q && raptor trim die --cells reram-milo --data data.npz
    """
    from raptor.common.files.file_access import refuse_stdout
    from raptor.common.options.option_conflicts import refuse_options
    from raptor.common.terminal.console import LiteralConsole
    from raptor.output.writer import reserve_folder
    from raptor.tools.trim.trim_output import describe, trim
    from validator.crossbar.chip_settings import parse_settings

    if device is not None:
        refuse_options(context, {"chip"}, "only with --cells, a simulated chip")
    folder = output or out.with_name(f"{out.name}-trimmed")
    refuse_stdout("-o", folder)
    seed = chip if is_on_command_line(context, "chip") else 0
    with reserve_folder(folder, force=force):
        with LiteralConsole(stderr=True).status("trimming ..."):
            given = parse_settings("--with", settings or ())
            found = trim(out, data=data, cells=cells, chip=seed, settings=given, device=device, samples=samples)
        found.save(folder, force=force)
    if not quiet:
        console = LiteralConsole()
        for line in describe(found):
            console.print(line, soft_wrap=True)
        console.print(f"trimmed for {found.chip}, with {found.samples} inputs: {folder}", soft_wrap=True)
