"""Finds what the cells of a crossbar hold, of which some are stuck, so that the matrix is as near as possible.

First the free cells of a weight make up for its stuck ones. Then each column is stored negated if that is nearer. What
is left goes into the free weights of the column: its positive and its negative weights keep their sums, so an input of
the mean is multiplied exactly, and no sum leaves the range that the compiler proved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.tools.repair.closest_values import Bytes, ClosestValues, Ints, StuckWeights, free_digits
from validator.crossbar.cell_layout import CellLayout, Levels

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
    weights = matrix.copy()
    if not method.compensate:
        digits = _clipped_digits(layout, wished, states[:, rows, cols])
        held = tables.make_stuck_levels(states[:, rows, cols], digits)
        weights[rows, cols] = layout.decode(held[:, :, None])[:, 0]
        return _made(matrix, weights, tables.make_levels(matrix, states, (rows, cols), digits), signs)
    if method.signs:
        signs = np.where(_find_errors(matrix, tables.find_stuck(codes), tables)[1] > 0, -1, 1)
    wished = wished * signs[cols]
    weights[rows, cols] = tables.find_values(codes[rows, cols], wished) * signs[cols]
    if method.sums and len(rows):
        _keep_sums(matrix, weights, codes == 0, signs, layout.limits)
    digits = tables.find_digits(codes[rows, cols], wished)
    return _made(matrix, weights, tables.make_levels(weights * signs, states, (rows, cols), digits), signs)


def _made(matrix: Ints, weights: Ints, levels: Levels, signs: Ints) -> RepairedMatrix:
    return RepairedMatrix(levels, signs, weights, ((weights - matrix) ** 2).sum(axis=0).astype(np.float64))


def find_unrepaired_error(matrix: Ints, states: Bytes, tables: ClosestValues) -> float:
    """Returns the sum of squared errors of a matrix whose cells are written as if none was stuck."""
    rows, cols = np.nonzero(tables.make_codes(states))
    stuck, wished = states[:, rows, cols], matrix[rows, cols]
    held = tables.make_stuck_levels(stuck, _clipped_digits(tables.layout, wished, stuck))
    return float(((tables.layout.decode(held[:, :, None])[:, 0] - wished) ** 2).sum())


def _clipped_digits(layout: CellLayout, wished: Ints, states: Bytes) -> Ints:
    """Returns the digits [n, slices] of weights [n] that are written as if no cell was stuck, pairs cell by cell."""
    digits = free_digits(layout, wished)
    if layout.arrays == 1:
        return digits
    fixed = np.where(states == 2, np.array(layout.highest, np.int64), 0)
    plus = np.where(states[0] == 0, np.maximum(digits, 0), fixed[0])
    return plus - np.where(states[1] == 0, np.maximum(-digits, 0), fixed[1])


@dataclass(frozen=True, slots=True, eq=False)
class MatrixStack:
    """Matrices of one layout, with zeros around them. `weights` [n, rows, cols]; `rows`, `cols` [n]: their shapes.

    `may_negate` [n, cols]: columns that cells can also store negated.
    """

    weights: Ints
    rows: Ints
    cols: Ints
    may_negate: npt.NDArray[np.bool_]

    @classmethod
    def make(cls, matrices: Sequence[Ints], tables: ClosestValues) -> "MatrixStack":
        rows, cols = (np.array([m.shape[axis] for m in matrices], np.int64) for axis in (0, 1))
        weights = np.zeros((len(matrices), int(rows.max()), int(cols.max())), np.int64)
        for held, matrix in zip(weights, matrices, strict=True):
            held[: len(matrix), : matrix.shape[1]] = matrix
        return cls(weights, rows, cols, _may_negate(weights, tables))

    def estimate_errors(self, codes: Ints, tables: ClosestValues) -> Floats:
        """Returns the sums of squared errors [n] of the matrices on cells in `codes`, before sums are kept.

        Columns have the best signs. `codes` [rows, cols] may be larger than the matrices.
        """
        count, height, width = self.weights.shape
        stuck = tables.find_stuck(codes[:height, :width])
        wished = self.weights[:, stuck.rows, stuck.cols]
        inside = (stuck.rows < self.rows[:, None]) & (stuck.cols < self.cols[:, None])
        numbers = (np.arange(count, dtype=np.int64)[:, None] * width + stuck.cols).reshape(-1)
        plain, negated = (
            np.bincount(numbers, (tables.find_squares(stuck, side * wished) * inside).ravel(), count * width)
            for side in (1, -1)
        )
        best = np.where(self.may_negate.ravel(), np.minimum(plain, negated), plain)
        return best.reshape(count, width).sum(axis=1).astype(np.float64)


def _may_negate(weights: Ints, tables: ClosestValues) -> npt.NDArray[np.bool_]:
    """Checks which columns of matrices [..., rows, cols] cells can also store negated."""
    low, high = tables.layout.limits
    if low == -high:
        return np.ones((*weights.shape[:-2], weights.shape[-1]), np.bool_)
    return (-weights.max(axis=-2) >= low) & (-weights.min(axis=-2) <= high)


def _find_errors(matrix: Ints, stuck: StuckWeights, tables: ClosestValues) -> tuple[Floats, Floats]:
    """Returns squared errors of columns [cols] as they are, and how much smaller they are if stored negated, if so."""
    wished = matrix[stuck.rows, stuck.cols]
    plain, negated = (
        np.bincount(stuck.cols, tables.find_squares(stuck, side * wished), stuck.width).astype(np.float64)
        for side in (1, -1)
    )
    return plain, np.where(_may_negate(matrix, tables), np.maximum(plain - negated, 0.0), 0.0)


def _keep_sums(
    wanted: Ints, weights: Ints, is_free: npt.NDArray[np.bool_], signs: Ints, limits: tuple[int, int]
) -> None:
    """Changes free weights by as little as possible, so that positive and negative weights have the wanted sums."""
    columns = np.ascontiguousarray(is_free.T)
    for side in (1, -1):
        sided = np.ascontiguousarray(side * weights.T)
        surplus = np.maximum(sided, 0).sum(axis=1) - np.maximum(side * wanted, 0).sum(axis=0)
        for col in np.flatnonzero(surplus).tolist():
            most = limits[1] if side * signs[col] > 0 else -limits[0]
            at = np.flatnonzero(columns[col] & (sided[col] > 0))
            sizes = sided[col, at]
            room = sizes if surplus[col] > 0 else most - sizes
            weights[at, col] -= side * np.sign(surplus[col]) * _shares(room, int(abs(surplus[col])))


def _shares(room: Ints, total: int) -> Ints:
    """Splits a total into shares as equal as possible, none above its room; all room if that is too little."""
    if room.sum() <= total:
        return room
    order, shares = np.argsort(-room, kind="stable"), np.zeros_like(room)
    if total <= np.count_nonzero(room):
        shares[order[:total]] = 1
        return shares
    left = room.copy()
    while total:
        open_places = order[left[order] > 0]
        each = max(1, min(total // len(open_places), int(left[open_places].min())))
        chosen = open_places[: total // each]
        shares[chosen] += each
        left[chosen] -= each
        total -= each * len(chosen)
    return shares
