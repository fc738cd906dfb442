"""Comparison of several outputs, on a terminal and as a page. Ratios are relative to the first output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from raptor.common.terminal.abbreviation import abbreviate_names
from raptor.common.terminal.console import LiteralConsole
from raptor.output import files
from raptor.target.arch import hardware_json
from raptor.tools.reporting import key_figures, number_texts
from raptor.tools.reporting.chip_figures import draw_layer_times
from raptor.tools.reporting.key_figure import KeyFigure
from raptor.tools.reporting.program_facts import LayerFacts, ProgramFacts
from raptor.tools.reporting.report_page import render_page
from raptor.tools.reporting.report_tables import ReportCell, ReportColumn, ReportTable
from raptor.tools.reporting.terminal_columns import show_columns
from validator.simulate.simulation_report import time_text

_SHARE_WIDTH = 10
"""Width in characters of a share and its frame."""
_WORDS = ("model", "compiled by", "options", "chip", "validation")


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One key figure of every output. `ratios`: to the first output; None if a value is unknown or the first is 0."""

    name: str
    figures: tuple[KeyFigure, ...]
    ratios: tuple[float | None, ...]


def compare_figures(outputs: Sequence[ProgramFacts]) -> list[ComparedFigure]:
    """Returns a row for every key figure that at least one output has, in the order of the report."""
    lines = [{f.key: f for f in key_figures.list_key_figures(facts)} for facts in outputs]
    longest = max(lines, key=len)
    return [_row(tuple(line.get(key) or _unknown(longest[key]) for line in lines)) for key in longest]


def _unknown(figure: KeyFigure) -> KeyFigure:
    return replace(figure, value=None, shown="not known", source="", short="")


def _row(line: tuple[KeyFigure, ...]) -> ComparedFigure:
    base = line[0].value
    ratios = (f.value / base if base and f.value is not None else None for f in line)
    return ComparedFigure(line[0].name, line, tuple(ratios))


def list_caveats(outputs: Sequence[ProgramFacts]) -> list[str]:
    """Returns caveats of the comparison: different models, chips or granularities, and missing estimates."""
    remarks: list[str] = []
    if len(set(map(_model, outputs))) > 1:
        remarks.append("the models differ, or are not known: ratios compare different work")
    chips = {hardware_json(f.profile.chip) if f.profile.chip else "" for f in outputs}
    if len(chips) > 1:
        remarks.append("the chips differ: static energy grows with the cores of config.json, idle ones too")
    if len({f.profile.part_kind for f in outputs}) > 1:
        remarks.append("not all say which layer an instruction serves: layers are not compared")
    remarks += [f"{f.name}: no time, no energy: {f.profile.untimed}" for f in outputs if f.profile.untimed]
    return remarks


def _model(facts: ProgramFacts) -> str:
    """Returns a key that is equal for equal bytes of the ONNX file, whatever its name."""
    known = facts.manifest.files.get(files.MODEL) if facts.manifest else None
    return known.sha256 if known else facts.name


