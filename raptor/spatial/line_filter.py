"""Lowers a layer line by line: products of each input line, and the sums that are the lines of the output."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Node
from raptor.mapping.decision import LineUnfolding, filter_key
from raptor.mapping.line_unfolding import (
    Band,
    BandShape,
    Block,
    LineMatrix,
    band_shape,
    bands,
    block_pixels,
    block_shape,
    line_blocks,
    outputs_of,
)
from raptor.mapping.streaming import Parts, Range
from raptor.spatial.ir import BodyOp, Compute
from raptor.spatial.operations import ApplyLine, Overlap
from raptor.spatial.residency import Emit
from raptor.spatial.tiles import Tile
from raptor.target.element import ElementType

Ints = npt.NDArray[np.int64]

_OnCore = Callable[[Range, int, Range, int], tuple[Tile, int]]
"""(lines, part, columns, core) -> a tile on the core that holds these pixels, and the column of its first pixel."""

_Result = tuple[int, int, Range, Tile]
"""Line, part and columns of the output, and the tile."""


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of a block with a matrix.

    weight: number of the matrix on the core. part: number of the input's channel range. outs: output channels of the
    matrix. step, at: the step that multiplies it, and its first element in the result of the step.
    """

    weight: int
    part: int
    outs: Range
    block: Block
    step: int
    at: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Products of one core for a band of lines of one shape. `sizes`: elements of the result of each step."""

    products: tuple[_Product, ...]
    sizes: tuple[int, ...]


@dataclass(slots=True)
class LayerLines:
    """A layer to lower line by line.

    ins, outs: channel ranges of the tiles of input and output. element: type of the output's elements. xbar: rows and
    outputs of a crossbar.
    """

    node: Node
    operator: Filter
    chosen: LineUnfolding
    ins: Parts
    outs: Parts
    element: ElementType
    xbar: tuple[int, int]

    @property
    def whole(self) -> bool:
        """True if the output channels of each product are one tile, so that a run can span several pixels.

        The length of runs changes the order in which products are added. So the answer is the same for all cores:
        equal columns of weights give equal outputs.
        """
        found = {self.outputs(part, outs) for part in self.ins for outs in self.chosen.grid.outs}
        return all(outs in self.outs or outs[0] == outs[1] for outs in found)

    def outputs(self, part: Range, outs: Range) -> Range:
        """Returns the output channels among `outs` for which the input channels `part` are multiplied."""
        return outputs_of(self.operator, part, outs, self.outs)

    def lower(self, emit: Emit, on_core: _OnCore) -> Iterator[_Result]:
        """Emits the layer. Yields the tiles of its output."""
        groups = len(self.chosen.grid.ins)
        for s, cols in enumerate(self.chosen.grid.cols):
            partial: dict[tuple[int, int], list[Tile]] = {}
            for g in range(groups):
                for n in range(len(self.chosen.grid.outs)):
                    core = _CoreLines(self, s, g, n)
                    for y, p, tile in core.lower(emit, on_core):
                        partial.setdefault((y, p), []).append(tile)
            for (y, p), tiles in sorted(partial.items()):
                yield y, p, cols, tiles[0] if groups == 1 else self.reduce(emit, s, y, p, tiles)

    def reduce(self, emit: Emit, s: int, y: int, p: int, tiles: list[Tile]) -> Tile:
        """Adds partial sums of line `y`, part `p` on one of the cores that made them, another one for each part.

        `s`: number of the column segment.
        """
        part = next(n for n, r in enumerate(self.chosen.grid.outs) if r[0] <= self.outs[p][0] < r[1])
        core = self.chosen.core(s, p % len(tiles), part)
        result = replace(tiles[0], name=self.name(y, p, s))
        runs = np.array([[0, i, 0, result.elements] for i in range(len(tiles))])
        position = y / self.operator.window.out_dims[0]
        emit(self.compute((), Overlap(result, tuple(tiles), runs)), core, position)
        return result

    def name(self, y: int, p: int, s: int) -> str:
        """Names a tile of the output by line, part and column segment."""
        return f"{self.node.output}.r{y}.c{p}.x{self.chosen.grid.cols[s][0]}"

    def compute(self, matrices: tuple[LineMatrix, ...], op: BodyOp) -> Compute:
        """Makes a compute of one operation."""
        key = filter_key(self.node)
        return Compute(self.node.name, self.node.op_type, key, matrices, (op,), (op.result,))


_Met = tuple[tuple[int, BandShape], ...]
"""For each band that reaches an output line: number of the line among the band's output lines, shape of the band."""


