"""Lowering of convolutions line by line: MVMs on each input line, and additions of the partial sums of output lines."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import filter_key
from raptor.graph.zero_weights import find_zero_taps
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.modes.line_streaming import ChannelRanges, Range
from raptor.mapping.modes.line_unfolding import (
    BandShape,
    LineBand,
    LineBlock,
    LineMatrix,
    block_shape,
    bundle_sums,
    cut_bands,
    find_summed_groups,
    grid_blocks,
    outputs_reading,
)
from raptor.mapping.modes.window_axis import LineIndex, line_indices
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.lowering.tile_residency import EmitCompute
from raptor.spatial.operations import ApplyLine, Overlap, Vector
from raptor.spatial.tiles import Tile
from raptor.target.chip_elements import ElementType

Ints = npt.NDArray[np.int64]

_OnCore = Callable[[Range, int, Range, int], tuple[Tile, int]]
"""(input lines, channel range number, columns, core) -> a tile on the core with these pixels, and its first column."""

_Result = tuple[int, int, Range, Tile]
"""Line number, channel range number and columns of an output cell, and its tile."""


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of a block of input pixels with a matrix.

    weight: number of the matrix on the core. part: number of the input's channel range. outs: output channels of the
    matrix. at: offset in the result of its step, in elements.
    """

    weight: int
    part: int
    outs: Range
    block: LineBlock
    at: int


@dataclass(slots=True)
class _Step:
    """Products that a core computes without a pause, the same for all bands of a shape.

    size: elements of the result. inputs: channel range numbers and columns of the input that it reads, one line of
    each. tables: `ApplyLine.products`, keyed by the first column of each input tile.
    """

    products: list[_Product] = field(default_factory=list[_Product])
    size: int = 0
    inputs: list[tuple[int, Range]] = field(default_factory=list[tuple[int, Range]])
    tables: dict[tuple[int, ...], Ints] = field(default_factory=dict[tuple[int, ...], Ints])

    def table(self, lines: list[tuple[Tile, int]]) -> Ints:
        """Returns the table of products for `ApplyLine`. `lines`: for each of `inputs`, a tile and its first column."""
        firsts = tuple([first for _, first in lines])
        if firsts not in self.tables:
            line = {part: (i, *lines[i]) for i, (part, _) in enumerate(self.inputs)}
            products = ((q, *line[q.part]) for q in self.products)
            rows = [(q.weight, i, (q.block.pixels[0] - first) * tile.channels, q.at) for q, i, tile, first in products]
            self.tables[firsts] = np.array(rows)
        return self.tables[firsts]


def _find_inputs(steps: Sequence[_Step]) -> None:
    """Sets the `inputs` of the steps of a line. Steps share the columns of a channel range, so that it is sent once."""
    columns: dict[int, Range] = {}
    for q in (q for step in steps for q in step.products):
        columns[q.part] = columns.get(q.part, q.block.pixels)[0], q.block.pixels[1]
    for step in steps:
        step.inputs = [(part, columns[part]) for part in dict.fromkeys(q.part for q in step.products)]


_Steps = tuple[_Step, ...]


