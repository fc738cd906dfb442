"""A layer's matrices become computes: products, and partial sums that cascade from core to core (thesis, 4.4)."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from raptor.graph.ir import Filter, Node
from raptor.mapping.decision import (
    KernelUnfolding,
    Matrix,
    Range,
    filter_key,
)
from raptor.spatial.ir import BodyOp, Compute, Part
from raptor.spatial.operations import ApplyFilters, Vector
from raptor.spatial.tiles import Tile, tile_name
from raptor.target.layout import Image


@dataclass(slots=True)
class Cascade:
    """One layer: the partial sum so far of each output tile, and how many of its matrices are still to come.

    `source`: parts of the layer's input; `image`: of its output, cut into tiles of `tile` channels.

    With `xbar_rows`, all outputs are summed in one order, so that equal columns of weights give equal results: where
    the products of one tile with the same input rows go on on another core, those of all tiles are added up until
    there. The reference mappings do without, as in the thesis.
    """

    node: Node
    operator: Filter
    mapping: KernelUnfolding
    source: tuple[Part, ...]
    image: Image
    tile: int
    xbar_rows: int | None = None
    partial: dict[tuple[int, int], Tile] = field(default_factory=dict[tuple[int, int], Tile])
    remaining: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    stages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    cuts: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """By row block: the kernel positions before which products are added up, for every output tile."""

    def __post_init__(self) -> None:
        for matrix in self.mapping.matrices:
            self.remaining[matrix.cols] = self.remaining.get(matrix.cols, 0) + 1
        if self.xbar_rows is not None:
            placed = pairwise(zip(self.mapping.matrices, self.mapping.cores, strict=True))
            found = {(*self.block(m), m.tap) for (_, before), (m, core) in placed if core != before}
            for tile, block, tap in sorted(found):
                self.cuts.setdefault((tile, block), []).append(tap)

    def block(self, matrix: Matrix) -> tuple[int, int]:
        """Input tile and row block in it. Those of a grouped convolution may begin later."""
        tile, row = divmod(matrix.rows[0], self.tile)
        return tile, row // (self.xbar_rows or self.tile)

    def run(self, matrix: Matrix) -> tuple[Range, Range, int]:
        """What matrices have in common whose products are added up before they are added to what came before."""
        return matrix.rows, matrix.cols, bisect_right(self.cuts.get(self.block(matrix), ()), matrix.tap)

    def computes(self) -> Iterator[tuple[Compute, int]]:
        """The layer's matrices, cut where the core changes. Each compute adds to the sums of those before; its core."""
        placed = zip(self.mapping.matrices, self.mapping.cores, strict=True)
        for core, run in groupby(placed, key=lambda pair: pair[1]):
            yield self.compute(tuple(matrix for matrix, _ in run)), core

    def compute(self, matrices: tuple[Matrix, ...]) -> Compute:
        body: list[BodyOp] = []
        touched: dict[tuple[int, int], None] = {}
        for (rows, cols, _), run in groupby(enumerate(matrices), key=lambda pair: self.run(pair[1])):
            indices, group = zip(*run, strict=True)
            self.remaining[cols] -= len(group)
            self.apply(body, rows, cols, indices, tuple(m.tap for m in group))
            touched[cols] = None
        results = tuple(self.partial[cols] for cols in touched)
        return Compute(self.node.name, self.node.op_type, filter_key(self.node), matrices, tuple(body), results)

    def apply(
        self,
        body: list[BodyOp],
        rows: tuple[int, int],
        cols: tuple[int, int],
        indices: tuple[int, ...],
        taps: tuple[int, ...],
    ) -> None:
        """Products with the input tile that holds `rows`, then the sum with what came before."""
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
        """A new value for an output tile; the last one carries the tile's own name."""
        index = cols[0] // self.tile
        stage = self.stages.get(cols, 0)
        self.stages[cols] = stage + 1
        name = tile_name(self.node.output, index) + ("" if last else f".{stage}")
        return Tile(name, self.image.rows, self.image.width, cols[1] - cols[0])
