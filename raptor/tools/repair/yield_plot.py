"""The plot of `raptor yield --plot`: shares of good chips over the rate of stuck cells, with a line for each method."""

from typing import Any

from raptor.tools.repair.measure_yield import YieldReport
from raptor.tools.reporting.plot_parts import PALETTE, make_axis


def draw_yield(report: YieldReport) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns traces and layout, in the form of plotly. Bars are the intervals of 95 %."""
    traces: list[dict[str, Any]] = []
    for k, method in enumerate(dict.fromkeys(point.method for point in report.points)):
        points = sorted((p for p in report.points if p.method == method), key=lambda p: p.stuck)
        heights = [100 * p.share for p in points]
        bars = {
            "array": [100 * p.interval.high - y for p, y in zip(points, heights, strict=True)],
            "arrayminus": [y - 100 * p.interval.low for p, y in zip(points, heights, strict=True)],
        }
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": method,
                "x": [100 * p.stuck for p in points],
                "y": heights,
                "error_y": {"type": "data", "symmetric": False, "thickness": 1, **bars},
                "line": {"color": PALETTE[k % len(PALETTE)]},
            }
        )
    what = f"{report.model}: chips with at least {report.least:.1%}, {report.samples} samples"
    layout = {
        "xaxis": make_axis("stuck cells, %", rangemode="tozero"),
        "yaxis": make_axis("good chips, %", rangemode="tozero"),
        "title": {"text": what},
    }
    return traces, layout


def render_yield_page(report: YieldReport) -> bytes:
    """Returns an HTML page with the plot."""
    import plotly.graph_objects as go

    traces, layout = draw_yield(report)
    figure: Any = go.Figure(data=traces, layout=layout)
    return str(figure.to_html(include_plotlyjs=True, full_html=True, div_id="yield")).encode()