@dataclass(slots=True)
class LineLayer:
    """A layer that is lowered line by line.

    ins, outs: channel ranges of the tiles of input and output. element: element type of the output. xbar: rows and
    output columns of a crossbar.
    """

    node: Node
    operator: Filter
    chosen: LineUnfolding
    ins: ChannelRanges
    outs: ChannelRanges
    element: ElementType
    xbar: tuple[int, int]
    zero_taps: dict[tuple[Range, Range], frozenset[int]] = field(
        default_factory=dict[tuple[Range, Range], frozenset[int]]
    )
    segments: tuple[tuple[Range, Range], ...] = field(init=False)
    """Output lines and columns of each segment of the grid."""
    summed: tuple[tuple[int, ...], ...] = field(init=False)
    """For each channel range of the output, the groups of input channels that have products for it."""
    whole: bool = field(init=False)
    """True if each product makes all output channels of a tile, so that one run can add several pixels.

    The length of runs changes the order of additions. So all cores use the same answer, and equal columns of weights
    give equal outputs.
    """

    def __post_init__(self) -> None:
        found = {each for part in self.ins for outs in self.chosen.grid.outs for each in self.outputs(part, outs)}
        self.whole = all(outs in self.outs for outs in found)
        self.segments = tuple(self.chosen.grid.segments(self.operator.window.out_lines))
        self.summed = tuple(find_summed_groups(self.operator, self.chosen.grid.ins, outs) for outs in self.outs)

    def outputs(self, part: Range, outs: Range) -> tuple[Range, ...]:
        """Returns the ranges of output channels among `outs` that depend on the input channels `part`."""
        return outputs_reading(self.operator, part, outs, self.outs)

    def is_zero(self, matrix: LineMatrix) -> bool:
        """True if the kernel positions of a matrix have no weights between its channels."""
        key = matrix.ins, matrix.outs
        if key not in self.zero_taps:
            self.zero_taps[key] = find_zero_taps(self.operator, *key)
        zero = self.zero_taps[key]
        return bool(zero) and matrix.find_taps(self.operator.window) <= zero

    def lower(self, emit: EmitCompute, on_core: _OnCore) -> Iterator[_Result]:
        """Emits the layer. Yields its output cells."""
        groups = len(self.chosen.grid.ins)
        for s, (_, cols) in enumerate(self.segments):
            partial: dict[tuple[int, int], list[Tile]] = {}
            for g in range(groups):
                for n in range(len(self.chosen.grid.outs)):
                    core = _CoreLines(self, s, g, n)
                    for y, p, tile in core.lower(emit, on_core):
                        partial.setdefault((y, p), []).append(tile)
            for (y, p), tiles in sorted(partial.items()):
                total = tiles[0] if len(tiles) == 1 else self.reduce(emit, s, y, p, tiles)
                home = self.summed[p][p % len(tiles)]
                yield y, p, cols, self.clipped(emit, (s, y, p, home), total) if self.operator.relu else total

    def reduce(self, emit: EmitCompute, s: int, y: int, p: int, tiles: list[Tile]) -> Tile:
        """Adds the partial sums of all input channel groups for line `y`, part `p`, segment `s`.

        It runs on a core that made one of them, a different one for each part. Many partial sums are first added in
        bundles.
        """
        home, stem = p % len(tiles), self.name(y, p, s)
        groups = bundle_sums(len(tiles))
        if len(groups) > 1:
            of_bundle = (home if home in bundle else bundle[p % len(bundle)] for bundle in groups)
            tiles = [
                self.added(emit, f"{stem}.b{n}", (s, y, p, self.summed[p][k]), [tiles[g] for g in groups[n]])
                for n, k in enumerate(of_bundle)
            ]
        return self.added(emit, stem, (s, y, p, self.summed[p][home]), tiles)

    def added(self, emit: EmitCompute, name: str, at: tuple[int, int, int, int], tiles: list[Tile]) -> Tile:
        """Adds partial sums into a tile `name`. at: segment, line, part, and the group whose core adds."""
        result = structs.replace(tiles[0], name=name)
        runs = np.array([[0, i, 0, result.elements] for i in range(len(tiles))])
        return self.emit_sum(emit, at, Overlap(result, tuple(tiles), runs))

    def clipped(self, emit: EmitCompute, at: tuple[int, int, int, int], total: Tile) -> Tile:
        """Emits the ReLU of an output tile on the core that made it. at: see `added`."""
        return self.emit_sum(emit, at, Vector(structs.replace(total, name=f"{total.name}.relu"), "relu", (total,)))

    def emit_sum(self, emit: EmitCompute, at: tuple[int, int, int, int], op: BodyOp) -> Tile:
        """Emits an operation on the core of `at` (see `added`). Returns its result."""
        s, y, p, group = at
        part = next(n for n, r in enumerate(self.chosen.grid.outs) if r[0] <= self.outs[p][0] < r[1])
        emit(self.compute((), op), self.chosen.core(s, group, part), y / self.operator.window.out_lines)
        return op.result

    def name(self, y: int, p: int, s: int) -> str:
        """Returns the name of an output tile by line, part and segment."""
        return f"{self.node.output}.r{y}.c{p}.x{self.segments[s][1][0]}"

    def compute(self, matrices: tuple[LineMatrix, ...], op: BodyOp) -> Compute:
        key = filter_key(self.node)
        return Compute(self.node.name, self.node.op_type, key, matrices, (op,), (op.result,))


