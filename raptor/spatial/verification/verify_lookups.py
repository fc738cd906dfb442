"""Verifier of embedding lookups: rows come from the right table, for the right row numbers
(docs/reference/programs.md)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.ir import SpatialGraph, TakeRows, TakeUse, TensorPart, TensorParts
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.spatial.verification.copy_sources import CopySources

Ints = npt.NDArray[np.int64]


def verify_lookups(graph: SpatialGraph, copies: CopySources) -> None:
    """Raises `VerifyError` unless each pixel of a lookup's result is the table row that its id names."""
    if not graph.take_of:
        return
    steps = enumerate(op for compute in graph.computes for op in compute.body)
    made = {op.result.name: (step, op) for step, op in steps if isinstance(op, TakeRows)}
    for name, use in graph.take_of.items():
        tensor = graph.tensors[name]
        given = {part.tile for part in graph.tensors[use.ids].parts}
        for part in tensor.parts:
            step, op = made.get(part.tile.name, (0, None))
            ids = [copies.source(tile, given, step) or tile for tile in op.ids] if op else []
            fault = _fault(op, ids, tensor, part, use, graph.tensors[use.ids]) if op else "takes no rows"
            if fault:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} {fault}")


def _fault(
    op: TakeRows[Tile], given: Sequence[Tile], tensor: TensorParts, part: TensorPart, use: TakeUse, ids: TensorParts
) -> str | None:
    """Returns the fault of a lookup, or None. `given`: the tiles of its ids, traced through copies."""
    rows = use.table[:, slice(*part.region.channels)]
    if not isinstance(op.table, ConstantTile) or not np.array_equal(op.table.values.reshape(len(rows), -1), rows):
        return f"takes rows that are not channels {part.region.channels} of the table of its node"
    down, along, _ = part.region.index()
    pixels = np.arange(tensor.image.pixels).reshape(tensor.image.rows, tensor.image.width)[down, along].reshape(-1)
    if op.places.shape != (len(pixels), 2):
        return f"has {len(pixels)} pixels, and takes {len(op.places)} rows"
    right = np.zeros(len(pixels), np.bool_)
    for number, tile in enumerate(given):
        own = np.flatnonzero(op.places[:, 0] == number)
        right[own] = _holds(ids, tile, op.places[own, 1], pixels[own])
    wrong = np.flatnonzero(~right)
    return f"takes a row for pixel {pixels[wrong[0]]} that another id chooses" if len(wrong) else None


def _holds(ids: TensorParts, tile: Tile, places: Ints, wanted: Ints) -> npt.NDArray[np.bool_]:
    """Returns, for elements `places` of a tile, whether each is the `wanted` element of tensor `ids`, pixel by pixel.

    Equal parts of the tensor may share the tile.
    """
    image = ids.image
    numbers = np.arange(image.elements).reshape(image.rows, image.width, image.channels)
    right = np.zeros(len(places), np.bool_)
    inside = (places >= 0) & (places < tile.elements)
    for part in (part for part in ids.parts if part.tile == tile):
        held = numbers[part.region.index()].reshape(-1)
        right |= inside & (held[np.where(inside, places, 0)] == wanted)
    return right
