"""SpatialIR: what is computed from which tiles, on any crossbar machine.

A `Compute` is work that fits one core: crossbar matrices, and a body of operations on channel tiles. No cores, no
addresses, no protocol. Prints in the manner of the thesis, listing 4.1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, MapFunction, window_text
from raptor.graph.window import Table, Window
from raptor.mapping.decision import Matrix
from raptor.mapping.line_unfolding import LineMatrix
from raptor.target.layout import Image, Region


def tile_name(tensor: str, index: int) -> str:
    """The name of a tensor's tile: `x.0`; `x.2:0` for a tensor `x.2`, because `x.2.0` is a partial sum of `x`."""
    stem, _, last = tensor.rpartition(".")
    return f"{tensor}:{index}" if stem and last.isdigit() else f"{tensor}.{index}"


@dataclass(frozen=True, slots=True)
class Tile:
    """A value: `rows x width` pixels of `channels` elements, one pixel contiguous. Names are unique."""

    name: str
    rows: int
    width: int
    channels: int

    @property
    def elements(self) -> int:
        return self.rows * self.width * self.channels

    @property
    def pixels(self) -> int:
        return self.rows * self.width

    def __str__(self) -> str:
        return f"%{self.name}"

    @property
    def type(self) -> str:
        return f"{self.rows}x{self.width}x{self.channels}"


@dataclass(frozen=True, slots=True, eq=False)
class ConstantTile:
    """A constant operand: repeats with a period of a pixel, a row or the whole tile (the array's size)."""

    name: str
    values: npt.NDArray[np.float32]

    @property
    def period(self) -> int:
        return self.values.size

    def __str__(self) -> str:
        return f"const<{self.period}>"


@dataclass(frozen=True, slots=True)
class ApplyFilters:
    """Products of one input tile with several matrices of the compute, summed per output pixel (thesis, 4.2).

    `weights` index the compute's matrices; all have the same rows and columns of the layer, one for each kernel
    position `taps[i]`. `channel` is the first channel of the input tile that they read.
    """

    result: Tile
    input: Tile
    weights: tuple[int, ...]
    taps: tuple[int, ...]
    channel: int
    window: Window | Table
    relu: bool

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (self.input,)

    def __str__(self) -> str:
        relu = ", relu" if self.relu else ""
        return f"spat.apply_filters {self.input} {{weightIndices = {list(self.weights)}{relu}}}"


@dataclass(frozen=True, slots=True, eq=False)
class ApplyLine:
    """Products of blocks of an image line with matrices of the compute, in order (`raptor.mapping.line_unfolding`).

    products: one row a product: index of the matrix, index of the line, first element of the block in it, first element
    of the product in the result.
    """

    result: Tile
    lines: tuple[Tile, ...]
    products: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Tile, ...]:
        return self.lines

    def __str__(self) -> str:
        return f"spat.apply_line {', '.join(map(str, self.lines))} {{products = {len(self.products)}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Sum of runs of other tiles; zero where no run lies.

    runs: one row a run: first element of the result, source, its first element, elements. Sorted.
    """

    result: Tile
    sources: tuple[Tile, ...]
    runs: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Tile, ...]:
        return self.sources

    def __str__(self) -> str:
        return f"spat.overlap {', '.join(map(str, self.sources))} {{runs = {len(self.runs)}}}"


@dataclass(frozen=True, slots=True)
class Copy:
    """Elements of a tile become elements of another one on the core of the compute, which several may fill.

    Elements `first` to `first + elements` of `source` go to `at` in `result`.
    """

    result: Tile
    source: Tile
    first: int
    at: int
    elements: int

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"spat.copy {self.source}[{self.first}:{self.first + self.elements}] {{at = {self.at}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """Element-wise function of whole tiles."""

    result: Tile
    function: MapFunction
    operands: tuple[Tile | ConstantTile, ...]

    @property
    def reads(self) -> tuple[Tile, ...]:
        return tuple(o for o in self.operands if isinstance(o, Tile))

    def __str__(self) -> str:
        return f"spat.v{self.function} {', '.join(map(str, self.operands))}"


@dataclass(frozen=True, slots=True)
class PoolTile:
    """Maximum or sum over a window, channel by channel, of the output rows from `row` on.

    `inputs`: tiles of the input and the first row of each.
    """

    result: Tile
    inputs: tuple[tuple[int, Tile], ...]
    function: Literal["max", "sum"]
    window: Window
    row: int = 0

    @property
    def reads(self) -> tuple[Tile, ...]:
        return tuple(tile for _, tile in self.inputs)

    def __str__(self) -> str:
        inputs = ", ".join(str(tile) for _, tile in self.inputs)
        return f"spat.pool_{self.function} {inputs} {{{window_text(self.window)}}}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Channels `source` onwards of one tile become channels `target` onwards of another."""

    tile: Tile
    source: int
    target: int
    channels: int


