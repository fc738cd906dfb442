"""Finds what the cells of a crossbar hold, of which some are stuck, so that the matrix is as near as possible.

First the free cells of a weight make up for its stuck ones. Then each column is stored negated if that is nearer. What
is left goes into the free weights of the column: its positive and its negative weights keep their sums, so an input of
the mean is multiplied exactly, and no sum leaves the range that the compiler proved.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.tools.repair.closest_values import Bytes, ClosestValues, Ints, digits_to_levels, free_digits
from validator.crossbar.cell_layout import Levels

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RepairedMatrix:
    """A matrix in cells of which some are stuck. `levels` [arrays, rows, cols, slices]; `signs` [cols]: 1 or -1.

    `weights` [rows, cols]: what the cells and the signs make. `errors` [cols]: sums of squared differences.
    """

    levels: Levels
    signs: Ints
    weights: Ints
    errors: Floats


@dataclass(frozen=True, slots=True)
class RepairMethod:
    """Means of a repair of stuck cells; each can be left out.

    `compensate`: free cells of a weight make up for its stuck ones; without it, cells are written as if none was stuck.
    `signs`: columns may be stored negated. `sums`: weights without stuck cells make up for the error that their column
    still has. `crossbars`: matrices may move to other crossbars of their core.
    """

    compensate: bool = True
    signs: bool = True
    sums: bool = True
    crossbars: bool = True


def repair_matrix(matrix: Ints, states: Bytes, tables: ClosestValues, method: RepairMethod) -> RepairedMatrix:
    """Returns the repaired matrix [rows, cols] on cells in `states` [arrays, rows, cols, slices]."""
    layout, codes = tables.layout, tables.make_codes(states)
    rows, cols = np.nonzero(codes)
    wished = matrix[rows, cols]
    signs = np.ones(matrix.shape[1], np.int64)
    if not method.compensate:
        levels = digits_to_levels(layout, _clipped_digits(tables, matrix, states), states)
        return _made(matrix, layout.decode(levels), levels, signs)
    if method.signs:
        signs = np.where(_find_errors(matrix, codes, tables)[1] > 0, -1, 1)
    wished = wished * signs[cols]
    weights = matrix.copy()
    weights[rows, cols] = tables.find_values(codes[rows, cols], wished) * signs[cols]
    if method.sums and len(rows):
        _keep_sums(matrix, weights, codes == 0, signs, layout.limits)
    every = free_digits(layout, weights * signs)
    every[rows, cols] = tables.find_digits(codes[rows, cols], wished)
    return _made(matrix, weights, digits_to_levels(layout, every, states), signs)


def _made(matrix: Ints, weights: Ints, levels: Levels, signs: Ints) -> RepairedMatrix:
    return RepairedMatrix(levels, signs, weights, ((weights - matrix) ** 2).sum(axis=0).astype(np.float64))


def _clipped_digits(tables: ClosestValues, matrix: Ints, states: Bytes) -> Ints:
    """Returns the digits of a matrix that is written as if no cell was stuck. A pair is written cell by cell."""
    layout = tables.layout
    digits = free_digits(layout, matrix)
    if layout.arrays == 1:
        return digits
    fixed = np.where(states == 2, np.array(layout.highest, np.int64), 0)
    plus = np.where(states[0] == 0, np.maximum(digits, 0), fixed[0])
    return plus - np.where(states[1] == 0, np.maximum(-digits, 0), fixed[1])


def estimate_error(matrix: Ints, codes: Ints, tables: ClosestValues) -> float:
    """Returns the sum of squared errors [rows, cols] with the best signs of columns, before sums are kept.

    `codes` [rows, cols]: sets of stuck cells.
    """
    plain, gained = _find_errors(matrix, codes, tables)
    return float((plain - gained).sum())


def _find_errors(matrix: Ints, codes: Ints, tables: ClosestValues) -> tuple[Floats, Floats]:
    """Returns squared errors of columns [cols] as they are, and how much smaller they are if stored negated, if so."""
    rows, cols = np.nonzero(codes)
    stuck, wished = codes[rows, cols], matrix[rows, cols]
    plain, negated = (
        np.bincount(cols, (tables.find_values(stuck, side * wished) - side * wished) ** 2.0, matrix.shape[1]).astype(
            np.float64
        )
        for side in (1, -1)
    )
    low, high = tables.layout.limits
    can = (-matrix.max(axis=0) >= low) & (-matrix.min(axis=0) <= high)
    gained: Floats = np.where(can, np.maximum(plain - negated, 0.0), 0.0)
    return plain, gained


def _keep_sums(
    wanted: Ints, weights: Ints, is_free: npt.NDArray[np.bool_], signs: Ints, limits: tuple[int, int]
) -> None:
    """Changes free weights by as little as possible, so that positive and negative weights have the wanted sums."""
    for side in (1, -1):
        surplus = (np.maximum(side * weights, 0) - np.maximum(side * wanted, 0)).sum(axis=0)
        for col in np.flatnonzero(surplus):
            most = limits[1] if side * signs[col] > 0 else -limits[0]
            at = np.flatnonzero(is_free[:, col] & (side * weights[:, col] > 0))
            sizes = side * weights[at, col]
            room = sizes if surplus[col] > 0 else most - sizes
            weights[at, col] -= side * np.sign(surplus[col]) * _shares(room, int(abs(surplus[col])))


def _shares(room: Ints, total: int) -> Ints:
    """Splits a total into shares as equal as possible, none above its room; all room if that is too little."""
    if room.sum() <= total:
        return room
    order = np.argsort(-room, kind="stable")
    left, shares = room.copy(), np.zeros_like(room)
    while total:
        open_places = order[left[order] > 0]
        each = max(1, min(total // len(open_places), int(left[open_places].min())))
        chosen = open_places[: total // each]
        shares[chosen] += each
        left[chosen] -= each
        total -= each * len(chosen)
    return shares
