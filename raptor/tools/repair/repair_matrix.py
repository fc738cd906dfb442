"""Finds what the cells of a crossbar hold, of which some are stuck, so that the matrix is as near as possible.

First the free cells of a weight make up for its stuck ones. Then each column is stored negated if that is nearer. What
is left goes into the free weights of the column: its positive and its negative weights keep their sums, so an input of
the mean is multiplied exactly, and no sum leaves the range that the compiler proved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.tools.repair.closest_values import Bytes, ClosestValues, Ints, StuckWeights
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

    def take(self, cols: slice) -> "RepairedMatrix":
        """Returns some of the columns."""
        return RepairedMatrix(self.levels[:, :, cols], self.signs[cols], self.weights[:, cols], self.errors[cols])


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


def repair_matrix(
    matrix: Ints, states: Bytes, tables: ClosestValues, method: RepairMethod, codes: Ints | None = None
) -> RepairedMatrix:
    """Returns the repaired matrix [rows, cols] on cells in `states` [arrays, rows, cols, slices].

    Each column is repaired by itself, so matrices of one height can be repaired side by side. `codes`: of the states.
    """
    layout, codes = tables.layout, tables.make_codes(states) if codes is None else codes
    stuck = tables.find_stuck(codes[None])
    rows, cols = np.divmod(stuck.places, matrix.shape[1])
    wished = matrix[rows, cols]
    signs = np.ones(matrix.shape[1], np.int64)
    weights = matrix.copy()
    if not method.compensate:
        weights[rows, cols] = tables.find_unrepaired(stuck, wished)
        return _made(matrix, weights, tables.make_unrepaired_levels(matrix, states), signs)
    if method.signs:
        plain, negated = tables.find_squares(stuck, matrix)
        signs = np.where((negated < plain) & _may_negate(matrix, tables), -1, 1)
    nearest = tables.find_values(stuck, wished * signs[cols]) * signs[cols]
    weights[rows, cols] = nearest
    if method.sums and len(rows):
        for side in (1, -1):
            change = np.maximum(side * nearest, 0) - np.maximum(side * wished, 0)
            surplus = np.bincount(cols, change, len(signs)).astype(np.int64)
            _keep_sums(weights, codes, surplus, side, np.where(side * signs > 0, layout.limits[1], -layout.limits[0]))
    digits = tables.find_digits(stuck, wished * signs[cols])
    return _made(matrix, weights, tables.make_levels(weights * signs, states, (rows, cols), digits), signs)


def _made(matrix: Ints, weights: Ints, levels: Levels, signs: Ints) -> RepairedMatrix:
    at = np.flatnonzero(weights != matrix)
    squares = (weights.ravel()[at] - matrix.ravel()[at]) ** 2
    errors = np.bincount(at % len(signs), squares, len(signs)).astype(np.float64)
    return RepairedMatrix(levels, signs, weights, errors)


def estimate_errors(matrices: Sequence[Ints], codes: Ints, tables: ClosestValues) -> Floats:
    """Returns the sum of squared errors of each matrix in each crossbar, [matrices, crossbars], before sums are kept.

    Columns have the best signs. `codes` [crossbars, rows, cols] may have more rows and columns than a matrix.
    """
    errors = np.zeros((len(matrices), len(codes)))
    stuck: dict[tuple[int, ...], StuckWeights] = {}
    for error, matrix in zip(errors, matrices, strict=True):
        rows, cols = matrix.shape
        if matrix.shape not in stuck:
            stuck[matrix.shape] = tables.find_stuck(codes[:, :rows, :cols])
        plain, negated = (side.reshape(-1, cols) for side in tables.find_squares(stuck[matrix.shape], matrix))
        error[:] = np.where(_may_negate(matrix, tables), np.minimum(plain, negated), plain).sum(axis=1)
    return errors


def _may_negate(matrix: Ints, tables: ClosestValues) -> npt.NDArray[np.bool_]:
    """Checks which columns of a matrix [rows, cols] cells can also store negated."""
    low, high = tables.layout.limits
    if low == -high:
        return np.ones(int(matrix.shape[1]), np.bool_)
    fits: npt.NDArray[np.bool_] = np.logical_and(matrix.max(axis=0) <= -low, matrix.min(axis=0) >= -high)
    return fits


def _keep_sums(weights: Ints, codes: Ints, surplus: Ints, side: int, most: Ints) -> None:
    """Changes free weights of one sign, `side`, by as little as possible, so that columns lose their surplus [cols].

    `most` [cols]: the largest magnitude that a weight of this sign can have.
    """
    cols = np.flatnonzero(surplus)
    if not len(cols):
        return
    lost, sizes = surplus[cols, None], side * weights[:, cols].T
    room = np.where((codes[:, cols].T == 0) & (sizes > 0), np.where(lost > 0, sizes, most[cols, None] - sizes), 0)
    weights[:, cols] -= (side * np.sign(lost) * _share_columns(room, np.abs(surplus[cols]))).T


def _share_columns(room: Ints, totals: Ints) -> Ints:
    """Splits a total [cols] for each row of `room` [cols, places] as `_shares` does."""
    places = room.shape[1]
    shares = np.zeros_like(room)
    # If there are enough places, those with the most room get 1 each, the first of equals.
    ones = totals <= np.count_nonzero(room, axis=1)
    keys: Ints = room[ones] * places + np.arange(places - 1, -1, -1, dtype=np.int64)
    ordered: Ints = np.sort(keys, axis=1)
    least = np.take_along_axis(ordered, places - totals[ones, None], axis=1)
    shares[ones] = keys >= least
    for col in np.flatnonzero(~ones).tolist():
        shares[col] = _shares(room[col], int(totals[col]))
    return shares


def _shares(room: Ints, total: int) -> Ints:
    """Splits a total into shares as equal as possible, none above its room; all room if that is too little."""
    if room.sum() <= total:
        return room
    order, shares = np.argsort(-room, kind="stable"), np.zeros_like(room)
    left = room.copy()
    while total:
        open_places = order[left[order] > 0]
        each = max(1, min(total // len(open_places), int(left[open_places].min())))
        chosen = open_places[: total // each]
        shares[chosen] += each
        left[chosen] -= each
        total -= each * len(chosen)
    return shares
