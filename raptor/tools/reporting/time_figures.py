"""Plots over time: activities of cores, waits for other cores, and local memory in use."""

from typing import Any

import numpy as np

from raptor.tools.reporting import number_texts
from raptor.tools.reporting.plot_parts import (
    ACTIVITY_COLOURS,
    SCALE_FROM_ZERO,
    PlotFigure,
    choose_byte_unit,
    choose_time_unit,
    collect_texts,
    encode_bytes,
    make_axis,
    make_core_axis,
    make_trace_buttons,
    round_ticks,
)
from validator.profile.profile_results import ACTIVITY_KINDS, CoreTimeline, LocalMemoryUse, Profile

_IDLE = "scalar or idle"


def draw_chip_load(profile: Profile, line: CoreTimeline) -> PlotFigure:
    """Returns a plot of the number of cores with each activity over time. Concurrent array groups count as one core."""
    unit, scale = _unit(profile)
    shares = np.minimum(line.shares, 1.0)
    idle = np.maximum(len(line.cores) - shares.sum(axis=(0, 1)), 0.0)
    x = [_round(line.bin_ns * (k + 0.5) / scale) for k in range(line.bin_count)]
    data = [
        {
            "type": "scatter",
            "mode": "none",
            "stackgroup": "cores",
            "name": name,
            "x": x,
            "y": [_round(v) for v in amounts.tolist()],
            "fillcolor": ACTIVITY_COLOURS[name],
            "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.1f}} cores {name}<extra></extra>",
        }
        for name, amounts in zip((*ACTIVITY_KINDS, _IDLE), (*shares.sum(axis=1), idle), strict=True)
        if amounts.any()
    ]
    layout = {
        "xaxis": make_axis(unit, showgrid=False, range=[0, _round(line.bin_ns * line.bin_count / scale)]),
        "yaxis": make_axis("cores", range=[0, len(line.cores)], showgrid=False),
        "legend": {"traceorder": "normal", "orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "x",
    }
    return PlotFigure("load", data, layout, height=320)


def draw_timeline(profile: Profile, line: CoreTimeline) -> PlotFigure:
    """Returns a plot with a row for each core: its main activity, or the amount of one activity."""
    unit, scale = _unit(profile)
    shares = np.minimum(line.shares, 1.0)
    waiting = np.minimum(shares[3:].sum(axis=0), 1.0)
    mostly = _mostly(shares)
    amounts = [("matrix", shares[0]), ("vector", shares[1]), ("transfer", shares[2]), ("waiting", waiting)]
    common = {"x0": _round(line.bin_ns / scale / 2), "dx": _round(line.bin_ns / scale), "y": _rows(line.cores)}
    common |= {"type": "heatmap", "hovertemplate": f"core %{{y}}, %{{x:.4g}} {unit}<br>%{{hovertext}}<extra></extra>"}
    data: list[dict[str, Any]] = [common | _kinds_trace(mostly)]
    data += [
        common
        | {
            "name": name,
            "z": encode_bytes(np.rint(100 * values).astype(np.uint8)),
            "zmin": 0,
            "zmax": 100,
            "colorscale": SCALE_FROM_ZERO,
            "colorbar": {"title": {"text": f"% {name}", "side": "right"}, "thickness": 14},
            "visible": False,
        }
        for name, values in amounts
    ]
    layout = {
        "xaxis": make_axis(unit, showgrid=False),
        "yaxis": make_core_axis(line.cores),
        "updatemenus": make_trace_buttons(["what a core does most", *(name for name, _ in amounts)]),
    }
    return PlotFigure(
        "timeline", data, layout, collect_texts(_texts(profile, line, shares, mostly)), height=_height(line.cores)
    )


def _mostly(shares: np.ndarray) -> np.ndarray:
    """Returns the index of the main activity for each core and bin; the last index is idle or scalar work."""
    idle = np.maximum(1 - shares.sum(axis=0, keepdims=True), 0.0)
    return np.argmax(np.concatenate([shares, idle]), axis=0)


def _kinds_trace(mostly: np.ndarray) -> dict[str, Any]:
    names = [*ACTIVITY_KINDS, _IDLE]
    steps = [[k / len(names), ACTIVITY_COLOURS[names[k]]] for k in range(len(names))]
    ends = [[(k + 1) / len(names), ACTIVITY_COLOURS[names[k]]] for k in range(len(names))]
    return {
        "name": "most",
        "z": encode_bytes(mostly.astype(np.uint8)),
        "zmin": -0.5,
        "zmax": len(names) - 0.5,
        "colorscale": [pair for both in zip(steps, ends, strict=True) for pair in both],
        "colorbar": {"tickvals": list(range(len(names))), "ticktext": names, "thickness": 14},
    }


def _texts(profile: Profile, line: CoreTimeline, shares: np.ndarray, mostly: np.ndarray) -> list[list[str]]:
    """Returns for each cell the main activity, its share in tens of per cent, the layer, and the core it waits for."""
    names = [*ACTIVITY_KINDS, _IDLE]
    tens = np.rint(10 * np.concatenate([shares, 1 - shares.sum(axis=0, keepdims=True)])).astype(int) * 10
    layers = [number_texts.escape_markup(name) for name in profile.part_names] if profile.part_kind == "node" else []
    rows: list[list[str]] = []
    for c in range(len(line.cores)):
        row: list[str] = []
        for t in range(line.bin_count):
            kind, part, partner = int(mostly[c, t]), int(line.part[c, t]), int(line.partner[c, t])
            shown = f"{names[kind]}, about {tens[kind, c, t]} %"
            shown += f"<br>{layers[part]}" if layers and part >= 0 else ""
            row.append(shown + (f"<br>waits for core {partner}" if partner >= 0 else ""))
        rows.append(row)
    return rows


def draw_memory(profile: Profile, used: LocalMemoryUse) -> PlotFigure:
    """Returns a plot of local memory in use, with a row for each core."""
    unit, scale = _unit(profile)
    size_unit, size_scale = choose_byte_unit(float(used.bytes.max(initial=0)))
    # NOTE: 250 steps of the largest value are enough for a colour, and one byte a cell.
    step = max(float(used.bytes.max(initial=0)), 1.0) / 250
    texts = [[number_texts.format_size(float(f"{v:.2g}")) for v in row] for row in used.bytes.tolist()]
    ticks = round_ticks(250 * step / size_scale)
    trace = {
        "type": "heatmap",
        "x0": 0,
        "dx": _round(used.step_ns / scale),
        "y": _rows(used.cores),
        "z": encode_bytes(np.rint(used.bytes / step).astype(np.uint8)),
        "zmin": 0,
        "zmax": 250,
        "colorscale": SCALE_FROM_ZERO,
        "colorbar": {
            "title": {"text": size_unit, "side": "right"},
            "thickness": 14,
            "tickvals": [t * size_scale / step for t in ticks],
            "ticktext": [f"{t:g}" for t in ticks],
        },
        "hovertemplate": f"core %{{y}}, %{{x:.4g}} {unit}: %{{hovertext}}<extra></extra>",
    }
    layout = {
        "xaxis": make_axis(unit, showgrid=False),
        "yaxis": make_core_axis(used.cores),
    }
    return PlotFigure("memory", [trace], layout, collect_texts(texts), height=_height(used.cores))


def _rows(cores: tuple[int, ...]) -> list[str]:
    return [str(core) for core in cores]


def _height(cores: tuple[int, ...]) -> int:
    return min(920, max(320, 130 + 13 * len(cores)))


def _unit(profile: Profile) -> tuple[str, float]:
    assert profile.estimate is not None, "a timeline has times"
    return choose_time_unit(profile.estimate.latency_ns)


def _round(value: float) -> float:
    return float(f"{value:.6g}")
