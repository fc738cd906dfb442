"""Lowering of layers with one output pixel (fully connected): MVMs on all cores, then a reduction for each output tile.

The sum of floats depends on the order of additions, and equal columns of weights should give equal outputs, whichever
cores hold them. So the products of all columns are added in the same runs: a run ends wherever the products of some
column continue on another core. Where the decision says so, many sums are added as a tree, the same one for all
columns, and cores that multiply the same inputs pass them on to one another, as a tree.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise

import numpy as np
from msgspec import structs

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import filter_key
from raptor.mapping.decision import FullyConnected, Matrix
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.sum_trees import FEWEST_IN_TREE, passing_place, tree_sums
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy
from raptor.spatial.lowering.tile_residency import EmitCompute
from raptor.spatial.operations import ApplyLine, Overlap, Vector
from raptor.spatial.tiles import Tile, tile_name
from raptor.target.chip_elements import ElementType
from raptor.target.tensor_layout import TensorRegion


@dataclass(frozen=True, slots=True)
class TileSlice:
    """A contiguous range of a tile that begins at element `first`. `position`: as in `Partition`."""

    tile: Tile
    first: int
    position: float


FindTileSlice = Callable[[int, Range], TileSlice]
"""(pixel, channel range) of the layer's input -> the tile and offset that hold it."""


@dataclass(frozen=True, slots=True)
class _Partial:
    """The products of one core: `tile` holds `count` vectors of all columns, which have to be added.

    `first`: index of its first product among the products of all cores.
    """

    core: int
    tile: Tile
    count: int
    first: int

    @property
    def width(self) -> int:
        return self.tile.elements // self.count


