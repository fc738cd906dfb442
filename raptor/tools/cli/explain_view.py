"""Prints an explanation as tables, and writes it as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from rich.table import Table

from raptor.common.files import file_access
from raptor.common.terminal.abbreviation import abbreviate_names
from raptor.common.terminal.console import LiteralConsole
from raptor.common.terminal.table_width import FittedTable, fit_table
from raptor.compiler.analysis.explain import ExplainedLayer, GridChoice, MappingExplanation, RoundCutting
from validator.simulate.simulation_report import time_text

_CHOICE_LEGEND = {
    "grid": "grid: columns of the image x groups of input channels x parts of the outputs (x lanes of lines). ",
    "products": "products: of a sample, on all cores. ",
    "expects": "expects: estimated work of the busiest core. ",
    "larger": "smaller, larger: the same for the next smaller and larger number of cores. ",
}
_TIME_LEGEND = (
    "work: least time for a sample, and its share of the interval. Then % of the time until the core ends, with one "
    "sample alone. send, recv: waiting for the other core; rest: issue, idle; +n: the core serves n more layers"
)
_LEAST_ZEROS = 0.01
"""Least share of zeros in the cells of a layer that is told."""
_MOST_NODES = 5
"""Nodes with vector work, or tensors that do not stream, that are named."""
_CHOICES = ("layer", "unfolding", "cores", "grid", "xbars", "products", "expects", "smaller", "larger")
_EXPENDABLE_CHOICES = ("smaller", "larger", "xbars", "unfolding", "expects", "products", "grid")
_TIMES = ("layer", "core", "work", "share", "matrix", "vector", "memory", "net", "send", "recv", "rest")
_EXPENDABLE_TIMES = ("rest", "memory", "net", "vector", "send", "share")


def write_explanation(path: Path, found: MappingExplanation) -> None:
    """Writes an explanation as JSON; `-` is standard output."""
    text = orjson.dumps(asdict(found), default=_plain_model, option=orjson.OPT_INDENT_2)
    file_access.print_or_write("--json", path, text + b"\n")


def _plain_model(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json")


def show_explanation(found: MappingExplanation, console: LiteralConsole, *, quiet: bool = False) -> None:
    """Prints the choices, the time of cores, the bounds, and the effect of faster parts, if the explanation has it.

    `quiet`: prints only the sentence that names the bottleneck.
    """
    if quiet:
        console.print(found.binds, soft_wrap=True)
        return
    if found.rounds is not None:
        for line in _rounds(found.rounds):
            console.print(line, soft_wrap=True)
        console.print()
    console.print(f"Layers of {found.model}, strategy {found.strategy}", style="bold")
    names = abbreviate_names([layer.node for layer in found.layers], console.width // 3)
    choices = fit_table(_CHOICES, list(_choices(found, names)), console.width, _EXPENDABLE_CHOICES)
    legend = "".join(text for column, text in _CHOICE_LEGEND.items() if column in choices.shown_columns)
    _print_table(choices, legend.rstrip(), console)
    for line in _reasons(found):
        console.print(line)
    console.print()
    _print_changes(found, console)
    console.print("Time of each layer's busiest core", style="bold")
    times = fit_table(_TIMES, list(_times(found, names)), console.width, _EXPENDABLE_TIMES)
    _print_table(times, _TIME_LEGEND, console)
    console.print()
    for remark in _remarks(found):
        console.print(remark)
        console.print()
    console.print(_totals(found))
    console.print(found.binds, style="bold")
    for sentence in found.advice:
        console.print(sentence)
    console.print(_proved(found))
    if found.what_if:
        console.print()
        console.print("What if a part were twice as fast, with the same program", style="bold")
        console.print(_what_if(found))
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow")


def _remarks(found: MappingExplanation) -> Iterator[str]:
    """Yields sentences about tensors that do not stream, vector units, and cells without a weight."""
    if found.whole:
        yield _whole(found)
    if found.vector:
        yield _vector(found)
    if idle := _zeros(found):
        yield idle


def _print_changes(found: MappingExplanation, console: LiteralConsole) -> None:
    """Prints what is decided after the layers are placed, if there is such a choice."""
    if found.changes:
        console.print("Decided after the layers were placed", style="bold")
        for change in found.changes:
            console.print(f"- {change.kind}: {change.why}")
        console.print()


def _rounds(found: RoundCutting) -> Iterator[str]:
    """Yields lines about the cuts into rounds, their reasons, and the time of other cutting methods."""
    yield f"Rounds: {len(found.cuts) + 1}, about {_time(found.estimated_ns)} for a batch of {found.batch:,}"
    for name in found.split:
        yield f"- {name}: split, as the layer alone is too large"
    for cut in found.cuts:
        joined = "does not fit the chip" if cut.joined_ns is None else f"takes about {_time(cut.joined_ns)}"
        apart = f"the rounds on both sides take about {_time(cut.apart_ns)}"
        yield f"- cut before {cut.before}: {apart}; one round {joined}; {cut.waiting_bytes:,} bytes of a sample wait"
    for other in found.alternatives:
        takes = "does not fit" if other.batch_ns is None else f"about {_time(other.batch_ns)} ({other.rounds} rounds)"
        yield f"- {other.name}: {takes}"


def _print_table(fitted: FittedTable, legend: str, console: LiteralConsole) -> None:
    console.print(fitted.table)
    console.print(legend)
    if fitted.omitted_columns:
        console.print(
            f"no room here for {', '.join(reversed(fitted.omitted_columns))}: make the terminal wider, or see --json"
        )


def _time(ns: float) -> str:
    """Formats a time with three digits, to keep tables narrow."""
    return time_text(float(f"{ns:.3g}"))


def _choices(found: MappingExplanation, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for layer in found.layers:
        counts = (layer.unfolding, f"{len(layer.cores):,}", f"{layer.xbars:,}", _time(layer.products_ns))
        chosen, none = layer.options.chosen, "-" if layer.options.unknown else "none"
        grid = f"{chosen.columns}x{chosen.inputs}x{chosen.outputs}" if chosen else "-"
        grid += f"x{chosen.lanes}" if chosen and chosen.lanes > 1 else ""
        expects = _time(chosen.predicted_ns) if chosen else "-"
        others = (_other(c) if c else none for c in (layer.options.smaller, layer.options.larger))
        yield (names[layer.node], *counts[:2], grid, *counts[2:], expects, *others)


def _other(choice: GridChoice) -> str:
    return f"{choice.cores}: {_time(choice.predicted_ns)}"


def _reasons(found: MappingExplanation) -> Iterator[str]:
    """Yields the reasons why alternatives are not known."""
    for reason in dict.fromkeys(x.options.unknown for x in found.layers if x.options.unknown):
        names = [x.node for x in found.layers if x.options.unknown == reason]
        which = "all layers" if len(names) == len(found.layers) else ", ".join(names[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 and which != "all layers" else ""
        yield f"- {which}{more}: {reason}"


def _times(found: MappingExplanation, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each core that is the busiest core of a layer."""
    for layer in _one_for_each_core(found):
        whole = layer.finish_ns or 1.0
        shares = (f"{ns / whole:.0%}" for ns in astuple(layer.split))
        name = f"{names[layer.node]} +{len(layer.others)}" if layer.others else names[layer.node]
        yield (name, str(layer.core), _time(layer.work_ns), f"{layer.work_ns / found.interval_ns:.0%}", *shares)


