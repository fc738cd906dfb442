"""Follows the elements of tiles back to tensors, one by one, through the operations that move them."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raptor.spatial.ir import BodyOp, Copy, SpatialGraph
from raptor.spatial.operations import Gather, Move
from raptor.spatial.provenance import spread
from raptor.spatial.tiles import Tile
from raptor.target.layout import Image, Region

Ints = npt.NDArray[np.int64]
ZERO, NOWHERE = -1, -2
"""In place of the number of an element: it is zero; it is not there, or not the copy of one element."""


def block(sources: Ints, image: Image, region: Region) -> Ints:
    """Returns the elements of a region, pixel by pixel. `sources`: by pixel and channel of the image."""
    return sources.reshape(image.rows, image.width, image.channels)[region.index()].reshape(-1)


@dataclass(slots=True)
class _Roots:
    """Numbers of the elements of some tensors. Tensors may share tiles; then the same element has one number.

    numbers: by element, counted over all tensors; the last one is that of zero. tiles: by name of a tile, the numbers
    of its elements.
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
            for part in tensor.parts:
                place = block(own, tensor.image, part.region)
                if part.tile.name in roots.tiles:
                    roots.numbers[place] = roots.tiles[part.tile.name]
                roots.tiles[part.tile.name] = roots.numbers[place]
        return roots


@dataclass
class Origins:
    """Origins of the elements of a graph's tiles.

    known: numbers of the elements of tiles so far, by the names of the tensors that they are counted in.
    """

    graph: SpatialGraph
    known: dict[tuple[str, ...], _Roots] = field(default_factory=dict[tuple[str, ...], _Roots])

    @cached_property
    def makers(self) -> dict[str, list[tuple[int, BodyOp]]]:
        """Operations that make or fill a tile, each with its place in the order of all, by name of the tile."""
        found: dict[str, list[tuple[int, BodyOp]]] = {}
        for step, op in enumerate(op for compute in self.graph.computes for op in compute.body):
            found.setdefault(op.result.name, []).append((step, op))
        return found

    def roots(self, names: tuple[str, ...]) -> _Roots:
        if names not in self.known:
            self.known[names] = _Roots.of(self.graph, names)
        return self.known[names]

    def wrong(self, tile: Tile, names: tuple[str, ...], wanted: Ints) -> Ints:
        """Returns the elements of a tile that are others than `wanted`: elements of tensors `names`, or -1 for zero.

        The elements are counted over all these tensors.
        """
        found, right = self.elements(tile, names), self.roots(names).numbers[wanted]
        return np.flatnonzero(found != right) if len(found) == len(right) else np.arange(tile.elements)

    def elements(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns the numbers of the elements of a tile: `ZERO` for zeros, `NOWHERE` for anything else."""
        known = self.roots(names).tiles
        if tile.name not in known:
            known[tile.name] = self.traced(tile, names)
        return known[tile.name]

    def traced(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns the elements of a tile that is made by operations which move elements."""
        found, times = np.full(tile.elements, NOWHERE), np.zeros(tile.elements, np.int64)
        for step, op in self.makers.get(tile.name, []):
            at, source, offset = _moved(op)
            times[at] += 1
            found[at[source < 0]] = ZERO
            used: list[int] = np.unique(source[source >= 0]).tolist()
            for s in used:
                own = source == s
                found[at[own]] = self.read(op.operands[s], names, offset[own], step)
        found[times != 1] = NOWHERE
        return found

    def read(self, tile: Tile, names: tuple[str, ...], offset: Ints, before: int) -> Ints:
        """Returns elements of a tile that is read by step `before`: `NOWHERE` if it is not complete then."""
        if tile.name not in self.roots(names).tiles and any(at >= before for at, _ in self.makers.get(tile.name, [])):
            return np.full(len(offset), NOWHERE)
        inside = (offset >= 0) & (offset < tile.elements)
        return np.where(inside, self.elements(tile, names)[np.where(inside, offset, 0)], NOWHERE)


def _moved(op: BodyOp) -> tuple[Ints, Ints, Ints]:
    """Returns the elements that an operation makes, and for each the operand and its element; none if it computes."""
    match op:
        case Copy():
            k = np.arange(op.elements)
            return op.at + k, np.zeros_like(k), op.first + k
        case Move():
            target, source, first, stride, count = op.runs.T
            k, i = spread(count)
            return target[i] + k, source[i], first[i] + k * stride[i]
        case Gather():
            number = {tile.name: i for i, tile in enumerate(op.operands)}
            pixel = np.arange(op.result.pixels)[:, None]
            found = [
                np.broadcast_arrays(
                    pixel * op.result.channels + piece.target + np.arange(piece.channels),
                    number[piece.value.name],
                    pixel * piece.value.channels + piece.source + np.arange(piece.channels),
                )
                for piece in op.pieces
            ]
            at, source, offset = (
                np.concatenate([f.reshape(-1) for f in column]) for column in zip(*found, strict=True)
            )
            return at, source, offset
        case _:
            none = np.zeros(0, np.int64)
            return none, none, none