def show_comparison(outputs: Sequence[ProgramFacts], console: LiteralConsole) -> None:
    """Prints a table with a column for each output, and its ratios to the first one."""
    compared, names = compare_figures(outputs), [facts.name for facts in outputs]
    slowest = _slowest_cells(outputs, console.width // (1 + len(outputs)) - _SHARE_WIDTH)
    wide = [(row.name, *_cells_of(row, short=False)) for row in compared]
    wide.append(("slowest layer", *slowest))
    narrow = [(row.name, *_cells_of(row, short=True)) for row in compared]
    if not show_columns(names, wide, narrow, console):
        for facts, cell in zip(outputs, slowest, strict=True):
            console.print(f"slowest layer of {facts.name}: {cell}", soft_wrap=True)
    for note in list_caveats(outputs):
        console.print(f"note: {note}", soft_wrap=True)


def _slowest_cells(outputs: Sequence[ProgramFacts], width: int) -> list[str]:
    """Returns the slowest layer of each output, abbreviated to distinct names of at most `width` characters."""
    slowest = [key_figures.find_slowest_layer(facts) for facts in outputs]
    names = abbreviate_names([most[0].name for most in slowest if most], width)
    return [_slowest(most, names) for most in slowest]


def _cells_of(row: ComparedFigure, *, short: bool) -> Iterator[str]:
    for k, (figure, ratio) in enumerate(zip(row.figures, row.ratios, strict=True)):
        shown = (figure.short or figure.shown) if short else figure.shown
        yield f"{shown}  {format_ratio(ratio)}" if k and ratio is not None else shown


def format_ratio(ratio: float) -> str:
    """Returns the text of a ratio: `x0.25`."""
    return f"x{ratio:.3g}"


def _slowest(most: tuple[LayerFacts, float] | None, names: Mapping[str, str]) -> str:
    return "not known" if most is None else f"{names[most[0].name]} {number_texts.format_share(most[1])}"


def render_comparison(outputs: Sequence[ProgramFacts]) -> str:
    """Returns the HTML page of `raptor compare -o`."""
    layers = len({f.profile.part_kind for f in outputs}) == 1 and all(f.profile.estimate for f in outputs)
    names = _timed_layers(outputs)
    figures = [draw_layer_times([(f.name, f.profile) for f in outputs], names)] if layers else []
    return render_page(
        "compare.html",
        figures,
        title=", ".join(f.name for f in outputs),
        compared=_table(outputs),
        words=_words(outputs),
        layers=_layer_table(outputs, names) if layers else None,
        untimed=len(_layers(outputs)) - len(names),
        notes=list_caveats(outputs),
        not_modelled=key_figures.NOT_MODELLED,
    )


def _words(outputs: Sequence[ProgramFacts]) -> ReportTable:
    columns = (ReportColumn("", number=False), *(ReportColumn(f.name, number=False) for f in outputs))
    heads = [{f.name: f for f in key_figures.list_head_figures(facts)} for facts in outputs]
    lines = ((ReportCell(word, word), *(_word(h[word]) for h in heads)) for word in _WORDS)
    return ReportTable("words", columns, tuple(lines))


def _word(figure: KeyFigure) -> ReportCell:
    shown = f"{figure.shown} ({figure.source})" if figure.source else figure.shown
    return ReportCell(shown, shown)


def _table(outputs: Sequence[ProgramFacts]) -> ReportTable:
    columns = [ReportColumn("figure", number=False)]
    for k, facts in enumerate(outputs):
        columns += [ReportColumn(facts.name), *((ReportColumn("ratio", f"to {outputs[0].name}"),) if k else ())]
    return ReportTable("figures-compared", tuple(columns), tuple(map(_cells, compare_figures(outputs))))


def _cells(row: ComparedFigure) -> tuple[ReportCell, ...]:
    cells = [ReportCell(row.name, row.name)]
    for k, (figure, ratio) in enumerate(zip(row.figures, row.ratios, strict=True)):
        cells.append(ReportCell(figure.shown, -1 if figure.value is None else figure.value, hint=figure.source))
        if k:
            cells.append(ReportCell("", -1) if ratio is None else ReportCell(format_ratio(ratio), ratio))
    return tuple(cells)


def _layers(outputs: Sequence[ProgramFacts]) -> list[str]:
    """Returns the names of the layers of all outputs, without duplicates; the first output comes first."""
    return list(dict.fromkeys(layer.name for facts in outputs for layer in facts.layers))


def _timed_layers(outputs: Sequence[ProgramFacts]) -> list[str]:
    """Returns the layers that are on the critical path of any output."""
    timed = {p.name for facts in outputs for p in facts.profile.parts if p.critical_ns}
    return [name for name in _layers(outputs) if name in timed]


def _layer_table(outputs: Sequence[ProgramFacts], names: Sequence[str]) -> ReportTable:
    """Returns a table of times on the critical path."""
    layer_ns = [{p.name: p.critical_ns or 0.0 for p in f.profile.parts} for f in outputs]
    columns = [ReportColumn("layer", number=False)]
    for k, facts in enumerate(outputs):
        columns += [ReportColumn(facts.name, "time on the critical path"), *((ReportColumn("ratio"),) if k else ())]
    return ReportTable("layers-compared", tuple(columns), tuple(_layer_cells(name, layer_ns) for name in names))


def _layer_cells(name: str, layer_ns: Sequence[dict[str, float]]) -> tuple[ReportCell, ...]:
    cells, base = [ReportCell(name, name)], layer_ns[0].get(name)
    for k, parts in enumerate(layer_ns):
        ns = parts.get(name)
        cells.append(ReportCell("", -1) if ns is None else ReportCell(time_text(float(f"{ns:.4g}")), ns))
        if k:
            cells.append(
                ReportCell(format_ratio(ns / base), ns / base) if base and ns is not None else ReportCell("", -1)
            )
    return tuple(cells)
