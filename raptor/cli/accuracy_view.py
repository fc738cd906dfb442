"""Options, progress and plots of `raptor accuracy`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raptor.common.console import Console
from raptor.common.errors import UserError
from raptor.reporting.figure import PALETTE, axis
from validator.accuracy.report import AccuracyReport, Point
from validator.crossbar.settings import pairs

_MOST_VALUES = 1000


def read_sweep(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the values of each setting: `4:9` are the whole numbers from 4 to 9, others stand between commas."""
    return {name: tuple(_values(f"--sweep {name}={text}", text)) for name, text in pairs("--sweep", texts).items()}


def _values(what: str, text: str) -> list[str]:
    first, colon, last = text.partition(":")
    if not colon:
        values = text.split(",")
    elif first.isdecimal() and last.isdecimal() and int(first) <= int(last) < int(first) + _MOST_VALUES:
        values = [str(number) for number in range(int(first), int(last) + 1)]
    else:
        raise UserError(f"{what}: expected FIRST:LAST, whole numbers in ascending order, at most {_MOST_VALUES}")
    if len(set(values)) != len(values):
        raise UserError(f"{what}: a value stands there twice")
    return values


@contextmanager
def progress(
    data: Path | None, sweep: Mapping[str, Sequence[str]], chips: int, *, quiet: bool
) -> Generator[Callable[[], None]]:
    """Shows a bar on a terminal that counts samples; nothing in a pipe. Yields what to call after each sample."""
    console = Console(stderr=True)
    if data is None or quiet or not console.is_terminal:
        yield lambda: None
        return
    columns = TextColumn("samples"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    lock, done = Lock(), 0
    runs = chips * (1 + (prod(map(len, sweep.values())) if sweep else 0))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("samples", total=None)

        def tick() -> None:
            nonlocal done
            with lock:
                done += 1
                bar.update(task, completed=done, description=f"{runs} runs")

        yield tick


def plots(report: AccuracyReport) -> bytes:
    """Returns a page with a plot of accuracy over the first setting of the sweep, a line for each of the others."""
    import plotly.graph_objects as go

    measured = report.sweep[0].top1 is not None
    across, *others = report.sweep[0].settings
    lines: dict[str, list[Point]] = {}
    for point in report.sweep:
        lines.setdefault(", ".join(f"{name} {point.settings[name]}" for name in others), []).append(point)
    traces = [_trace(name, points, across, k, measured) for k, (name, points) in enumerate(lines.items())]
    layout = {
        "xaxis": axis(across.replace("_", " "), type="category"),
        "yaxis": axis("top-1, %" if measured else "agreement with onnxruntime, %", rangemode="tozero"),
        "title": {"text": f"{report.model}, {report.crossbar} crossbars, {report.samples} samples"},
        "legend": {"title": {"text": ""}},
    }
    figure: Any = go.Figure(data=traces, layout=layout)
    page = figure.to_html(include_plotlyjs=True, full_html=True, div_id="accuracy")
    return str(page).encode()


def _trace(name: str, points: Sequence[Point], across: str, number: int, measured: bool) -> dict[str, Any]:
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
