"""Command `raptor check OUT`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Argument(help="Program: a directory of streams, or one JSON file (also gzipped).")],
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PRESET", help="Architecture file, or preset.", show_default="arch.json beside the streams"
        ),
    ] = None,
    chip: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Chip file: nothing that is dead may be used.", show_default="chip.json beside them"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="File for SARIF, for CI; - for the terminal.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the counts only.")] = False,
) -> None:
    """Find problems that pimsim-nn would accept silently, in programs of any compiler.

    Exit status: 0 nothing worse than a note, 1 errors or warnings, 2 a program that cannot be read.

    Example: raptor check out --sarif findings.sarif
    """
    from raptor.common.errors import UserError
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from validator.checks import check
    from validator.checks.findings_output import is_clean, show, to_json, to_sarif

    if file_access.is_stdout(json) and file_access.is_stdout(sarif):
        raise UserError("--json - and --sarif -: only one of them can be printed")
    findings = check(out, arch, chip)
    for option, path, form in (("--json", json, to_json), ("--sarif", sarif, to_sarif)):
        if path is not None:
            file_access.print_or_write(option, path, form(findings))
    if not (file_access.is_stdout(json) or file_access.is_stdout(sarif)):
        show(findings, LiteralConsole(), quiet=quiet)
    raise typer.Exit(0 if is_clean(findings) else 1)
