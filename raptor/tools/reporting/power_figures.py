"""Plots of power over time: a curve by part of the chip, and a row for each core."""

import numpy as np

from raptor.tools.reporting.plot_parts import (
    PALETTE,
    SCALE_FROM_ZERO,
    PlotFigure,
    choose_time_unit,
    encode_bytes,
    make_axis,
    make_core_axis,
    round_ticks,
)
from validator.profile.profile_results import PowerProfile
from validator.simulate.analysis.power import PARTS

_STEPS = 250
"""Steps of the largest value: enough for a colour, and one byte a cell."""


def draw_power(found: PowerProfile) -> PlotFigure:
    """Returns a stacked curve of the watts of each part of the chip, in the intervals of the timeline."""
    curve = found.by_part
    unit, scale = choose_time_unit(curve.time_ns)
    x = [_round(ns / scale) for ns in curve.edges_ns.tolist()]
    data = [
        {
            "type": "scatter",
            "mode": "none",
            "stackgroup": "parts",
            "line": {"shape": "hv"},
            "name": part.replace("_", " "),
            "x": x,
            "y": [_round(watts) for watts in (*row.tolist(), row[-1].item())],
            "fillcolor": PALETTE[k % len(PALETTE)],
            "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.3g}} W {part.replace('_', ' ')}<extra></extra>",
        }
        for k, (part, row) in enumerate(zip(PARTS, curve.watts, strict=True))
        if row.any()
    ]
    layout = {
        "xaxis": make_axis(unit, showgrid=False, range=[0, x[-1]]),
        "yaxis": make_axis("W", rangemode="tozero", showgrid=False),
        "legend": {"traceorder": "normal", "orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "x",
        "showlegend": True,
    }
    return PlotFigure("power-parts", data, layout, height=320)


def draw_core_power(found: PowerProfile) -> PlotFigure:
    """Returns a heat map of the watts of each core over time."""
    curve = found.by_part
    unit, scale = choose_time_unit(curve.time_ns)
    largest = max(float(found.core_watts.max(initial=0.0)), 1e-12)
    watt_unit, watts = ("W", 1.0) if largest >= 1 else ("mW", 1e-3)
    ticks = round_ticks(largest / watts)
    trace = {
        "type": "heatmap",
        "x0": _round(curve.window_ns / scale / 2),
        "dx": _round(curve.window_ns / scale),
        "y": [str(core) for core in found.cores],
        "z": encode_bytes(np.rint(_STEPS * found.core_watts / largest).astype(np.uint8)),
        "zmin": 0,
        "zmax": _STEPS,
        "colorscale": SCALE_FROM_ZERO,
        "colorbar": {
            "title": {"text": watt_unit, "side": "right"},
            "thickness": 14,
            "tickvals": [tick * watts / largest * _STEPS for tick in ticks],
            "ticktext": [f"{tick:g}" for tick in ticks],
        },
        "hovertemplate": f"core %{{y}}, %{{x:.4g}} {unit}: %{{z}} / {_STEPS} of {largest / watts:.3g} {watt_unit}"
        "<extra></extra>",
    }
    layout = {"xaxis": make_axis(unit, showgrid=False), "yaxis": make_core_axis(found.cores)}
    return PlotFigure("power-cores", [trace], layout, height=min(920, max(320, 130 + 13 * len(found.cores))))


def _round(value: float) -> float:
    return float(f"{value:.6g}")
