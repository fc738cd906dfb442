"""The copies and additions that a scatter-add (`Overlap`) consists of."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

CLEAR, COPY, ADD_TWO, ADD_MORE = range(4)
"""Kinds of work in a scatter-add: zeros, a copy of one run, the sum of two runs, one more run added."""


def plan_scatter_add(table: npt.NDArray[np.int64], elements: int) -> npt.NDArray[np.int64]:
    """Returns the copies and additions of a scatter-add of runs `table` (see `Overlap`) into `elements` elements.

    One row for each: kind, first element of the result, elements, then source and first element of two operands.
    """
    ends = table[:, 0] + table[:, 3]
    cuts = np.unique(np.concatenate([[0, elements], table[:, 0], ends])).tolist()
    first: list[list[int]] = []
    more: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for a, b in pairwise(cuts):
        met: list[int] = np.flatnonzero((table[:, 0] <= a) & (ends >= b)).tolist()
        operands = [(int(table[r, 1]), int(table[r, 2] + a - table[r, 0])) for r in met]
        left, right, *_ = [*operands, (-1, 0), (-1, 0)]
        first.append([min(len(operands), 2), a, b - a, *left, *right])
        for r, (source, at) in zip(met[2:], operands[2:], strict=True):
            if r in latest and latest[r][1] + latest[r][2] == a:
                latest[r][2] += b - a
            else:
                latest[r] = [ADD_MORE, a, b - a, -1, 0, source, at]
                more.append(latest[r])
    return np.array([*first, *more], np.int64).reshape(-1, 7)
