"""The commands `raptor arch list|show|check|new`."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from raptor import arch as architectures
from raptor.arch import NETWORK_FILE, SOURCES, Arch, ArchFile
from raptor.arch.schema import field_model
from raptor.errors import UserError

app = typer.Typer(
    name="arch",
    help="Architecture files of pimsim-nn: presets, their sources, checks, new ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_command() -> None:
    """List the presets."""
    table = Table(box=None, pad_edge=False)
    for column in ("preset", "cores", "crossbars a core", "size", "cell bits", "what"):
        table.add_column(column, overflow="fold")
    for name in architectures.presets():
        chip = architectures.load(name)
        size = f"{chip.xbar_rows}x{chip.xbar_cols}"
        summary = SOURCES[name].summary
        table.add_row(name, str(chip.core_count), str(chip.xbars_per_core), size, str(chip.cell_bits), summary)
    Console(highlight=False).print(table)


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Preset or file.")],
    json: Annotated[bool, typer.Option("--json", help="Print the architecture file itself, every field.")] = False,
) -> None:
    """Show every field with its value, unit and meaning, and where a preset's numbers come from.

    Fields marked * are not named in the file: the value is the simulator's default.
    """
    file = architectures.load(name).file
    if json:
        print(_json(file).decode(), end="")
        return
    console = Console(highlight=False)
    table = Table("field", "value", "meaning", box=None, pad_edge=False)
    _add_fields(table, file, "")
    console.print(table)
    if source := SOURCES.get(name):
        for title, lines in (("", (source.summary,)), ("source: ", source.source), ("not known: ", source.unknown)):
            for line in lines:
                console.print(f"{title}{line}", markup=False, soft_wrap=True)


def _add_fields(table: Table, value: BaseModel, indent: str) -> None:
    model = type(value)
    for name, info in model.model_fields.items():
        inner = getattr(value, name)
        if field_model(model, name):
            table.add_row(f"[bold]{indent}{name}[/]", "", info.description or "")
            _add_fields(table, inner, indent + "  ")
        else:
            mark = "" if name in value.model_fields_set else " *"
            table.add_row(f"{indent}{name}", f"{_plain(inner)}{mark}", info.description or "")


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="Architecture file.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the counts only.")] = False,
) -> None:
    """Say what the simulator would do with a file: misspelt fields, impossible values, converters that do not fit.

    Exit status: 0 nothing worse than a note, 1 errors or warnings, 2 a file that cannot be read.
    """
    from validator.checks import check_chip
    from validator.checks.chip import read_chip
    from validator.checks.report import is_clean, show

    findings = check_chip(read_chip(file))
    show(findings, Console(), quiet=quiet)
    raise typer.Exit(0 if is_clean(findings) else 1)


@app.command("new")
def new_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path("arch.json"),
    base: Annotated[str, typer.Option("--from", help="Preset or file to start from.")] = "bench",
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of the chip.")] = None,
    xbars_per_core: Annotated[int | None, typer.Option(min=1, help="Crossbars of a core.")] = None,
    xbar: Annotated[str | None, typer.Option(help="Crossbar size: 128, or 128x256 (rows x columns).")] = None,
    cell_bits: Annotated[int | None, typer.Option(min=1, help="Bits of a crossbar cell.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write an architecture file and, beside it, a network table complete for every pair of cores."""
    chip = architectures.load(
        base, cores=cores, xbars_per_core=xbars_per_core, xbar=_size(xbar), cell_bits=cell_bits, element_bits=1
    )
    written = write_files(chip, output, force=force)
    for note in chip.notes:
        print(note)
    print(f"{output} and {written.name}: {chip.core_count} cores, {chip.xbars_per_core} crossbars a core")


def write_files(chip: Arch, output: Path, *, force: bool = False) -> Path:
    """Writes the architecture file and its network table; returns the path of the table."""
    table = output.parent / NETWORK_FILE
    for path in (output, table):
        if path.exists() and not force:
            raise UserError(f"{path}: exists; choose another with -o, or replace it with --force")
    try:
        output.write_bytes(_json(chip.file, exclude_unset=True))
        with table.open("wb") as stream:
            stream.writelines(architectures.write_network(chip))
    except OSError as e:
        raise UserError(f"{output}: cannot be written: {e.strerror or e}") from e
    return table


def _json(file: ArchFile, *, exclude_unset: bool = False) -> bytes:
    """`exclude_unset`: without fields that have the default because nobody named them."""
    return orjson.dumps(file.model_dump(mode="json", exclude_unset=exclude_unset), option=orjson.OPT_INDENT_2) + b"\n"


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(p.isascii() and p.isdigit() and 0 < int(p) < 2**16 for p in parts):
        raise UserError(f"--xbar {text}: expected a size such as 128, or 128x256 (rows x columns)")
    return int(parts[0]), int(parts[-1])
