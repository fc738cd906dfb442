"""Command `raptor explain OUT`."""

from pathlib import Path
from typing import Annotated

import typer


def explain_command(
    out: Annotated[Path, typer.Argument(help="Output directory of `raptor compile`.", show_default=False)],
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Simulate again with each part of the chip twice as fast: what would help."),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", help="File for the proof that no mapping has a smaller interval; - for the terminal."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print one line only: what limits the time.")] = False,
) -> None:
    """Say what the mapping chose for each layer, what else it might have chosen, and what limits the time.

    Exit status: 0 done, 2 bad input, 3 deadlock.

    Example: raptor explain out
    """
    # Compiler and simulator take a moment to import; `raptor --help` does without.
    from raptor.common.errors import UserError
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.compiler.analysis.explain import explain
    from raptor.tools.cli.explain_view import show_explanation, write_explanation

    if file_access.is_stdout(json) and file_access.is_stdout(certificate):
        raise UserError("--json - and --certificate -: only one of them can be printed")
    with LiteralConsole(stderr=True).status("simulating ..."):
        found = explain(out, faster=what_if, certificate=certificate)
    if json is not None:
        write_explanation(json, found)
    if not file_access.is_stdout(json) and not file_access.is_stdout(certificate):
        show_explanation(found, LiteralConsole(), quiet=quiet)
