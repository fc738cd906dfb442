"""The commands `raptor report OUT` and `raptor compare OUT1 OUT2 ...`."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    out: Annotated[Path, typer.Argument(help="Program: directory or single file.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path("report.html"),
    arch: Annotated[
        str | None, typer.Option(help="Architecture file, or preset.", show_default="arch.json of the program")
    ] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Execute and compare with onnxruntime too.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Write one page that shows layers, chip, time, memory and messages of a program.

    Programs of other compilers work too; the page says what is not known of them.

    Example: raptor report out --open
    """
    # The page takes a moment to import; `raptor --help` does without.
    from raptor import files
    from raptor.reporting.facts import gather
    from raptor.reporting.page import report_page

    files.write_for("-o", output, report_page(gather(out, arch, validate=validate)).encode())
    if not quiet:
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    if open_:
        import webbrowser

        webbrowser.open(output.resolve().as_uri())


def compare_command(
    outs: Annotated[list[Path], typer.Argument(help="Two programs or more: directories or single files.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write a page too.", show_default=False)] = None,
    arch: Annotated[
        str | None, typer.Option(help="Architecture file, or preset, for all.", show_default="of each program")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Show the figures of several programs side by side: mappings, chips, versions, compilers.

    Ratios are to the first one.

    Example: raptor compile lenet5.onnx --mapping raptor -o reference -q && raptor compare out reference -o compare.html
    """
    from raptor import files
    from raptor.console import Console
    from raptor.errors import UserError
    from raptor.reporting.comparison import compare_page, show
    from raptor.reporting.facts import gather

    if len(outs) < 2:
        raise UserError(f"compare {outs[0]}: at least two programs are needed; for one: raptor report {outs[0]}")
    found = [gather(out, arch) for out in outs]
    if output is not None:
        files.write_for("-o", output, compare_page(found).encode())
    if not quiet:
        show(found, Console())
