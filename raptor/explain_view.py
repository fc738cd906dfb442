"""An explanation as tables for people and as JSON for programs."""

from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path

import orjson
from rich.table import Table

from raptor import files
from raptor.console import Console
from raptor.explain import Choice, Explanation, Layer
from validator.simulate.report import time_text

_CHOICE_LEGEND = (
    "grid: columns of the image x groups of input channels x parts of the outputs. products: on all cores, a sample. "
    "expects: what the mapping thinks the busiest core works; smaller, larger: cores and the same of the next grids"
)
_TIME_LEGEND = (
    "work: at least, for a sample, and its share of the interval; then % of the time until the core ends, one sample "
    "alone. send, recv: waiting to; rest: issue, idle; +n: the core serves n more layers"
)
_COLUMNS = ("matrix", "vector", "memory", "net", "send", "recv", "rest")


def write(path: Path, found: Explanation) -> None:
    files.print_or_write("--json", path, orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2) + b"\n")


def show(found: Explanation, console: Console) -> None:
    """What was chosen, where the time goes, the bounds."""
    console.print(f"Layers of {found.model}, strategy {found.strategy}", style="bold")
    console.print(_choices(found))
    console.print(_CHOICE_LEGEND)
    for line in _reasons(found):
        console.print(line)
    console.print()
    console.print("Time of each layer's busiest core", style="bold")
    console.print(_times(found))
    console.print(_TIME_LEGEND)
    console.print()
    console.print(_totals(found))
    console.print(found.binds, style="bold")
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow")


def _table(*columns: str) -> Table:
    """The first column is words of any length."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _time(ns: float) -> str:
    """Three digits, that tables stay narrow."""
    return time_text(float(f"{ns:.3g}"))


def _choices(found: Explanation) -> Table:
    table = _table("layer", "unfolding", "cores", "grid", "xbars", "products", "expects", "smaller", "larger")
    for layer in found.layers:
        counts = (layer.unfolding, f"{len(layer.cores):,}", f"{layer.xbars:,}", _time(layer.products_ns))
        chosen, none = layer.options.chosen, "-" if layer.options.unknown else "none"
        grid = f"{chosen.columns}x{chosen.inputs}x{chosen.outputs}" if chosen else "-"
        expects = _time(chosen.predicted_ns) if chosen else "-"
        others = (_other(c) if c else none for c in (layer.options.smaller, layer.options.larger))
        table.add_row(layer.node, *counts[:2], grid, *counts[2:], expects, *others)
    return table


def _other(choice: Choice) -> str:
    return f"{choice.cores}: {_time(choice.predicted_ns)}"


def _reasons(found: Explanation) -> Iterator[str]:
    """Why alternatives are not known."""
    for reason in dict.fromkeys(x.options.unknown for x in found.layers if x.options.unknown):
        names = [x.node for x in found.layers if x.options.unknown == reason]
        which = "all layers" if len(names) == len(found.layers) else ", ".join(names[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 and which != "all layers" else ""
        yield f"- {which}{more}: {reason}"


def _times(found: Explanation) -> Table:
    """A row for each core that works most for some layer."""
    table = _table("layer", "core", "work", "share", *_COLUMNS)
    for layer in _one_for_each_core(found):
        whole = layer.finish_ns or 1.0
        shares = (f"{ns / whole:.0%}" for ns in astuple(layer.split))
        name = f"{layer.node} +{len(layer.others)}" if layer.others else layer.node
        table.add_row(name, str(layer.core), _time(layer.work_ns), f"{layer.work_ns / found.interval_ns:.0%}", *shares)
    return table


def _one_for_each_core(found: Explanation) -> Iterator[Layer]:
    seen: set[int] = set()
    for layer in found.layers:
        if layer.core not in seen:
            seen.add(layer.core)
            yield layer


def _totals(found: Explanation) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(3):
        table.add_column()
    bounds = found.bounds
    for name, ns in (("latency", found.latency_ns), ("interval", found.interval_ns)):
        table.add_row(name, _time(ns), f"{ns / bounds.largest:.3g} times the largest bound")
    table.add_row("bounds", _time(bounds.busiest), f"core {bounds.core}, which works most")
    table.add_row("", _time(bounds.average), f"all work, spread evenly over {bounds.cores:,} cores")
    table.add_row("", _time(bounds.products), f"products alone, spread evenly over {bounds.cores:,} cores")
    table.add_row("", _time(bounds.port), "loads and stores at the port of global memory")
    return table
