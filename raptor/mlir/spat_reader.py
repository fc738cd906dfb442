"""Reads SpatialIR from MLIR text of the dialect `spat`, as `raptor.mlir.spat_writer` writes it.

The text says what computes do, on which cores and in which order. All else is taken from the value that the compilation
has in its place (`SpatModule.resolve`). After place_cores and schedule only cores and order may differ from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raptor.common.errors import VerifyError
from raptor.common.mlir.reader import MlirOp
from raptor.common.mlir.syntax import MlirError, MlirType
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.mlir.checks import (
    FAULTS,
    check_header,
    check_op,
    check_symbol,
    check_window,
    decode_operation,
    find_node,
    read_shape,
)
from raptor.mlir.dialect import spat_classes
from raptor.mlir.records import RecordDecoder
from raptor.mlir.spat_writer import Placed, graph_of, spat_body, tile_type
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.placed_graph import Fetch, Partition, PlacedGraph, Schedule
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.spatial.verification.verify_types import find_operation_fault

Matrices = tuple[Matrix, ...] | tuple[LineMatrix, ...]


@dataclass(frozen=True, slots=True)
class SpatModule:
    """A module of SpatialIR that is right by itself. made_by: name of its pass. source: digest of RAPTOR's text."""

    module: MlirOp
    made_by: str
    source: str

    def resolve(self, own: Any) -> Placed:
        """Returns the value of the module, completed by `own`, which the compilation has in its place.

        Raises `MlirError` if computes differ from those of `own` where only cores or order may.
        """
        if not isinstance(own, Partition | PlacedGraph | Schedule):
            raise MlirError(self.module.position, f"{self.made_by} returns no value of the dialect spat")
        graph = graph_of(own)
        reader = _read(self.module, {tile.name: tile for tile in (*graph.dataflow.constants, *graph.literals.values())})
        cores, positions = tuple(reader.cores), tuple(reader.positions)
        nodes = {(compute.node, compute.op_type) for compute in graph.computes}
        layers = {compute.layer for compute in graph.computes}
        for compute, place in zip(reader.computes, reader.places, strict=True):
            if (compute.node, compute.op_type) not in nodes or compute.layer not in layers:
                raise MlirError(place, "its ONNX node, operator or layer is none that the program has")
        if isinstance(own, Partition):
            return Partition(replace(graph, computes=tuple(reader.computes)), cores, positions)
        order = reader.order(self.module, len(graph.computes), isinstance(own, Schedule))
        numbers = [number for number in order if number < len(graph.computes)]
        at: list[int] = np.argsort(numbers, kind="stable").tolist()
        computes = tuple([reader.computes[k] for k in at])
        cores, positions = tuple([cores[k] for k in at]), tuple([positions[k] for k in at])
        placed = own.placed if isinstance(own, Schedule) else own
        same = replace(placed, graph=replace(graph, computes=computes))
        if positions != tuple(map(float, placed.positions)) or not _equal(same, placed):
            raise MlirError(self.module.position, f"computes differ: after {self.made_by} only their place may")
        if isinstance(own, PlacedGraph):
            return replace(own, cores=cores)
        if cores != placed.cores:
            raise MlirError(self.module.position, "cores differ: after schedule only the order may")
        return Schedule(placed, tuple(reader.fetches), tuple(order))

    def place_of(self, error: VerifyError) -> int:
        """Returns the place of the compute that makes the tile which an error names; else of the module."""
        words = {word.strip("%:,()") for word in str(error).split()}
        for op in self.module.regions[0]:
            inside = op.regions[0] if op.regions else ()
            if any(each.attributes.get("name") in words for each in inside):
                return op.position
        return self.module.position


def _equal(one: PlacedGraph, other: PlacedGraph) -> bool:
    """True if two graphs have the same text. Operations are compared by identity, so they cannot be compared."""
    return all(a == b for a, b in zip(spat_body(one), spat_body(other), strict=False)) and len(one.cores) == len(
        other.cores
    )


def read_spat_module(module: MlirOp) -> SpatModule:
    """Returns a module of the dialect `spat`. Raises `MlirError` at the first place that is wrong by itself."""
    made_by, source, _ = check_header(module, "spat")
    _read(module, None)
    return SpatModule(module, made_by, source)


def _read(module: MlirOp, constants: Mapping[str, ConstantTile] | None) -> "_SpatReader":
    reader = _SpatReader(check_header(module, "spat")[2], constants)
    for op in module.regions[0]:
        reader.top(op)
    return reader


