"""A layer of one output pixel: products on all its cores at once, then each output tile is added up on one of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from raptor.frontend.graph import Filter, Node
from raptor.layout import Region
from raptor.lines import Range
from raptor.mapping import FilterMapping, Matrix, filter_key
from raptor.spatial.ir import ApplyLine, BodyOp, Bring, Compute, Overlap, Tile, tile_name


@dataclass(frozen=True, slots=True)
class Source:
    """Elements of a tile from `first` on. `position`: as in `Compute`."""

    tile: Tile
    first: int
    position: float


FindSource = Callable[[int, Range], Source]
"""(pixel, channels) of the layer's input -> where they are."""


@dataclass(frozen=True, slots=True)
class _Partial:
    """What a core contributes: `tile` holds `count` vectors of all columns, to be added."""

    core: int
    tile: Tile
    count: int


@dataclass(slots=True)
class DenseLayer:
    """`mapping`: matrices whose columns are whole output tiles, those of the same columns one after another."""

    node: Node
    operator: Filter
    mapping: FilterMapping
    computes: list[Compute]
    find: FindSource

    def lower(self, regions: list[tuple[int, Region]]) -> Iterator[tuple[Region, Tile]]:
        placed = list(zip(self.mapping.matrices, self.mapping.cores, strict=True))
        for cols, run in groupby(placed, key=lambda pair: pair[0].cols):
            inside = [(i, r) for i, r in regions if cols[0] <= r.channels[0] < cols[1]]
            by_core = groupby(run, key=lambda pair: pair[1])
            partials = [self.product(cols, core, [m for m, _ in group]) for core, group in by_core]
            if len(partials) > 1:
                partials = [self.summed(partial) for partial in partials]
            for n, (i, region) in enumerate(inside):
                home = n * len(partials) // len(inside)
                yield region, self.reduce(i, region, cols[0], partials, home)

    def product(self, cols: Range, core: int, matrices: list[Matrix]) -> _Partial:
        """The products of one core, one after another."""
        pixels = self.operator.window.input_pixels()[0].tolist()
        sizes = [m.rows[1] - m.rows[0] for m in matrices]
        ends = np.cumsum([0, *sizes]).tolist()
        name, width = f"{self.node.output}.n{cols[0]}.k{core}", cols[1] - cols[0]
        given = Tile(f"{name}.in", 1, 1, ends[-1])
        self.bring(given, core, [self.find(pixels[m.tap], m.rows) for m in matrices], sizes)
        products = np.array([(i, 0, ends[i], i * width) for i in range(len(matrices))])
        result = Tile(f"{name}.products", 1, 1, len(matrices) * width)
        self.add(tuple(matrices), core, ApplyLine(result, (given,), products))
        return _Partial(core, result, len(matrices))

    def bring(self, given: Tile, core: int, sources: list[Source], sizes: list[int]) -> None:
        """Elements that lie side by side come in one message."""
        at, start = 0, 0
        for n, (source, size) in enumerate(zip(sources, sizes, strict=True)):
            at += size
            after = sources[n + 1] if n + 1 < len(sources) else None
            if after is None or (after.tile, after.first) != (source.tile, source.first + size):
                elements = at - start
                op = Bring(given, source.tile, source.first + size - elements, start, elements)
                self.computes.append(self.compute((), core, op, source.position))
                start = at

    def summed(self, partial: _Partial) -> _Partial:
        if partial.count == 1:
            return partial
        width = partial.tile.elements // partial.count
        result = Tile(f"{partial.tile.name}.sum", 1, 1, width)
        runs = np.array([[0, 0, n * width, width] for n in range(partial.count)])
        self.add((), partial.core, Overlap(result, (partial.tile,), runs))
        return _Partial(partial.core, result, 1)

    def reduce(self, index: int, region: Region, first: int, partials: list[_Partial], home: int) -> Tile:
        """One output tile, from the vectors of all cores. `first`: their first column."""
        size, at = region.channel_count, region.channels[0] - first
        own, core = partials[home], partials[home].core
        result = Tile(tile_name(self.node.output, index), 1, 1, size)
        others = [p for p in partials if p is not own]
        width = own.tile.elements // own.count
        sources, runs = [own.tile], [(0, 0, at + n * width, size) for n in range(own.count)]
        if others:
            met = Tile(f"{result.name}.partial", 1, len(others), size)
            for n, partial in enumerate(others):
                self.computes.append(self.compute((), core, Bring(met, partial.tile, at, n * size, size)))
            sources.append(met)
            runs += [(0, 1, n * size, size) for n in range(len(others))]
        self.add((), core, Overlap(result, tuple(sources), np.array(runs, np.int64).reshape(-1, 4)))
        return result

    def add(self, matrices: tuple[Matrix, ...], core: int, op: BodyOp) -> None:
        self.computes.append(self.compute(matrices, core, op))

    def compute(self, matrices: tuple[Matrix, ...], core: int, op: BodyOp, position: float = 1.0) -> Compute:
        layer = "" if isinstance(op, Bring) else filter_key(self.node)
        return Compute(self.node.name, self.node.op_type, layer, matrices, core, (op,), (op.result,), position)
