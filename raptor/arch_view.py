"""What `raptor arch` shows and writes."""

from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from raptor import arch as architectures
from raptor import files
from raptor.arch import NETWORK_FILE, SOURCES, Arch, ArchFile
from raptor.arch.schema import field_model
from raptor.console import Console
from raptor.errors import UserError


def show_presets() -> None:
    """A line for each preset."""
    table = Table(box=None, pad_edge=False)
    for column in ("preset", "cores", "crossbars a core", "size", "cell bits", "what"):
        table.add_column(column, overflow="fold")
    for name in architectures.presets():
        chip = architectures.load(name)
        size = f"{chip.xbar_rows}x{chip.xbar_cols}"
        summary = SOURCES[name].summary
        table.add_row(name, str(chip.core_count), str(chip.xbars_per_core), size, str(chip.cell_bits), summary)
    Console().print(table)


def show_architecture(name: str, *, json: bool) -> None:
    """Every field of a preset or file, and where a preset's numbers come from."""
    file = architectures.load(name).file
    if json:
        files.print_json(_json(file))
        return
    console = Console()
    table = Table("field", "value", "meaning", box=None, pad_edge=False)
    _add_fields(table, file, "")
    console.print(table)
    if source := SOURCES.get(name):
        for title, lines in (("", (source.summary,)), ("source: ", source.source), ("not known: ", source.unknown)):
            for line in lines:
                console.print(f"{title}{line}", soft_wrap=True)


def write_files(chip: Arch, output: Path, *, force: bool = False) -> Path:
    """Writes the architecture file and its network table; returns the path of the table."""
    architectures.check_network_size(chip)
    table = output.parent / NETWORK_FILE
    if output.name == NETWORK_FILE:
        raise UserError(f"-o {output}: the network table beside it has this name; choose another")
    for path in (output, table):
        if path.exists() and not force:
            raise UserError(f"{path}: exists; choose another with -o, or replace it with --force")
    with files.whole("-o", output) as arch_file, files.whole("-o", table) as network_file:
        arch_file.write(_json(chip.file, exclude_unset=True))
        network_file.writelines(architectures.write_network(chip))
    return table


def _json(file: ArchFile, *, exclude_unset: bool = False) -> bytes:
    """`exclude_unset`: without fields that have the default because nobody named them."""
    return orjson.dumps(file.model_dump(mode="json", exclude_unset=exclude_unset), option=orjson.OPT_INDENT_2) + b"\n"


def _add_fields(table: Table, value: BaseModel, indent: str) -> None:
    model = type(value)
    for name, info in model.model_fields.items():
        inner = getattr(value, name)
        if field_model(model, name):
            table.add_row(Text(f"{indent}{name}", "bold"), "", info.description or "")
            _add_fields(table, inner, indent + "  ")
        else:
            mark = "" if name in value.model_fields_set else " *"
            table.add_row(f"{indent}{name}", f"{_plain(inner)}{mark}", info.description or "")


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]
