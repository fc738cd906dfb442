"""Command `raptor accuracy OUT`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor.common.errors import UserError
from raptor.common.options.option_conflicts import is_on_command_line, refuse_options
from validator.cli_options import Cells, Crossbar, CrossbarSettings, Out

if TYPE_CHECKING:
    from validator.accuracy.accuracy_report import AccuracyReport

Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz|DIR",
        help="Inputs x and labels y, or a folder with index.csv.",
        show_default="only what converters lose",
    ),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUES", help="Settings to try: adc_bits=4:9, or read_noise=0,0.02,0.05."),
]
CalibrationData = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz|DIR", help="Inputs for --calibration and --trim, none of --data.", show_default="--data"
    ),
]
_WITH_DATA = {"sweep", "chips", "samples", "calibration", "calibration_data", "trim", "workers", "csv", "plot"}
_ANALOG = {"cells", "settings", "sweep", "chips", "calibration", "calibration_data", "trim"}


def accuracy_command(
    context: typer.Context,
    out: Out,
    data: Data = None,
    crossbar: Crossbar = None,
    cells: Cells = None,
    settings: CrossbarSettings = None,
    sweep: Sweep = None,
    chips: Annotated[int, typer.Option(min=1, max=1000, help="Chips, each with errors of its own.")] = 1,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many.", show_default="all")] = None,
    calibration: Annotated[int, typer.Option(min=1, help="Samples that set the ranges of calibrated converters.")] = 16,
    calibration_data: CalibrationData = None,
    trim: Annotated[bool, typer.Option("--trim", help="Trim each chip with all of --calibration-data first.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=256, show_default="all processors", help="Threads.")] = None,
    csv: Annotated[Path | None, typer.Option(help="File for the sweep as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.html", help="File for plots of the sweep.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")] = False,
) -> None:
    """Measure the accuracy of a compiled model on labelled data, on ideal crossbars or on those of a device.

    The streams are executed, with the errors of the crossbars in every mvmul. Without --data, only the layers whose
    sums the converters do not keep are listed.

    Example: raptor compile int8.onnx -o int8 -q && raptor accuracy int8 --crossbar sliced --cells isaac
    """
    from raptor.target.device_file import load_device
    from raptor.tools.cli.accuracy_view import parse_sweep, show_sample_progress
    from validator.accuracy.measure import check_calibration, measure_accuracy
    from validator.crossbar.chip_settings import parse_settings

    _check(context, data, crossbar, sweep, csv, plot)
    if trim and (crossbar != "noisy" or calibration_data is None):
        raise UserError("--trim: only with --crossbar noisy and --calibration-data, to which it fits the chips")
    given, swept = parse_settings("--with", settings or ()), parse_sweep(sweep or ())
    device = None if cells is None else load_device(cells)
    if is_on_command_line(context, "calibration") and (crossbar == "sliced" or crossbar == "noisy"):
        check_calibration(out, crossbar, device, given, swept)
    with show_sample_progress(data, swept, chips, quiet=quiet) as tick:
        report = measure_accuracy(
            out,
            data,
            crossbar=crossbar,
            device=device,
            settings=given,
            sweep=swept,
            chips=chips,
            samples=samples,
            calibration=calibration,
            calibration_data=calibration_data,
            trim=trim,
            workers=workers,
            tick=tick,
        )
    _write(report, csv, plot, json, quiet=quiet)


def _write(report: "AccuracyReport", csv: Path | None, plot: Path | None, json: Path | None, *, quiet: bool) -> None:
    """Writes the files of a report, and prints it."""
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.cli.accuracy_view import render_sweep_page
    from validator.accuracy.accuracy_report import show, to_csv, to_json

    if csv is not None:
        file_access.write_atomic("--csv", csv, to_csv(report))
    if plot is not None:
        file_access.write_atomic("--plot", plot, render_sweep_page(report))
    if json is not None:
        file_access.print_or_write("--json", json, to_json(report))
    if not file_access.is_stdout(json):
        show(report, LiteralConsole(), quiet=quiet)


def _check(
    context: typer.Context,
    data: Path | None,
    crossbar: str | None,
    sweep: list[str] | None,
    csv: Path | None,
    plot: Path | None,
) -> None:
    """Raises `UserError` for options that would have no effect, and for files that cannot be written."""
    from raptor.common.files import file_access
    from raptor.common.options import arguments

    is_analog = crossbar in ("sliced", "noisy")
    if data is None:
        refuse_options(context, _WITH_DATA, "only with --data")
        if not is_analog:
            raise UserError("say --data FILE.npz for accuracy, or --crossbar sliced for what converters lose")
    if not is_analog:
        refuse_options(context, _ANALOG, "only with --crossbar sliced or noisy")
    if not sweep:
        refuse_options(context, {"csv", "plot"}, "only with --sweep")
    for option, file in (("csv", csv), ("plot", plot)):
        if file is not None:
            file_access.refuse_stdout(f"--{option}", file)
            arguments.parse_new_file(option, file)
