"""Command `raptor validate OUT`, also `python -m validator OUT`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raptor.common.errors import RaptorError, UserError
from raptor.common.options.option_conflicts import refuse_options
from validator.cli_options import Cells, Crossbar, CrossbarSettings, Device, Inputs, Out
from validator.options import DEFAULT_TOLERANCE, FEWEST_SAMPLES, MOST_SAMPLES, CrossbarKind, Engine, Schedule

if TYPE_CHECKING:
    from validator.judge.validation_report import ValidationReport
    from validator.program.program import LoadedProgram


Seed = Annotated[int, typer.Option(min=0, help="Seed of the first random input; later ones use the next seeds.")]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Random inputs to try.",
        show_default=f"as many as are quick, {FEWEST_SAMPLES} to {MOST_SAMPLES}",
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Largest error of floats, relative to the values near; 0: equal numbers.",
        show_default=f"{DEFAULT_TOLERANCE:g}",
    ),
]
EngineOption = Annotated[
    Engine, typer.Option(help="numba: compiled; python: the slow reference; auto: what is quicker.")
]
JUnit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="File for JUnit's XML: a test case for each tensor.")
]
MaxSteps = Annotated[
    int | None, typer.Option(min=1, help="Stop after about so many instructions.", show_default="no limit")
]


def command(
    context: typer.Context,
    out: Out,
    inputs: Inputs = None,
    seed: Seed = 0,
    samples: Samples = None,
    tolerance: Tolerance = None,
    layers: Annotated[bool, typer.Option("--layers", help="Compare every intermediate tensor too.")] = False,
    engine: EngineOption = "auto",
    schedule: Annotated[Schedule, typer.Option(help="Order in which cores run.")] = "block",
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    junit: JUnit = None,
    device: Device = None,
    crossbar: Crossbar = None,
    cells: Cells = None,
    settings: CrossbarSettings = None,
    max_steps: MaxSteps = None,
    no_hash: Annotated[bool, typer.Option("--no-hash", help="Do not check the hashes of the files.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")] = False,
) -> None:
    """Execute a compiled model and compare it with onnxruntime.

    An error above the tolerance passes if the output is as near to the model in float64 as float32 can be.
    Integers have no tolerance: each must be the one that ONNX defines.

    Exit status: 0 the outputs agree, 1 they do not, 2 bad input, 3 deadlock.

    Example: raptor validate out --layers
    """
    # numpy, pydantic and the engine take half a second to import; `--help` does without.
    from validator.validate import validate

    _refuse_unused(context, inputs, device)
    programmed = _programmed(context, crossbar, cells, settings or ())
    _check_new(junit)
    write = partial(_write, out, json, junit)
    chips = nullcontext() if device is None else _open(context, device)
    try:
        with chips as crossbars:
            report = validate(
                out,
                inputs=inputs or (),
                seed=seed,
                samples=samples,
                tolerance=tolerance,
                layers=layers,
                engine=engine,
                schedule=schedule,
                check_hashes=not no_hash,
                max_steps=max_steps,
                write=crossbars,
                crossbars=programmed,
            )
    except RaptorError as e:
        write(_failure(e, tolerance))
        raise
    write(report)
    _print(report, crossbars, json, quiet=quiet)
    raise typer.Exit(0 if report.verdict == "pass" else 1)


def _refuse_unused(context: typer.Context, inputs: Sequence[str] | None, device: str | None) -> None:
    """Refuses options that would have no effect."""
    if inputs:
        refuse_options(context, {"seed", "samples"}, "not with --input, which gives the one input to run")
    if device is not None:
        refuse_options(context, {"engine"}, "not with --device, beside which the engine is the reference")


def _check_new(junit: Path | None) -> None:
    """Refuses a file for JUnit's XML that could not be written later."""
    from raptor.common.files import file_access
    from raptor.common.options import arguments

    if junit is not None:
        file_access.refuse_stdout("--junit", junit)
        arguments.parse_new_file("junit", junit)


def _write(out: Path, json: Path | None, junit: Path | None, report: "ValidationReport") -> None:
    """Writes the files about a comparison that the command line asks for."""
    from raptor.common.files import file_access
    from validator.judge.junit import to_junit
    from validator.judge.validation_report import to_json

    if json is not None:
        file_access.print_or_write("--json", json, to_json(report))
    if junit is not None:
        file_access.write_atomic("--junit", junit, to_junit(report, out.name))


def _failure(error: RaptorError, tolerance: float | None) -> "ValidationReport":
    """Returns the report of a program that could not be run."""
    from validator.errors import DeadlockError
    from validator.judge.validation_report import ValidationReport

    verdict = "deadlock" if isinstance(error, DeadlockError) else "bad input"
    return ValidationReport(verdict, DEFAULT_TOLERANCE if tolerance is None else tolerance, message=str(error))


def _print(report: "ValidationReport", crossbars: Any, json: Path | None, *, quiet: bool) -> None:
    """Prints the report, and what an opened device tells, unless the terminal gets the JSON."""
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from validator.judge.validation_report import show

    if not file_access.is_stdout(json):
        console = LiteralConsole()
        show(report, console, quiet=quiet)
        for line in (crossbars or ()) if not quiet else ():
            console.print(line)


def _programmed(
    context: typer.Context, crossbar: CrossbarKind | None, cells: str | None, settings: Sequence[str]
) -> "Callable[[LoadedProgram], LoadedProgram] | None":
    """Returns a function that installs the crossbars of the command line in a program; None if they are exact."""
    if crossbar not in ("sliced", "noisy"):
        refuse_options(context, {"cells", "settings"}, "only with --crossbar sliced or noisy")
    if crossbar is None:
        return None
    from validator.execution.crossbar_selection import select_crossbars

    refuse_options(context, {"device"}, "not with --crossbar: a device has crossbars of its own")
    return select_crossbars(crossbar, cells, settings)


def _open(context: typer.Context, device: str) -> AbstractContextManager[Any]:
    """Opens a device through the command line of `raptor`: the validator itself knows no device."""
    if context.obj is None:
        raise UserError(f"--device {device}: only with `raptor validate`")
    return context.obj(device)
