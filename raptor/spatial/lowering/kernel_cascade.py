"""Lowering of layers by tile: matrices become computes, and partial sums pass from core to core (thesis, 4.4)."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import filter_key
from raptor.mapping.decision import KernelUnfolding, Matrix, Range
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import TensorPart
from raptor.spatial.operations import ApplyFilters, Vector
from raptor.spatial.tiles import Tile, tile_name
from raptor.target.chip_elements import ElementType
from raptor.target.tensor_layout import Image


@dataclass(slots=True)
class KernelCascade:
    """A layer that is being lowered, with the partial sum of each output tile.

    source: parts of the layer's input. image: its output, cut into tiles of `tile` channels. element: element type of
    the output. partial, remaining, stages, keyed by output channels: current sum, number of matrices still to add,
    number of values made.

    With `xbar_rows`, the products of all output tiles are added in the same order, so that equal columns of weights
    give equal results: wherever the products of one tile with some input rows continue on another core, the products of
    all tiles with these rows are added up before they go on. The reference mappings follow the thesis and do not do
    this.
    """

    node: Node
    operator: Filter
    mapping: KernelUnfolding
    source: tuple[TensorPart, ...]
    image: Image
    element: ElementType
    tile: int
    xbar_rows: int | None = None
    partial: dict[tuple[int, int], Tile] = field(default_factory=dict[tuple[int, int], Tile])
    remaining: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    stages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    cuts: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """(input tile, row block) -> kernel positions before which the products so far are added up."""

    def __post_init__(self) -> None:
        for matrix in self.mapping.matrices:
            self.remaining[matrix.cols] = self.remaining.get(matrix.cols, 0) + 1
        if self.xbar_rows is not None:
            placed = pairwise(zip(self.mapping.matrices, self.mapping.cores, strict=True))
            cuts = {(*self.block(m), m.tap) for (_, before), (m, core) in placed if core != before}
            for tile, block, tap in sorted(cuts):
                self.cuts.setdefault((tile, block), []).append(tap)

    def block(self, matrix: Matrix) -> tuple[int, int]:
        """Returns the input tile and the row block in it. (Rows of a grouped convolution may begin inside a block.)"""
        tile, row = divmod(matrix.rows[0], self.tile)
        return tile, row // (self.xbar_rows or self.tile)

    def find_run(self, matrix: Matrix) -> tuple[Range, Range, int]:
        """Returns the key of a run: input rows, columns, and number of cuts before the matrix.

        The products of a run are added up first, and their sum is then added to the partial sum.
        """
        return matrix.rows, matrix.cols, bisect_right(self.cuts.get(self.block(matrix), ()), matrix.tap)

    def computes(self) -> Iterator[tuple[Compute, int]]:
        """Yields (compute, core) for each run of matrices on one core.

        Each compute adds to the partial sums of the computes before it.
        """
        placed = zip(self.mapping.matrices, self.mapping.cores, strict=True)
        for core, run in groupby(placed, key=lambda pair: pair[1]):
            yield self.compute(tuple(matrix for matrix, _ in run)), core

    def compute(self, matrices: tuple[Matrix, ...]) -> Compute:
        """Makes the compute of some matrices; its results are the partial sums that it changes."""
        body: list[BodyOp] = []
        touched: dict[tuple[int, int], None] = {}
        for (rows, cols, _), run in groupby(enumerate(matrices), key=lambda pair: self.find_run(pair[1])):
            indices, group = zip(*run, strict=True)
            self.remaining[cols] -= len(group)
            self.append_products(body, rows, cols, indices, tuple(m.tap for m in group))
            touched[cols] = None
        results = tuple(self.partial[cols] for cols in touched)
        return Compute(self.node.name, self.node.op_type, filter_key(self.node), matrices, tuple(body), results)

    def append_products(
        self,
        body: list[BodyOp],
        rows: tuple[int, int],
        cols: tuple[int, int],
        indices: tuple[int, ...],
        taps: tuple[int, ...],
    ) -> None:
        """Appends the products with the input tile that contains `rows`, then their addition to the partial sum."""
        source = next(p for p in self.source if p.region.channels[0] <= rows[0] < p.region.channels[1])
        channel = rows[0] - source.region.channels[0]
        before = self.partial.get(cols)
        product = self.value(cols, last=before is None and self.remaining[cols] == 0)
        body.append(
            ApplyFilters(product, source.tile, indices, taps, channel, self.operator.window, self.operator.relu)
        )
        self.partial[cols] = product
        if before is not None:
            total = self.value(cols, last=self.remaining[cols] == 0)
            body.append(Vector(total, "add", (before, product)))
            self.partial[cols] = total

    def value(self, cols: tuple[int, int], *, last: bool) -> Tile:
        """Makes the next value of an output tile; the last one has the name of the tile."""
        index = cols[0] // self.tile
        stage = self.stages.get(cols, 0)
        self.stages[cols] = stage + 1
        name = tile_name(self.node.output, index) + ("" if last else f".{stage}")
        return Tile(name, self.image.rows, self.image.width, cols[1] - cols[0], self.element)
