"""Checks that elements are moved as the graph says: each element of a result is the one that the model wants there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.ir import BodyOp, Copy, SpatialGraph, TensorParts
from raptor.spatial.operations import Gather, Move
from raptor.spatial.provenance import spread
from raptor.spatial.tiles import Tile

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
ZERO, NOWHERE = -1, -2
"""In place of a tile: the element is zero; it is not there, or not the copy of one element."""


def verify_moves(graph: SpatialGraph) -> None:
    """Raises `VerifyError` unless each element of a rearranged tensor is the element of an operand that it must be."""
    makers: dict[str, list[tuple[int, BodyOp]]] = {}
    steps = (op for compute in graph.computes for op in compute.body) if graph.move_of else ()
    for step, op in enumerate(steps):
        makers.setdefault(op.result.name, []).append((step, op))
    for name, use in graph.move_of.items():
        tensor = graph.tensors[name]
        origins = _Origins(makers, _held([graph.tensors[source] for source in use.inputs]))
        wanted = use.sources.reshape(tensor.image.rows, tensor.image.width, tensor.image.channels)
        for part in tensor.parts:
            right = origins.are(part.tile, np.arange(part.tile.elements), wanted[part.region.index()].reshape(-1))
            for wrong in np.flatnonzero(~right)[:1].tolist():
                where = f"element {wrong} of {part.tile}, {part.region} of {name}"
                raise VerifyError(f"spatial: {tensor.node}: {where}, is not the element that the node moves there")


def _held(operands: Sequence[TensorParts]) -> dict[str, list[Ints]]:
    """Returns for each tile of some tensors the numbers of its elements, counted over all of them as in `Move`.

    There are several lists if a tile holds several parts, which are equal then.
    """
    held: dict[str, list[Ints]] = {}
    first = 0
    for tensor in operands:
        image = tensor.image
        numbers = np.arange(first, first + image.elements).reshape(image.rows, image.width, image.channels)
        for part in tensor.parts:
            held.setdefault(part.tile.name, []).append(numbers[part.region.index()].reshape(-1))
        first += image.elements
    return held


class _Made(NamedTuple):
    """Origin of the elements of a tile: for each, the number of a tile in `tiles` and the element of that tile.

    steps: the first and the last one that make it.
    """

    tiles: list[Tile]
    source: Ints
    offset: Ints
    steps: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Origins:
    """The origins of elements. makers: steps that make or fill a tile. held: see `_held`. made: the tiles so far."""

    makers: dict[str, list[tuple[int, BodyOp]]]
    held: dict[str, list[Ints]]
    known: dict[str, _Made] = field(default_factory=dict[str, _Made])

    def are(self, tile: Tile, offset: Ints, wanted: Ints, before: int | None = None) -> Bools:
        """Tells for elements of a tile whether they are the `wanted` elements of the operands (-1: zero).

        `before`: number of the step that reads the tile, if it is not the result.
        """
        inside = (offset >= 0) & (offset < tile.elements)
        if not inside.all():
            return inside & self.are(tile, np.where(inside, offset, 0), wanted, before)
        if tile.name in self.held:
            return np.any([numbers[offset] == wanted for numbers in self.held[tile.name]], axis=0)
        made = self.made(tile)
        if before is not None and made.steps[1] >= before:
            return np.zeros(len(wanted), np.bool_)
        source = made.source[offset]
        right = (source == ZERO) & (wanted == ZERO)
        used: list[int] = np.unique(source[source >= 0]).tolist()
        for s in used:
            own = source == s
            right[own] = self.are(made.tiles[s], made.offset[offset][own], wanted[own], made.steps[0])
        return right

    def made(self, tile: Tile) -> _Made:
        """Returns where the elements of a tile come from."""
        if tile.name not in self.known:
            source, offset = np.full(tile.elements, NOWHERE), np.zeros(tile.elements, np.int64)
            times = np.zeros(tile.elements, np.int64)
            tiles, steps = list[Tile](), [step for step, _ in self.makers.get(tile.name, ())] or [0]
            for _, op in self.makers.get(tile.name, ()):
                at, number, first = _moved(op)
                times[at] += 1
                source[at] = np.where(number >= 0, number + len(tiles), ZERO)
                offset[at] = first
                tiles += op.operands
            source[times != 1] = NOWHERE
            self.known[tile.name] = _Made(tiles, source, offset, (min(steps), max(steps)))
        return self.known[tile.name]


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
