"""Def-use tables of a graph: which operations read and write which tiles, as numpy columns.

Passes that ask the same question of every compute ask it here, with a few numpy operations for the whole graph. Most
operations repeat another one on other tiles (the same body on another line of an image). Such operations share a
*form*, and a result that depends on the form alone, such as a cost, is computed once for each form.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.common.index_ranges import concatenate_ranges
from raptor.common.sorted_sets import sorted_isin, sorted_unique
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.operations import Operation, repetition_pattern, shape_key
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.chip_elements import ElementType

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class GroupedLists:
    """A list of integers for each key, concatenated: the list of key k is `values[first[k]:first[k + 1]]`."""

    first: Ints
    values: Ints

    @classmethod
    def group_by(cls, keys: Ints, values: Ints, count: int) -> "GroupedLists":
        """Groups `values[i]` by `keys[i]`, for keys 0 to `count - 1`; values of equal keys keep their order."""
        first = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
        return cls(first, values[np.argsort(keys, kind="stable")])

    def is_nonempty(self, keys: Ints) -> Bools:
        """Returns, for each key, whether its list has a value."""
        return self.first[keys] < self.first[keys + 1]

    def select_keys(self, keys: Ints) -> tuple[Ints, Ints]:
        """Returns the concatenated lists of `keys`, and for each value the index in `keys` that it belongs to."""
        within, index = concatenate_ranges(self.first[keys + 1] - self.first[keys])
        return self.values[self.first[keys][index] + within], index


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """The operations of a graph as columns.

    tiles: all tiles, numbered in order of first use; a constant is among them only if an operation reads it like a
    tile. number: number of each tile, by name. differing_tiles: (operation, tile) where the tile differs from the first
    one of the same name; a verifier refuses these. constants: all constants, numbered likewise. forms: one operation of
    each form, with its compute. (Operations with matrices have a form for each layer and tuple of matrices.)

    nodes: the ONNX node of each compute. types: the element types. tile_type, tile_elements: index in `types` and
    number of elements, one entry per tile. op_compute, op_form, op_result: compute, form and result tile, one entry per
    operation, in program order. read_op, read_tile: one entry per tile operand, in order. use_op, use_constant: one
    entry per constant operand. result_compute, result_tile: one entry per result of a compute. known_form_ns: memo of
    `operation_times_ns`; parts of the graph share it.
    """

    tiles: tuple[Tile, ...]
    number: Mapping[str, int]
    differing_tiles: tuple[tuple[int, Tile], ...]
    constants: tuple[ConstantTile, ...]
    forms: tuple[tuple[BodyOp, Compute], ...]
    nodes: tuple[str, ...]
    types: tuple[ElementType, ...]
    tile_type: Ints
    tile_elements: Ints
    op_compute: Ints
    op_form: Ints
    op_result: Ints
    read_op: Ints
    read_tile: Ints
    use_op: Ints
    use_constant: Ints
    result_compute: Ints
    result_tile: Ints
    known_form_ns: dict[Target, Floats] = field(default_factory=dict[Target, Floats])

    @classmethod
    def from_computes(cls, computes: Iterable[Compute]) -> "Dataflow":
        """Builds the tables of computes that are given in program order."""
        collector = _Collector()
        for number, compute in enumerate(computes):
            collector.add(number, compute)
        return collector.dataflow()

    def is_op_class(self, *kinds: type) -> Bools:
        """Returns, for each operation, whether it is an instance of one of these classes."""
        return np.array([isinstance(op, kinds) for op, _ in self.forms], np.bool_)[self.op_form]

    def computes_with_class(self, *kinds: type) -> list[int]:
        """Returns the ascending numbers of the computes with an operation of one of these classes."""
        return sorted_unique(self.op_compute[self.is_op_class(*kinds)]).tolist()

    def node(self, op: int) -> str:
        """Returns the ONNX node of operation `op`."""
        return self.nodes[int(self.op_compute[op])]

    def part(self, computes: range) -> "Dataflow":
        """Returns the tables of a range of computes, renumbered from 0. Tiles and forms keep their numbers."""
        ends = computes.start, computes.stop
        ops, results = (
            slice(*np.searchsorted(column, ends).tolist()) for column in (self.op_compute, self.result_compute)
        )
        reads, uses = (
            slice(*np.searchsorted(column, (ops.start, ops.stop)).tolist()) for column in (self.read_op, self.use_op)
        )
        return replace(
            self,
            nodes=self.nodes[computes.start : computes.stop],
            op_compute=self.op_compute[ops] - computes.start,
            op_form=self.op_form[ops],
            op_result=self.op_result[ops],
            read_op=self.read_op[reads] - ops.start,
            read_tile=self.read_tile[reads],
            use_op=self.use_op[uses] - ops.start,
            use_constant=self.use_constant[uses],
            result_compute=self.result_compute[results] - computes.start,
            result_tile=self.result_tile[results],
        )

    def inputs(self) -> tuple[Ints, Ints]:
        """Returns the tiles that each compute reads but does not write: arrays of compute numbers and of tile numbers.

        The pairs are in program order; a tile that a compute reads several times is listed once.
        """
        count = len(self.tiles)
        key = self.op_compute[self.read_op] * count + self.read_tile
        first = np.sort(np.unique(key, return_index=True)[1])
        first = first[~sorted_isin(key[first], self.op_compute * count + self.op_result)]
        return np.divmod(key[first], count)


@dataclass(slots=True)
class _Collector:
    """Tables under construction, as lists.

    shapes, shaped: number of each value shape (see `shape_of`), and one value of it. tile_shape: shape number of each
    tile. constant_of: number and shape number of each constant, by name. ops, results: flattened rows of the operation
    and result tables. op_reads, op_uses: number of tile and constant operands of each operation.
    """

    tiles: list[Tile] = field(default_factory=list[Tile])
    tile_of: dict[str, int] = field(default_factory=dict[str, int])
    tile_shape: list[int] = field(default_factory=list[int])
    shapes: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    shaped: list[Tile] = field(default_factory=list[Tile])
    odd: list[tuple[int, Tile]] = field(default_factory=list[tuple[int, Tile]])
    constants: list[ConstantTile] = field(default_factory=list[ConstantTile])
    constant_of: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    forms: list[tuple[BodyOp, Compute]] = field(default_factory=list[tuple[BodyOp, Compute]])
    form_of: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    nodes: list[str] = field(default_factory=list[str])
    ops: list[int] = field(default_factory=list[int])
    read: list[int] = field(default_factory=list[int])
    op_reads: list[int] = field(default_factory=list[int])
    used: list[int] = field(default_factory=list[int])
    op_uses: list[int] = field(default_factory=list[int])
    results: list[int] = field(default_factory=list[int])

    def add(self, number: int, compute: Compute) -> None:
        """Adds a compute.

        NOTE: inlined by hand, because a call for each operand would double the time of the loop.
        """
        self.nodes.append(compute.node)
        tiles, tile_of, tile_shape, read = self.tiles, self.tile_of, self.tile_shape, self.read
        made, result = None, -1
        for op in compute.body:
            reads, uses, operands = len(read), len(self.used), op.operands
            shapes: list[int] = []
            for value in operands:
                if isinstance(value, ConstantTile):
                    shapes.append(self.constant(op, value))
                    continue
                tile = tile_of.get(value.name)
                if tile is None or tiles[tile] is not value:
                    tile = self.tile(value)
                read.append(tile)
                shapes.append(tile_shape[tile])
            same = repetition_pattern([value.name for value in operands]) if len(operands) > 1 else ()
            made = op.result
            result = self.tile(made)
            key = type(op), tile_shape[result], tuple(shapes), op.parameters, same
            self.ops += number, self.form(key, op, compute), result
            self.op_reads.append(len(read) - reads)
            self.op_uses.append(len(self.used) - uses)
        for tile in compute.results:
            self.results += number, (result if tile is made else self.tile(tile))

    def tile(self, tile: Tile) -> int:
        """Returns the number of a tile, which its name identifies."""
        number = self.tile_of.get(tile.name)
        if number is None:
            number = self.tile_of[tile.name] = len(self.tiles)
            self.tiles.append(tile)
            self.tile_shape.append(self.shape(tile))
        elif self.tiles[number] is not tile and self.tiles[number] != tile:
            self.odd.append((len(self.op_reads), tile))
        return number

    def constant(self, op: BodyOp, value: ConstantTile) -> int:
        """Adds a use of a constant by `op`. Returns the number of its shape."""
        known = self.constant_of.get(value.name)
        if known is None:
            known = self.constant_of[value.name] = len(self.constants), self.shape(value)
            self.constants.append(value)
        number, shape = known
        self.used.append(number)
        if type(op).reads is Operation.reads:  # it reads constants like other tiles
            self.read.append(self.tile(value))
        return shape

    def shape(self, value: Tile) -> int:
        number = self.shapes.setdefault(shape_key(value), len(self.shaped))
        if number == len(self.shaped):
            self.shaped.append(value)
        return number

    def form(self, key: Hashable, op: BodyOp, compute: Compute) -> int:
        """Returns the number of the form of an operation. `key`: equal for operations of one form."""
        if compute.matrices:
            # NOTE: computes of a core share their tuple of matrices, so its identity suffices, and hashes faster.
            key = key, compute.layer, id(compute.matrices)
        number = self.form_of.setdefault(key, len(self.forms))
        if number == len(self.forms):
            self.forms.append((op, compute))
        return number

    def dataflow(self) -> Dataflow:
        count, tile_shape = np.arange(len(self.op_reads)), np.array(self.tile_shape, np.int64)
        types = tuple(dict.fromkeys(value.element for value in self.shaped))
        shapes = [(types.index(value.element), value.elements) for value in self.shaped]
        tile_type, elements = np.array(shapes, np.int64).reshape(-1, 2)[tile_shape].T
        op_compute, op_form, op_result = _columns(self.ops, 3)
        result_compute, result_tile = _columns(self.results, 2)
        return Dataflow(
            tiles=tuple(self.tiles),
            number=self.tile_of,
            differing_tiles=tuple(self.odd),
            constants=tuple(self.constants),
            forms=tuple(self.forms),
            nodes=tuple(self.nodes),
            types=types,
            tile_type=np.ascontiguousarray(tile_type),
            tile_elements=np.ascontiguousarray(elements),
            op_compute=op_compute,
            op_form=op_form,
            op_result=op_result,
            read_op=np.repeat(count, self.op_reads),
            read_tile=np.array(self.read, np.int64),
            use_op=np.repeat(count, self.op_uses),
            use_constant=np.array(self.used, np.int64),
            result_compute=result_compute,
            result_tile=result_tile,
        )


def _columns(rows: list[int], width: int) -> Ints:
    """Returns the columns of a flattened table as contiguous arrays."""
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T)
