"""Traces single elements of tiles through copies and moves back to elements of tensors, for verifiers."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raptor.common.index_ranges import concatenate_ranges
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.ir import Copy, SpatialGraph
from raptor.spatial.operations import Gather, Move
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import Image, TensorRegion

Ints = npt.NDArray[np.int64]
ZERO, NOWHERE = -1, -2
"""Origins that are no element: the constant zero; missing, or not a copy of exactly one element."""


def region_entries(sources: Ints, image: Image, region: TensorRegion) -> Ints:
    """Returns the entries of a region, pixel by pixel. `sources`: [pixels, channels] of the image."""
    return sources.reshape(image.rows, image.width, image.channels)[region.index()].reshape(-1)


@dataclass(slots=True)
class _Roots:
    """Numbers of the elements of some tensors. Elements of a tile that tensors share have one number.

    numbers: number of each element, counted through all tensors; the last entry is zero's. tiles: numbers of the
    elements of each tile, by name.
    """

    numbers: Ints
    tiles: dict[str, Ints] = field(default_factory=dict[str, Ints])

    @classmethod
    def from_graph(cls, graph: SpatialGraph, names: tuple[str, ...]) -> "_Roots":
        """Numbers the elements of these tensors."""
        sizes = [graph.tensors[name].image.elements for name in names]
        firsts: list[int] = np.cumsum([0, *sizes]).tolist()
        roots = cls(np.append(np.arange(firsts[-1]), ZERO))
        for name, first, size in zip(names, firsts, sizes, strict=False):
            tensor, own = graph.tensors[name], np.arange(first, first + size)
            for part in tensor.parts:
                place = region_entries(own, tensor.image, part.region)
                if part.tile.name in roots.tiles:
                    roots.numbers[place] = roots.tiles[part.tile.name]
                roots.tiles[part.tile.name] = roots.numbers[place]
        return roots


@dataclass
class ElementOrigins:
    """The origin of each element of a graph's tiles, computed on demand.

    known: numbers of the elements of tiles, for each tuple of tensors that is traced to.
    """

    graph: SpatialGraph
    known: dict[tuple[str, ...], _Roots] = field(default_factory=dict[tuple[str, ...], _Roots])

    @cached_property
    def makers(self) -> dict[str, list[tuple[int, BodyOp]]]:
        """Operations that write each tile, with their positions in program order, by name of the tile."""
        makers: dict[str, list[tuple[int, BodyOp]]] = {}
        for step, op in enumerate(op for compute in self.graph.computes for op in compute.body):
            makers.setdefault(op.result.name, []).append((step, op))
        return makers

    def roots(self, names: tuple[str, ...]) -> _Roots:
        if names not in self.known:
            self.known[names] = _Roots.from_graph(self.graph, names)
        return self.known[names]

    def find_wrong(self, tile: Tile, names: tuple[str, ...], wanted: Ints) -> Ints:
        """Returns the elements of a tile whose origin is not the wanted one.

        wanted: for each element of the tile, its index in the concatenated elements of tensors `names`, or -1 for zero.
        """
        numbers, right = self.elements(tile, names), self.roots(names).numbers[wanted]
        return np.flatnonzero(numbers != right) if len(numbers) == len(right) else np.arange(tile.elements)

    def elements(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns the number of the origin of each element of a tile, `ZERO` or `NOWHERE`."""
        known = self.roots(names).tiles
        if tile.name not in known:
            known[tile.name] = self.trace_elements(tile, names)
        return known[tile.name]

    def trace_elements(self, tile: Tile, names: tuple[str, ...]) -> Ints:
        """Returns `elements` of a tile by following the operations that fill it."""
        origin, times = np.full(tile.elements, NOWHERE), np.zeros(tile.elements, np.int64)
        for step, op in self.makers.get(tile.name, []):
            at, source, offset = _moved(op)
            times[at] += 1
            origin[at[source < 0]] = ZERO
            used: list[int] = np.unique(source[source >= 0]).tolist()
            for s in used:
                own = source == s
                origin[at[own]] = self.trace_read(op.operands[s], names, offset[own], step)
        origin[times != 1] = NOWHERE
        return origin

    def trace_read(self, tile: Tile, names: tuple[str, ...], offset: Ints, before: int) -> Ints:
        """Returns origins of elements `offset` of a tile that step `before` reads; `NOWHERE` if it is incomplete."""
        if tile.name not in self.roots(names).tiles and any(at >= before for at, _ in self.makers.get(tile.name, [])):
            return np.full(len(offset), NOWHERE)
        inside = (offset >= 0) & (offset < tile.elements)
        return np.where(inside, self.elements(tile, names)[np.where(inside, offset, 0)], NOWHERE)


def _moved(op: BodyOp) -> tuple[Ints, Ints, Ints]:
    """Returns (elements written, operands, elements read) of an operation that moves elements; empty for others."""
    match op:
        case Copy():
            k = np.arange(op.elements)
            return op.at + k, np.zeros_like(k), op.first + k
        case Move():
            target, source, first, stride, count = op.runs.T
            k, i = concatenate_ranges(count)
            return target[i] + k, source[i], first[i] + k * stride[i]
        case Gather():
            number = {tile.name: i for i, tile in enumerate(op.operands)}
            pixel = np.arange(op.result.pixels)[:, None]
            columns = [
                np.broadcast_arrays(
                    pixel * op.result.channels + piece.target + np.arange(piece.channels),
                    number[piece.value.name],
                    pixel * piece.value.channels + piece.source + np.arange(piece.channels),
                )
                for piece in op.pieces
            ]
            at, source, offset = (
                np.concatenate([f.reshape(-1) for f in column]) for column in zip(*columns, strict=True)
            )
            return at, source, offset
        case _:
            none = np.zeros(0, np.int64)
            return none, none, none
