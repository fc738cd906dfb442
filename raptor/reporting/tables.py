"""Tables of the report: texts of cells, and the values to sort them by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from raptor.output import files
from raptor.reporting import text
from raptor.reporting.facts import Facts, Layer
from validator.checks.findings_text import place
from validator.profile.facts import GLOBAL_MEMORY, Flow
from validator.simulate.simulation_report import energy_text, time_text

MOST_FLOWS = 200
FEW_ROWS = 20
"""Number of rows shown of a table that folds; page.css has the same number."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `hint`: meaning of the figure, shown on the heading. `detail`: shown only with all columns."""

    name: str
    hint: str = ""
    number: bool = True
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell. `value`: sort key. `share`: 0 to 1, drawn as a bar in the background."""

    shown: str
    value: float | str
    share: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    `foot`: rows below, which are not sorted. `folds`: rows after the first `FEW_ROWS` are shown on demand.
    """

    id: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[Cell, ...], ...] = ()
    folds: bool = False

    @property
    def has_details(self) -> bool:
        return any(column.detail for column in self.columns)

    @property
    def folded(self) -> bool:
        return self.folds and len(self.rows) > FEW_ROWS


_NONE = Cell("", -1)


def segment_table(segments: files.Segments) -> Table:
    """Returns the table of segments, in the order in which they run."""
    columns = (
        Column("segment", number=False),
        Column("where", number=False),
        Column("nodes"),
        Column("MACs", "multiply-accumulates of a sample"),
        Column("reads", "bytes of the tensors that it reads"),
        Column("makes", "bytes of the tensors that it makes"),
        Column("tensors", "that it reads, and that it makes", number=False),
    )
    total = None if any(s.uncounted for s in segments.segments) else sum(s.macs for s in segments.segments) or 1
    sizes = {c.name: c.size_bytes for c in segments.crossings}
    return Table("segments-table", columns, tuple(_segment_cells(s, sizes, total) for s in segments.segments))


def _segment_cells(segment: files.SegmentFile, sizes: Mapping[str, int | None], total: int | None) -> tuple[Cell, ...]:
    return (
        Cell(segment.path, segment.path),
        Cell(segment.kind, segment.kind),
        Cell(f"{len(segment.nodes):,}", len(segment.nodes), hint=", ".join(segment.nodes[:FEW_ROWS])),
        Cell(
            f"{segment.macs:,}{' or more' if segment.uncounted else ''}",
            segment.macs,
            None if total is None else segment.macs / total,
        ),
        *(_sum_of_bytes([sizes[name] for name in names]) for names in (segment.reads, segment.makes)),
        Cell(f"{', '.join(segment.reads)} to {', '.join(segment.makes)}", ""),
    )


def _sum_of_bytes(sizes: Sequence[int | None]) -> Cell:
    """Returns the sum of sizes; unknown if a size depends on values."""
    if None in sizes:
        return Cell("not known", -1)
    total = sum(size or 0 for size in sizes)
    return Cell(text.size(total), total)


def host_table(segments: files.Segments) -> Table:
    """Returns the table of nodes on the host, with the reason for each."""
    columns = (Column("node", number=False), Column("operator", number=False), Column("reason", number=False))
    rows = tuple(tuple(Cell(word, word) for word in (n.node, n.op_type, n.reason)) for n in segments.host_nodes)
    return Table("host-table", columns, rows, folds=True)


_COUNTED = (
    Column("time", "share of the critical path: the chain of instructions that takes the whole latency"),
    Column("energy", "share of the energy of one sample; what belongs to no layer is below"),
    Column("Σ busy", "time that units work for it, summed over all cores: often more than the latency"),
    Column("Σ waiting", "time that cores wait in its send, recv and wait, summed over all cores"),
    Column("cores", "that have instructions of it; the mouse on a number lists them"),
    Column("instructions"),
    Column("products", "mvmul: one array group and one input vector"),
    Column("sent", "bytes sent from core to core, counted at the sender"),
    Column("global", "bytes loaded from and stored to global memory"),
)
_NOTED = (
    Column("skipped", "products not emitted because all that they read is padding", detail=True),
    Column("crossbars"),
    Column("utilisation", "cells that hold weights, of its crossbars"),
    Column("matrices", "of all copies", detail=True),
    Column("copies", "replicas of its matrices", detail=True),
    Column("unfolding", "how its kernel became matrices; vector: on the vector unit", number=False, detail=True),
    Column("in", "shapes of what it reads, weights left out", number=False, detail=True),
    Column("out", "shape of its result", number=False, detail=True),
)


