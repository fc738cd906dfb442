"""Command `raptor simulate OUT`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raptor.common.errors import UserError
from raptor.common.options.option_conflicts import refuse_options
from validator.options import FEWEST_ROUNDS, MOST_ROUNDS, Mode

if TYPE_CHECKING:
    from validator.simulate.simulation_report import SimulationReport


def command(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Program: directory or single file.", show_default=False)],
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PRESET", help="Architecture file, or preset.", show_default="arch.json of the program"
        ),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="One sample, or many one after another.")] = "latency",
    samples: Annotated[
        int, typer.Option(min=FEWEST_ROUNDS, max=MOST_ROUNDS, help="Samples each core begins, in throughput mode.")
    ] = 16,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Samples a second, for the lifetime of rounds.", show_default="all that it can"),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace (for Perfetto) to this file.")] = None,
    power: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write power over time, in W by part, to this CSV file.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="Windows of power, such as 500ns or 10us.", show_default="1us")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    engine: Annotated[
        Literal["builtin", "pimsim"], typer.Option(help="Our cycle model, or the simulator itself.")
    ] = "builtin",
    pimsim: Annotated[
        Path | None, typer.Option(help="The simulator's ChipTest, for --engine pimsim.", show_default=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print one line only.")] = False,
) -> None:
    """Estimate time and energy of a program as pimsim-nn does, some hundred times faster.

    Programs of other compilers work too. Exit status: 0 done, 2 bad input, 3 deadlock.

    Example: raptor simulate out --trace trace.json
    """
    if mode == "latency":
        refuse_options(context, {"samples"}, "only with --mode throughput")
    if engine == "builtin":
        refuse_options(context, {"pimsim"}, "only with --engine pimsim")
    else:
        refuse_options(context, {"rate", "trace", "power", "window"}, "only with --engine builtin")
    files = {"trace_file": trace, "power_file": power}
    report = _simulate(out, arch, mode, samples, {"window": window, "rate": rate, **files}, engine, pimsim)
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from validator.simulate.simulation_report import show, to_json

    if json is not None:
        file_access.print_or_write("--json", json, to_json(report))
    if not file_access.is_stdout(json):
        show(report, LiteralConsole(), quiet=quiet)


def _simulate(
    out: Path,
    arch: str | None,
    mode: Mode,
    samples: int,
    options: Mapping[str, Any],
    engine: str,
    pimsim: Path | None,
) -> "SimulationReport":
    """Runs an engine, with a spinner. `options`: those that only the built-in engine has."""
    from raptor.common.terminal.console import LiteralConsole

    with LiteralConsole(stderr=True).status(
        "simulating (the first run on a computer compiles the model, some 20 s) ..."
    ):
        if engine != "builtin":
            return _run_pimsim(out, arch, mode, samples, pimsim)
        from validator.simulate.segment_simulation import simulate_any

        return simulate_any(out, arch, mode=mode, samples=samples, **options)


def _run_pimsim(out: Path, arch: str | None, mode: Mode, samples: int, pimsim: Path | None) -> "SimulationReport":
    if pimsim is None:
        raise UserError("--engine pimsim: say where the simulator is, with --pimsim PATH")
    from validator.program.segment_list import require_one_segment

    require_one_segment(out, "--engine pimsim")
    from validator.simulate.cycle.simulated_chip import find_arch_file
    from validator.simulate.pimsim import simulate_with_pimsim as run_pimsim

    return run_pimsim(out, arch or find_arch_file(out), pimsim, mode=mode, samples=samples)
