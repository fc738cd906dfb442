"""An explanation as tables for people and as JSON for programs."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from raptor.errors import UserError
from raptor.explain import Choice, Explanation, Layer
from validator.simulate.report import time_text

_COLUMNS = ("matrix", "vector", "memory", "net", "send", "recv", "rest")


def write(path: Path, found: Explanation) -> None:
    content = orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2) + b"\n"
    if str(path) == "-":
        sys.stdout.write(content.decode())
        return
    try:
        path.write_bytes(content)
    except OSError as e:
        raise UserError(f"--json {path}: {e.strerror or e}") from e


def show(found: Explanation, console: Console) -> None:
    """What was chosen, where the time goes, the bounds."""
    console.print(f"Layers of {found.model}, strategy {found.strategy}", style="bold", markup=False)
    console.print(_choices(found))
    for line in _reasons(found):
        console.print(line, markup=False)
    console.print()
    console.print("Time of each layer's busiest core", style="bold")
    console.print(_times(found))
    console.print(
        "work: at least, for a sample, and its share of the interval. Then % of the time until the core ends, a sample "
        "alone; send, recv: waiting to; rest: issue, idle."
    )
    console.print()
    console.print(_totals(found))
    console.print(found.binds, style="bold", markup=False)
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _table(*columns: str, left: int) -> Table:
    """The first `left` columns are words, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        if i < left:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def _choices(found: Explanation) -> Table:
    table = _table("layer", "unfolding", "grid", "cores", "xbars", "predicted", "smaller", "larger", left=3)
    for layer in found.layers:
        chosen = layer.options.chosen
        grid = f"{chosen.columns}x{chosen.inputs}x{chosen.outputs}" if chosen else "-"
        predicted = time_text(round(chosen.predicted_ns, -2)) if chosen else "-"
        others = (_other(layer, layer.options.smaller), _other(layer, layer.options.larger))
        table.add_row(
            layer.node, layer.unfolding, grid, f"{len(layer.cores):,}", f"{layer.xbars:,}", predicted, *others
        )
    return table


def _other(layer: Layer, choice: Choice | None) -> str:
    if layer.options.unknown:
        return "-"
    return f"{choice.cores}: {time_text(round(choice.predicted_ns, -2))}" if choice else "none"


def _reasons(found: Explanation) -> Iterator[str]:
    """Why alternatives are not known."""
    for reason in dict.fromkeys(x.options.unknown for x in found.layers if x.options.unknown):
        names = [x.node for x in found.layers if x.options.unknown == reason]
        which = "all layers" if len(names) == len(found.layers) else ", ".join(names[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 and which != "all layers" else ""
        yield f"- {which}{more}: {reason}"


def _times(found: Explanation) -> Table:
    table = _table("layer", "core", "work", "share", *_COLUMNS, left=1)
    for layer in found.layers:
        whole = layer.finish_ns or 1.0
        shares = (f"{ns / whole:.0%}" for ns in astuple(layer.split))
        table.add_row(
            layer.node,
            str(layer.core) + ("*" if layer.others else " "),
            time_text(round(layer.work_ns, -2)),
            f"{layer.work_ns / found.interval_ns:.0%}",
            *shares,
        )
    if any(x.others for x in found.layers):
        table.caption = "* the core serves other layers too: its figures are those of all together"
        table.caption_justify = "left"
    return table


def _totals(found: Explanation) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(3):
        table.add_column()
    bounds = found.bounds
    for name, ns in (("latency", found.latency_ns), ("interval", found.interval_ns)):
        table.add_row(name, time_text(ns), f"{ns / bounds.largest:.3g} times the largest bound")
    table.add_row("bounds", time_text(bounds.busiest), f"core {bounds.core}, which works most")
    table.add_row("", time_text(bounds.average), f"all work, spread evenly over {bounds.cores:,} cores")
    table.add_row("", time_text(bounds.products), f"products alone, spread evenly over {bounds.cores:,} cores")
    table.add_row("", time_text(bounds.port), "loads and stores at the port of global memory")
    return table