def _one_for_each_core(found: MappingExplanation) -> Iterator[ExplainedLayer]:
    seen: set[int] = set()
    for layer in found.layers:
        if layer.core not in seen:
            seen.add(layer.core)
            yield layer


def _whole(found: MappingExplanation) -> str:
    """Returns a sentence on the tensors that are assembled or cut, because an operator does not stream row by row."""
    total = sum(x.work_ns for x in found.whole)
    most = ", ".join(f"{x.tensor} of {x.node or 'the input'} {_time(x.work_ns)}" for x in found.whole[:_MOST_NODES])
    rest = len(found.whole) - _MOST_NODES
    more = f" and {rest} more" if rest > 0 else ""
    return f"Whole tensors that are put together or cut, as an operator does not stream: {_time(total)}. {most}{more}"


def _zeros(found: MappingExplanation) -> str:
    """Returns a sentence on the zeros that the mapping puts around weights, or an empty one if there are hardly any."""
    most = sorted((x for x in found.zeros if x.placed >= _LEAST_ZEROS), key=lambda x: -x.placed)
    if not most:
        return ""
    shown = ", ".join(f"{x.node} {x.placed:.0%} (x {x.error_factor:.2f})" for x in most[:_MOST_NODES])
    rest = len(most) - _MOST_NODES
    return (
        f"Zeros that the mapping puts around the weights: {shown}{f' and {rest} more' if rest > 0 else ''}. On "
        "imperfect cells they add errors to the sums (by how much, if all cells have equal errors). Strategy raptor "
        "has no such zeros; a chip whose pairs for weights of 0 stay unformed (--with idle=unformed) has no such errors"
    )


