"""The weight nearest to a wish that cells can hold of which some are stuck: an exact table for each set of stuck cells.

The slices of a weight are digits. A free cell, or a pair, gives a digit a range; a stuck one narrows it. All sums that
the digits can make are listed, and the nearest is looked up. With pairs of cells, ranges of digits overlap, so free
cells make up for most stuck ones (arXiv 2512.18459 looks up the nearest value in the same way).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from raptor.target.chip_file import CellState
from validator.crossbar.cell_layout import CellLayout, Levels

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
_STATES = 3
"""Different states for a level: a cell on a dead line adds as little as one at off."""


@dataclass(frozen=True, slots=True, eq=False)
class StuckWeights:
    """The weights with stuck cells in crossbars of `width` columns, of which a matrix covers `shape` [rows, cols].

    `places`: row x cols + column of each weight. `columns`: crossbar x cols + column. `tables`: numbers of the tables.
    """

    shape: tuple[int, int]
    width: int
    places: Ints
    columns: Ints
    tables: Ints


class ClosestValues:
    """Tables of a layout: for a set of stuck cells and a wish, the nearest weight and its digits.

    A set of stuck cells is a number (`make_codes`): 0 if all cells of the weight are free.
    """

    def __init__(self, layout: CellLayout) -> None:
        low, high = layout.limits
        self.layout = layout
        self.most = max(abs(low), abs(high))
        self._codes: list[int] = []
        self._values = np.zeros((0, 2 * self.most + 1), np.int32)
        self._squares = np.zeros((0, 2 * self.most + 1))
        self._digits: list[Ints] = []
        self._unrepaired = np.zeros((0, 2 * self.most + 1), np.int64)
        every = np.clip(np.arange(-self.most, self.most + 1), low, high)[None]
        free = np.zeros((layout.arrays, 1, every.size, layout.slices), np.uint8)
        self._free_levels = digits_to_levels(layout, free_digits(layout, every), free)[:, 0]

    def make_codes(self, states: Bytes) -> Ints:
        """Returns the set of stuck cells of each weight, [rows, cols], of states [arrays, rows, cols, slices]."""
        places = [*product(range(self.layout.arrays), range(self.layout.slices))]
        stuck = np.zeros(states.shape[1:3], np.bool_)
        for array, k in places:
            stuck |= states[array, :, :, k] != CellState.FREE
        at = np.flatnonzero(stuck)
        codes = np.zeros(len(at), np.int64)
        for array, k in places:
            kinds = states[array, :, :, k].reshape(-1)[at]
            codes = codes * _STATES + np.where(kinds == CellState.DEAD, np.uint8(CellState.OFF), kinds)
        found = np.zeros(stuck.shape, np.int64)
        found.ravel()[at] = codes
        return found

    def find_values(self, stuck: "StuckWeights", wishes: Ints) -> Ints:
        """Returns the nearest weights [n] to wishes [n] for stuck weights."""
        return self._values[stuck.tables, self._places(wishes)].astype(np.int64)

    def find_unrepaired(self, stuck: "StuckWeights", wishes: Ints) -> Ints:
        """Returns what stuck weights [n] are if their cells are written as if none was stuck."""
        return self._unrepaired[stuck.tables, self._places(wishes)]

    def find_stuck(self, codes: Ints) -> "StuckWeights":
        """Returns the weights of `codes` [crossbars, rows, cols] that have stuck cells."""
        count, height, width = codes.shape
        at = np.flatnonzero(codes != 0)
        crossbars, places = np.divmod(at, height * width)
        columns = crossbars * width + places % width
        return StuckWeights((height, width), count * width, places, columns, self._rows(codes.reshape(-1)[at]))

    def find_squares(self, stuck: "StuckWeights", matrix: Ints) -> tuple[Doubles, Doubles]:
        """Returns the sums of squared errors of a matrix [rows, cols] in each column of `stuck`, [crossbars x cols].

        First as the matrix is, then stored negated. Weights without stuck cells have no error.
        """
        first = stuck.tables * (2 * self.most + 1) + self.most
        wished = np.clip(matrix, -self.most, self.most).ravel()[stuck.places]
        plain, negated = (
            np.bincount(stuck.columns, self._squares.take(k), stuck.width) for k in (first + wished, first - wished)
        )
        return plain.astype(np.float64), negated.astype(np.float64)

    def make_levels(self, weights: Ints, states: Bytes, places: tuple[Ints, Ints], digits: Ints) -> Levels:
        """Returns levels [arrays, rows, cols, slices] of weights in free cells, but for those at `places`.

        `places`: rows [n] and columns [n] of the weights with stuck cells, whose digits are `digits` [n, slices].
        """
        levels = self._make_free_levels(weights)
        rows, cols = places
        levels[:, rows, cols] = digits_to_levels(self.layout, digits[:, None], states[:, rows, cols][:, :, None])[
            :, :, 0
        ]
        return levels

    def make_unrepaired_levels(self, weights: Ints, states: Bytes) -> Levels:
        """Returns levels of weights that are written as if no cell was stuck: what the cells then hold."""
        return self._hold(self._make_free_levels(weights), states)

    def _make_free_levels(self, weights: Ints) -> Levels:
        wished = weights + self.most
        return np.stack([held.take(wished, axis=0) for held in self._free_levels])

    def _hold(self, levels: Levels, states: Bytes) -> Levels:
        highest = np.array(self.layout.highest, np.uint8)
        return np.where(states == CellState.FREE, levels, np.where(states == CellState.ON, highest, np.uint8(0)))

    def find_digits(self, stuck: "StuckWeights", wishes: Ints) -> Ints:
        """Returns the digits [n, slices] of the nearest weights."""
        places = self._places(wishes)
        digits = np.zeros((len(places), self.layout.slices), np.int64)
        order = np.argsort(stuck.tables, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(stuck.tables[order])) + 1) if len(order) else ():
            digits[at] = self._digits[stuck.tables[at[0]]][places[at]]
        return digits

    def _places(self, wishes: Ints) -> Ints:
        return np.clip(wishes, -self.most, self.most) + self.most

    def _rows(self, codes: Ints) -> Ints:
        """Returns the row of each set of stuck cells in the tables, which grow as sets are met."""
        known = np.array(self._codes, np.int64)
        order = np.argsort(known)
        places = np.searchsorted(known, codes, sorter=order)
        rows = order[np.minimum(places, len(known) - 1)] if len(known) else np.zeros(len(codes), np.int64)
        missing = np.unique(codes if not len(known) else codes[known[rows] != codes])
        if not len(missing):
            return rows
        tables = [self._make_table(int(code)) for code in missing]
        self._codes += missing.tolist()
        self._values = np.vstack([self._values, *(values for values, _ in tables)])
        self._unrepaired = np.vstack([self._unrepaired, *(self._make_unrepaired(int(code)) for code in missing)])
        self._squares = (self._values - np.arange(-self.most, self.most + 1)) ** 2.0
        self._digits += [digits for _, digits in tables]
        return self._rows(codes)

    def _make_table(self, code: int) -> tuple[npt.NDArray[np.int32], Ints]:
        sums, digits = list_sums(self.layout, split_code(self.layout, code))
        best = nearest(sums, np.arange(-self.most, self.most + 1))
        return sums[best].astype(np.int32)[None], digits[best]

    def _make_unrepaired(self, code: int) -> Ints:
        """Returns what cells hold for each wish, [1, wishes], if they are written as if none was stuck."""
        states = np.array(split_code(self.layout, code), np.uint8)[:, None, None]
        return self.layout.decode(self._hold(self._free_levels[:, None], states))


def split_code(layout: CellLayout, code: int) -> tuple[tuple[int, ...], ...]:
    """Returns the states of the cells of a weight, [arrays][slices]."""
    digits = [code // _STATES**k % _STATES for k in reversed(range(layout.arrays * layout.slices))]
    return tuple(tuple(digits[a * layout.slices : (a + 1) * layout.slices]) for a in range(layout.arrays))


def list_sums(layout: CellLayout, states: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Returns all weights that cells in these states can hold, in ascending order, and the digits of each."""
    sums, digits = np.array([layout.constant]), np.zeros((1, 0), np.int64)
    for k, power in enumerate(layout.powers):
        (low, high), *less = (_range(layout, k, array[k]) for array in states)
        if less:
            low, high = low - less[0][1], high - less[0][0]
        step = np.array(sorted(range(low, high + 1), key=abs), np.int64)
        every = (sums + power * step[:, None]).ravel()
        sums, first = np.unique(every, return_index=True)
        digits = np.column_stack([digits[first % len(digits)], step[first // len(digits)]])
    return sums, digits


def _range(layout: CellLayout, k: int, state: int) -> tuple[int, int]:
    """Returns the lowest and the highest level of a cell of slice k."""
    if state == CellState.FREE:
        return 0, (1 << layout.bits[k]) - 1
    level = layout.highest[k] if state == CellState.ON else 0
    return level, level


def nearest(sums: Ints, wishes: Ints) -> Ints:
    """Returns the index of the nearest of ascending sums for each wish; of two as near, the one nearer to 0."""
    after = np.clip(np.searchsorted(sums, wishes), 0, len(sums) - 1)
    before = np.maximum(after - 1, 0)
    left, right = np.abs(wishes - sums[before]), np.abs(sums[after] - wishes)
    nearer = (left < right) | ((left == right) & (np.abs(sums[before]) < np.abs(sums[after])))
    return np.where(nearer, before, after)


def free_digits(layout: CellLayout, weights: Ints) -> Ints:
    """Returns the digits [..., slices] of weights in free cells, as the encoding defines them."""
    starts = np.cumsum([0, *layout.bits[:-1]])
    spans = (1 << np.array(layout.bits, np.int64)) - 1
    raised = weights - layout.constant
    if layout.arrays == 1:
        return raised[..., None] >> starts & spans
    return np.sign(raised)[..., None] * (np.abs(raised)[..., None] >> starts & spans)


def digits_to_levels(layout: CellLayout, digits: Ints, states: Bytes) -> Levels:
    """Returns levels [arrays, rows, cols, slices] with these digits [rows, cols, slices]; stuck cells keep theirs."""
    fixed = np.where(states == CellState.ON, np.array(layout.highest, np.int16), np.int16(0))
    narrow = digits.astype(np.int16)
    if layout.arrays == 1:
        return np.where(states[0] == CellState.FREE, narrow, fixed[0])[None].astype(np.uint8)
    is_free = states == CellState.FREE
    plus, minus = np.maximum(narrow, 0), np.maximum(-narrow, 0)
    first = np.where(is_free[0], np.where(is_free[1], plus, narrow + fixed[1]), fixed[0])
    second = np.where(is_free[1], np.where(is_free[0], minus, fixed[0] - narrow), fixed[1])
    return np.stack([first, second]).astype(np.uint8)