def layer_table(facts: Facts) -> Table:
    """Returns a table with a row for each ONNX node, or for each kind of instruction if nodes are unknown."""
    nodes = facts.profile.parts_are == "node"
    noted = nodes and facts.report is not None
    columns = (
        Column("ONNX node" if nodes else "instruction", number=False),
        *((Column("operator", "ONNX operator", number=False),) if noted else ()),
        *_COUNTED,
        *(_NOTED if noted else ()),
    )
    rows = tuple(_layer_row(facts, layer, noted) for layer in facts.layers)
    return Table("layers", columns, rows, tuple(_foot(facts, columns)))


def _layer_row(facts: Facts, layer: Layer, noted: bool) -> tuple[Cell, ...]:
    name = Cell(layer.name, layer.name)
    if not noted:
        return (name, *_counted(facts, layer))
    operator = layer.noted.op_type if layer.noted else ""
    return (name, Cell(operator, operator), *_counted(facts, layer), *_noted(layer))


def _counted(facts: Facts, layer: Layer) -> tuple[Cell, ...]:
    part, known = layer.counted, facts.profile.estimate
    if part is None:
        return (_NONE,) * len(_COUNTED)
    energy = sum(known.energy_pj.values()) if known else 0.0
    return (
        _share(part.critical_ns, known.latency_ns if known else 0.0, time_text),
        _share(part.energy_pj, energy, energy_text),
        _time(part.busy_ns),
        _time(part.waited_ns),
        Cell(str(len(part.cores)), len(part.cores), hint=f"cores {text.ranges(part.cores)}"),
        _number(sum(part.instructions.values())),
        _number(part.products),
        _bytes(part.moved_bytes),
        _bytes(part.global_bytes),
    )


def _noted(layer: Layer) -> tuple[Cell, ...]:
    noted = layer.noted
    if noted is None:
        return (_NONE,) * len(_NOTED)
    inputs, shape = ", ".join(map(text.shape, noted.inputs)), text.shape(noted.shape)
    return (
        _number(noted.products_skipped),
        _number(noted.xbars),
        Cell(text.share(noted.utilisation), noted.utilisation) if noted.xbars else _NONE,
        _number(noted.matrices),
        _number(noted.replicas),
        Cell(noted.unfolding or "", noted.unfolding or ""),
        Cell(inputs, inputs),
        Cell(shape, shape),
    )


def _foot(facts: Facts, columns: Sequence[Column]) -> list[tuple[Cell, ...]]:
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
    rest: dict[str, Cell] = {}
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


def _line(name: str, cells: dict[str, Cell], columns: Sequence[Column]) -> tuple[Cell, ...]:
    return (Cell(name, name), *(cells.get(c.name, _NONE) for c in columns[1:]))


def flow_table(facts: Facts) -> Table:
    """Returns a table of the largest flows between cores."""
    columns = (
        Column("from"),
        Column("to"),
        Column("bytes"),
        Column("messages"),
        Column("hops", "links on the shortest way through the mesh"),
        Column("flit", "time of a flit in the network table"),
    )
    largest = sorted(facts.profile.traffic, key=lambda f: (-f.bytes, f.source, f.to))[:MOST_FLOWS]
    return Table("flows", columns, tuple(map(_flow_row, largest)), folds=True)


def _flow_row(flow: Flow) -> tuple[Cell, ...]:
    return (
        _end(flow.source),
        _end(flow.to),
        _bytes(flow.bytes),
        _number(flow.messages),
        _NONE if flow.hops is None else _number(flow.hops),
        _NONE if flow.flit_ns is None else Cell(f"{flow.flit_ns:g} ns", flow.flit_ns),
    )


def _end(core: int) -> Cell:
    return Cell("global memory" if core == GLOBAL_MEMORY else f"core {core}", core)


def finding_table(facts: Facts) -> Table:
    """Returns a table with a row for each finding of `raptor check`."""
    columns = tuple(Column(n, number=False) for n in ("severity", "rule", "where", "what", "try"))
    rows = ((f.severity, f.rule, place(f), f.message, f.advice) for f in facts.profile.findings)
    return Table("findings", columns, tuple(tuple(Cell(str(c), str(c)) for c in row) for row in rows))


def _number(value: int) -> Cell:
    return Cell(f"{value:,}" if value else "", value)


def _bytes(value: int) -> Cell:
    return Cell(text.size(value) if value else "", value, hint=f"{value:,} bytes" if value else "")


def _time(ns: float | None) -> Cell:
    return Cell(time_text(float(f"{ns:.4g}")), ns) if ns else _NONE


def _share(value: float | None, whole: float, shown: Callable[[float], str]) -> Cell:
    if not value or not whole:
        return _NONE
    return Cell(text.share(value / whole), value, value / whole, shown(value))