def _vector(found: MappingExplanation) -> str:
    """Returns a sentence on the nodes for which the vector units work, mostly requantisation in integer programs."""
    total = sum(x.work_ns for x in found.vector)
    most = ", ".join(f"{x.node} {x.work_ns / total:.0%}" for x in found.vector[:_MOST_NODES])
    rounding = sum(x.work_ns for x in found.vector if x.op_type == "QuantizeLinear")
    share = (
        f", {rounding / total:.0%} of it to round sums to integers of fewer bits (QuantizeLinear)" if rounding else ""
    )
    rest = len(found.vector) - _MOST_NODES
    return f"Vector units of all cores: {_time(total)}{share}. {most}" + (f" and {rest} more" if rest > 0 else "")


def _totals(found: MappingExplanation) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(3):
        table.add_column()
    bounds = found.bounds
    for name, ns in (("latency", found.latency_ns), ("interval", found.interval_ns)):
        table.add_row(name, _time(ns), f"{ns / bounds.tightest_ns:.3g} times the largest bound")
    table.add_row("bounds", _time(bounds.busiest), f"core {bounds.core}, which works most")
    table.add_row("", _time(bounds.average), f"all work, spread evenly over {bounds.cores:,} cores")
    table.add_row("", _time(bounds.products), f"products alone, spread evenly over {bounds.cores:,} cores")
    table.add_row("", _time(bounds.port), "loads and stores at the port of global memory")
    return table


def _proved(found: MappingExplanation) -> str:
    """Returns a sentence or two on the bound of every mapping, and on what it leaves out."""
    proved = found.proved
    if proved.unknown:
        return f"{proved.unknown[0].upper()}{proved.unknown[1:]}."
    share = f" That is {proved.bound_ns / found.interval_ns:.0%} of this one's."
    left_out = f" {_time(proved.left_out_ns)} of {_time(proved.program_ns)} of work are not bounded."
    return f"{proved.why}{share}{left_out if proved.left_out_ns else ''}"


def _what_if(found: MappingExplanation) -> Table:
    """Returns the table of `--what-if`, sorted by latency."""
    table = Table(box=None, pad_edge=False)
    table.add_column("part")
    for name in ("latency", "", "interval", ""):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("as it is", _time(found.latency_ns), "", _time(found.interval_ns), "")
    for faster in sorted(found.what_if, key=lambda w: (w.latency_ns, w.interval_ns)):
        latency = (_time(faster.latency_ns), _gain(faster.latency_ns, found.latency_ns))
        table.add_row(faster.part, *latency, _time(faster.interval_ns), _gain(faster.interval_ns, found.interval_ns))
    return table


def _gain(ns: float, before_ns: float) -> str:
    gain = f"{ns / before_ns - 1:+.1%}" if before_ns else ""
    return "0.0%" if gain in ("+0.0%", "-0.0%") else gain
