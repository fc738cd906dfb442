"""Operations of one tile: element-wise functions, pools and stencils, with the constants that a tile needs."""

import numpy as np

from raptor.graph.ir import (
    Bound,
    Constant,
    Lookup,
    Map,
    Pool,
    Requantise,
    Stencil,
)
from raptor.mapping.modes.line_streaming import Range
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.lowering.integer_lowering import CoreOf, MakeTileOp, bound_op, lookup_op, requantise_op
from raptor.spatial.operations import UNIT_WEIGHT, ZERO_WEIGHT, Vector
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.operations import Pool as PoolTile
from raptor.spatial.operations import Stencil as StencilTile
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.chip_elements import ElementType
from raptor.target.tensor_layout import TensorRegion


def broadcast_op(result: Tile, given: Tile) -> MoveTile[Tile]:
    """Returns the operation that broadcasts the only channel of each pixel to all channels of the result."""
    pixel = np.arange(result.pixels)
    runs = np.stack(np.broadcast_arrays(pixel * result.channels, 0, pixel, 0, result.channels), axis=1)
    return MoveTile(result, (given,), runs)


def tile_op_maker(
    operator: Stencil | Pool | Map | Requantise | Bound | Lookup,
    *,
    short: bool = False,
    core_of: CoreOf | None = None,
) -> MakeTileOp:
    """Returns a function that makes the operation of one tile. `short`: see `map_op`; `core_of`: `requantise_op`."""
    match operator:
        case Stencil():
            return stencil_op(operator)
        case Pool():
            return _pool_op(operator)
        case Map():
            return map_op(operator, short=short)
        case Requantise():
            return requantise_op(operator, core_of)
        case Bound():
            return bound_op(operator)
        case Lookup():
            return lookup_op(operator)


def map_op(operator: Map, *, short: bool = False) -> MakeTileOp:
    """Returns a function that makes the `Vector` of one tile.

    If `short`, a scalar constant is stored as one element and repeated by the core, so that less is loaded. Tiles of
    the same channels share constants that are equal for all pixels.
    """
    known: dict[tuple[int, Range, ElementType], ConstantTile] = {}

    def constant(i: int, pixels: Constant, result: Tile, element: ElementType, region: TensorRegion) -> ConstantTile:
        name, key = f"{result.name}.const{i}", (i, region.channels, element)
        if pixels.pixels.shape[:2] != (1, 1):
            return _constant_tile(name, pixels, result, element, region, short=short)
        if key not in known:
            known[key] = _constant_tile(name, pixels, result, element, region, short=short)
        return known[key]

    def make(result: Tile, operands: list[Tile], region: TensorRegion) -> BodyOp:
        element = operands[0].element if operands else result.element
        chosen = [
            constant(i, o, result, element, region) if isinstance(o, Constant) else operands[o]
            for i, o in enumerate(operator.operands)
        ]
        return Vector(result, operator.function, tuple(chosen))

    return make


def _pool_op(operator: Pool) -> MakeTileOp:
    def make(result: Tile, operands: list[Tile], region: TensorRegion) -> BodyOp:
        return PoolTile(result, ((0, operands[0]),), operator.function, operator.window)

    return make


def stencil_op(operator: Stencil) -> MakeTileOp:
    """Returns a function that makes the `Stencil` of one tile; equal weight vectors are stored once."""

    def make(result: Tile, operands: list[Tile], region: TensorRegion) -> BodyOp:
        pixels, taps, channels = operator.weights.shape
        weights = operator.weights[:, :, slice(*region.channels)] if channels > 1 else operator.weights
        vectors, index = np.unique(weights.reshape(pixels * taps, -1), axis=0, return_inverse=True)
        # A product converts to the width of the result; an operand without a product must have it already.
        exact = operands[0].element == result.element
        zero, unit = (vectors == 0).all(axis=1), exact & (vectors == 1).all(axis=1)
        special = np.where(zero, ZERO_WEIGHT, np.where(unit, UNIT_WEIGHT, 0))
        number = np.where(special < 0, special, np.cumsum(special == 0) - 1)
        kept = np.broadcast_to(vectors[special == 0], (int((special == 0).sum()), result.channels))
        element = operands[0].element
        constant = ConstantTile.from_pixels(f"{result.name}.weights", kept[None], element) if kept.size else None
        numbered = number[index.reshape(-1)].reshape(pixels, taps).astype(np.int32)
        return StencilTile(result, ((0, operands[0]),), constant, numbered, operator.window)

    return make


def _constant_tile(
    name: str, constant: Constant, result: Tile, element: ElementType, region: TensorRegion, *, short: bool
) -> ConstantTile:
    """Cuts the part of a constant for one tile: a pixel, a row or the whole tile, whichever is the shortest period.

    If `short`, a scalar constant becomes one element.
    """
    if short and constant.pixels.size == 1:
        return ConstantTile.from_pixels(name, constant.pixels, element)
    rows, width, channels = constant.pixels.shape
    values = constant.pixels[:, :, slice(*region.channels)] if channels > 1 else constant.pixels
    if width > 1 and region.cols is not None:
        values = values[:, slice(*region.cols)]
    if rows > 1:
        shape = (result.rows, result.width, result.channels)
        values = values[slice(*region.rows)]
    else:
        shape = (1, result.width if width > 1 else 1, result.channels)
    return ConstantTile.from_pixels(name, np.broadcast_to(values, shape), element)
