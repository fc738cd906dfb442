"""SpatialIR: computes on tiles, for any crossbar machine.

A `Compute` is work that fits one core: crossbar matrices, and a body of operations on channel tiles. It knows no cores,
no addresses and no protocol. A graph prints in the style of the thesis, listing 4.1.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from raptor.common.quickly_made import quickly_made
from raptor.graph.ir import Filter, Indices, Numbers
from raptor.mapping.decision import Matrix
from raptor.mapping.line_unfolding import LineMatrix
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.operations import OneResult, V, W
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.element import Coding
from raptor.target.layout import Image, Region


@quickly_made
@dataclass(frozen=True, slots=True)
class Copy(OneResult[V]):
    """Copies elements of a tile, on any core, into a tile on the core of the compute. Several copies may fill one tile.

    Elements `first` to `first + elements` of `source` go to element `at` of `result` and those after it.
    """

    source: V
    first: int
    at: int
    elements: int

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return (self.first, self.at, self.elements)

    def map_operands(self, f: Callable[[V], W]) -> "Copy[W]":
        return Copy(f(self.result), f(self.source), self.first, self.at, self.elements)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"{self.source}[{self.first}:{self.first + self.elements}]",)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"at = {self.at}",)


@dataclass(frozen=True, slots=True, eq=False)
class TakeRows(OneResult[V]):
    """For each pixel of the result one row of a table, which stays in global memory.

    table: a constant whose pixels are the rows. places: one row per pixel of the result: which of `ids` holds the
    number of its row, and in which element.
    """

    table: V
    ids: tuple[V, ...]
    places: npt.NDArray[np.int64]

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.table, *self.ids)

    @property
    def reads(self) -> tuple[V, ...]:
        return self.ids

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return (self.places.tobytes(),)

    def map_operands(self, f: Callable[[V], W]) -> "TakeRows[W]":
        return TakeRows(f(self.result), f(self.table), tuple(map(f, self.ids)), self.places)


BodyOp: TypeAlias = OneResult[Tile]


@quickly_made
@dataclass(frozen=True, slots=True)
class Compute:
    """Work that fits one core.

    node: the ONNX node. layer: key in the decision, if the compute is part of a layer with weights. matrices: those
    that the body multiplies with, by number. results: the tiles of the body that are used outside of it.
    """

    node: str
    op_type: str
    layer: str
    matrices: tuple[Matrix, ...] | tuple[LineMatrix, ...]
    body: tuple[BodyOp, ...]
    results: tuple[Tile, ...]

    @property
    def inputs(self) -> tuple[Tile, ...]:
        """The tiles that the body reads and does not make itself; constants are left out."""
        inside = {op.result for op in self.body}
        return tuple(dict.fromkeys(t for op in self.body for t in op.reads if t not in inside))


@quickly_made
@dataclass(frozen=True, slots=True)
class Part:
    """A region of a tensor and the tile that holds it."""

    region: Region
    tile: Tile


@dataclass(frozen=True, slots=True)
class TensorParts:
    """The tiles that hold a tensor of the Graph. Several tensors may share tiles (Rename, aligned Concat).

    `whole`: the tensor once more, as tiles of all rows, if an operation asked for them. `coding`: see `Tensor`.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool
    parts: tuple[Part, ...]
    whole: tuple[Part, ...] = ()
    coding: Coding | None = None


@dataclass(frozen=True, slots=True)
class FilterUse:
    """The filter that computes a tensor, by its key, and the tensor that it reads."""

    key: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class TakeUse:
    """The table whose rows make up a tensor, [rows, channels], and the tensor of their ids."""

    table: Numbers
    ids: str


@dataclass(frozen=True, slots=True, eq=False)
class ViewUse:
    """A tensor of which only some regions exist, because it is nothing but elements of others in another order.

    inputs, sources: the tensors, and the element of theirs that each element is, as in a `Move` of the Graph: [pixels,
    channels]. tiles: the regions that were made, some on several cores.
    """

    node: str
    image: Image
    inputs: tuple[str, ...]
    sources: npt.NDArray[np.int64]
    tiles: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ProductUse:
    """The operands of a product of two computed tensors, which may be views, and the number of its columns."""

    left: str
    right: str
    cols: int


