"""The compiled loop of `raptor.spatial.mesh_placement`; import only where it runs (see `raptor.common.jit`)."""

from typing import Any

import numpy as np

from raptor.common.jit import helper, interpret, kernel


@kernel
@interpret(us=lambda args: 3 * len(args[0]) ** 2, until_us=1e6)
def swap_places(
    places: Any,
    rows: Any,
    cols: Any,
    rows_apart: Any,
    cols_apart: Any,
    first: Any,
    peers: Any,
    weights: Any,
    slack: float,
    sweeps: int,
) -> None:
    """Swaps places until no core gains by a swap with any other, or for `sweeps` rounds. Changes `places`.

    The distance of places p and q is `rows_apart[rows[p], rows[q]] + cols_apart[cols[p], cols[q]]`, and symmetric.
    Core i exchanges `weights[k]` flits with core `peers[k]`, for k from `first[i]` to `first[i + 1]`.

    `by_row`, `by_col`: flits times distance of each core, if it were in that row or column. They are kept up to date,
    so that the gain of a swap is a few additions. Rounding may change such a gain, and with it which of two equal swaps
    is taken; so a gain that is less than the best by up to `slack` is computed again, peer by peer.
    """
    count = len(places)
    by_row, by_col = np.zeros((count, len(rows_apart))), np.zeros((count, len(cols_apart)))
    nowhere = np.int64(-1)  # a plain -1 would be compiled once more, for this number alone
    for i in range(count):
        _move(by_row, rows_apart, first, peers, weights, i, nowhere, rows[places[i]])
        _move(by_col, cols_apart, first, peers, weights, i, nowhere, cols[places[i]])
    shared = np.zeros(count)
    for _ in range(sweeps):
        swapped = False
        for i in range(count):
            if first[i] == first[i + 1]:
                continue
            other = _best_swap(
                places, rows, cols, rows_apart, cols_apart, first, peers, weights, by_row, by_col, shared, slack, i
            )
            if other >= 0:
                here, there = places[i], places[other]
                places[i], places[other] = there, here
                for core, source, to in ((i, here, there), (other, there, here)):
                    _move(by_row, rows_apart, first, peers, weights, core, rows[source], rows[to])
                    _move(by_col, cols_apart, first, peers, weights, core, cols[source], cols[to])
                swapped = True
        if not swapped:
            break


@helper
def _best_swap(
    places: Any,
    rows: Any,
    cols: Any,
    rows_apart: Any,
    cols_apart: Any,
    first: Any,
    peers: Any,
    weights: Any,
    by_row: Any,
    by_col: Any,
    shared: Any,
    slack: float,
    i: int,
) -> int:
    """Returns the first of the cores with which core i gains most by a swap; -1 if it gains with none.

    `shared`: [cores], scratch memory of zeros, which is zero again at the end.
    """
    for k in range(first[i], first[i + 1]):
        shared[peers[k]] = weights[k]
    row, col = rows[places[i]], cols[places[i]]
    now = by_row[i, row] + by_col[i, col]
    best, other = 0.0, -1
    for j in range(len(places)):
        to_row, to_col = rows[places[j]], cols[places[j]]
        gain = now - by_row[i, to_row] - by_col[i, to_col]
        gain += by_row[j, to_row] - by_row[j, row] + by_col[j, to_col] - by_col[j, col]
        # Flits between the two are in both sums, and go as far after the swap as before.
        gain -= 2 * shared[j] * (rows_apart[row, to_row] + cols_apart[col, to_col])
        if gain > best - slack:
            gain = _gain(places, rows, cols, rows_apart, cols_apart, first, peers, weights, i, j)
            gain += _gain(places, rows, cols, rows_apart, cols_apart, first, peers, weights, j, i)
            if gain > best:
                best, other = gain, j
    for k in range(first[i], first[i + 1]):
        shared[peers[k]] = 0.0
    return other


@helper
def _move(sums: Any, apart: Any, first: Any, peers: Any, weights: Any, core: int, source: Any, to: int) -> None:
    """Updates `sums[peer, line]` of the peers of a core that moves from line `source` (-1: from nowhere) to another.

    A line is a row or a column.
    """
    for k in range(first[core], first[core + 1]):
        for line in range(len(apart)):
            sums[peers[k], line] += weights[k] * (apart[to, line] - (apart[source, line] if source >= 0 else 0))


@helper
def _gain(
    places: Any,
    rows: Any,
    cols: Any,
    rows_apart: Any,
    cols_apart: Any,
    first: Any,
    peers: Any,
    weights: Any,
    i: int,
    j: int,
) -> float:
    """Returns by how much the way of core i's flits gets shorter at the place of core j, in flits times distance.

    Flits between the two cores are left out.
    """
    here, there = places[i], places[j]
    gain = 0.0
    for k in range(first[i], first[i + 1]):
        if peers[k] != j:
            row, col = rows[places[peers[k]]], cols[places[peers[k]]]
            apart = rows_apart[rows[here], row] + cols_apart[cols[here], col]
            gain += weights[k] * (apart - rows_apart[rows[there], row] - cols_apart[cols[there], col])
    return gain
