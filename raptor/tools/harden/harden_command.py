"""Command `raptor harden MODEL`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor.options import InputKeywords
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options
from validator.cli_options import CrossbarSettings, list_devices

if TYPE_CHECKING:
    from pydantic import BaseModel

    from raptor.tools.harden.harden_model import HardeningReport

RequiredCells = Annotated[
    str,
    typer.Option(metavar="FILE|PRESET", help="Device file of the crossbars.", autocompletion=list_devices),
]
WeightBits = Annotated[int, typer.Option(metavar="8|4", help="Bits of a weight, as for raptor quantize.")]


@expand_options
def harden_command(
    model: ModelArgument,
    *,
    cells: RequiredCells,
    data: Annotated[Path, typer.Option(metavar="FILE.npz", help="Inputs, as for raptor quantize; no labels.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME-hardened.onnx")
    ] = None,
    weights: WeightBits = 8,
    settings: CrossbarSettings = None,
    clip: Annotated[bool, typer.Option("--clip", help="Also clip weights, which changes the function.")] = False,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many.", show_default="all")] = None,
    inputs: InputKeywords,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Rescale the channels of a float model so that errors of cells change its sums less.

    The function of the model stays. Then quantise it with scales by channel, and compile it.

    Example: raptor harden lenet5.onnx --cells reram-milo --data data.npz -o hard.onnx
    """
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.harden.harden_model import harden
    from validator.crossbar.chip_settings import parse_settings

    target = output or Path(f"{model.stem}-hardened.onnx")
    file_access.check_file_replaceable("-o", target, force=force)
    with LiteralConsole(stderr=True).status("hardening ..."):
        given = parse_settings("--with", settings or ())
        found = harden(
            model, cells=cells, data=data, weights=weights, settings=given, samples=samples, clip=clip, **inputs
        )
    found.save(target, force=force)
    report = found.report
    lines = (
        *describe_hardening(report),
        f"errors of a weight: {report.error:.2%} of the largest of its channel",
        f"hardened for {report.device}, with {report.samples} inputs: {target}",
    )
    show_report(report, lines, json, quiet=quiet)


def show_report(report: "BaseModel", lines: Iterable[str], json: Path | None, *, quiet: bool) -> None:
    """Writes a report to a JSON file, if given, and prints its lines, unless quiet or the JSON is on the terminal."""
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole

    if json is not None:
        file_access.print_or_write("--json", json, file_access.model_to_json(report))
    if not quiet and not file_access.is_stdout(json):
        console = LiteralConsole()
        for line in lines:
            console.print(line, soft_wrap=True)


def describe_hardening(report: "HardeningReport") -> list[str]:
    """Returns lines of text: the noise of each layer relative to the model as given, and how the outputs differ."""
    width = max((len(layer.node) for layer in report.layers), default=5)
    head = f"{'layer':{width}}  noise  clipped channels"
    rows = [f"{layer.node:{width}}  {layer.noise:5.2f}  {layer.clipped:16}" for layer in report.layers]
    return [head, *rows, f"outputs differ by {report.difference:.1e} of the largest"]