@dataclass(slots=True)
class _CoreLines:
    """The share of one core of the grid, at (segment, group, part).

    matrices: number of each matrix on the core. work: products by shape of the band. runs: tables of `Overlap` by part
    and bands met, since many lines have the same.
    """

    layer: LayerLines
    segment: int
    group: int
    part: int
    matrices: dict[LineMatrix, int] = field(default_factory=dict[LineMatrix, int])
    work: dict[BandShape, _Work] = field(default_factory=dict[BandShape, _Work])
    runs: dict[tuple[int, _Met], Ints] = field(default_factory=dict[tuple[int, _Met], Ints])

    @property
    def outs(self) -> Range:
        return self.layer.chosen.grid.outs[self.part]

    @property
    def cols(self) -> Range:
        return self.layer.chosen.grid.cols[self.segment]

    def lower(self, emit: Emit, on_core: _OnCore) -> Iterator[tuple[int, int, Tile]]:
        """Emits the share: products, then sums. Yields line, part and tile of the output."""
        window = self.layer.operator.window
        found = [(band, band_shape(window, band)) for band in bands(window, self.layer.chosen.grid.height)]
        for _, shape in found:
            if shape not in self.work:
                self.work[shape] = self.plan(shape)
        reaching: dict[int, list[tuple[int, BandShape, tuple[Tile, ...]]]] = {}
        for band, shape in found:
            tiles = tuple(self.line(emit, on_core, band, self.work[shape]))
            for i, out in enumerate(band.outs):
                reaching.setdefault(out, []).append((i, shape, tiles))
        for y in range(window.out_dims[0]):
            met = tuple((i, shape) for i, shape, _ in reaching.get(y, ()))
            sources = tuple(t for _, _, tiles in reaching.get(y, ()) for t in tiles)
            for p in self.parts():
                yield y, p, self.overlap(emit, y, p, met, sources)

    @property
    def core(self) -> int:
        return self.layer.chosen.core(self.segment, self.group, self.part)

    def parts(self) -> list[int]:
        """Returns the numbers of the output's channel ranges that this core computes."""
        return [p for p, (a, b) in enumerate(self.layer.outs) if self.outs[0] <= a and b <= self.outs[1]]

    def plan(self, shape: BandShape) -> _Work:
        """Returns the products for bands of a shape; replicas of a matrix take turns."""
        chosen = self.layer.chosen.grid
        products: list[_Product] = []
        sizes: list[int] = []
        used: Counter[LineMatrix] = Counter()
        for part in chosen.ins[self.group]:
            index = self.layer.ins.index(part)
            pixels = min(chosen.pixels, block_pixels(part, self.layer.xbar[0]))
            outs = self.layer.outputs(part, self.outs)
            if outs[0] == outs[1]:
                continue
            for block in line_blocks(self.layer.operator.window, self.cols, pixels, chosen.outputs):
                step, place = divmod(len(products), chosen.step)
                if place == 0:
                    sizes.append(0)
                matrix = self.matrix(part, outs, block, shape)
                copy = replace(matrix, copy=used[matrix] % chosen.copies)
                used[matrix] += 1
                weight = self.matrices.setdefault(copy, len(self.matrices))
                products.append(_Product(weight, index, outs, block, step, sizes[step]))
                sizes[step] += len(shape.outs) * (block.outs[1] - block.outs[0]) * (outs[1] - outs[0])
        return _Work(tuple(products), tuple(sizes))

    def matrix(self, part: Range, outs: Range, block: Block, band: BandShape) -> LineMatrix:
        """Returns the matrix that a block of channels `part` is multiplied with."""
        pixels, shift, count = block_shape(self.layer.operator.window, block)
        columns = len(band.outs) * count * (outs[1] - outs[0])
        return LineMatrix(part, outs, band, pixels, shift, count, -(-columns // self.layer.xbar[1]))

    def line(self, emit: Emit, on_core: _OnCore, band: Band, work: _Work) -> Iterator[Tile]:
        """Emits the products of one band, step by step. Yields the result of each step."""
        position = band.lines[0] / self.layer.operator.window.in_dims[0]
        stem = f"{self.layer.node.output}.x{self.segment}.g{self.group}.n{self.part}.in{band.lines[0]}"
        for step, size in enumerate(work.sizes):
            products = [q for q in work.products if q.step == step]
            lines: dict[int, tuple[int, Tile, int]] = {}
            for part in dict.fromkeys(q.part for q in products):
                tile, first = on_core(band.lines, part, self.needed(work, part), self.core)
                lines[part] = (len(lines), tile, first)
            table = [
                (q.weight, lines[q.part][0], (q.block.pixels[0] - lines[q.part][2]) * lines[q.part][1].channels, q.at)
                for q in products
            ]
            result = Tile(f"{stem}.{step}", 1, 1, size, self.layer.element)
            op = ApplyLine(result, tuple(tile for _, tile, _ in lines.values()), np.array(table))
            emit(self.layer.compute(tuple(self.matrices), op), self.core, position)
            yield result

    @staticmethod
    def needed(work: _Work, part: int) -> Range:
        """Returns the columns of input part `part` that the blocks read."""
        own = [q.block.pixels for q in work.products if q.part == part]
        return own[0][0], own[-1][1]

    def overlap(self, emit: Emit, y: int, p: int, met: _Met, sources: tuple[Tile, ...]) -> Tile:
        """Emits the sum that is line `y` of the output, part `p`; returns its tile."""
        layer = self.layer
        if (p, met) not in self.runs:
            self.runs[p, met] = self.find_runs(p, met)
        suffix = "" if len(layer.chosen.grid.ins) == 1 else f".g{self.group}"
        channels = layer.outs[p][1] - layer.outs[p][0]
        result = Tile(layer.name(y, p, self.segment) + suffix, 1, self.cols[1] - self.cols[0], channels, layer.element)
        op = Overlap(result, sources, self.runs[p, met])
        emit(layer.compute((), op), self.core, y / layer.operator.window.out_dims[0])
        return result

    def find_runs(self, p: int, met: _Met) -> Ints:
        """Returns the runs (see `Overlap`) that add the products of the bands `met` to part `p` of an output line."""
        layer = self.layer
        low, high = layer.outs[p]
        own = high - low
        found: list[tuple[int, int, int, int]] = []
        first_source = 0
        for i, shape in met:
            work = self.work[shape]
            for q in (q for q in work.products if q.outs[0] <= low and high <= q.outs[1]):
                width = q.outs[1] - q.outs[0]
                a, b = max(self.cols[0], q.block.outs[0]), min(self.cols[1], q.block.outs[1])
                count = q.block.outs[1] - q.block.outs[0]
                at = q.at + (i * count + a - q.block.outs[0]) * width + low - q.outs[0]
                source = first_source + q.step
                if a < b and layer.whole:
                    found.append(((a - self.cols[0]) * own, source, at, (b - a) * own))
                else:
                    found += (((x - self.cols[0]) * own, source, at + (x - a) * width, own) for x in range(a, b))
            first_source += len(work.sizes)
        return np.array(sorted(found), np.int64).reshape(-1, 4)