@dataclass(slots=True)
class DenseLayer:
    """A fully connected layer that is being lowered.

    mapping: its matrices. Their columns are whole output tiles, and matrices of equal columns follow one another. find:
    returns the tile and offset of an input. given, result: element types of input and output. held: tiles with the same
    inputs on the cores so far, in order, by the matrices' positions and rows.
    """

    node: Node
    operator: Filter
    mapping: FullyConnected
    emit: EmitCompute
    find: FindTileSlice
    given: ElementType
    result: ElementType
    held: defaultdict[tuple[tuple[int, Range], ...], list[Tile]] = field(default_factory=lambda: defaultdict(list))

    def lower(self, regions: list[tuple[int, TensorRegion]]) -> Iterator[tuple[TensorRegion, Tile]]:
        """Emits the layer. Yields each output region and its tile. `regions`: the regions, with their tile numbers."""
        placed = list(zip(self.mapping.matrices, self.mapping.cores, strict=True))
        groups = {cols: list(run) for cols, run in groupby(placed, key=lambda pair: pair[0].cols)}
        cores = [[core for _, core in group] for group in groups.values()]
        ends, runs = find_run_ends(cores), [[*groupby(own)] for own in cores]
        for cols, group in groups.items():
            inside = [(i, r) for i, r in regions if cols[0] <= r.channels[0] < cols[1]]
            partials = list(self.products(cols, group))
            if len(ends) > 1:
                partials = [self.summed(partial, ends) for partial in partials]
            as_tree = self.mapping.trees and len(ends) >= FEWEST_IN_TREE and all(len(own) == len(ends) for own in runs)
            for n, (i, region) in enumerate(inside):
                home = n * len(partials) // len(inside)
                reduce = self.reduce_as_tree if as_tree else self.reduce
                total = reduce(i, region, cols[0], partials, home)
                yield region, self.clipped(total, partials[home].core) if self.operator.relu else total

    def products(self, cols: Range, placed: list[tuple[Matrix, int]]) -> Iterator[_Partial]:
        """Emits the MVMs of a range of columns; yields the result of each core. `placed`: matrices and their cores."""
        first = 0
        for core, run in groupby(placed, key=lambda pair: pair[1]):
            matrices = [matrix for matrix, _ in run]
            yield self.product(cols, core, matrices, first)
            first += len(matrices)

    def product(self, cols: Range, core: int, matrices: list[Matrix], first: int) -> _Partial:
        """Emits the MVMs of one core. `first`: index of its first product among the products of all cores."""
        pixels = self.operator.window.input_pixels()[0].tolist()
        sizes = [m.rows[1] - m.rows[0] for m in matrices]
        ends = np.cumsum([0, *sizes]).tolist()
        name, width = f"{self.node.output}.n{cols[0]}.k{core}", cols[1] - cols[0]
        given = Tile(f"{name}.in", 1, 1, ends[-1], self.given)
        held = self.held[tuple((m.tap, m.rows) for m in matrices)]
        passing = passing_place(len(held)) if self.mapping.trees else None
        if passing is not None:
            self.add((), core, Copy(given, held[passing], 0, 0, given.elements))
        else:
            self.copy(given, core, [self.find(pixels[m.tap], m.rows) for m in matrices], sizes)
        held.append(given)
        products = np.array([(i, 0, ends[i], i * width) for i in range(len(matrices))])
        result = Tile(f"{name}.products", 1, 1, len(matrices) * width, self.result)
        self.add(tuple(matrices), core, ApplyLine(result, (given,), products))
        return _Partial(core, result, len(matrices), first)

    def copy(self, given: Tile, core: int, sources: list[TileSlice], sizes: list[int]) -> None:
        """Copies sources of `sizes` elements into `given` in order. Contiguous sources become one message."""
        at, start = 0, 0
        for n, (source, size) in enumerate(zip(sources, sizes, strict=True)):
            at += size
            after = sources[n + 1] if n + 1 < len(sources) else None
            if after is None or (after.tile, after.first) != (source.tile, source.first + size):
                elements = at - start
                op = Copy(given, source.tile, source.first + size - elements, start, elements)
                self.add((), core, op, source.position)
                start = at

    def summed(self, partial: _Partial, ends: list[int]) -> _Partial:
        """Adds up the vectors of each run on their core. Returns one vector per run. `ends`: see `find_run_ends`."""
        last = partial.first + partial.count
        cuts = [partial.first, *(end for end in ends if partial.first < end <= last)]
        if len(cuts) == partial.count + 1:
            return partial
        width = partial.width
        result = Tile(f"{partial.tile.name}.sum", 1, 1, (len(cuts) - 1) * width, self.result)
        products = [(n, at - partial.first) for n, run in enumerate(pairwise(cuts)) for at in range(*run)]
        runs = np.array([[n * width, 0, at * width, width] for n, at in products])
        self.add((), partial.core, Overlap(result, (partial.tile,), runs))
        return _Partial(partial.core, result, len(cuts) - 1, partial.first)

    def reduce(self, index: int, region: TensorRegion, first: int, partials: list[_Partial], home: int) -> Tile:
        """Adds up output tile `index` on the core of `partials[home]`, in the order of `partials`.

        `first`: the first column of the partial vectors.
        """
        size, at = region.channel_count, region.channels[0] - first
        own, core = partials[home], partials[home].core
        result = Tile(tile_name(self.node.output, index), 1, 1, size, self.result)
        others = sum(p.count for p in partials if p is not own)
        met = Tile(f"{result.name}.partial", 1, others, size, self.result)
        sources = (own.tile, met) if met.elements else (own.tile,)
        runs: list[tuple[int, int, int, int]] = []
        copied = 0
        for partial in partials:
            firsts = [at + n * partial.width for n in range(partial.count)]
            if partial is own:
                runs += [(0, 0, given, size) for given in firsts]
                continue
            for given in firsts:
                op = Copy(met, partial.tile, given, copied, size)
                self.add((), core, op)
                runs.append((0, 1, copied, size))
                copied += size
        self.add((), core, Overlap(result, sources, np.array(runs, np.int64).reshape(-1, 4)))
        return result

    def reduce_as_tree(self, index: int, region: TensorRegion, first: int, partials: list[_Partial], home: int) -> Tile:
        """Adds up output tile `index` as a tree, whose last sum is on the core of `partials[home]`.

        Other arguments as for `reduce`; each partial is one vector.
        """
        size, at, name = region.channel_count, region.channels[0] - first, tile_name(self.node.output, index)
        held = {(i, i + 1): (partial.tile, at) for i, partial in enumerate(partials)}
        for each in tree_sums(len(partials), home, index):
            parts = held[each.begin, each.middle], held[each.middle, each.end]
            (tile, offset), (other, start) = parts if each.place < each.middle else parts[::-1]
            whole = (each.begin, each.end) == (0, len(partials))
            result = Tile(name if whole else f"{name}.sum{each.begin}-{each.end}", 1, 1, size, self.result)
            met = Tile(f"{result.name}.met", 1, 1, size, self.result)
            core = partials[each.place].core
            self.add((), core, Copy(met, other, start, 0, size))
            self.add((), core, Overlap(result, (tile, met), np.array([(0, 0, offset, size), (0, 1, 0, size)])))
            held[each.begin, each.end] = result, 0
        return held[0, len(partials)][0]

    def clipped(self, total: Tile, core: int) -> Tile:
        """Emits the ReLU of an output tile on the core that added it."""
        result = structs.replace(total, name=f"{total.name}.relu")
        self.add((), core, Vector(result, "relu", (total,)))
        return result

    def add(self, matrices: tuple[Matrix, ...], core: int, op: BodyOp, position: float = 1.0) -> None:
        layer = "" if isinstance(op, Copy) else filter_key(self.node)
        self.emit(Compute(self.node.name, self.node.op_type, layer, matrices, (op,), (op.result,)), core, position)


def find_run_ends(cores: list[list[int]]) -> list[int]:
    """Returns the product indices at which a run ends, because some columns continue on another core there.

    `cores`: for each range of columns, the core of each of its products, in order.
    """
    lengths = ([len(list(run)) for _, run in groupby(group)] for group in cores)
    return sorted({end for group in lengths for end in accumulate(group)})
