"""Tables of the report: texts of cells, and the values to sort them by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from raptor.output import files
from raptor.tools.reporting import number_texts
from raptor.tools.reporting.program_facts import LayerFacts, ProgramFacts
from validator.checks.findings_output import describe_place
from validator.profile.profile_results import GLOBAL_MEMORY, MessageFlow
from validator.simulate.analysis.mesh_use import MeshUse
from validator.simulate.simulation_report import energy_text, time_text

MAX_FLOWS = 200
FOLDED_ROWS = 20
"""Number of rows shown of a table that folds; page.css has the same number."""


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column. `hint`: meaning of the figure, shown on the heading. `detail`: shown only with all columns."""

    name: str
    hint: str = ""
    number: bool = True
    detail: bool = False


@dataclass(frozen=True, slots=True)
class ReportCell:
    """A cell. `value`: sort key. `share`: 0 to 1, drawn as a bar in the background."""

    shown: str
    value: float | str
    share: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table.

    `foot`: rows below, which are not sorted. `folds`: rows after the first `FOLDED_ROWS` are shown on demand.
    """

    id: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[ReportCell, ...], ...]
    foot: tuple[tuple[ReportCell, ...], ...] = ()
    folds: bool = False

    @property
    def has_details(self) -> bool:
        return any(column.detail for column in self.columns)

    @property
    def folded(self) -> bool:
        return self.folds and len(self.rows) > FOLDED_ROWS


_NONE = ReportCell("", -1)


def make_segment_table(segments: files.SegmentList) -> ReportTable:
    """Returns the table of segments, in the order in which they run."""
    columns = (
        ReportColumn("segment", number=False),
        ReportColumn("where", number=False),
        ReportColumn("nodes"),
        ReportColumn("MACs", "multiply-accumulates of a sample"),
        ReportColumn("reads", "bytes of the tensors that it reads"),
        ReportColumn("makes", "bytes of the tensors that it makes"),
        ReportColumn("tensors", "that it reads, and that it makes", number=False),
    )
    total = None if any(s.uncounted for s in segments.segments) else sum(s.macs for s in segments.segments) or 1
    sizes = {c.name: c.size_bytes for c in segments.crossings}
    return ReportTable("segments-table", columns, tuple(_segment_cells(s, sizes, total) for s in segments.segments))


def _segment_cells(
    segment: files.SegmentFile, sizes: Mapping[str, int | None], total: int | None
) -> tuple[ReportCell, ...]:
    return (
        ReportCell(segment.path, segment.path),
        ReportCell(segment.kind, segment.kind),
        ReportCell(f"{len(segment.nodes):,}", len(segment.nodes), hint=", ".join(segment.nodes[:FOLDED_ROWS])),
        ReportCell(
            f"{segment.macs:,}{' or more' if segment.uncounted else ''}",
            segment.macs,
            None if total is None else segment.macs / total,
        ),
        *(_sum_of_bytes([sizes[name] for name in names]) for names in (segment.reads, segment.makes)),
        ReportCell(f"{', '.join(segment.reads)} to {', '.join(segment.makes)}", ""),
    )


def _sum_of_bytes(sizes: Sequence[int | None]) -> ReportCell:
    """Returns the sum of sizes; unknown if a size depends on values."""
    if None in sizes:
        return ReportCell("not known", -1)
    total = sum(size or 0 for size in sizes)
    return ReportCell(number_texts.format_size(total), total)


def make_host_table(segments: files.SegmentList) -> ReportTable:
    """Returns the table of nodes on the host, with the reason for each."""
    columns = (
        ReportColumn("node", number=False),
        ReportColumn("operator", number=False),
        ReportColumn("reason", number=False),
    )
    rows = tuple(tuple(ReportCell(word, word) for word in (n.node, n.op_type, n.reason)) for n in segments.host_nodes)
    return ReportTable("host-table", columns, rows, folds=True)


_COUNTED = (
    ReportColumn("time", "share of the critical path: the chain of instructions that takes the whole latency"),
    ReportColumn("energy", "share of the energy of one sample; what belongs to no layer is below"),
    ReportColumn("Σ busy", "time that units work for it, summed over all cores: often more than the latency"),
    ReportColumn("Σ waiting", "time that cores wait in its send, recv and wait, summed over all cores"),
    ReportColumn("cores", "that have instructions of it; the mouse on a number lists them"),
    ReportColumn("instructions"),
    ReportColumn("products", "mvmul: one array group and one input vector"),
    ReportColumn("sent", "bytes sent from core to core, counted at the sender"),
    ReportColumn("global", "bytes loaded from and stored to global memory"),
)
_NOTED = (
    ReportColumn("skipped", "products not emitted because all that they read is padding", detail=True),
    ReportColumn("crossbars"),
    ReportColumn("utilisation", "cells that hold weights, of its crossbars"),
    ReportColumn("matrices", "of all copies", detail=True),
    ReportColumn("copies", "replicas of its matrices", detail=True),
    ReportColumn("unfolding", "how its kernel became matrices; vector: on the vector unit", number=False, detail=True),
    ReportColumn("in", "shapes of what it reads, weights left out", number=False, detail=True),
    ReportColumn("out", "shape of its result", number=False, detail=True),
)


def make_layer_table(facts: ProgramFacts) -> ReportTable:
    """Returns a table with a row for each ONNX node, or for each kind of instruction if nodes are unknown."""
    nodes = facts.profile.part_kind == "node"
    noted = nodes and facts.report is not None
    columns = (
        ReportColumn("ONNX node" if nodes else "instruction", number=False),
        *((ReportColumn("operator", "ONNX operator", number=False),) if noted else ()),
        *_COUNTED,
        *(_NOTED if noted else ()),
    )
    rows = tuple(_layer_row(facts, layer, noted) for layer in facts.layers)
    return ReportTable("layers", columns, rows, tuple(_foot(facts, columns)))


def _layer_row(facts: ProgramFacts, layer: LayerFacts, noted: bool) -> tuple[ReportCell, ...]:
    name = ReportCell(layer.name, layer.name)
    if not noted:
        return (name, *_counted(facts, layer))
    operator = layer.noted.op_type if layer.noted else ""
    return (name, ReportCell(operator, operator), *_counted(facts, layer), *_noted(layer))


def _counted(facts: ProgramFacts, layer: LayerFacts) -> tuple[ReportCell, ...]:
    part, known = layer.counted, facts.profile.estimate
    if part is None:
        return (_NONE,) * len(_COUNTED)
    energy = sum(known.energy_pj.values()) if known else 0.0
    return (
        _share(part.critical_ns, known.latency_ns if known else 0.0, time_text),
        _share(part.energy_pj, energy, energy_text),
        _time(part.busy_ns),
        _time(part.waited_ns),
        ReportCell(str(len(part.cores)), len(part.cores), hint=f"cores {number_texts.format_ranges(part.cores)}"),
        _number(sum(part.instructions.values())),
        _number(part.products),
        _bytes(part.moved_bytes),
        _bytes(part.global_bytes),
    )


def _noted(layer: LayerFacts) -> tuple[ReportCell, ...]:
    noted = layer.noted
    if noted is None:
        return (_NONE,) * len(_NOTED)
    inputs, shape = ", ".join(map(number_texts.format_shape, noted.inputs)), number_texts.format_shape(noted.shape)
    return (
        _number(noted.products_skipped),
        _number(noted.xbars),
        ReportCell(number_texts.format_share(noted.utilisation), noted.utilisation) if noted.xbars else _NONE,
        _number(noted.matrices),
        _number(noted.replicas),
        ReportCell(noted.unfolding or "", noted.unfolding or ""),
        ReportCell(inputs, inputs),
        ReportCell(shape, shape),
    )


def _foot(facts: ProgramFacts, columns: Sequence[ReportColumn]) -> list[tuple[ReportCell, ...]]:
    """Returns the rows of sums, and of the energy that belongs to no layer."""
    parts, known = facts.profile.parts, facts.profile.estimate
    totals = {
        "instructions": _number(facts.profile.instructions),
        "products": _number(sum(p.products for p in parts)),
        "sent": _bytes(sum(p.moved_bytes for p in parts)),
        "global": _bytes(sum(p.global_bytes for p in parts)),
    }
    if facts.report:
        totals["matrices"] = _number(facts.report.matrices)
        totals["crossbars"] = _number(facts.report.xbars_used)
        totals["skipped"] = _number(sum(layer.products_skipped for layer in facts.report.layers))
    rest: dict[str, ReportCell] = {}
    if known:
        energy, of_parts = sum(known.energy_pj.values()), sum(p.energy_pj or 0.0 for p in parts)
        totals["time"] = _share(sum(p.critical_ns or 0.0 for p in parts), known.latency_ns, time_text)
        totals["Σ busy"] = _time(sum(p.busy_ns or 0.0 for p in parts))
        totals["Σ waiting"] = _time(sum(p.waited_ns or 0.0 for p in parts))
        totals["energy"] = _share(of_parts, energy, energy_text)
        left = _share(max(energy - of_parts, 0.0), energy, energy_text)
        rest["energy"] = replace(left, hint=f"{left.hint}: static energy, decode, registers, scalar unit")
    rows = [_line("all", totals, columns)]
    return [*rows, _line("no layer", rest, columns)] if rest else rows


def _line(name: str, cells: dict[str, ReportCell], columns: Sequence[ReportColumn]) -> tuple[ReportCell, ...]:
    return (ReportCell(name, name), *(cells.get(c.name, _NONE) for c in columns[1:]))


def make_flow_table(facts: ProgramFacts) -> ReportTable:
    """Returns a table of the largest flows between cores."""
    columns = (
        ReportColumn("from"),
        ReportColumn("to"),
        ReportColumn("bytes"),
        ReportColumn("messages"),
        ReportColumn("hops", "links on the shortest way through the mesh"),
        ReportColumn("flit", "time of a flit in the network table"),
    )
    largest = sorted(facts.profile.traffic, key=lambda f: (-f.bytes, f.source, f.to))[:MAX_FLOWS]
    return ReportTable("flows", columns, tuple(map(_flow_row, largest)), folds=True)


def make_link_table(mesh: MeshUse) -> ReportTable:
    """Returns a table of the links of the mesh that are used most, with the mean of the links in use below."""
    columns = (ReportColumn("link", number=False), ReportColumn("flits", "of a sample"), ReportColumn("busy"))
    rows = tuple(
        (ReportCell(link.link, link.link), _number(round(link.flits)), _busy_cell(link.share)) for link in mesh.hottest
    )
    mean = (ReportCell(f"mean of {mesh.links_used:,} in use", ""), _NONE, _busy_cell(mesh.mean_share))
    return ReportTable("links", columns, rows, (mean,))


def _busy_cell(share: float) -> ReportCell:
    return ReportCell(f"{share:.2%}", share, min(share, 1.0))


def _flow_row(flow: MessageFlow) -> tuple[ReportCell, ...]:
    return (
        _end(flow.source),
        _end(flow.to),
        _bytes(flow.bytes),
        _number(flow.messages),
        _NONE if flow.hops is None else _number(flow.hops),
        _NONE if flow.flit_ns is None else ReportCell(f"{flow.flit_ns:g} ns", flow.flit_ns),
    )


def _end(core: int) -> ReportCell:
    return ReportCell("global memory" if core == GLOBAL_MEMORY else f"core {core}", core)


def make_finding_table(facts: ProgramFacts) -> ReportTable:
    """Returns a table with a row for each finding of `raptor check`."""
    columns = tuple(ReportColumn(n, number=False) for n in ("severity", "rule", "where", "what", "try"))
    rows = ((f.severity, f.rule, describe_place(f), f.message, f.advice) for f in facts.profile.findings)
    return ReportTable("findings", columns, tuple(tuple(ReportCell(str(c), str(c)) for c in row) for row in rows))


def _number(value: int) -> ReportCell:
    return ReportCell(f"{value:,}" if value else "", value)


def _bytes(value: int) -> ReportCell:
    return ReportCell(number_texts.format_size(value) if value else "", value, hint=f"{value:,} bytes" if value else "")


def _time(ns: float | None) -> ReportCell:
    return ReportCell(time_text(float(f"{ns:.4g}")), ns) if ns else _NONE


def _share(value: float | None, whole: float, shown: Callable[[float], str]) -> ReportCell:
    if not value or not whole:
        return _NONE
    return ReportCell(number_texts.format_share(value / whole), value, value / whole, shown(value))
