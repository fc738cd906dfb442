"""The dataflow of a graph as columns: which operations read and make which tiles, by numbers.

Passes that ask the same of every compute ask it here, with a few numpy operations for the whole graph. Most operations
do the same as others, on other tiles (the same body on another line of an image): such operations have one *form*.
What depends on the form alone, such as a cost, is found once for each form.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.element import ElementType

if TYPE_CHECKING:
    from raptor.spatial.ir import BodyOp, Compute

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of numbers: that of key k is `values[first[k]:first[k + 1]]`."""

    first: Ints
    values: Ints

    @classmethod
    def of(cls, keys: Ints, values: Ints, count: int) -> "Lists":
        """Collects the values of each key below `count`, in their order."""
        first = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
        return cls(first, values[np.argsort(keys, kind="stable")])

    def some(self, keys: Ints) -> Bools:
        """Tells for each key whether its list has a value."""
        return self.first[keys] < self.first[keys + 1]

    def of_keys(self, keys: Ints) -> tuple[Ints, Ints]:
        """Returns the values of the lists of `keys`, one list after another, and for each the index of its key."""
        counts = self.first[keys + 1] - self.first[keys]
        index = np.repeat(np.arange(len(keys)), counts)
        within = np.arange(len(index)) - (np.cumsum(counts) - counts)[index]
        return self.values[self.first[keys][index] + within], index


@dataclass(frozen=True, slots=True, eq=False)
class Dataflow:
    """Columns of what the operations of a graph read and make.

    tiles: all tiles, numbered as they occur first; constants are not among them unless an operation reads them as
    tiles. constants: all constants, in the same way. forms: an operation of each form, with its compute. (For each
    layer and tuple of matrices, an operation with matrices has a form of its own.)

    types: the types of elements; tile_type, tile_elements: type and number of the elements of each tile. op_compute,
    op_form, op_result: one entry for each operation, compute by compute. read_op, read_tile: one for each tile that an
    operation reads, in order. use_op, use_constant: the same for constants. result_compute, result_tile: one for each
    result of a compute.
    """

    tiles: tuple[Tile, ...]
    constants: tuple[ConstantTile, ...]
    forms: "tuple[tuple[BodyOp, Compute], ...]"
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

    @classmethod
    def of(cls, computes: "Iterable[Compute]") -> "Dataflow":
        """Finds the dataflow of computes."""
        found = _Collector()
        for number, compute in enumerate(computes):
            found.add(number, compute)
        return found.dataflow()

    def is_form(self, kind: type) -> Bools:
        """Tells for each operation whether it is of this class."""
        return np.array([isinstance(op, kind) for op, _ in self.forms], np.bool_)[self.op_form]

    def part(self, computes: range) -> "Dataflow":
        """Returns the dataflow of neighbouring computes, numbered from 0. Tiles and forms keep their numbers."""
        ends = computes.start, computes.stop
        ops, results = (slice(*np.searchsorted(of, ends).tolist()) for of in (self.op_compute, self.result_compute))
        reads, uses = (
            slice(*np.searchsorted(of, (ops.start, ops.stop)).tolist()) for of in (self.read_op, self.use_op)
        )
        return replace(
            self,
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
        """Returns the tiles that each compute reads and does not make itself: number of the compute, and of the tile.

        A compute has each tile once, where it reads it first.
        """
        count = len(self.tiles)
        key = self.op_compute[self.read_op] * count + self.read_tile
        first = np.sort(np.unique(key, return_index=True)[1])
        first = first[~np.isin(key[first], self.op_compute * count + self.op_result)]
        return np.divmod(key[first], count)


@dataclass(slots=True)
class _Collector:
    """The columns so far, as lists, and the numbers of tiles, forms and constants."""

    tiles: list[Tile] = field(default_factory=list[Tile])
    constants: list[ConstantTile] = field(default_factory=list[ConstantTile])
    forms: "list[tuple[BodyOp, Compute]]" = field(default_factory=list)
    ops: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    reads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    uses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    results: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    tile_of: dict[str, int] = field(default_factory=dict[str, int])
    form_of: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    constant_of: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, number: int, compute: "Compute") -> None:
        """Adds a compute."""
        for op in compute.body:
            reads = op.reads
            self.reads += [(len(self.ops), self.tile(tile)) for tile in reads]
            self.uses += [
                (len(self.ops), self.constant(tile)) for tile in op.operands if isinstance(tile, ConstantTile)
            ]
            self.ops.append((number, self.form(op, compute), self.tile(op.result)))
        self.results += [(number, self.tile(tile)) for tile in compute.results]

    def tile(self, tile: Tile) -> int:
        """Returns the number of a tile; names are unique."""
        number = self.tile_of.setdefault(tile.name, len(self.tiles))
        if number == len(self.tiles):
            self.tiles.append(tile)
        return number

    def form(self, op: "BodyOp", compute: "Compute") -> int:
        """Returns the number of the form of an operation."""
        # NOTE: computes of a core share their tuple of matrices, so its identity will do, and hashes faster.
        key = (op.form, compute.layer, id(compute.matrices)) if compute.matrices else op.form
        number = self.form_of.setdefault(key, len(self.forms))
        if number == len(self.forms):
            self.forms.append((op, compute))
        return number

    def constant(self, tile: ConstantTile) -> int:
        """Returns the number of a constant."""
        number = self.constant_of.setdefault(tile.name, len(self.constants))
        if number == len(self.constants):
            self.constants.append(tile)
        return number

    def dataflow(self) -> Dataflow:
        """Returns the columns."""
        forms, ops = tuple(self.forms), _columns(self.ops, 3)
        reads, uses, results = (_columns(rows, 2) for rows in (self.reads, self.uses, self.results))
        types: dict[ElementType, int] = {}
        tile_type = np.array([types.setdefault(tile.element, len(types)) for tile in self.tiles], np.int64)
        for constant in self.constants:
            types.setdefault(constant.element, len(types))
        elements = np.array([tile.elements for tile in self.tiles], np.int64)
        tiles = tuple(self.tiles), tuple(self.constants), forms, tuple(types), tile_type, elements
        return Dataflow(*tiles, *ops, *reads, *uses, *results)


def _columns(rows: list[tuple[int, ...]] | list[tuple[int, int]] | list[tuple[int, int, int]], width: int) -> Ints:
    """Returns the columns of a table, each contiguous."""
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T)
