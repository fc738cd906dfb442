"""Plots of the chip: mesh, crossbars, messages between cores, instructions of layers and cores."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from raptor.tools.reporting import number_texts
from raptor.tools.reporting.plot_parts import (
    COLOUR_SCALE,
    PALETTE,
    SCALE_FROM_ZERO,
    PlotFigure,
    choose_byte_unit,
    choose_time_unit,
    collect_texts,
    make_axis,
    make_stack_buttons,
    make_trace_buttons,
    round_for_colour,
)
from validator.profile.profile_results import GLOBAL_MEMORY, CoreFigures, CrossbarUse, MessageFlow, PartFigures, Profile
from validator.simulate.simulation_report import CoreUse, energy_text, time_text

MAX_CROSSBARS = 60_000
MAX_FLOWS = 5_000
_MOST_LABELS = 400
_MOST_GAPS = 60
_FEW_FLOWS = 200
_SHOWN_PARTS = 8
_INSTRUCTIONS = 9


def draw_mesh(profile: Profile) -> PlotFigure:
    """Returns a map of the cores in the mesh; buttons select the quantity that colours them."""
    cells = [core for core in profile.cores if core.instructions or core.xbars]
    measures = _measures(cells, profile)
    data = [_mesh_trace(profile, cells, *measure, visible=k == 0) for k, measure in enumerate(measures)]
    texts = [[""] * profile.mesh.cols for _ in range(profile.mesh.rows)]
    _number_cells(profile, texts)
    for core in cells:
        row, col = profile.mesh.position(core.core)
        texts[row][col] = _core_text(core, profile)
    layout = {
        "xaxis": make_axis("", showgrid=False, showticklabels=False, ticks="", constrain="domain"),
        "yaxis": make_axis("", showgrid=False, showticklabels=False, ticks="", autorange="reversed", scaleanchor="x"),
        "updatemenus": make_trace_buttons([name for name, *_ in measures]),
    }
    return PlotFigure("mesh", data, layout, collect_texts(texts), height=600)


def _number_cells(profile: Profile, texts: list[list[str]]) -> None:
    for core in range(_core_count(profile)):
        row, col = profile.mesh.position(core)
        texts[row][col] = f"core {core}: no work"


def _core_count(found: Profile) -> int:
    return found.chip.core_count if found.chip else len(found.cores)


CoreMeasure = tuple[str, str, Sequence[float | None]]


def _measures(cells: Sequence[CoreFigures], profile: Profile) -> list[CoreMeasure]:
    """Returns name, unit and value per core of the known quantities."""
    measures: list[CoreMeasure] = [("crossbars", "crossbars in use", [c.xbars for c in cells])]
    if profile.estimate is not None:
        unit, scale = choose_time_unit(profile.estimate.latency_ns)
        uses = [c.use for c in cells]
        measures.append(("busy time", f"{unit} busy", [_busy(u) / scale if u else None for u in uses]))
        measures.append(("waiting", f"{unit} waiting", [_waiting(u) / scale if u else None for u in uses]))
    if any(c.local_bytes is not None for c in cells):
        unit, scale = choose_byte_unit(max(c.local_bytes or 0 for c in cells))
        sizes = [None if c.local_bytes is None else c.local_bytes / scale for c in cells]
        measures.append(("memory", f"{unit} of local memory", sizes))
    return measures


def _busy(use: CoreUse) -> float:
    return use.matrix_ns + use.vector_ns + use.transfer_ns


def _waiting(use: CoreUse) -> float:
    return use.wait_send_ns + use.wait_recv_ns + use.wait_token_ns


def _mesh_trace(
    profile: Profile,
    cells: Sequence[CoreFigures],
    name: str,
    unit: str,
    values: Sequence[float | None],
    *,
    visible: bool,
) -> dict[str, Any]:
    table = np.full((profile.mesh.rows, profile.mesh.cols), np.nan)
    table.ravel()[: _core_count(profile)] = 0
    labels = [[""] * profile.mesh.cols for _ in range(profile.mesh.rows)]
    for core, value in zip(cells, values, strict=True):
        row, col = profile.mesh.position(core.core)
        table[row, col] = value or 0
        labels[row][col] = str(core.core)
    shown = {"text": labels, "texttemplate": "%{text}"} if table.size <= _MOST_LABELS else {}
    return {
        "type": "heatmap",
        "name": name,
        "z": round_for_colour(table),
        "zmin": 0,
        "zmax": max(float(np.nanmax(table)), 1e-9),
        "xgap": 2,
        "ygap": 2,
        "colorscale": SCALE_FROM_ZERO,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14},
        "hovertemplate": "%{hovertext}<extra></extra>",
        "visible": visible,
        **shown,
    }


def _core_text(core: CoreFigures, profile: Profile) -> str:
    lines = [f"<b>core {core.core}</b>: {core.xbars} crossbars"]
    if core.local_bytes is not None:
        lines[0] += f", {number_texts.format_size(core.local_bytes)} of local memory"
    use = core.use
    if use is not None:
        busy_ns = _busy(use)
        lines.append(
            f"busy {time_text(float(f'{busy_ns:.4g}'))}: "
            f"matrix {number_texts.format_share(use.matrix_ns / (busy_ns or 1))}, "
            f"vector {number_texts.format_share(use.vector_ns / (busy_ns or 1))}"
        )
        lines.append(f"waiting {time_text(float(f'{_waiting(use):.4g}'))}{_for_whom(core)}")
        lines.append(f"done at {time_text(float(f'{use.finish_ns:.4g}'))}, energy {energy_text(use.energy_pj)}")
    if profile.part_kind == "node":
        names = [number_texts.escape_markup(name) for name, _ in core.parts]
        rest = [f"and {len(names) - _SHOWN_PARTS} more"] if len(names) > _SHOWN_PARTS else []
        lines += names[:_SHOWN_PARTS] + rest
    return "<br>".join(lines)


def _for_whom(core: CoreFigures) -> str:
    if not core.waits:
        return ""
    shown = ", ".join(f"{other} ({time_text(float(f'{ns:.3g}'))})" for other, ns in core.waits[:3])
    return f", for core {shown}"


def draw_traffic(profile: Profile) -> PlotFigure:
    """Returns a plot with a dot for each pair of cores that communicate; its size shows the bytes between them."""
    flows = [f for f in profile.traffic if GLOBAL_MEMORY not in (f.source, f.to)]
    flows = sorted(flows, key=lambda f: -f.bytes)[:MAX_FLOWS]
    largest = max((f.bytes for f in flows), default=1)
    widest = 22 if len(flows) <= _FEW_FLOWS else 10
    sizes = [3 + widest * (f.bytes / largest) ** 0.5 for f in flows]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [f.to for f in flows],
        "y": [f.source for f in flows],
        "marker": {
            "size": sizes,
            "color": [f.hops for f in flows],
            "colorscale": COLOUR_SCALE,
            "opacity": 0.85,
            "line": {"width": 0},
            "colorbar": {"title": {"text": "hops", "side": "right"}, "thickness": 14},
        },
        "hovertext": list(map(_flow_text, flows)),
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    layout = {"xaxis": make_axis("to core"), "yaxis": make_axis("from core", autorange="reversed")}
    return PlotFigure("traffic", [trace], layout, height=600)


def _flow_text(flow: MessageFlow) -> str:
    plural = "s" if flow.messages != 1 else ""
    return (
        f"core {flow.source} to core {flow.to}<br>{number_texts.format_size(flow.bytes)} in "
        f"{flow.messages:,} message{plural}, "
        f"{flow.hops} hop{'s' if flow.hops != 1 else ''}"
    )


def draw_mix_by_part(parts: Sequence[PartFigures]) -> PlotFigure:
    """Returns a bar chart of the instructions of each layer, or of each kind of instruction."""
    names = [number_texts.escape_markup(p.name) for p in parts]
    data = _mix([p.instructions for p in parts], names, sideways=True)
    layout = {
        "barmode": "stack",
        "xaxis": make_axis("instructions"),
        "yaxis": make_axis("", autorange="reversed", type="category", dtick=1, tickfont={"size": 11}),
        "updatemenus": make_stack_buttons(),
        "legend": {"traceorder": "normal"},
        "bargap": 0.15,
    }
    return PlotFigure("mix-parts", data, layout, height=max(360, 130 + 17 * len(parts)))


def draw_mix_by_core(profile: Profile) -> PlotFigure:
    """Returns a bar chart of the instructions of each core with work."""
    cores = [c for c in profile.cores if c.instructions]
    data = _mix([c.instructions for c in cores], [c.core for c in cores], sideways=False)
    layout = {
        "barmode": "stack",
        "xaxis": make_axis("core"),
        "yaxis": make_axis("instructions"),
        "updatemenus": make_stack_buttons(),
        "bargap": 0.1 if len(cores) <= _MOST_GAPS else 0,
    }
    return PlotFigure("mix-cores", data, layout)


def _mix(rows: Sequence[Mapping[str, int]], names: Sequence[Any], *, sideways: bool) -> list[dict[str, Any]]:
    """Returns one trace for each frequent instruction, and one for all others."""
    totals: dict[str, int] = {}
    for row in rows:
        for op, count in row.items():
            totals[op] = totals.get(op, 0) + count
    frequent = sorted(totals, key=lambda op: (-totals[op], op))[:_INSTRUCTIONS]
    counts = {op: [row.get(op, 0) for row in rows] for op in frequent}
    rest = [sum(n for op, n in row.items() if op not in counts) for row in rows]
    if any(rest):
        counts["other"] = rest
    value, name = ("x", "y") if sideways else ("y", "x")
    where = "%{y}" if sideways else "core %{x}"
    return [
        {
            "type": "bar",
            "name": op,
            value: values,
            name: list(names),
            "orientation": "h" if sideways else "v",
            "marker": {"color": PALETTE[k % len(PALETTE)], "line": {"width": 0}},
            "customdata": values,
            "hovertemplate": f"{where}<br>{op}: %{{customdata:,}}<extra></extra>",
        }
        for k, (op, values) in enumerate(counts.items())
    ]


def draw_crossbars(profile: Profile, filled: CrossbarUse) -> PlotFigure:
    """Returns a map of all crossbars, coloured by utilisation, with a column for each core."""
    cores, column = np.unique(filled.core, return_inverse=True)
    table = np.full((int(filled.slot.max()) + 1, len(cores)), np.nan)
    table[filled.slot, column] = 100 * filled.fill
    texts = [[""] * len(cores) for _ in range(table.shape[0])]
    gap = 1 if len(cores) <= _MOST_GAPS else 0
    for k in range(len(filled.core)):
        texts[filled.slot[k]][column[k]] = _crossbar_text(profile, filled, k)
    trace = {
        "type": "heatmap",
        "x": [str(c) for c in cores],
        "z": round_for_colour(table),
        "zmin": 0,
        "zmax": 100,
        "xgap": gap,
        "ygap": gap,
        "hoverongaps": False,
        "colorscale": COLOUR_SCALE,
        "colorbar": {"title": {"text": "% of cells", "side": "right"}, "thickness": 14},
        "hovertemplate": "core %{x}, crossbar %{y}: %{hovertext}<extra></extra>",
    }
    layout = {
        "xaxis": make_axis("core (those with crossbars)", type="category", showgrid=False, nticks=16, tickangle=0),
        "yaxis": make_axis("crossbar of the core", autorange="reversed", showgrid=False),
    }
    return PlotFigure("crossbars", [trace], layout, collect_texts(texts))


def _crossbar_text(profile: Profile, filled: CrossbarUse, k: int) -> str:
    part = int(filled.part[k])
    layer = (
        f"<br>{number_texts.escape_markup(profile.part_names[part])}"
        if profile.part_kind == "node" and part >= 0
        else ""
    )
    layer += "<br>no product uses it" if part < 0 else ""
    return (
        f"{number_texts.format_share(float(filled.fill[k]))} full{layer}<br>"
        f"{filled.rows[k]} rows, {filled.cols[k]} columns of weights, {filled.products[k]:,} products"
    )


def draw_utilisation(filled: CrossbarUse) -> PlotFigure:
    """Returns a histogram of the utilisation of the crossbars."""
    edges = np.linspace(0, 1, 21)
    counts, _ = np.histogram(filled.fill, edges)
    trace = {
        "type": "bar",
        "x": [float(f"{100 * (a + b) / 2:.4g}") for a, b in pairwise(edges)],
        "y": counts.tolist(),
        "width": 5,
        "marker": {"color": PALETTE[0], "line": {"width": 0}},
        "hovertemplate": "%{y:,} crossbars about %{x} % full<extra></extra>",
    }
    layout = {"xaxis": make_axis("% of cells covered", range=[0, 100]), "yaxis": make_axis("crossbars"), "bargap": 0.05}
    return PlotFigure("fills", [trace], layout)


def draw_layer_times(outputs: Sequence[tuple[str, Profile]], names: Sequence[str]) -> PlotFigure:
    """Returns a bar chart of the share of each layer in the latency of each output, in the order of `names`."""
    data: list[dict[str, Any]] = []
    for k, (name, profile) in enumerate(outputs):
        latency = profile.estimate.latency_ns if profile.estimate else 0.0
        parts = {p.name: 100 * (p.critical_ns or 0.0) / (latency or 1.0) for p in profile.parts}
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": number_texts.escape_markup(name),
                "y": list(map(number_texts.escape_markup, names)),
                "x": [float(f"{parts.get(n, 0.0):.4g}") for n in names],
                "marker": {"color": PALETTE[k % len(PALETTE)], "line": {"width": 0}},
                "hovertemplate": "%{y}: %{x:.3g} % of the latency",
            }
        )
    layout = {
        "barmode": "group",
        "xaxis": make_axis("% of the latency"),
        "yaxis": make_axis("", autorange="reversed", type="category", dtick=1),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
    }
    return PlotFigure("layers-time", data, layout, height=max(360, 150 + (8 + 9 * len(outputs)) * len(names)))
