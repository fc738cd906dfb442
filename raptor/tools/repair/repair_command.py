"""Command `raptor repair OUT --chip FILE`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor.tools.cli.option_parameters import QuietOption
from validator.cli_options import Cells, CrossbarSettings, Out

if TYPE_CHECKING:
    from raptor.output.repair_files import RepairedLayer


def repair_command(
    out: Out,
    chip: Annotated[Path, typer.Option(metavar="FILE", help="Chip file: the defects of one chip.", show_default=False)],
    cells: Cells = None,
    settings: CrossbarSettings = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory to write.", show_default="OUT-CHIP")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing directory.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Make up for the stuck cells and dead lines of one chip, without compiling again.

    Free cells of a weight make up for stuck ones, columns are stored negated where that is nearer, and matrices move
    to the crossbars of their core that suit them best. The streams stay as they are. Where a core or link does not do,
    cores exchange their work, and only the numbers of cores in the streams change.

    Example: raptor compile int8.onnx --cell-bits 4 -o s -q && raptor repair s --chip chip.json --cells reram-wan2022
    """
    from raptor.common.files.file_access import refuse_stdout
    from raptor.common.terminal.console import LiteralConsole
    from raptor.output.writer import reserve_folder
    from raptor.target.chip_file import load_chip_file
    from raptor.target.device_file import load_device
    from raptor.tools.repair.repair_output import repair_output
    from validator.crossbar.chip_settings import parse_settings

    folder = output or out.with_name(f"{out.name}-{chip.stem}")
    refuse_stdout("-o", folder)
    with reserve_folder(folder, force=force):
        with LiteralConsole(stderr=True).status("repairing ..."):
            device = None if cells is None else load_device(cells)
            given = parse_settings("--with", settings or ())
            found = repair_output(out, load_chip_file(chip), device, given)
        found.save(folder, force=force)
    if not quiet:
        console = LiteralConsole()
        for line in describe_layers(found.layers):
            console.print(line, soft_wrap=True)
        if found.repair.table.moved:
            pairs = ", ".join(f"{old} to {new}" for old, new in found.repair.table.moved)
            console.print(f"moved cores: {pairs}", soft_wrap=True)
        console.print(f"repaired for {found.repair.table.chip}: {folder}", soft_wrap=True)


def describe_layers(layers: "Sequence[RepairedLayer]") -> Iterator[str]:
    """Yields a line for each layer: weights with stuck cells, and the errors with and without the repair."""
    width = max((len(layer.node) for layer in layers), default=5)
    yield f"{'layer':{width}}  weights  stuck cells in  not exact  error  unrepaired"
    for layer in layers:
        yield (
            f"{layer.node:{width}}  {layer.weights:7}  {layer.stuck:14}  {layer.changed:9}  {layer.error:5.2f}  "
            f"{layer.unrepaired_error:10.2f}"
        )
    wider = sum(layer.wider for layer in layers)
    if wider:
        yield f"{wider} columns can have larger sums than as compiled: their results are cut to the range of before"