_Terms = tuple[tuple[int, BandShape], ...]
"""For each band that contributes to an output line: index of the line in the band's outputs, and the band's shape."""


@dataclass(slots=True)
class _CoreLines:
    """The part of a layer that core (segment, group, part) of the grid computes.

    matrices: number of each matrix on the core. all_matrices: the same as a tuple that all computes share. work: steps
    by shape of the band. runs: tables of `Overlap`, by part and contributing bands, which many lines have in common.
    """

    layer: LineLayer
    segment: int
    group: int
    part: int
    matrices: dict[LineMatrix, int] = field(default_factory=dict[LineMatrix, int])
    work: dict[BandShape, _Steps] = field(default_factory=dict[BandShape, _Steps])
    runs: dict[tuple[int, _Terms], Ints] = field(default_factory=dict[tuple[int, _Terms], Ints])
    all_matrices: tuple[LineMatrix, ...] = ()

    @property
    def outs(self) -> Range:
        return self.layer.chosen.grid.outs[self.part]

    @property
    def cols(self) -> Range:
        return self.layer.segments[self.segment][1]

    @property
    def lane(self) -> Range:
        """The output lines that the core computes."""
        return self.layer.segments[self.segment][0]

    def lower(self, emit: EmitCompute, on_core: _OnCore) -> Iterator[tuple[int, int, Tile]]:
        """Emits the products, then the sums. Yields line, part and tile of each (partial) output."""
        window = self.layer.operator.window
        grid = self.layer.chosen.grid
        lines = {place: y for y, place in enumerate(line_indices(window.out_dims)) if y in range(*self.lane)}
        found = cut_bands(window, grid.height, clipped=grid.clipped, lane=self.lane)
        for _, shape in found:
            if shape not in self.work:
                self.work[shape] = self.plan(shape)
        self.all_matrices = tuple(self.matrices)
        reaching: dict[LineIndex, list[tuple[int, BandShape, tuple[Tile, ...]]]] = {}
        for band, shape in found:
            tiles = tuple(self.line(emit, on_core, band, self.work[shape]))
            for i, out in enumerate(band.outs):
                reaching.setdefault(out, []).append((i, shape, tiles))
        for place, y in lines.items():
            terms = tuple((i, shape) for i, shape, _ in reaching.get(place, ()))
            sources = tuple(t for _, _, tiles in reaching.get(place, ()) for t in tiles)
            for p in self.parts():
                yield y, p, self.overlap(emit, y, p, terms, sources)

    @property
    def core(self) -> int:
        return self.layer.chosen.core(self.segment, self.group, self.part)

    def parts(self) -> list[int]:
        """Returns the numbers of the output channel ranges that this core computes."""
        inside = (p for p, (a, b) in enumerate(self.layer.outs) if self.outs[0] <= a and b <= self.outs[1])
        return [p for p in inside if self.group in self.layer.summed[p]]

    def plan(self, shape: BandShape) -> _Steps:
        """Returns the products for bands of a shape, in steps. Copies of a matrix are used round robin."""
        chosen = self.layer.chosen.grid
        steps: list[_Step] = []
        used: Counter[LineMatrix] = Counter()
        for part in chosen.ins[self.group]:
            index = self.layer.ins.index(part)
            blocks = grid_blocks(self.layer.operator.window, self.layer.xbar[0], chosen, part, self.cols)
            for outs, block in product(self.layer.outputs(part, self.outs), blocks):
                matrix = self.matrix(part, outs, block, shape)
                if self.layer.is_zero(matrix):
                    continue
                if not steps or len(steps[-1].products) == chosen.step:
                    steps.append(_Step())
                copy = replace(matrix, copy=used[matrix] % chosen.copies)
                used[matrix] += 1
                weight = self.matrices.setdefault(copy, len(self.matrices))
                steps[-1].products.append(_Product(weight, index, outs, block, steps[-1].size))
                steps[-1].size += len(shape.outs) * len(block.outs) * (outs[1] - outs[0])
        _find_inputs(steps)
        return tuple(steps)

    def matrix(self, part: Range, outs: Range, block: LineBlock, band: BandShape) -> LineMatrix:
        """Returns the matrix for a block of input channels `part` in a band."""
        pixels, shift, places = block_shape(self.layer.operator.window, block)
        columns = len(band.outs) * len(places) * (outs[1] - outs[0])
        return LineMatrix(part, outs, band, pixels, shift, places, -(-columns // self.layer.xbar[1]))

    def line(self, emit: EmitCompute, on_core: _OnCore, band: LineBand, steps: _Steps) -> Iterator[Tile]:
        """Emits the products of one band. Yields the result of each step."""
        position = band.lines[0] / self.layer.operator.window.in_lines
        stem = f"{self.layer.node.output}.x{self.segment}.g{self.group}.n{self.part}.in{band.lines[0]}"
        core, matrices = self.core, self.all_matrices
        for number, step in enumerate(steps):
            lines = [on_core(band.lines, part, cols, core) for part, cols in step.inputs]
            result = Tile(f"{stem}.{number}", 1, 1, step.size, self.layer.element)
            op = ApplyLine(result, tuple([tile for tile, _ in lines]), step.table(lines))
            emit(self.layer.compute(matrices, op), core, position)
            yield result

    def overlap(self, emit: EmitCompute, y: int, p: int, terms: _Terms, sources: tuple[Tile, ...]) -> Tile:
        """Emits the sum of products for line `y`, part `p` of the output. Returns its tile."""
        layer = self.layer
        if (p, terms) not in self.runs:
            self.runs[p, terms] = self.find_runs(p, terms)
        suffix = "" if len(layer.chosen.grid.ins) == 1 else f".g{self.group}"
        channels = layer.outs[p][1] - layer.outs[p][0]
        result = Tile(layer.name(y, p, self.segment) + suffix, 1, self.cols[1] - self.cols[0], channels, layer.element)
        op = Overlap(result, sources, self.runs[p, terms])
        emit(layer.compute((), op), self.core, y / layer.operator.window.out_lines)
        return result

    def inside(self, outs: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields runs of output pixels that belong to this core: index of the first in `outs`, and number of pixels."""
        own = (n for n, out in enumerate(outs) if self.cols[0] <= out < self.cols[1])
        for _, run in groupby(own, key=lambda n: outs[n] - n if self.layer.whole else n):
            first, *others = run
            yield first, 1 + len(others)

    def find_runs(self, p: int, terms: _Terms) -> Ints:
        """Returns the runs (see `Overlap`) that add the products of the bands `terms` to part `p` of an output line."""
        layer = self.layer
        low, high = layer.outs[p]
        own = high - low
        runs: list[tuple[int, int, int, int]] = []
        first_source = 0
        for i, shape in terms:
            products = ((k, q) for k, step in enumerate(self.work[shape]) for q in step.products)
            for k, q in ((k, q) for k, q in products if q.outs[0] <= low and high <= q.outs[1]):
                width, outs = q.outs[1] - q.outs[0], q.block.outs
                first, source = q.at + i * len(outs) * width + low - q.outs[0], first_source + k
                for n, pixels in self.inside(outs):
                    to, at = (outs[n] - self.cols[0]) * own, first + n * width
                    runs.append((to, source, at, pixels * own))
            first_source += len(self.work[shape])
        return np.array(sorted(runs), np.int64).reshape(-1, 4)
