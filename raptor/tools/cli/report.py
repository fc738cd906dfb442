"""Commands `raptor report OUT` and `raptor compare OUT1 OUT2 ...`."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    out: Annotated[Path, typer.Argument(help="Program: directory or single file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write.", show_default="report.html, unless there is --json"),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PRESET", help="Architecture file, or preset.", show_default="arch.json of the program"
        ),
    ] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Execute and compare with onnxruntime too.")] = False,
    accuracy: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.json", help="What raptor accuracy --json has written. Repeatable."),
    ] = None,
    annotate: Annotated[
        Path | None,
        typer.Option("--annotate", metavar="FILE.onnx", help="Also write the model with the figures of each node."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for its numbers; - for the terminal.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Write one page that shows layers, chip, time, memory and messages of a program.

    Programs of other compilers work too; the page says what is not known of them.

    Example: raptor report out --open
    """
    # The page takes a moment to import; `raptor --help` does without.
    from raptor.common.files import file_access
    from raptor.tools.reporting.figure_export import report_json
    from raptor.tools.reporting.program_facts import gather_facts
    from raptor.tools.reporting.report_page import render_report
    from validator.accuracy.accuracy_report import read_report

    found = gather_facts(out, arch, validate=validate, accuracies=[read_report(file) for file in accuracy or ()])
    if json is not None:
        file_access.print_or_write("--json", json, report_json(found))
    if annotate is not None:
        from raptor.tools.reporting.annotated_model import annotate_model

        file_access.write_atomic("--annotate", annotate, annotate_model(out, found).SerializeToString())
    page = output or (Path("report.html") if json is None or open_ else None)
    if page is None:
        return
    file_access.write_atomic("-o", page, render_report(found).encode())
    if not (quiet or file_access.is_stdout(json)):
        print(f"{page}: {page.stat().st_size / 1e6:.1f} MB")
    if open_:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def compare_command(
    outs: Annotated[list[Path], typer.Argument(help="Two programs or more: directories or single files.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write a page too.", show_default=False)] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PRESET", help="Architecture file, or preset, for all.", show_default="of each program"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="File for CSV, a row for each program; - for the terminal.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="File for a table in Markdown; - for the terminal.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Show the figures of several programs side by side: mappings, chips, versions, compilers.

    Ratios are to the first one. JSON, CSV and Markdown have the numbers as they are, with units in the heads.

    Example: raptor compile lenet5.onnx --mapping raptor -o reference -q && raptor compare out reference -o compare.html
    """
    from raptor.common.errors import UserError
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.reporting import figure_export
    from raptor.tools.reporting.program_comparison import render_comparison, show_comparison
    from raptor.tools.reporting.program_facts import gather_facts

    if len(outs) < 2:
        raise UserError(f"compare {outs[0]}: at least two programs are needed; for one: raptor report {outs[0]}")
    tables = {"--json": json, "--csv": csv, "--markdown": markdown}
    printed = [option for option, path in tables.items() if file_access.is_stdout(path)]
    if len(printed) > 1:
        raise UserError(f"{' - and '.join(printed)} -: only one of them can have the terminal; give the others a file")
    if quiet and output is None and not any(tables.values()):
        raise UserError("compare -q: nothing would be left; add -o, --json, --csv or --markdown, or leave -q out")
    found = [gather_facts(out, arch) for out in outs]
    if output is not None:
        file_access.write_atomic("-o", output, render_comparison(found).encode())
    writers = {
        "--json": figure_export.compare_json,
        "--csv": figure_export.compare_csv,
        "--markdown": figure_export.compare_markdown,
    }
    for option, path in tables.items():
        if path is not None:
            file_access.print_or_write(option, path, writers[option](found))
    if not (quiet or printed):
        show_comparison(found, LiteralConsole())
