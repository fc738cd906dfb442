"""Lowers the integer operators of the Graph to SpatialIR operations on one tile."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raptor.graph import ir
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.requantise.vrequant import VrequantParams
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.integer_operations import SCALAR, WORD, Bound, Lookup, Requantise, RequantiseAtOnce, table_type
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.tensor_layout import TensorRegion

Ints = npt.NDArray[np.int64]

TRIM_LABELS = ("gain", "bias")
"""First words of the labels of constants of a trim stage, by the number of the step."""

CoreOf = Callable[[Tile], int | None]
"""Returns the core that holds a tile; None if it is in global memory."""

MakeTileOp = Callable[[Tile, list[Tile], TensorRegion], BodyOp]
"""(result, operands, region of the result) -> the operation that computes one tile."""


def requantise_op(operator: ir.Requantise, core_of: CoreOf | None = None) -> MakeTileOp:
    """Returns a function that makes the requantisation of one tile. Tiles of equal parameters share constant tables.

    `core_of`: of an operand. With it, a trim stage has gains and biases for each core, because each core has cells of
    its own, with errors of their own; tiles of all cores share them otherwise.
    """
    recipe = operator.recipe
    if isinstance(recipe, VrequantParams):
        return _at_once_op(operator, recipe)
    assert recipe is not None, "recipes are chosen before the graph is lowered"
    known: dict[tuple[object, ...], tuple[tuple[ConstantTile, ...], Ints]] = {}

    def make(result: Tile, operands: list[Tile], region: TensorRegion) -> BodyOp:
        classes = operator.row_class[slice(*region.rows)]
        core = core_of(operands[recipe.trim.operand]) if recipe.trim and core_of else None
        key = region.channels, region.cols, classes.tobytes(), core
        if key not in known:
            bits = tuple(operand.element.bits for operand in operands)
            known[key] = _tables(recipe, bits, result, region, classes, core)
        tables, index = known[key]
        return Requantise(result, tuple(operands), tables, index, recipe)

    return make


def _tables(
    recipe: RequantiseRecipe,
    bits: tuple[int, ...],
    result: Tile,
    region: TensorRegion,
    classes: Ints,
    core: int | None,
) -> tuple[tuple[ConstantTile, ...], Ints]:
    """Returns the distinct constant vectors of a tile, and their index, as in `Requantise`.

    bits: stored bits of the operands. classes: the class of each row of the tile, as in `Requantise.row_class`. core:
    tiles of other cores have gains and biases of their own; None: all tiles share them.
    """
    steps = recipe.steps
    tables: dict[tuple[object, ...], ConstantTile] = {}
    order: dict[tuple[object, ...], int] = {}
    index = np.full((len(classes), len(steps)), SCALAR)
    for (row, kind), (k, step) in ((r, s) for r in enumerate(classes.tolist()) for s in enumerate(steps)):
        if not isinstance(step.right, int) and step.op not in ("max", "min"):
            vector = _vector(step.right, kind, result, region)
            element = table_type(recipe, k, bits)
            label = _label(recipe, k, region, core)
            content = element.bits, vector.shape, vector.tobytes(), label
            if content not in tables:
                order[content] = len(tables)
                tables[content] = ConstantTile.from_pixels(f"{result.name}.table{len(tables)}", vector, element, label)
            index[row, k] = order[content]
    return tuple(tables.values()), index


def _label(recipe: RequantiseRecipe, number: int, region: TensorRegion, core: int | None) -> str:
    """Returns the label of the gains or biases of a trim stage; empty for other constants."""
    if recipe.trim is None or number >= len(TRIM_LABELS):
        return ""
    return f"{TRIM_LABELS[number]} {region.channels} {core} {recipe.trim.tensor}"


def _vector(constants: npt.NDArray[np.integer], kind: int, result: Tile, region: TensorRegion) -> Ints:
    """Returns the constants of rows of class `kind`: [1, width or 1, channels]."""
    classes, width, channels = constants.shape
    row = constants[kind if classes > 1 else 0]
    if width > 1 and region.cols is not None:
        row = row[slice(*region.cols)]
    if channels > 1:
        row = row[:, slice(*region.channels)]
    return np.broadcast_to(row, (len(row), result.channels))[None].astype(np.int64)


def _at_once_op(operator: ir.Requantise, chosen: VrequantParams) -> MakeTileOp:
    records = chosen.to_records()
    known: dict[tuple[object, ...], tuple[tuple[ConstantTile, ...], Ints]] = {}

    def make(result: Tile, operands: list[Tile], region: TensorRegion) -> BodyOp:
        classes = operator.row_class[slice(*region.rows)]
        key = region.channels, region.cols, classes.tobytes()
        if key not in known:
            kinds, index = np.unique(classes, return_inverse=True)
            vectors = (np.stack([_vector(records[..., w], k, result, region) for w in range(4)], -1) for k in kinds)
            tables = (
                ConstantTile.from_pixels(f"{result.name}.parameters{n}", v.reshape(1, v.shape[1], -1), WORD)
                for n, v in enumerate(vectors)
            )
            known[key] = tuple(tables), index.reshape(-1)
        return RequantiseAtOnce(result, operands[0], *known[key])

    return make


def bound_op(operator: ir.Bound) -> MakeTileOp:
    """Returns a function that makes the `Bound` of one tile."""
    return lambda result, operands, _: Bound(result, operands[0], operator.low, operator.high)


def lookup_op(operator: ir.Lookup) -> MakeTileOp:
    """Returns a function that makes the `Lookup` of one tile."""
    table = operator.table[None, None]
    return lambda result, operands, _: Lookup(
        result, operands[0], ConstantTile.from_pixels(f"{result.name}.table", table, result.element)
    )
