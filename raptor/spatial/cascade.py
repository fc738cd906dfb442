"""A layer's matrices become computes: products, and partial sums that cascade from core to core (thesis, 4.4)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from raptor.frontend.graph import Filter, Node
from raptor.layout import Image
from raptor.mapping import FilterMapping, Matrix, filter_key
from raptor.spatial.ir import ApplyFilters, BodyOp, Compute, Part, Tile, Vector, tile_name


@dataclass(slots=True)
class Cascade:
    """One layer: the partial sum so far of each output tile, and how many of its matrices are still to come.

    `source`: parts of the layer's input; `image`: of its output, cut into tiles of `tile` channels.
    """

    node: Node
    operator: Filter
    mapping: FilterMapping
    source: tuple[Part, ...]
    image: Image
    tile: int
    partial: dict[tuple[int, int], Tile] = field(default_factory=dict[tuple[int, int], Tile])
    remaining: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    stages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __post_init__(self) -> None:
        for matrix in self.mapping.matrices:
            self.remaining[matrix.cols] = self.remaining.get(matrix.cols, 0) + 1

    def computes(self) -> Iterator[Compute]:
        """The layer's matrices, cut where the core changes: computes that cascade their partial sums."""
        placed = zip(self.mapping.matrices, self.mapping.cores, strict=True)
        for core, run in groupby(placed, key=lambda pair: pair[1]):
            yield self.compute(tuple(matrix for matrix, _ in run), core)

    def compute(self, matrices: tuple[Matrix, ...], core: int) -> Compute:
        body: list[BodyOp] = []
        touched: dict[tuple[int, int], None] = {}
        numbered = list(enumerate(matrices))
        for (rows, cols), run in groupby(numbered, key=lambda pair: (pair[1].rows, pair[1].cols)):
            indices, group = zip(*run, strict=True)
            self.remaining[cols] -= len(group)
            self.apply(body, rows, cols, indices, tuple(m.tap for m in group))
            touched[cols] = None
        results = tuple(self.partial[cols] for cols in touched)
        return Compute(self.node.name, self.node.op_type, filter_key(self.node), matrices, core, tuple(body), results)

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
