"""Report of an accuracy measurement: as JSON, as CSV, and as tables."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from rich.table import Table

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.schema_types import JsonNumber, WallTimes, format_errors
from raptor.common.terminal.console import LiteralConsole
from validator.accuracy.statistics import ConfidenceInterval
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.lossless_proof import LayerProof
from validator.options import CrossbarKind

VERSION = 2
"""Format version of the JSON."""
_LIMIT_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class ChipResult:
    """Results of one chip, as shares of the samples. `top1` and `top5` are null without labels.

    `agreement`: samples with the same class as in onnxruntime. `top1_interval`: 95 % confidence interval over the
    choice of samples (Wilson).
    """

    seed: int | None
    top1: float | None
    top5: float | None
    agreement: float
    top1_interval: ConfidenceInterval | None


@dataclass(frozen=True, slots=True)
class LayerNoise:
    """Signal-to-noise ratio of a tensor against exact products; null: no difference."""

    node: str
    tensor: str
    snr_db: Annotated[JsonNumber, BeforeValidator(lambda value: np.inf if value is None else value)]


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """A combination of settings: means over chips. `interval`: of `top1` over chips, or over samples for one chip."""

    settings: Mapping[str, str]
    top1: float | None
    interval: ConfidenceInterval | None
    agreement: float
    chips: tuple[ChipResult, ...]


@dataclass(frozen=True, slots=True)
class AccuracyReport:
    """Result of a measurement as JSON; `version` changes with its fields.

    `top1`, `top5`, `agreement`: means over the chips (see `ChipResult`). `top1_of_chips`: 95 % confidence interval over
    the choice of chips (Student); null for one chip. `reference`: result of onnxruntime with optimisations off, on the
    same samples. `layers`: noise of the first chip. `converters`: losses for some input, proved from the weights.
    `cells_per_weight`: the largest number in any matrix. `device`: name of the device file, if any.
    """

    model: str
    crossbar: CrossbarKind
    device: str | None
    settings: Mapping[str, str]
    samples: int
    top1: float | None
    top5: float | None
    agreement: float | None
    top1_of_chips: ConfidenceInterval | None
    reference: ChipResult | None
    chips: tuple[ChipResult, ...]
    layers: tuple[LayerNoise, ...] = ()
    converters: tuple[LayerProof, ...] = ()
    cells_per_weight: int = 0
    sweep: tuple[AccuracyPoint, ...] = ()
    version: int = VERSION
    seconds: WallTimes = field(default_factory=dict[str, float])


def describe_setup(setup: ChipSetup | None) -> dict[str, str]:
    """Returns the settings of a chip as texts for the report, including which parts are ideal."""
    if setup is None:
        return {}
    adc, cells = setup.adc, setup.cells
    found = {
        "encoding": setup.encoding,
        "levels": setup.levels,
        "inputs": setup.inputs,
        "cell_bits": f"{setup.cell_bits}",
        "dac_bits": f"{setup.dac_bits}",
        "rows_at_once": "as many as lose nothing" if setup.lossless_rows else f"{setup.rows_at_once}",
        "converters": "ideal" if adc is None else f"{adc.bits} bits, {adc.range}",
    }
    if setup.cut != 1:
        found["cut_weights"] = f"{setup.cut:g}"
    if setup.kind == "sliced":
        return found
    if adc is not None:
        found["adc_noise"] = f"{adc.noise_lsb:g}" if adc.noise_lsb else "ideal"
    found |= {
        "programming": "ideal" if cells is None or not cells.programming else "as in the device file",
        "reads": "ideal" if cells is None or not (cells.read or cells.flicker) else "with noise",
        "drift": "ideal" if cells is None or cells.drift is None else f"after {setup.seconds:g} s",
        "idle cells": "programmed" if cells is None else cells.idle,
        "stuck cells": "none" if cells is None else f"{cells.stuck_off:g} off, {cells.stuck_on:g} on",
        "wires": "ideal" if cells is None or not cells.wire_ohm else f"{cells.wire_ohm:g} ohm a cell",
        "compensation": setup.compensation,
        "seed": f"{setup.seed}",
    }
    return found


def to_json(report: AccuracyReport) -> bytes:
    """Returns the report as JSON."""
    return orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n"


def read_report(path: Path) -> AccuracyReport:
    """Reads the JSON of a report. Raises `UserError` that names the file and the field at fault."""
    content = file_access.read_bytes(path.parent, path.name, limit_bytes=_LIMIT_BYTES)
    try:
        found = TypeAdapter(AccuracyReport).validate_json(content)
    except ValidationError as e:
        mistakes = "; ".join(format_errors(e, 3))
        raise UserError(f"{path}: not what this version of raptor accuracy --json writes: {mistakes}") from e
    if found.version != VERSION:
        raise UserError(f"{path}: of another version (format {found.version}, not {VERSION}): measure again")
    return found


def to_csv(report: AccuracyReport) -> bytes:
    """Returns the points of the sweep as CSV, with a line for each point and chip."""
    text = io.StringIO()
    names = [*(report.sweep[0].settings if report.sweep else ())]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "seed", "top1", "top5", "agreement", "samples"])
    for point in report.sweep:
        for chip in point.chips:
            row = (chip.seed, chip.top1, chip.top5, chip.agreement, report.samples)
            writer.writerow([*point.settings.values(), *("" if v is None else v for v in row)])
    return text.getvalue().encode()


def show(report: AccuracyReport, console: LiteralConsole, *, quiet: bool) -> None:
    """Prints the report."""
    if not quiet:
        console.print(_pairs({"crossbar": report.crossbar, **report.settings}))
        if report.sweep:
            console.print(_sweep(report))
        else:
            console.print(*_tables(report), sep="\n")
    for line in _verdict(report):
        console.print(line, soft_wrap=True)


def _tables(report: AccuracyReport) -> list[Table]:
    return [*([_converters(report)] if report.converters else []), *([_noise(report)] if report.layers else [])]


def _verdict(report: AccuracyReport) -> Iterator[str]:
    if report.reference is None:
        lossy = [p.layer for p in report.converters if not p.is_lossless]
        yield f"converters lose nothing in {len(report.converters) - len(lossy)} of {len(report.converters)} layers"
        return
    if report.top1 is None:
        yield f"agreement with onnxruntime {report.agreement:.2%} of {report.samples} samples"
        return
    reference = report.reference.top1
    yield (
        f"top-1 {report.top1:.2%}{_spread(report)} of {report.samples} samples; onnxruntime "
        f"{reference:.2%}, agreement {report.agreement:.2%}"
    )


def _spread(report: AccuracyReport) -> str:
    count = len(report.chips)
    found = report.chips[0].top1_interval if count == 1 else report.top1_of_chips
    what = "" if count == 1 else f", {count} chips"
    return "" if found is None else f" ({found.low:.1%} to {found.high:.1%}{what})"


def _converters(report: AccuracyReport) -> Table:
    table = Table(box=None, pad_edge=False, title="Converters, for cells without errors", title_justify="left")
    table.add_column("layer")
    for name in ("matrices", "rows at once", "passes", "columns", "lose something", "largest sum", "bits needed"):
        table.add_column(name, justify="right")
    for p in report.converters:
        lost = f"{p.losing}" if p.losing else "none"
        figures = (p.matrices, p.rows_at_once, p.parts, p.columns, lost, p.largest, p.needed_bits)
        table.add_row(p.layer, *map(str, figures))
    return table


def _noise(report: AccuracyReport) -> Table:
    table = Table(box=None, pad_edge=False, title="Signal to noise against exact products", title_justify="left")
    table.add_column("tensor")
    table.add_column("dB", justify="right")
    for layer in report.layers:
        table.add_row(layer.tensor, "no difference" if np.isposinf(layer.snr_db) else f"{layer.snr_db:.1f}")
    return table


def _sweep(report: AccuracyReport) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in report.sweep[0].settings:
        table.add_column(name, justify="right")
    for name in ("top-1", "95 %", "agreement"):
        table.add_column(name, justify="right")
    for point in report.sweep:
        top1 = "" if point.top1 is None else f"{point.top1:.2%}"
        interval = "" if point.interval is None else f"{point.interval.low:.1%} to {point.interval.high:.1%}"
        table.add_row(*point.settings.values(), top1, interval, f"{point.agreement:.2%}")
    return table


def _pairs(values: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, value)
    return table


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are known; None if none is."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