@dataclass(frozen=True, slots=True)
class Gather:
    """A tile put together from channels of other tiles of the same pixels."""

    result: Tile
    pieces: tuple[Piece, ...]

    @property
    def reads(self) -> tuple[Tile, ...]:
        return tuple(dict.fromkeys(p.tile for p in self.pieces))

    def __str__(self) -> str:
        pieces = (f"{p.tile}[{p.source}:{p.source + p.channels}]" for p in self.pieces)
        return f"spat.gather {', '.join(pieces)}"


@dataclass(frozen=True, slots=True, eq=False)
class StencilTile:
    """Weighted sum over a window. `vectors` holds the different weight vectors, each as long as a pixel of the result.

    index: [output pixels or 1, taps] -> vector, or `ZERO_WEIGHT`, `UNIT_WEIGHT`.
    """

    result: Tile
    input: Tile
    vectors: ConstantTile
    index: npt.NDArray[np.int32]
    window: Window | Table

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (self.input,)

    def __str__(self) -> str:
        return f"spat.stencil {self.input}, {self.vectors} {{{window_text(self.window)}}}"


ZERO_WEIGHT, UNIT_WEIGHT = -1, -2


@dataclass(frozen=True, slots=True)
class DotTile:
    """result[b, m, n] = dot product of pixel (b, m) of `left` and pixel (b, first + n) of `right`.

    `right` has `cols` pixels a batch.
    """

    result: Tile
    left: Tile
    right: Tile
    batch: int
    cols: int
    first: int

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        cols = f"{self.first}:{self.first + self.result.channels}"
        return f"spat.dot {self.left}, {self.right} {{batch = {self.batch}, columns = {cols} of {self.cols}}}"


@dataclass(frozen=True, slots=True, eq=False)
class MoveTile:
    """A tile put together from elements of others.

    runs: one row a run: first element of the result, source (-1: zeros), its first element, stride, elements.
    """

    result: Tile
    sources: tuple[Tile, ...]
    runs: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Tile, ...]:
        return self.sources

    def __str__(self) -> str:
        return f"spat.move {', '.join(map(str, self.sources))} {{runs = {len(self.runs)}}}"


@dataclass(frozen=True, slots=True)
class SoftmaxTile:
    """Softmax over the channels of each pixel."""

    result: Tile
    input: Tile

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (self.input,)

    def __str__(self) -> str:
        return f"spat.softmax {self.input}"


BodyOp = (
    ApplyFilters
    | ApplyLine
    | Overlap
    | Copy
    | Vector
    | PoolTile
    | StencilTile
    | DotTile
    | Gather
    | MoveTile
    | SoftmaxTile
)


@dataclass(frozen=True, slots=True)
class Compute:
    """Work that fits one core. `node`: the ONNX node; `layer`: key of the mapping that holds its matrices."""

    node: str
    op_type: str
    layer: str
    matrices: tuple[Matrix, ...] | tuple[LineMatrix, ...]
    body: tuple[BodyOp, ...]
    results: tuple[Tile, ...]

    @property
    def inputs(self) -> tuple[Tile, ...]:
        inside = {op.result for op in self.body}
        return tuple(dict.fromkeys(t for op in self.body for t in op.reads if t not in inside))


@dataclass(frozen=True, slots=True)
class Part:
    """A region of a tensor and the tile that holds it."""

    region: Region
    tile: Tile


@dataclass(frozen=True, slots=True)
class TensorParts:
    """Where a tensor of the Graph lives. Several tensors may share tiles (Rename, aligned Concat).

    `whole`: the same as tiles of all rows, where an operation asked for that.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool
    parts: tuple[Part, ...]
    whole: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class FilterUse:
    """Which filter computes a tensor, and from which tensor."""

    key: str
    source: str


@dataclass(frozen=True, slots=True)
class SpatialGraph:
    """Computes in topological order.

    `filters`: by key of the mapping. `filter_of`: for each tensor that a filter computes, the key and the tensor it
    reads. `literals`: the tiles that are constants.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorParts]
    filters: Mapping[str, Filter]
    filter_of: Mapping[str, FilterUse]
    literals: Mapping[str, ConstantTile]
    computes: tuple[Compute, ...]

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
        yield f"    {op.result} = {op} : {op.result.type}"
    yield f"    spat.yield {results}"
    yield "  }"


def _matrix_runs(matrices: tuple[Matrix, ...] | tuple[LineMatrix, ...]) -> Iterator[str]:
    for m in (m for m in matrices if isinstance(m, LineMatrix)):
        ins, outs = (f"{a}:{b}" for a, b in (m.ins, m.outs))
        yield f"in {ins} x {m.band.lines}x{m.pixels} out {outs} x {len(m.band.outs)}x{m.count}"
    kernel = [m for m in matrices if isinstance(m, Matrix)]
    for (rows, cols), run in groupby(kernel, key=lambda m: (m.rows, m.cols)):
        taps = [m.tap for m in run]
        yield f"in {rows[0]}:{rows[1]} out {cols[0]}:{cols[1]} taps {taps[0]}..{taps[-1]}"
