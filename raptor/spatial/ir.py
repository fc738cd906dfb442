"""SpatialIR: a graph of computes on channel tiles, for any crossbar machine.

A `Compute` is work that fits one core: crossbar matrices, and a body of operations on tiles. It knows no cores,
addresses or messages. The text form follows listing 4.1 of the thesis.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Indices, Numbers
from raptor.graph.residency import NOTHING_RESIDENT, Residency
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.spatial.compute_op import Compute
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.operations import OneResult, V
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.chip_elements import ElementCoding
from raptor.target.tensor_layout import Image, TensorRegion


class Copy(OneResult[V], frozen=True, gc=False):
    """Copies elements of a tile, on any core, into a tile on the core of the compute. Several copies may fill one tile.

    Elements `first` to `first + elements` of `source` become elements `at` to `at + elements` of `result`.
    """

    source: V
    first: int
    at: int
    elements: int

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"{self.source}[{self.first}:{self.first + self.elements}]",)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"at = {self.at}",)


class TakeRows(OneResult[V], frozen=True, gc=False, eq=False):
    """Embedding lookup: each pixel of the result is a row of a table in global memory.

    table: a constant whose pixels are the rows. places: [pixels of the result, 2]: which of `ids` holds the row number,
    and in which element.
    """

    table: V
    ids: tuple[V, ...]
    places: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[V, ...]:
        return self.ids


class TensorPart(msgspec.Struct, frozen=True, gc=False):
    """A region of a tensor, and the tile that holds it."""

    region: TensorRegion
    tile: Tile


@dataclass(frozen=True, slots=True)
class TensorParts:
    """The tiles that hold a tensor of the Graph. Several tensors may share tiles (Rename, aligned Concat).

    node: the ONNX node that makes the tensor. in_model: whether the ONNX model has the tensor. whole: the same tensor
    as tiles of all rows, if an operation needs them. coding: see `Tensor`.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool
    parts: tuple[TensorPart, ...]
    whole: tuple[TensorPart, ...] = ()
    coding: ElementCoding | None = None


@dataclass(frozen=True, slots=True)
class FilterUse:
    """The layer that computes a tensor: the key of its filter, and the tensor that it reads."""

    key: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class TakeUse:
    """The operands of an embedding lookup: the table [rows, channels], and the tensor of row numbers."""

    table: Numbers
    ids: str


@dataclass(frozen=True, slots=True, eq=False)
class ViewUse:
    """A rearranged tensor that is never stored completely: only the regions that are read exist.

    inputs, sources: the source tensors, and for each element its index among their elements, as in
    `raptor.graph.ir.Move`: [pixels, channels]. tiles: the regions that were made, some on several cores.
    """

    node: str
    image: Image
    inputs: tuple[str, ...]
    sources: npt.NDArray[np.int64]
    tiles: tuple[TensorPart, ...]


@dataclass(frozen=True, slots=True)
class ProductUse:
    """The operands of a matrix product of two computed tensors, which may be views, and its number of columns."""

    left: str
    right: str
    cols: int


@dataclass(frozen=True, slots=True, eq=False)
class MoveUse:
    """The operands of a rearrangement: the source index of each element (`raptor.graph.ir.Move`), and the tensors."""

    sources: Indices
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class SpatialGraph:
    """A model as computes, in topological order.

    numbers: the kind of program, as in `Graph`. tensors: by name. filters: by the key of the layer in the decision.
    filter_of, take_of, move_of, product_of: operands of the tensors that are computed by a filter, by an embedding
    lookup, by a rearrangement, or line by line as a product of two tensors, by name. literals: constant tiles, by name.
    views: tensors of which only regions exist, by name. made: constants that crossbars produce instead of global
    memory, by name of the tile that holds the repeated vector. residency: what stays on the chip between two samples.
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
    residency: Residency = NOTHING_RESIDENT

    @cached_property
    def dataflow(self) -> Dataflow:
        """The def-use tables of all computes."""
        return Dataflow.from_computes(self.computes)

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
    """Yields the text of each line matrix, and one for kernel matrices that differ in kernel position only."""
    for m in (m for m in matrices if isinstance(m, LineMatrix)):
        ins, outs = (f"{a}:{b}" for a, b in (m.ins, m.outs))
        yield f"in {ins} x {m.band.lines}x{m.pixels} out {outs} x {len(m.band.outs)}x{len(m.places)}"
    kernel = [m for m in matrices if isinstance(m, Matrix)]
    for (rows, cols), run in groupby(kernel, key=lambda m: (m.rows, m.cols)):
        taps = [m.tap for m in run]
        yield f"in {rows[0]}:{rows[1]} out {cols[0]}:{cols[1]} taps {taps[0]}..{taps[-1]}"
