"""Accuracy section of the report: measurements side by side, each layer, and accuracy over the settings of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raptor.tools.reporting.plot_parts import PALETTE, PlotFigure, make_axis
from raptor.tools.reporting.program_facts import ProgramFacts
from raptor.tools.reporting.report_tables import ReportCell, ReportColumn, ReportTable
from validator.accuracy.accuracy_report import AccuracyPoint, AccuracyReport
from validator.crossbar.lossless_proof import LayerProof

_NOTHING = ReportCell("", -1)


def make_accuracy_table(reports: Sequence[AccuracyReport]) -> ReportTable:
    """Returns a table with a row for each measurement."""
    columns = (
        ReportColumn("crossbars", "how products are computed, or the device", number=False),
        ReportColumn("top-1", "share of samples that are classified rightly: mean of the chips"),
        ReportColumn("95 %", "what other samples, or other chips, would give", number=False),
        ReportColumn("top-5", "share of samples whose label is among the five largest scores", detail=True),
        ReportColumn("agreement", "share of samples with the largest score where onnxruntime has it"),
        ReportColumn("onnxruntime", "its top-1 on the same samples, optimisations off"),
        ReportColumn("samples"),
        ReportColumn("chips", "each with errors of its own"),
        ReportColumn("lossless layers", "whose converters keep every sum, whatever the input"),
        ReportColumn("settings", number=False),
    )
    return ReportTable("accuracy-devices", columns, tuple(map(_device_row, reports)))


def _device_row(report: AccuracyReport) -> tuple[ReportCell, ...]:
    interval = report.top1_of_chips or (report.chips[0].top1_interval if len(report.chips) == 1 else None)
    kept = sum(p.is_lossless for p in report.converters)
    return (
        ReportCell(_name(report), _name(report)),
        _share(report.top1),
        ReportCell("" if interval is None else f"{interval.low:.1%} to {interval.high:.1%}", ""),
        _share(report.top5),
        _share(report.agreement),
        _share(report.reference.top1 if report.reference else None),
        ReportCell(f"{report.samples:,}", report.samples),
        ReportCell(f"{len(report.chips)}", len(report.chips)),
        ReportCell(f"{kept} of {len(report.converters)}", kept) if report.converters else _NOTHING,
        ReportCell(_said(report), ""),
    )


def make_noise_table(facts: ProgramFacts) -> ReportTable:
    """Returns a table with a row for each layer that has matrices or a compared result, for each measurement."""
    columns = (
        ReportColumn("layer", number=False),
        ReportColumn("crossbars", number=False),
        ReportColumn("signal to noise", "dB, against exact products, on the first samples"),
        ReportColumn(
            "lose something", "columns of cells for which an input exists whose sum the converter does not keep"
        ),
        ReportColumn("largest sum", "of a column: all its rows get the largest digit"),
        ReportColumn("bits needed", "of a converter that loses nothing"),
        ReportColumn("rows at once", "driven at the same time"),
        ReportColumn("passes", "how often a crossbar is read for one product", detail=True),
        ReportColumn("matrices", detail=True),
    )
    order = {layer.name: k for k, layer in enumerate(facts.layers)}
    rows = (row for one in facts.accuracies for row in _layer_rows(one, order))
    return ReportTable("accuracy-layers", columns, tuple(rows), folds=True)


def _layer_rows(report: AccuracyReport, order: Mapping[str, int]) -> Iterator[tuple[ReportCell, ...]]:
    """Yields a row for each layer of a measurement, in the order of the model."""
    proofs, noise = {p.layer: p for p in report.converters}, {n.node: n.snr_db for n in report.layers}
    for layer in sorted({*noise, *proofs}, key=lambda name: (order.get(name, len(order)), name)):
        proof = proofs.get(layer)
        proved = (_NOTHING,) * 6 if proof is None else _proved(proof)
        yield (ReportCell(layer, layer), ReportCell(_name(report), _name(report)), _decibels(noise.get(layer)), *proved)


def _proved(proof: LayerProof) -> tuple[ReportCell, ...]:
    numbers = (proof.largest, proof.needed_bits, proof.rows_at_once, proof.parts, proof.matrices)
    lossy = ReportCell(f"{proof.losing:,} of {proof.columns:,}", proof.losing, proof.losing / (proof.columns or 1))
    return (lossy, *(ReportCell(f"{n:,}", n) for n in numbers))


def _decibels(value: float | None) -> ReportCell:
    if value is None:
        return _NOTHING
    return ReportCell("no difference", np.finfo(float).max) if np.isposinf(value) else ReportCell(f"{value:.1f}", value)


def _share(value: float | None) -> ReportCell:
    return _NOTHING if value is None else ReportCell(_percent(value), value, value)


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _name(report: AccuracyReport) -> str:
    return report.crossbar if report.device is None else f"{report.device} ({report.crossbar})"


def _said(report: AccuracyReport) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.settings.items()) or "exact products"


def draw_sweep(report: AccuracyReport, name: str) -> PlotFigure:
    """Returns a plot of accuracy over the first setting of a sweep, with a line for each combination of all others."""
    measured = report.sweep[0].top1 is not None
    across, *others = report.sweep[0].settings
    lines: dict[str, list[AccuracyPoint]] = {}
    for point in report.sweep:
        lines.setdefault(", ".join(f"{other} {point.settings[other]}" for other in others), []).append(point)
    traces = [_trace(label, points, across, k, measured) for k, (label, points) in enumerate(lines.items())]
    layout = {
        "xaxis": make_axis(across.replace("_", " "), type="category"),
        "yaxis": make_axis("top-1, %" if measured else "agreement with onnxruntime, %", rangemode="tozero"),
        "title": {"text": f"{_name(report)}, {report.samples:,} samples"},
    }
    return PlotFigure(name, traces, layout)


def _trace(name: str, points: Sequence[AccuracyPoint], across: str, number: int, measured: bool) -> dict[str, Any]:
    heights = [100 * (p.top1 if p.top1 is not None else p.agreement) for p in points]
    bars = {
        "array": [100 * p.interval.high - y if p.interval else 0 for p, y in zip(points, heights, strict=True)],
        "arrayminus": [y - 100 * p.interval.low if p.interval else 0 for p, y in zip(points, heights, strict=True)],
    }
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name or across.replace("_", " "),
        "x": [p.settings[across] for p in points],
        "y": heights,
        "error_y": {"type": "data", "symmetric": False, "thickness": 1, **bars} if measured else {"visible": False},
        "line": {"color": PALETTE[number % len(PALETTE)]},
    }
