"""Commands `raptor arch list|show|check|new`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from raptor.common.errors import UserError
from raptor.common.options.option_conflicts import is_on_command_line, refuse_options
from raptor.options import CoreKeywords
from raptor.tools.cli import shell_completion
from raptor.tools.cli.option_parameters import QuietOption, expand_options

app = typer.Typer(
    name="arch",
    help="Architecture files of pimsim-nn: presets, their sources, checks, new ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_command() -> None:
    """List the presets.

    Example: raptor arch list
    """
    from raptor.tools.cli.arch_view import show_presets

    show_presets()


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Preset or file.", autocompletion=shell_completion.presets)],
    bits: Annotated[
        int, typer.Option(min=1, max=32, help="Bits of an activation and of a weight, for the derived figures.")
    ] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print derived figures and every field as JSON.")] = False,
) -> None:
    """Show what follows from a file (a product, peak, cells), then every field, and where a preset's numbers come from.

    Fields marked * are not named in the file: the value is the simulator's default.

    Example: raptor arch show isaac
    """
    from raptor.tools.cli.arch_view import show_architecture

    show_architecture(name, json=json, bits=bits)


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="Architecture file.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the counts only.")] = False,
) -> None:
    """Say what the simulator would do with a file: misspelt fields, impossible values, converters that do not fit.

    Exit status: 0 nothing worse than a note, 1 errors or warnings, 2 a file that cannot be read.

    Example: raptor arch check out/arch.json
    """
    from raptor.common.terminal.console import LiteralConsole
    from validator.checks import check_chip
    from validator.checks.arch_file import read_chip
    from validator.checks.findings_output import is_clean, show

    findings = check_chip(read_chip(file))
    show(findings, LiteralConsole(), quiet=quiet)
    raise typer.Exit(0 if is_clean(findings) else 1)


@app.command("device")
def device_command(
    name: Annotated[
        str | None,
        typer.Argument(help="Device file or preset; without it, all presets.", autocompletion=shell_completion.devices),
    ] = None,
) -> None:
    """List the presets of device files, or check and show one: cells, read-out, writes, and what is ideal.

    Exit status: 0 done, 2 a file that cannot be read or has mistakes.

    Example: raptor arch device reram-wan2022
    """
    from raptor.tools.cli.arch_view import show_device, show_devices

    if name is None:
        show_devices()
    else:
        show_device(name)


@app.command("defects")
@partial(expand_options, shows_defaults=False)
def defects_command(
    *,
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Preset or architecture file.", autocompletion=shell_completion.presets)
    ] = "bench",
    output: Annotated[Path, typer.Option("-o", "--output", help="Chip file to write.")] = Path("chip.json"),
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tester's list of defects.", show_default="drawn from --seed")
    ] = None,
    stuck: Annotated[float, typer.Option(min=0, max=1, help="Probability that a cell is stuck.")] = 0.0,
    on_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the stuck cells that are on.")] = 0.5,
    dead_rows: Annotated[float, typer.Option(min=0, max=1, help="Probability that a row is dead.")] = 0.0,
    dead_columns: Annotated[float, typer.Option(min=0, max=1, help="Probability that a column is dead.")] = 0.0,
    dead_converters: Annotated[float, typer.Option(min=0, max=1, help="Probability that an ADC is dead.")] = 0.0,
    dead_crossbars: Annotated[float, typer.Option(min=0, max=1, help="Probability that a crossbar is dead.")] = 0.0,
    dead_cores: Annotated[int, typer.Option(min=0, max=2**20, help="Number of dead cores.")] = 0,
    dead_links: Annotated[int, typer.Option(min=0, max=2**20, help="Number of dead links of the mesh.")] = 0,
    spare_crossbars: Annotated[int, typer.Option(min=0, max=2**20, help="More crossbars of a core.")] = 0,
    spare_columns: Annotated[int, typer.Option(min=0, max=2**20, help="More columns of an array.")] = 0,
    single: Annotated[
        bool, typer.Option("--single", help="A crossbar is one array; by default two, for pairs of cells.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Seed of what is drawn.")] = 0,
    sizes: CoreKeywords,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write a chip file: the defects of one chip, from a tester's CSV or drawn for a study.

    The CSV has columns core, crossbar, array, row, column, converter, link and defect (off, on or dead).

    Example: raptor arch defects bench --cell-bits 4 --stuck 0.02 --seed 7 -o chip.json
    """
    from raptor.target import arch as architectures
    from raptor.tools.repair.chip_writer import DefectRates, count_defects, make_size, write_chip_file

    if csv is not None:
        lines = {"dead_rows", "dead_columns", "dead_converters", "dead_crossbars", "dead_cores", "dead_links"}
        refuse_options(context, {"stuck", "on_share", "seed", *lines}, "not with --csv, which lists the defects")
    if not stuck:
        refuse_options(context, {"on_share"}, "only with --stuck")
    target = architectures.load(name, network=False, **sizes)
    size = make_size(target, 1 if single else 2, spare_crossbars, spare_columns)
    lines_of_arrays = (dead_rows, dead_columns, dead_converters)
    rates = DefectRates(stuck, on_share, *lines_of_arrays, dead_crossbars, dead_cores, dead_links)
    file = write_chip_file(output, size, rates, seed, csv, force=force)
    if not quiet:
        print(f"{output}: {count_defects(file)}")


@app.command("new")
@partial(expand_options, shows_defaults=False)
def new_command(
    *,
    context: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write; with --components, a folder.")] = Path(
        "arch.json"
    ),
    base: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FILE|PRESET",
            help="Preset or file to start from.",
            autocompletion=shell_completion.presets,
        ),
    ] = "bench",
    components: Annotated[
        str | None,
        typer.Option(metavar="FILE|example", help="Build the chip from its components.", show_default=False),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PART.NAME=VALUE", help="Another value of a component.", show_default=False),
    ] = None,
    witness: Annotated[
        bool, typer.Option("--witness", help="With --components: also estimate with hwcomponents (Python 3.12).")
    ] = False,
    sizes: CoreKeywords,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write an architecture file and, beside it, a network table complete for every pair of cores.

    The table of mychip.json is mychip.network.json, so that several chips live in one directory. With --components the
    folder gets arch.json, its table, and device.json if the file names a device.

    Example: raptor arch new -o mychip.json --from isaac --cores 64
    """
    from raptor.target import arch as architectures
    from raptor.tools.cli.arch_view import write_architecture, write_components

    if components is not None:
        if sizes or is_on_command_line(context, "base"):
            raise UserError("--components: the file has all sizes; change one with --set PART.NAME=VALUE")
        if not is_on_command_line(context, "output"):
            raise UserError("--components: say where the chip goes, with -o FOLDER")
        lines = write_components(components, changes or (), output, witness=witness, force=force)
        if not quiet:
            print("\n".join(lines))
        return
    refuse_options(context, {"changes", "witness"}, "only with --components")
    chip, written = write_architecture(architectures.describe_chip(base, **sizes), output, force=force)
    if quiet:
        return
    for note in chip.notes:
        print(note)
    print(f"{output} and {written.name}: {chip.core_count} cores, {chip.xbars_per_core} crossbars a core")