@dataclass(frozen=True, slots=True)
class _SlottedForm:
    """An operation on slots, which are tiles named by their numbers; the last one is the result."""

    operation: BodyOp
    slots: tuple[Tile, ...]
    name: str


@dataclass(slots=True)
class _SpatReader:
    """Collects computes and fetches. constants: by name, or None to make them up.

    values: the tiles of the text by name in the text. places: of each
    compute. sequence: for each compute and fetch, whether it is a fetch, and its number.
    """

    modelled: bool
    constants: Mapping[str, ConstantTile] | None
    values: dict[str, Tile] = field(default_factory=dict[str, Tile])
    forms: dict[str, _SlottedForm] = field(default_factory=dict[str, _SlottedForm])
    matrices: dict[str, tuple[str, Matrices]] = field(default_factory=dict[str, tuple[str, Matrices]])
    computes: list[Compute] = field(default_factory=list[Compute])
    places: list[int] = field(default_factory=list[int])
    cores: list[int] = field(default_factory=list[int])
    positions: list[float] = field(default_factory=list[float])
    fetches: list[Fetch] = field(default_factory=list[Fetch])
    sequence: list[tuple[bool, int]] = field(default_factory=list[tuple[bool, int]])
    checked: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])

    def top(self, op: MlirOp) -> None:
        """Reads an operation of the module."""
        check_op(op, self.checked)
        match op.name:
            case "spat.extract_slice" | "spat.constant":
                self.source(op)
            case "spat.matrices":
                self.matrix_list(op)
            case "spat.form":
                self.form(op)
            case "spat.compute":
                self.compute(op)
            case "spat.fetch":
                (tile,) = self.operands(op)
                self.sequence.append((True, op.attributes["number"]))
                self.fetches.append(Fetch(tile, op.attributes["core"], find_node(op)))
            case _:
                raise MlirError(op.position, f"{op.name}: not in a module")

    def tile(self, op: MlirOp, name: str, type_: MlirType) -> Tile:
        """Returns a tile of the shape of a tensor."""
        return Tile(name, *read_shape(op, type_, "tensor", modelled=self.modelled))

    def define(self, op: MlirOp, name: str, tile: Tile) -> None:
        if name in self.values:
            raise MlirError(op.position, f"%{name} is defined twice")
        self.values[name] = tile

    def operands(self, op: MlirOp) -> list[Tile]:
        found: list[Tile] = []
        for name, type_ in zip(op.operands, op.operand_types, strict=True):
            tile = self.values.get(name)
            if tile is None:
                raise MlirError(op.position, f"%{name} is used before it is defined")
            if tile_type(tile) != type_:
                raise MlirError(op.position, f"%{name} is {tile_type(tile)}, not {type_}")
            found.append(tile)
        return found

    def source(self, op: MlirOp) -> None:
        tile = self.tile(op, op.attributes["name"], op.result_types[0])
        if op.name == "spat.constant":
            tile = self.constant(op, tile)
        self.define(op, op.results[0], tile)

    def constant(self, op: MlirOp, tile: Tile) -> ConstantTile:
        """Returns the constant of the compilation; without one, a tile of zeros."""
        shape = op.attributes["handle"].type.shape
        if self.constants is None:
            if len(shape) != 1 or not 0 < shape[0] <= tile.elements:
                raise MlirError(op.position, f"spat.constant: values of {shape} for {tile.elements} elements")
            zeros = np.zeros(shape, np.float32)
            return ConstantTile(tile.name, tile.rows, tile.width, tile.channels, tile.element, values=zeros)
        known = self.constants.get(tile.name)
        if known is None or tile_type(known) != tile_type(tile):
            raise MlirError(op.position, f"spat.constant: the model has no constant {tile.name!r} of {tile_type(tile)}")
        return known

    def matrix_list(self, op: MlirOp) -> None:
        try:
            kind = tuple[Matrix, ...] | tuple[LineMatrix, ...]
            found = RecordDecoder(self.modelled).decode(op.attributes["matrices"], kind)
        except ValueError as e:
            raise MlirError(op.position, f"spat.matrices: {e}") from None
        self.matrices[check_symbol(op, self.matrices, self.forms)] = op.attributes["layer"], found

    def form(self, op: MlirOp) -> None:
        found = op.attributes
        name = check_symbol(op, self.matrices, self.forms)
        known = spat_classes().get(found["kind"])
        if known is None:
            raise MlirError(op.position, f"spat.form: {found['kind']!r} is no operation with forms")
        slots = tuple([self.tile(op, f"{k}", each) for k, each in enumerate(found["slots"])])
        if not slots:
            raise MlirError(op.position, "spat.form: it has no slots")
        try:
            operation = decode_operation(known, found["parameters"], slots, self.modelled)
            check_window(getattr(operation, "window", None))
            fault = find_operation_fault(operation)
            names = {tile.name for tile in operation.operands}
            if fault is None and (operation.result != slots[-1] or names != {tile.name for tile in slots[:-1]}):
                fault = "slots are the operands, each once, and then the result"
        except FAULTS as e:
            raise MlirError(op.position, f"spat.form: parameters: {e}") from None
        if fault is not None:
            raise MlirError(op.position, f"spat.form: {fault}")
        self.forms[name] = _SlottedForm(operation, slots, f"spat.{found['kind']}")

    def body_op(self, op: MlirOp) -> BodyOp:
        """Reads an operation of a compute."""
        form = self.forms.get(op.attributes["form"].name)
        if form is None or form.name != op.name:
            raise MlirError(op.position, f"{op.name}: no such form before it: @{op.attributes['form'].name}")
        operands, made = self.operands(op), self.tile(op, op.attributes["name"], op.result_types[0])
        wanted = [tile_type(slot) for slot in form.slots]
        if [tile_type(tile) for tile in (*operands, made)] != wanted:
            raise MlirError(op.position, f"{op.name}: the form has {', '.join(map(str, wanted))}")
        names = {slot.name: tile for slot, tile in zip(form.slots, (*operands, made), strict=True)}
        self.define(op, op.results[0], made)
        result: Any = form.operation.map_operands(lambda slot: names[slot.name])
        return result

    def compute(self, op: MlirOp) -> None:
        found, body = op.attributes, list[BodyOp]()
        inputs = self.operands(op)
        *inside, last = op.regions[0] or (op,)
        for each in (*inside, last):
            if (each.name == "spat.yield") != (each is last) or each is op:
                raise MlirError(each.position, f"{each.name}: a compute ends with its only spat.yield")
            check_op(each, self.checked)
            if each is not last:
                if "form" not in each.attributes:
                    raise MlirError(each.position, f"{each.name}: not in a compute")
                body.append(self.body_op(each))
        results = tuple(self.operands(last))
        if last.operand_types != op.result_types or not {r.name for r in results} <= {b.result.name for b in body}:
            raise MlirError(last.position, "spat.yield: its tiles are not the results of the compute")
        for each in inside:  # names in a region have no meaning after it
            del self.values[each.results[0]]
        layer, matrices = self.matrices.get(found["matrices"].name, ("", None)) if "matrices" in found else ("", ())
        if matrices is None or (matrices and layer != found["layer"]):
            raise MlirError(op.position, f"spat.compute: no matrices of {found['layer']!r} before it")
        compute = Compute(find_node(op), found["op_type"], found["layer"], matrices, tuple(body), results)
        if [tile.name for tile in compute.inputs] != [tile.name for tile in inputs]:
            raise MlirError(op.position, "spat.compute: its operands are not the tiles that it reads, in their order")
        for name, tile in zip(op.results, results, strict=True):
            self.define(op, name, tile)
        self.computes.append(compute)
        self.places.append(op.position)
        self.cores.append(found["core"])
        self.positions.append(found["position"])
        self.sequence.append((False, found["number"]))

    def order(self, module: MlirOp, count: int, fetched: bool) -> list[int]:
        """Returns the numbers of computes, and of fetches after them, in the order of the text; fetches are sorted."""
        numbers = [number for is_fetch, number in self.sequence if not is_fetch]
        fetches = [number for is_fetch, number in self.sequence if is_fetch]
        if sorted(numbers) != list(range(count)) or sorted(fetches) != list(range(len(fetches))):
            raise MlirError(module.position, "numbers of computes or fetches are not each there once")
        if fetches and not fetched:
            raise MlirError(module.position, "there are fetches only after schedule")
        self.fetches = [self.fetches[k] for k in np.argsort(fetches).tolist()]
        return [number + count if is_fetch else number for is_fetch, number in self.sequence]
