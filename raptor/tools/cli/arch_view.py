"""Prints and writes architectures for `raptor arch`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter
from rich.table import Table
from rich.text import Text

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.terminal.console import LiteralConsole
from raptor.compiler.analysis.peak_figures import ChipFigures, CrossbarProduct, PeakRate, compute_chip_figures
from raptor.target import arch as architectures
from raptor.target.arch import (
    NETWORK_FILE,
    PRESET_SOURCES,
    ChipDescription,
    Target,
)
from raptor.target.arch.area_table import AreaTable
from raptor.target.arch.chip_area import format_area
from raptor.target.arch.pimsim_schema import ArchFile, AreaConfig, field_model
from raptor.target.components.chip_folder import write_chip_folder
from raptor.target.components.component_file import read_component_file
from raptor.target.components.part_models import fill_from_models
from raptor.target.components.second_witness import compare_with_hwcomponents
from raptor.target.device_file import device_presets, load_device
from validator.simulate.simulation_report import energy_text, time_text


def show_presets() -> None:
    """Prints a line for each preset."""
    table = Table(box=None, pad_edge=False)
    for column in ("preset", "cores", "crossbars a core", "size", "cell bits", "what"):
        table.add_column(column, overflow="fold")
    for name in architectures.arch_presets():
        chip = architectures.load(name)
        size = f"{chip.xbar_rows}x{chip.xbar_cols}"
        summary = PRESET_SOURCES[name].summary
        table.add_row(name, str(chip.core_count), str(chip.xbars_per_core), size, str(chip.cell_bits), summary)
    LiteralConsole().print(table)


@dataclass(frozen=True, slots=True)
class ArchReport:
    """JSON of `arch show --json`: the name, every field of the file, and the figures derived from them."""

    source: str
    derived: ChipFigures
    file: ArchFile
    version: int = 1


def show_architecture(name: str, *, json: bool, bits: int = 8) -> None:
    """Prints the figures derived for elements of `bits`, every field, and the sources of the numbers of a preset."""
    description = architectures.describe_chip(name)
    chip = architectures.make_target(description, bits)
    if json:
        shown = TypeAdapter(ArchReport).dump_json(
            ArchReport(name, compute_chip_figures(chip), description.file), indent=2
        )
        file_access.print_json(shown + b"\n")
        return
    console = LiteralConsole()
    show_figures(compute_chip_figures(chip), console)
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("meaning")
    _add_fields(table, description.file, "")
    console.print()
    console.print(table)
    if chip.area is not None:
        console.print(_area_table(chip.area))
        for line in dict.fromkeys(part.source for part in chip.area.parts):
            console.print(f"area: {line}", soft_wrap=True)
    if source := PRESET_SOURCES.get(name):
        for title, lines in (("", (source.summary,)), ("source: ", source.source), ("not known: ", source.unknown)):
            for line in lines:
                console.print(f"{title}{line}", soft_wrap=True)


def _area_table(area: AreaTable) -> Table:
    """Returns a table of the areas of one part each."""
    table = Table(box=None, pad_edge=False)
    for column in ("part", "count", "um2 of one", "from", "to", "kind"):
        table.add_column(column, justify="left" if column in ("part", "kind") else "right", no_wrap=True)
    for part in area.parts:
        sizes = ("not known" if um2 is None else f"{um2:,.4g}" for um2 in (part.um2, part.low_um2, part.high_um2))
        table.add_row(part.name, f"{part.count:g} a {part.level}", *sizes, part.kind)
    return table


def show_figures(found: ChipFigures, console: LiteralConsole) -> None:
    """Prints the figures of one product, the peak figures of the chip, and a list of effects that are not modelled."""
    product = found.product
    console.print(
        f"A product (mvmul) of {found.bits} bits on one crossbar: {product.inputs} x {product.outputs} weights, "
        f"{time_text(_short(product.time_ns))}, {_energy(product.energy_pj)}",
        style="bold",
        soft_wrap=True,
    )
    console.print(_parts(product))
    console.print()
    totals = Table(show_header=False, box=None, pad_edge=False)
    totals.add_column(style="bold", no_wrap=True)
    totals.add_column(overflow="fold")
    for name, value in format_chip_figures(found):
        totals.add_row(name, value)
    console.print(totals)


def _parts(product: CrossbarProduct) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for column in ("time", "", "energy", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for name, part in product.parts.items():
        time, energy = time_text(_short(part.time_ns)), energy_text(_short(part.energy_pj))
        shares = (_share(part.time_ns, product.time_ns), _share(part.energy_pj, product.energy_pj))
        table.add_row(name, time, shares[0], energy, shares[1])
    return table


def format_chip_figures(found: ChipFigures) -> Iterator[tuple[str, str]]:
    """Yields name and formatted value of each derived figure, in the order shown."""
    product, peak = found.product, found.peak
    yield (
        "steps",
        f"{_count(product.slices, 'slice')} of the input x {_count(product.passes, 'pass')} ({product.rows} rows by "
        f"{_count(product.dacs, 'DAC')}), each {_count(product.conversions, 'conversion')} "
        f"({product.columns} columns by {_count(product.adcs, 'ADC')})",
    )
    yield "peak", f"{_rate(peak.crossbars)}: all {found.crossbars:,} crossbars busy; a MAC is 2 operations"
    if peak.port.tops < peak.crossbars.tops:
        yield "", f"at most {_rate(peak.port)}: one port of local memory a core, {_groups(peak.port)}"
    if peak.in_flight.tops < peak.port.tops:
        begun = f"and {_count(found.rob_size, 'instruction')} in flight a core (rob_size)"
        yield "", f"at most {_rate(peak.in_flight)}: {begun}, {_groups(peak.in_flight)}"
    yield "cells", f"{found.cells:,}, for {found.weights:,} weights of {found.bits} bits"
    if peak.crossbars.tops_per_w is None:
        yield "TOPS/W", "not known: the file has no power of crossbars and converters"
    yield "static power", f"{found.static_mw:,.6g} mW, cores and global memory, as far as it is counted"
    if found.uncounted_static_mw:
        rate = found.tops_per_w_with_uncounted
        with_it = "" if rate is None else f"; with it {rate:,.4g} TOPS/W"
        yield "", f"{found.uncounted_static_mw:,.6g} mW more of converters and buffers is not counted{with_it}"
    per_area = "" if found.tops_per_mm2 is None else f"; {found.tops_per_mm2:,.3g} TOPS/mm2 of {found.bits} bits"
    yield "area", f"{format_area(found.area)}{per_area}"
    largest = sorted(found.area.parts_mm2.items(), key=lambda part: -part[1])
    if len(largest) > 1:
        yield "", ", ".join(f"{name} {mm2:.3g}" for name, mm2 in largest[:6])
    for k, what in enumerate(found.not_modelled):
        yield "not modelled" if k == 0 else "", what


def _count(number: int, noun: str) -> str:
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def _groups(peak: PeakRate) -> str:
    return f"groups of {_count(peak.group_xbars, 'crossbar')}"


def _rate(peak: PeakRate) -> str:
    tops = f"{peak.tops:,.4g} TOPS"
    if peak.tops_per_w is None:
        return tops
    return f"{tops}, {peak.tops_per_w:,.4g} TOPS/W"


def _energy(pj: float) -> str:
    return energy_text(_short(pj)) if pj else "energy not in the file"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def show_devices() -> None:
    """Prints a line for each preset of device files."""
    table = Table(box=None, pad_edge=False)
    for column in ("preset", "cells", "encoding", "converters", "writes"):
        table.add_column(column, overflow="fold")
    for name in device_presets():
        device = load_device(name)
        adc, cells = device.read_out.adc, device.cells
        table.add_row(
            name,
            "ideal" if cells is None else f"{cells.off:g} to {cells.on:g} {cells.unit}",
            device.read_out.encoding,
            "ideal" if adc is None else f"{adc.bits} bits, {adc.range}",
            "not known" if not device.write.ns else f"{device.write.ns:g} ns a {device.write.unit}",
        )
    LiteralConsole().print(table)


def show_device(name: str) -> None:
    """Prints every field of a device file with its meaning, and the source of the file."""
    device, console = load_device(name), LiteralConsole()
    table = Table(box=None, pad_edge=False)
    for column in ("field", "value", "meaning"):
        table.add_column(column, no_wrap=column == "field", overflow="fold")
    _add_device(table, device, "")
    console.print(table)
    console.print(f"source: {device.source}", soft_wrap=True)


def _add_device(table: Table, value: BaseModel, indent: str) -> None:
    for name, info in type(value).model_fields.items():
        inner = getattr(value, name)
        if name in ("version", "source"):
            continue
        if isinstance(inner, BaseModel):
            table.add_row(Text(f"{indent}{name}", "bold"), "", info.description or "")
            _add_device(table, inner, indent + "  ")
        elif isinstance(inner, tuple) and inner and isinstance(inner[0], BaseModel):
            for part in cast(tuple[BaseModel, ...], inner):
                table.add_row(Text(f"{indent}{name}", "bold"), "", info.description or "")
                _add_device(table, part, indent + "  ")
        else:
            shown = "none" if inner is None or inner == () else str(cast(object, inner))
            table.add_row(f"{indent}{name}", shown, info.description or "")


def write_architecture(chip: ChipDescription, output: Path, *, force: bool = False) -> tuple[Target, Path]:
    """Writes an architecture file and its network table. Returns the chip and the path of the table.

    `chip.json` has its table in `chip.network.json`, so that several chips live in one directory.
    """
    target = architectures.make_target(chip, 1)
    architectures.check_network_size(target)
    table = output.parent / f"{output.stem}.{NETWORK_FILE}"
    for path in (output, table):
        if path.exists() and not force:
            raise UserError(f"{path}: exists; choose another with -o, or replace it with --force")
    with file_access.open_atomic("-o", output) as arch_file, file_access.open_atomic("-o", table) as network_file:
        arch_file.write(_json(_with_table(chip.file, table.name), exclude_unset=True))
        network_file.writelines(architectures.write_network(target))
    return target, table


def write_components(
    source: str, changes: Sequence[str], folder: Path, *, witness: bool = False, force: bool = False
) -> list[str]:
    """Writes the chip of a component file to a folder: architecture, network table and device. Returns a description.

    With `witness` it has a line for each part that the package hwcomponents estimates, too.

    Raises `UserError` for a file that is wrong, and for files in the folder that would be replaced without `force`.
    """
    parts = read_component_file(source, changes)
    compared = compare_with_hwcomponents(fill_from_models(parts)) if witness else []
    target, names = write_chip_folder(parts, folder, force=force)
    found = compute_chip_figures(target)
    return [
        f"{folder}: {', '.join(names)}: {target.core_count} cores, {target.xbars_per_core} crossbars a core",
        f"a product takes {time_text(_short(found.product.time_ns))}, {_energy(found.product.energy_pj)}",
        f"area {format_area(found.area)}",
        *compared,
    ]


def _with_table(file: ArchFile, name: str) -> ArchFile:
    """Returns the file with `name` as the path of its network table."""
    network = file.chip_config.network_config.model_copy(update={"net_config_file_path": name})
    chip = file.chip_config.model_copy(update={"network_config": network})
    return file.model_copy(update={"chip_config": chip})


def _json(file: ArchFile, *, exclude_unset: bool = False) -> bytes:
    """Returns the file as JSON. `exclude_unset`: without the fields that were not set, which have their default."""
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
    if isinstance(value, AreaConfig):
        return f"{len(value.parts)} parts"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]
