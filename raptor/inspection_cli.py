"""The command `raptor inspect MODEL`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor import completion


def command(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    xbar: Annotated[
        str | None, typer.Option(help="Crossbar size: 128, or 128x256 (rows x columns).", show_default="128x128")
    ] = None,
    xbars_per_core: Annotated[int | None, typer.Option(min=1, help="Crossbars of a core.", show_default="64")] = None,
    bits: Annotated[int, typer.Option(min=1, max=32, help="Bits of an activation and of a weight.")] = 8,
    cell_bits: Annotated[int | None, typer.Option(min=1, help="Bits of a crossbar cell.", show_default="8")] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Architecture file of pimsim-nn, or preset.", show_default="bench", autocompletion=completion.presets
        ),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of an input, such as input=1,3,224,224. Repeatable.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
) -> None:
    """Show what would happen to a model: operators, multiply-accumulates, crossbars of each layer.

    Example: raptor inspect lenet5.onnx --xbar 128
    """
    # The front end takes a moment to import; `raptor --help` does without.
    from raptor import files
    from raptor.console import Console
    from raptor.errors import UnsupportedError, UnsupportedNode
    from raptor.inspection import inspect, show, write
    from raptor.options import parse_shape, parse_xbar

    found = inspect(
        model,
        xbar=parse_xbar(xbar),
        xbars_per_core=xbars_per_core,
        bits=bits,
        cell_bits=cell_bits,
        arch=arch,
        shapes=dict(map(parse_shape, shape or ())),
    )
    if json is not None:
        write(json, found)
    if not files.is_terminal(json):
        show(found, Console())
    if found.unsupported:
        raise UnsupportedError([UnsupportedNode(n.node, n.op_type, n.reason) for n in found.unsupported])
