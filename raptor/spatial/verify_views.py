"""Checks views and products of two computed tensors: each operand holds the elements that the model says, in order.

Tiles are followed back, element by element, through copies and moves to the tiles of a tensor.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.ir import Copy, Part, ProductUse, SpatialGraph
from raptor.spatial.operations import Dot, Move
from raptor.spatial.tiles import Tile
from raptor.target.layout import Image, Region

Ints = npt.NDArray[np.int64]
ZERO, NOWHERE = -1, -2


def verify_views(graph: SpatialGraph) -> None:
    """Raises `VerifyError` that names the ONNX node unless each tile of a view holds the elements of its region."""
    origins = _Origins.of(graph)
    for name, view in graph.views.items():
        for part in view.tiles:
            if not origins.holds(part.tile, view.inputs, _block(view.sources, view.image, part.region)):
                raise VerifyError(f"spatial: {view.node}: {part.tile} does not hold {part.region} of {name}")


def verify_products(graph: SpatialGraph) -> None:
    """Raises `VerifyError` unless each part of a product multiplies its pixels of one operand with all of the other."""
    if not graph.product_of:
        return
    origins = _Origins.of(graph)
    made = {op.result.name: op for c in graph.computes for op in c.body if isinstance(op, Dot)}
    for name, use in graph.product_of.items():
        left, right = (_Operand.of(graph, operand) for operand in (use.left, use.right))
        for part in graph.tensors[name].parts:
            where = f"spatial: {graph.tensors[name].node}: {part.tile}"
            op = made.get(part.tile.name)
            if op is None or not _is_whole(op, use, part):
                raise VerifyError(f"{where} is not one product of all channels and columns")
            (first, last), cols = part.region.rows, part.region.cols
            if last != first + 1:
                raise VerifyError(f"{where} has several lines, which have different operands")
            wanted = Region((0, left.image.channels), (first, last), cols)
            if not left.holds(origins, op.left, wanted):
                raise VerifyError(f"{where} multiplies {op.left}, which does not hold {wanted} of {use.left}")
            wanted = Region((0, right.image.channels), (first, last))
            if not right.holds(origins, op.right, wanted):
                raise VerifyError(f"{where} multiplies {op.right}, which does not hold {wanted} of {use.right}")


def _is_whole(op: Dot[Tile], use: ProductUse, part: Part) -> bool:
    """Tells whether an operation multiplies all columns, for one line."""
    whole = op.batch, op.first, op.cols, op.result.channels
    return whole == (1, 0, use.cols, use.cols) and part.region.channels == (0, use.cols)


@dataclass(frozen=True, slots=True)
class _Operand:
    """The elements of an operand, which may be a view: [pixels, channels], as in `ViewUse`."""

    inputs: tuple[str, ...]
    sources: Ints
    image: Image

    @classmethod
    def of(cls, graph: SpatialGraph, name: str) -> "_Operand":
        if name in graph.views:
            view = graph.views[name]
            return cls(view.inputs, view.sources, view.image)
        image = graph.tensors[name].image
        return cls((name,), np.arange(image.elements).reshape(image.pixels, -1), image)

    def holds(self, origins: "_Origins", tile: Tile, region: Region) -> bool:
        """Tells whether a tile holds a region, pixel by pixel."""
        wanted = _block(self.sources, self.image, region)
        return tile.channels == region.channel_count and origins.holds(tile, self.inputs, wanted)


def _block(sources: Ints, image: Image, region: Region) -> Ints:
    """Returns the elements of a region, pixel by pixel."""
    return sources.reshape(image.rows, image.width, image.channels)[region.index()].reshape(-1)


@dataclass(slots=True)
class _Roots:
    """Numbers of the elements of some tensors. Tensors may share tiles; then the same element has one number.

    numbers: by element, counted as `ViewUse.sources` does; the last one is that of zero. tiles: by name of a tile, the
    numbers of its elements.
    """

    numbers: Ints
    tiles: dict[str, Ints] = field(default_factory=dict[str, Ints])

    @classmethod
    def of(cls, graph: SpatialGraph, names: tuple[str, ...]) -> "_Roots":
        """Numbers the elements of the parts of these tensors."""
        sizes = [graph.tensors[name].image.elements for name in names]
        firsts: list[int] = np.cumsum([0, *sizes]).tolist()
        roots = cls(np.append(np.arange(firsts[-1]), ZERO))
        for name, first, size in zip(names, firsts, sizes, strict=False):
            tensor, own = graph.tensors[name], np.arange(first, first + size)
            for part in (*tensor.parts, *tensor.whole):
                place = _block(own, tensor.image, part.region)
                if part.tile.name in roots.tiles and part not in tensor.whole:
                    roots.numbers[place] = roots.tiles[part.tile.name]
                roots.tiles[part.tile.name] = roots.numbers[place]
        return roots


@dataclass(slots=True)
class _Origins:
    """Origins of the elements of tiles. copies, moves: the operations that fill a tile, by its name.

    known: numbers of the elements of tiles so far, by the tensors that they are counted in.
    """

    graph: SpatialGraph
    copies: defaultdict[str, list[Copy[Tile]]] = field(default_factory=lambda: defaultdict(list))
    moves: dict[str, Move[Tile]] = field(default_factory=dict[str, Move[Tile]])
    known: dict[tuple[str, ...], _Roots] = field(default_factory=dict[tuple[str, ...], _Roots])

    @classmethod
    def of(cls, graph: SpatialGraph) -> "_Origins":
        """Collects the copies and the moves of a graph that has views or products; of another one none."""
        origins = cls(graph)
        for op in (op for c in graph.computes for op in c.body) if graph.views or graph.product_of else ():
            if isinstance(op, Copy):
                origins.copies[op.result.name].append(op)
            elif isinstance(op, Move):
                origins.moves[op.result.name] = op
        return origins

    def holds(self, tile: Tile, names: tuple[str, ...], wanted: Ints) -> bool:
        """Tells whether a tile consists of these elements of tensors `names`, counted as in `ViewUse.sources`."""
        found = self.elements(tile, names)
        return np.array_equal(found, self.known[names].numbers[wanted])

    def elements(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns the numbers of the elements of a tile: `ZERO` for zeros, `NOWHERE` for anything else."""
        if names not in self.known:
            self.known[names] = _Roots.of(self.graph, names)
        known = self.known[names].tiles
        if tile.name not in known:
            known[tile.name] = self.traced(tile, names)
        return known[tile.name]

    def traced(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns the elements of a tile that is filled by copies or by a move."""
        found = np.full(tile.elements, NOWHERE)
        if tile.name in self.moves:
            op = self.moves[tile.name]
            sources = [self.elements(source, names) for source in op.sources]
            runs: list[tuple[int, int, int, int, int]] = op.runs.tolist()
            for at, source, first, stride, count in runs:
                place = first + stride * np.arange(count)
                found[at : at + count] = ZERO if source < 0 else sources[source][place]
            return found
        for copy in self.copies.get(tile.name, ()):
            target = found[copy.at : copy.at + copy.elements]
            if (target != NOWHERE).any():
                raise VerifyError(f"spatial: {tile} is filled twice from element {copy.at} on")
            target[:] = self.elements(copy.source, names)[copy.first : copy.first + copy.elements]
        return found