@dataclass(frozen=True, slots=True, eq=False)
class MoveUse:
    """The elements of other tensors, `inputs`, that a tensor consists of. sources: see `raptor.graph.ir.Move`."""

    sources: Indices
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class SpatialGraph:
    """A model as computes, in topological order.

    tensors: by name. filters: by key of the layer in the decision. filter_of: by name of a tensor that a filter
    computes. take_of: by name of a tensor of rows of a table. move_of: by name of a tensor that is a rearrangement.
    views: by name of a tensor of which only regions exist. product_of: by name of a tensor that is computed line by
    line as a product of two others. literals: the tiles that are constants, by name. made: the constants that are made
    by products, by name of the tile that repeats each. numbers: the kind of program, as in `Graph`.
    """

    name: str
    numbers: Literal["float", "int", "mixed"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorParts]
    filters: Mapping[str, Filter]
    filter_of: Mapping[str, FilterUse]
    take_of: Mapping[str, TakeUse]
    move_of: Mapping[str, MoveUse]
    literals: Mapping[str, ConstantTile]
    computes: tuple[Compute, ...]
    views: Mapping[str, ViewUse] = field(default_factory=dict[str, ViewUse])
    product_of: Mapping[str, ProductUse] = field(default_factory=dict[str, ProductUse])
    made: Mapping[str, ConstantTile] = field(default_factory=dict[str, ConstantTile])

    @cached_property
    def dataflow(self) -> Dataflow:
        """The columns of what its operations read and make."""
        return Dataflow.of(self.computes)

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def _lines(graph: SpatialGraph) -> Iterator[str]:
    yield f'spat.graph "{graph.name}" {{'
    for name in graph.inputs:
        for part in graph.tensors[name].parts:
            yield f"  {part.tile} = spat.extract_slice @{name} {part.region} : {part.tile.type}"
    for name, constant in graph.literals.items():
        yield f"  %{name} = spat.constant {constant}"
    for compute in graph.computes:
        yield from _compute_lines(compute)
    for name in graph.outputs:
        parts = ", ".join(str(p.tile) for p in graph.tensors[name].parts)
        yield f"  spat.concat @{name} = {parts}"
    yield "}"


def _compute_lines(compute: Compute) -> Iterator[str]:
    results = ", ".join(map(str, compute.results))
    inputs = ", ".join(map(str, compute.inputs))
    weights = "; ".join(_matrix_runs(compute.matrices))
    yield f"  {results} = spat.compute[{weights}] ({inputs}) {{  # {compute.node}"
    for op in compute.body:
        text = f"spat.{op.mnemonic} {', '.join(op.arguments)}{op.braces('weightIndices')}"
        yield f"    {op.result} = {text} : {op.result.type}"
    yield f"    spat.yield {results}"
    yield "  }"


def _matrix_runs(matrices: tuple[Matrix, ...] | tuple[LineMatrix, ...]) -> Iterator[str]:
    """Writes each line matrix, and together the kernel matrices that differ in the kernel position only."""
    for m in (m for m in matrices if isinstance(m, LineMatrix)):
        ins, outs = (f"{a}:{b}" for a, b in (m.ins, m.outs))
        yield f"in {ins} x {m.band.lines}x{m.pixels} out {outs} x {len(m.band.outs)}x{len(m.places)}"
    kernel = [m for m in matrices if isinstance(m, Matrix)]
    for (rows, cols), run in groupby(kernel, key=lambda m: (m.rows, m.cols)):
        taps = [m.tap for m in run]
        yield f"in {rows[0]}:{rows[1]} out {cols[0]}:{cols[1]} taps {taps[0]}..{taps[-1]}"
