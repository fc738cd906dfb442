"""Command `raptor yield OUT --data FILE`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor.common.errors import UserError
from raptor.tools.cli.option_parameters import QuietOption
from validator.cli_options import Cells, CrossbarSettings, Out

if TYPE_CHECKING:
    from raptor.tools.repair.measure_yield import YieldReport


def yield_command(
    out: Out,
    data: Annotated[Path, typer.Option(metavar="FILE.npz|DIR", help="Inputs x and labels y.", show_default=False)],
    rates: Annotated[str, typer.Option(metavar="R,R", help="Probabilities that a cell is stuck.")] = "0.01,0.02,0.05",
    methods: Annotated[
        str, typer.Option(metavar="M,M", help="Repairs: written, nearest, signs, sums, crossbars.")
    ] = "nearest,sums,crossbars",
    least: Annotated[float, typer.Option(min=0, max=1, help="Top-1 of a good chip.")] = 0.97,
    chips: Annotated[int, typer.Option(min=1, max=10**6, help="Chips of each rate.")] = 100,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many.", show_default="all")] = None,
    cells: Cells = None,
    settings: CrossbarSettings = None,
    on_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the stuck cells that are on.")] = 0.5,
    dead_columns: Annotated[float, typer.Option(min=0, max=1, help="Probability that a column is dead.")] = 0.0,
    dead_rows: Annotated[float, typer.Option(min=0, max=1, help="Probability that a row is dead.")] = 0.0,
    spare_columns: Annotated[int, typer.Option(min=0, max=1024, help="More columns of an array.")] = 0,
    candidates: Annotated[
        int, typer.Option(min=1, max=1024, help="Crossbars of a core that a repair chooses from.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Seed of the first chip.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, max=256, show_default="all processors", help="Threads.")] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler, whose workers measure the chips.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    csv: Annotated[Path | None, typer.Option(help="File for the table as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="File for a plot of the table.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Tell which share of random chips is accurate enough, by rate of stuck cells and by method of repair.

    Each method does what the one before it does, and more: cells as if none was stuck (written), the nearest weight,
    columns stored negated (signs), free weights for what is left (sums), and the best crossbars of a core.

    Example: raptor yield s --data data.npz --rates 0.02,0.05 --chips 2 --cells reram-wan2022
    """
    from raptor.target.device_file import load_device
    from raptor.tools.repair.draw_defects import DefectRates
    from raptor.tools.repair.measure_yield import YieldSource, YieldTask, measure_yield
    from validator.crossbar.chip_settings import parse_settings

    _check_options(scheduler, workers, csv, plot)
    task = YieldTask(
        rates=parse_rates(rates),
        others=DefectRates(on_share=on_share, dead_columns=dead_columns, dead_rows=dead_rows),
        methods=parse_methods(methods),
        chips=chips,
        seed=seed,
        least=least,
        candidates=candidates,
        spare_columns=spare_columns,
        workers=workers,
        scheduler=scheduler,
    )
    device, given = None if cells is None else load_device(cells), parse_settings("--with", settings or ())
    report = measure_yield(YieldSource(out, data, samples, device, given), task, _tell_time(quiet))
    _write(report, csv, plot, json, quiet=quiet)


def _check_options(scheduler: str | None, workers: int | None, csv: Path | None, plot: Path | None) -> None:
    """Raises `UserError` for threads beside a cluster, and for files that cannot be written."""
    from raptor.common.files import file_access
    from raptor.common.options import arguments

    if scheduler is not None and workers is not None:
        raise UserError("--workers: not with --scheduler, which has workers of its own")
    for option, file in (("csv", csv), ("plot", plot)):
        if file is not None:
            file_access.refuse_stdout(f"--{option}", file)
            arguments.parse_new_file(option, file)


def _tell_time(quiet: bool) -> Callable[[int, int, float], None]:
    """Returns a function that tells, after the first chip, how long the others will take."""
    from raptor.common.terminal.console import LiteralConsole

    told = LiteralConsole(stderr=True)

    def tick(done: int, count: int, left_s: float) -> None:
        if done == 1 and not quiet and count > done:
            told.print(f"{count} chips: time left {left_s:.0f} s")

    return tick


def _write(report: "YieldReport", csv: Path | None, plot: Path | None, json: Path | None, *, quiet: bool) -> None:
    """Writes the files of a report, and prints it."""
    from pydantic import TypeAdapter

    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.repair.yield_plot import render_yield_page

    if plot is not None:
        file_access.write_atomic("--plot", plot, render_yield_page(report))
    if csv is not None:
        file_access.write_atomic("--csv", csv, "".join(f"{line}\n" for line in to_csv(report)).encode())
    if json is not None:
        file_access.print_or_write("--json", json, TypeAdapter(type(report)).dump_json(report, indent=2) + b"\n")
    if not file_access.is_stdout(json):
        console = LiteralConsole()
        for line in show_yield(report, quiet=quiet):
            console.print(line, soft_wrap=True)


def parse_methods(text: str) -> list[str]:
    """Parses names of methods, separated by commas. Raises `UserError` for others, and for one that is repeated."""
    from raptor.tools.repair.measure_yield import METHODS

    found = text.split(",")
    if not set(found) <= set(METHODS) or len(set(found)) != len(found):
        raise UserError(f"--methods {text}: expected different ones of {', '.join(METHODS)}")
    return found


def parse_rates(text: str) -> list[float]:
    """Parses probabilities, separated by commas. Raises `UserError` for other texts, and for one that is repeated."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--rates {text}: expected numbers from 0 to 1, such as 0.01,0.05") from None
    if not all(0 <= rate <= 1 for rate in found) or len(set(found)) != len(found):
        raise UserError(f"--rates {text}: expected different numbers from 0 to 1, such as 0.01,0.05")
    return found


def show_yield(report: "YieldReport", *, quiet: bool) -> Iterator[str]:
    """Yields the lines of a report; `quiet`: only the shares."""
    if not quiet:
        below = ", below --least" if report.exact < report.least else ""
        exact = f"{report.samples} samples: {report.exact:.2%} without defects{below}"
        yield f"{report.model}, encoding {report.encoding}, {exact}"
        least = f"at least {report.least:.1%}"
        yield f"{'stuck':>6}  {'method':9}  chips  {least:>17}  {'95 %':>15}  {'mean':>7}  lowest"
    for p in report.points:
        interval = f"{p.interval.low:.1%} to {p.interval.high:.1%}"
        shown = f"{p.stuck:6.2%}  {p.method:9}  {p.chips:5}  {p.share:17.1%}"
        yield shown if quiet else f"{shown}  {interval:>15}  {p.mean:7.2%}  {p.lowest:6.2%}"


def to_csv(report: "YieldReport") -> Iterator[str]:
    """Yields the lines of a table: a line for each rate and method."""
    yield "stuck,method,chips,good,share,low,high,mean,lowest"
    for p in report.points:
        figures = (p.share, p.interval.low, p.interval.high, p.mean, p.lowest)
        yield ",".join([f"{p.stuck:g}", p.method, f"{p.chips}", f"{p.good}", *(f"{x:.6f}" for x in figures)])
