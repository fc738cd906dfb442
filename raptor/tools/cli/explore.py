"""Commands `raptor explore new|run|show`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.common.errors import UserError

app = typer.Typer(
    name="explore",
    help="Studies: which chip and mapping are best for some models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="Study file (TOML).", show_default=False)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]


@app.command("new")
def new_command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="ONNX files.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path("study.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a study file with comments, to be changed.

    Example: raptor explore new lenet5.onnx -o study.toml
    """
    from raptor.common.files import file_access
    from raptor.tools.explore.study.study_template import render_template

    file_access.check_file_replaceable("-o", output, force=force)
    for model in models:
        if not model.is_file():
            raise UserError(f"{model}: no such file")
    paths = [m.resolve() if output.resolve().parent != Path.cwd() or m.is_absolute() else m for m in models]
    file_access.write_atomic("-o", output, render_template(paths).encode())
    if not quiet:
        print(f"{output}: change it, then: raptor explore run {output}")


@app.command("run")
def run_command(
    study: StudyFile,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="run.workers")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials.", show_default="study.trials")] = None,
    verify: Annotated[
        int, typer.Option(min=0, metavar="K", help="Afterwards compile and validate the K first points of the front.")
    ] = 0,
    pimsim: Annotated[
        Path | None, typer.Option(help="pimsim-nn's ChipTest, to run those points too.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a study, or go on with one that was stopped. Stop it at any time.

    Example: raptor explore run study.toml --trials 4
    """
    require_explore_packages()
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.cli.explore_view import show_front, show_verified, watch_study
    from raptor.tools.explore import study_driver
    from raptor.tools.explore.results.front_verification import verify_front as verified
    from raptor.tools.explore.study.study_file import read_study

    if pimsim is not None and not verify:
        raise UserError("--pimsim: only with --verify K, whose points it runs")
    found = study_driver.override_study(read_study(study), workers, trials)
    with watch_study(found, quiet=quiet) as watch:
        outcomes = study_driver.run_study(found, watch)
    if not quiet:
        show_front(found, outcomes, LiteralConsole())
    if verify:
        checks = verified(found, outcomes, verify, pimsim)
        if not quiet:
            show_verified(checks, LiteralConsole())
        raise typer.Exit(0 if all(check.passed for check in checks) else 1)


@app.command("show")
def show_command(
    study: StudyFile,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page.", show_default=False)] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="File for CSV; - for the terminal.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="File for Parquet.")] = None,
    quiet: Quiet = False,
) -> None:
    """Show the front of a study, and write its results. Works while it runs.

    Example: raptor explore show study.toml --html study.html --csv study.csv
    """
    require_explore_packages()
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.cli.explore_view import show_front
    from raptor.tools.explore.results import result_tables
    from raptor.tools.explore.study.study_file import read_study
    from raptor.tools.explore.study_driver import read_outcomes

    if csv is not None and file_access.is_stdout(csv) and file_access.is_stdout(json):
        raise UserError("--csv - and --json -: only one of them can have the terminal; give the other a file")
    found = read_study(study)
    outcomes = read_outcomes(found)
    report = result_tables.make_study_report(found, outcomes)
    rows = result_tables.flatten_report(report)
    if html is not None:
        from raptor.tools.explore.results.study_page import render_study_page

        file_access.write_atomic("--html", html, render_study_page(found, outcomes, rows).encode())
    if csv is not None:
        file_access.print_or_write("--csv", csv, result_tables.to_csv(rows))
    if json is not None:
        file_access.print_or_write("--json", json, file_access.model_to_json(report))
    if parquet is not None:
        with file_access.open_atomic("--parquet", parquet) as stream:
            result_tables.write_parquet(rows, stream)
    if not quiet and not file_access.is_stdout(csv) and not file_access.is_stdout(json):
        show_front(found, outcomes, LiteralConsole())


def require_explore_packages() -> None:
    """Raises `UserError` if a package of the extra `explore` is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("optuna", "sqlalchemy", "sklearn") if find_spec(name) is None]
    if missing:
        raise UserError(f"explore: needs {', '.join(missing)}: pip install 'raptor-crossbar[explore]'")
