"""Options, progress and plots of `raptor accuracy`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raptor.common.errors import UserError
from raptor.common.terminal.console import LiteralConsole
from raptor.tools.reporting.accuracy_section import draw_sweep
from validator.accuracy.accuracy_report import AccuracyReport
from validator.crossbar.chip_settings import parse_settings

_MOST_VALUES = 1000


def parse_sweep(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parses texts `NAME=VALUES` to values by setting. `4:9`: the integers 4 to 9; otherwise separated by commas."""
    return {
        name: tuple(_values(f"--sweep {name}={text}", text)) for name, text in parse_settings("--sweep", texts).items()
    }


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
def show_sample_progress(
    data: Path | None, sweep: Mapping[str, Sequence[str]], chips: int, *, quiet: bool
) -> Generator[Callable[[], None]]:
    """Shows a progress bar of samples on a terminal, nothing in a pipe. Yields a function to call after each sample."""
    console = LiteralConsole(stderr=True)
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


def render_sweep_page(report: AccuracyReport) -> bytes:
    """Returns an HTML page that plots accuracy over the first setting, with a line per combination of the others."""
    import plotly.graph_objects as go

    found = draw_sweep(report, "accuracy")
    title = {"text": f"{report.model}, {report.crossbar} crossbars, {report.samples} samples"}
    figure: Any = go.Figure(data=found.data, layout={**found.layout, "title": title, "legend": {"title": {"text": ""}}})
    page = figure.to_html(include_plotlyjs=True, full_html=True, div_id="accuracy")
    return str(page).encode()
