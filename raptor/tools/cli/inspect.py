"""Command `raptor inspect MODEL`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.options import InspectKeywords
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options


@expand_options
def inspect_command(
    model: ModelArgument,
    options: InspectKeywords,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Show what would happen to a model: operators, multiply-accumulates, crossbars of each layer, chip and host.

    Exit status: 0 every operator can be compiled, 2 some cannot, or bad input.

    Example: raptor inspect lenet5.onnx --xbar 128
    """
    # The front end takes a moment to import; `raptor --help` does without.
    from raptor.common.errors import UnsupportedError, UnsupportedNode
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.compiler.analysis.inspection import inspect, show_inspection, write_inspection

    found = inspect(model, **options)
    if json is not None:
        write_inspection(json, found)
    if not (quiet or file_access.is_stdout(json)):
        show_inspection(found, LiteralConsole())
    if found.unsupported:
        raise UnsupportedError([UnsupportedNode(n.node, n.op_type, n.reason) for n in found.unsupported])
