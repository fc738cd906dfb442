"""Writes SpatialIR as MLIR text: dialect `spat`, after partition, place_cores or schedule (docs/reference/mlir.md).

The text has what computes do, where and in which order. Tables that follow from the model (tensors, filters, values of
constants) are handles: a reader takes them from the compilation that goes on with the text.
"""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from raptor.common.mlir.syntax import MlirType, ResourceHandle, SymbolRef, quote, write_attribute
from raptor.mlir.pim_writer import operation_parameters, write_location, write_module
from raptor.mlir.records import element_name, to_attribute
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.operations import Gather
from raptor.spatial.placed_graph import Fetch, Partition, PlacedGraph, Schedule
from raptor.spatial.tiles import ConstantTile, ShapedValue

Placed = Partition | PlacedGraph | Schedule


def write_spat(value: Placed, made_by: str) -> str:
    """Returns a graph with cores, or a schedule, as an MLIR module. made_by: name of the pass that returned it."""
    body = "\n".join(spat_body(value))
    graph = graph_of(value)
    return write_module("spat", graph.name, made_by, body, modelled=graph.numbers == "float")


def graph_of(value: Placed) -> SpatialGraph:
    """Returns the graph, with its computes in their own order."""
    return value.placed.graph if isinstance(value, Schedule) else value.graph


def spat_body(value: Placed) -> Iterator[str]:
    """Yields the lines of a module: tiles of inputs, constants, matrices and forms, then computes and fetches."""
    writer = _SpatWriter()
    placed = value.placed if isinstance(value, Schedule) else value
    count, computes = len(placed.graph.computes), placed.graph.computes
    order = value.order if isinstance(value, Schedule) else range(count)
    fetches = value.fetches if isinstance(value, Schedule) else ()
    lines: list[str] = []
    for number in order:
        if number < count:
            place = {"core": placed.cores[number], "position": float(placed.positions[number])}
            lines += writer.compute(computes[number], number, place)
        else:
            lines.append(writer.fetch(fetches[number - count], number - count))
    yield from writer.head
    yield from lines


@dataclass(slots=True)
class _SpatWriter:
    """Numbers values, forms and lists of matrices while computes are written. head: lines that stand before them."""

    head: list[str] = field(default_factory=list[str])
    values: dict[str, int] = field(default_factory=dict[str, int])
    count: int = 0
    forms: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    matrices: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def value(self, tile: ShapedValue) -> str:
        """Returns the name of a tile in the text. One that no compute before has made is an input or a constant."""
        if tile.name not in self.values:
            number = self.values[tile.name] = self.new()
            attributes = f"name = {quote(tile.name)}"
            operation = "extract_slice"
            if isinstance(tile, ConstantTile):
                key = f"c{number}_{re.sub(r'[^A-Za-z0-9]', '_', tile.name)}"
                element = element_name(tile.element)
                handle = ResourceHandle(key, MlirType("tensor", (tile.values.size,), element))
                operation, attributes = "constant", f"{attributes}, handle = {write_attribute(handle)}"
            self.head.append(f'  %{number} = "spat.{operation}"() {{{attributes}}} : () -> {tile_type(tile)}')
        return f"%{self.values[tile.name]}"

    def form(self, op: BodyOp) -> int:
        """Returns the number of the form of an operation, which is written at its first use."""
        key = op.form
        if key not in self.forms:
            number = self.forms[key] = len(self.forms)
            slots = _slots(op)
            names = [tile.name for tile in slots]
            parameters = operation_parameters(op, _Places(names))
            attributes = {
                "sym_name": f"f{number}",
                "kind": op.mnemonic,
                "parameters": parameters,
                "slots": [tile_type(tile) for tile in slots],
            }
            self.head.append(f'  "spat.form"() {write_attribute(attributes)} : () -> ()')
        return self.forms[key]

    def matrix_list(self, compute: Compute) -> SymbolRef:
        key = compute.layer, compute.matrices
        if key not in self.matrices:
            number = self.matrices[key] = len(self.matrices)
            listed = [to_attribute(matrix) for matrix in compute.matrices]
            attributes = {"sym_name": f"m{number}", "layer": compute.layer, "matrices": listed}
            self.head.append(f'  "spat.matrices"() {write_attribute(attributes)} : () -> ()')
        return SymbolRef(f"m{self.matrices[key]}")

    def compute(self, compute: Compute, number: int, place: dict[str, int | float]) -> Iterator[str]:
        inputs = [(self.value(tile), tile_type(tile)) for tile in compute.inputs]
        body, inside = list[str](), dict[str, int]()
        for op in compute.body:
            slots = _slots(op)[:-1]
            read = [f"%{inside[t.name]}" if t.name in inside else self.value(t) for t in slots]
            form = self.form(op)
            inside[op.result.name] = made = self.new()
            types = ", ".join([str(tile_type(tile)) for tile in slots])
            inner = f"form = @f{form}, name = {quote(op.result.name)}"
            body.append(
                f'    %{made} = "spat.{op.mnemonic}"({", ".join(read)}) {{{inner}}} : ({types}) -> '
                f"{tile_type(op.result)}"
            )
        types = ", ".join([str(tile_type(tile)) for tile in compute.results])
        yielded = ", ".join([f"%{inside[tile.name]}" for tile in compute.results])
        results: list[str] = []
        for tile in compute.results:
            self.values[tile.name] = self.new()
            results.append(f"%{self.values[tile.name]}")
        attributes: dict[str, Any] = {"number": number, "op_type": compute.op_type, "layer": compute.layer, **place}
        if compute.matrices:
            attributes["matrices"] = self.matrix_list(compute)
        made_by = f"{', '.join(results)} = " if results else ""
        yield f'  {made_by}"spat.compute"({", ".join([name for name, _ in inputs])}) ({{'
        yield from body
        yield f'    "spat.yield"({yielded}) : ({types}) -> ()'
        given = ", ".join([str(type_) for _, type_ in inputs])
        yield f"  }}) {write_attribute(attributes)} : ({given}) -> ({types}) {write_location(compute.node)}"

    def fetch(self, fetch: Fetch, number: int) -> str:
        attributes = write_attribute({"number": number, "core": fetch.core})
        value = self.value(fetch.tile)
        return f'  "spat.fetch"({value}) {attributes} : ({tile_type(fetch.tile)}) -> () {write_location(fetch.node)}'


def _slots(op: BodyOp) -> list[ShapedValue]:
    """Returns the distinct operands of an operation, and its result."""
    operands = op.operands if not isinstance(op, Gather) else tuple(piece.value for piece in op.pieces)
    return [*{tile.name: tile for tile in operands}.values(), op.result]


class _Places(dict[ShapedValue, int]):
    """Number of the slot of a tile, by its name: constants are compared by identity, names are unique."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __getitem__(self, tile: ShapedValue, /) -> int:
        return self.names.index(tile.name)


def tile_type(tile: ShapedValue) -> MlirType:
    """Returns the type of a tile: a tensor of rows x width x channels."""
    return MlirType("tensor", (tile.rows, tile.width, tile.channels), element_name(tile.element))
