"""Rounds section of the report: key figures, a table, and a timeline of crossbar writes and runs."""

from collections.abc import Iterator
from itertools import accumulate

from raptor.output import files
from raptor.tools.reporting import number_texts
from raptor.tools.reporting.key_figure import KeyFigure as Number
from raptor.tools.reporting.plot_parts import ACTIVITY_COLOURS, PlotFigure, choose_time_unit, make_axis
from raptor.tools.reporting.report_tables import ReportCell, ReportColumn, ReportTable
from validator.simulate.simulation_report import energy_text, number_text, time_text, years_text
from validator.simulate.weight_reloading import ReloadingFigures


def list_round_figures(reloading: ReloadingFigures) -> Iterator[Number]:
    """Yields key figures of a program with rounds. Times and energies are per sample, without crossbar writes."""
    device = f"device {reloading.device}: {reloading.source}"
    yield Number("time without writing", reloading.without_ns, time_text(reloading.without_ns), "of a sample", "ns")
    yield Number("energy without writing", reloading.without_pj, energy_text(reloading.without_pj), "of a sample", "pJ")
    yield _number("writes of a cell", reloading.writes_per_cell, "for a sample, mean of all cells of the chip")
    yield _number("writes of the worst cell", reloading.worst_per_sample, "for a sample")
    rate = f"at {number_text(reloading.rate_per_s, 4)} samples/s; {device}"
    years = reloading.years
    yield Number("lifetime", years, "not known" if years is None else years_text(years), rate, "years")
    tenth = reloading.batch_for_tenth
    note = "from which writing is at most a tenth of the time"
    yield Number("batch for a tenth", tenth, "not known" if tenth is None else f"{tenth:,}", note)
    yield Number(
        "memory of a batch",
        reloading.memory_bytes,
        number_texts.format_size(reloading.memory_bytes),
        "global memory",
        "bytes",
    )


def _number(name: str, value: float, note: str) -> Number:
    return Number(name, value, number_text(value, 3), note)


def make_round_table(reloading: ReloadingFigures, segments: files.SegmentList) -> ReportTable:
    """Returns the table of rounds, in the order in which they run."""
    columns = (
        ReportColumn("round", number=False),
        ReportColumn("cores", "that it uses"),
        ReportColumn("written", "crossbars that do not hold their matrix yet"),
        ReportColumn("writing", "time, once for a batch"),
        ReportColumn("first sample", "time of the round for one sample"),
        ReportColumn("each other", "time between samples"),
        ReportColumn("batch", "time of the round for a batch, with writing"),
        ReportColumn("nodes", number=False),
    )
    nodes = {s.path: s.nodes for s in segments.segments}
    rows = tuple(
        (
            ReportCell(one.path, one.path),
            ReportCell(f"{one.cores:,}", one.cores),
            ReportCell(f"{one.crossbars_written:,}", one.crossbars_written),
            _time(one.write_ns),
            _time(one.latency_ns),
            ReportCell("", -1) if one.interval_ns is None else _time(one.interval_ns),
            _time(one.write_ns + one.run_ns(reloading.batch), reloading.batch_ns),
            ReportCell(_few(nodes[one.path]), "", hint=", ".join(nodes[one.path])),
        )
        for one in reloading.rounds
    )
    return ReportTable("rounds-table", columns, rows)


def _few(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"


def _time(ns: float, whole: float | None = None) -> ReportCell:
    return ReportCell(time_text(float(f"{ns:.4g}")), ns, None if whole is None else ns / whole)


def draw_batch(reloading: ReloadingFigures) -> PlotFigure:
    """Returns a timeline of a batch: for each round its crossbar writes, then its run."""
    unit, scale = choose_time_unit(reloading.batch_ns)
    lengths = [(one.write_ns, one.run_ns(reloading.batch)) for one in reloading.rounds]
    begins = list(accumulate((sum(pair) for pair in lengths), initial=0.0))
    names = [one.path for one in reloading.rounds]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [pair[k] / scale for pair in lengths],
            "base": [(begin + (pair[0] if k else 0.0)) / scale for begin, pair in zip(begins, lengths, strict=False)],
            "marker": {"color": ACTIVITY_COLOURS[colour]},
            "hovertemplate": f"%{{y}} {name}: %{{x:.4g}} {unit}<extra></extra>",
        }
        for k, (name, colour) in enumerate((("writes", "vector"), ("runs", "matrix")))
    ]
    layout = {
        "barmode": "overlay",
        "xaxis": make_axis(unit, range=[0, reloading.batch_ns / scale]),
        "yaxis": make_axis("", autorange="reversed", type="category"),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return PlotFigure("batch", data, layout, height=140 + 26 * len(names))
