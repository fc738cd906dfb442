"""Chooses the tiles of weights that become 0, and what the other weights become.

The tiles of a layer go one by one, each time the one whose absence costs the outputs least if all other weights make up
for it: the optimal brain surgeon with blocks (Hassibi and Stork 1993). Without samples it is the tile with the smallest
weights. Over all layers, those tiles go next that add the smallest error for what they save.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
DAMPING = 1e-3
"""Share of the mean square of the inputs by which a weight is held near to what it was."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTiles:
    """The tiles of a layer. `rows`: the rows [taps x inputs] of each row block; `cols`: ranges of outputs.

    `xbars`: crossbars of a tile of each range of outputs. `products`: products of a tile with inputs of a sample.
    """

    rows: tuple[npt.NDArray[np.int64], ...]
    cols: tuple[tuple[int, int], ...]
    xbars: tuple[int, ...]
    products: int

    @property
    def all_xbars(self) -> int:
        return len(self.rows) * sum(self.xbars)


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """Sums over samples. `gram` [n, n]: of products of inputs, the last of which is 1.

    `cross` [n, outputs]: of products of inputs with wanted outputs. `square`: of these outputs around their means.
    """

    gram: Doubles
    cross: Doubles
    square: float


def cut_tiles(
    places: Indices, outputs: int, tile: tuple[int, int], per_xbar: int, products: int, *, whole: bool
) -> LayerTiles:
    """Cuts the weights of a layer into tiles of `tile` inputs and outputs.

    `places` [taps, inputs]: the row of each kernel position and input channel. `whole`: a tile has all kernel
    positions, else one. `per_xbar`: outputs of a crossbar. `products`: see `LayerTiles`.
    """
    taps, inputs = places.shape
    blocks = [places[:, at : at + tile[0]] for at in range(0, inputs, tile[0])]
    rows = [b.reshape(-1) for b in blocks] if whole else [b[tap] for b in blocks for tap in range(taps)]
    cols = tuple((at, min(at + tile[1], outputs)) for at in range(0, outputs, tile[1]))
    return LayerTiles(tuple(rows), cols, tuple(-(-(b - a) // per_xbar) for a, b in cols), products)


def order_tiles(weights: Doubles, tiles: LayerTiles, sums: LayerSums | None) -> Iterator[tuple[float, int, int]]:
    """Yields (relative error of all tiles so far, row block, column range), cheapest first.

    `weights` [rows, outputs]. A range of outputs keeps one tile. `sums`: None to go by the size of weights alone.
    """
    total = float((weights**2).sum()) if sums is None else sums.square
    steps = [_order_column(weights[:, slice(*cols)], tiles.rows, sums) for cols in tiles.cols]
    queue = [(step[0], k, step[1], it) for k, it in enumerate(map(iter, steps)) if (step := next(it, None)) is not None]
    heapq.heapify(queue)
    error = 0.0
    while queue:
        cost, k, block, left = heapq.heappop(queue)
        error += cost
        yield error / max(total, 1e-30), block, k
        following = next(left, None)
        if following is not None:
            heapq.heappush(queue, (following[0], k, following[1], left))


def _order_column(
    weights: Doubles, rows: Sequence[npt.NDArray[np.int64]], sums: LayerSums | None
) -> Iterator[tuple[float, int]]:
    """Yields (additional squared error, row block) for a range of outputs; the last block stays."""
    left = list(range(len(rows)))
    if sums is None:
        sizes = {k: float((weights[rows[k]] ** 2).sum()) for k in left}
        yield from ((sizes[k], k) for k in sorted(left, key=sizes.__getitem__)[:-1])
        return
    inverse: Doubles = np.linalg.inv(damp(sums.gram)).astype(np.float64)
    values = np.vstack([weights, np.zeros((1, weights.shape[1]))])
    while len(left) > 1:
        costs = [_removal_cost(values[rows[k]], inverse[np.ix_(rows[k], rows[k])]) for k in left]
        block = left.pop(int(np.argmin(costs)))
        gone = rows[block]
        factor = np.linalg.solve(inverse[np.ix_(gone, gone)], np.hstack([values[gone], inverse[gone]]))
        change = inverse[:, gone] @ factor
        values, inverse = values - change[:, : values.shape[1]], inverse - change[:, values.shape[1] :]
        values[gone] = 0
        yield min(costs), block


def _removal_cost(values: Doubles, inverse: Doubles) -> float:
    return float((values * np.linalg.solve(inverse, values)).sum())


def damp(gram: Doubles) -> Doubles:
    """Returns sums of products of inputs with more on their diagonal, so that they have an inverse."""
    mean = float(np.trace(gram)) / len(gram)
    return gram + np.eye(len(gram)) * max(DAMPING * mean, 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class PruningCurve:
    """The order in which the tiles of a layer go. `steps`: row block and range of outputs of each tile.

    `errors` [steps]: the error once the tiles up to this one are gone; it never falls.
    """

    steps: tuple[tuple[int, int], ...]
    errors: Doubles


def choose_counts(layers: Sequence[tuple[LayerTiles, PruningCurve]], share: float, products: float) -> list[int]:
    """Returns how many tiles of each layer go, if `share` of all crossbars go, or nearly so.

    Errors of layers are added. `products`: weight of a saved product beside a saved crossbar, as shares of all.
    """
    xbars = sum(tiles.all_xbars for tiles, _ in layers)
    work = max(1, sum(tiles.all_xbars * tiles.products for tiles, _ in layers))
    worth = [1 / xbars + products * tiles.products / work for tiles, _ in layers]
    sizes = [np.cumsum([0, *(tiles.xbars[k] for _, k in curve.steps)]) for tiles, curve in layers]
    errors = [np.concatenate([[0.0], curve.errors]) for _, curve in layers]
    counts, left = [0] * len(layers), share * xbars + 1e-9
    while True:
        cuts = [_find_cheapest(errors[n][at:], sizes[n][at:], left) for n, at in enumerate(counts)]
        found = [(cost / worth[n], n, more) for n, (cost, more) in enumerate(cuts) if more]
        if not found:
            return counts
        _, n, more = min(found)
        left -= float(sizes[n][counts[n] + more] - sizes[n][counts[n]])
        counts[n] += more


def _find_cheapest(errors: Doubles, sizes: Indices, left: float) -> tuple[float, int]:
    """Returns the smallest error for each crossbar, and after how many tiles more it is; 0 if no tile may go.

    `errors`, `sizes`: of the tiles so far and after each tile more. `left`: crossbars that may still go.
    """
    saved = sizes[1:] - sizes[0]
    count = int(np.searchsorted(saved, left, "right"))
    if not count:
        return 0.0, 0
    costs = (errors[1 : count + 1] - errors[0]) / saved[:count]
    cheapest = int(np.argmin(costs))
    return float(costs[cheapest]), cheapest + 1


def keep_others(shape: tuple[int, ...], tiles: LayerTiles, steps: Sequence[tuple[int, int]]) -> Bools:
    """Returns which weights [rows, outputs] of a layer stay if the tiles of `steps` go."""
    kept = np.ones(shape, np.bool_)
    for block, k in steps:
        kept[tiles.rows[block], slice(*tiles.cols[k])] = False
    return kept


def refit(weights: Doubles, bias: Doubles | None, kept: Bools, tiles: LayerTiles, sums: LayerSums) -> None:
    """Changes the weights that stay, and the bias, so that the outputs are nearest to the wanted ones, in place."""
    gram = damp(sums.gram)
    held = gram - sums.gram  # holds weights near to what they are
    ones = len(gram) - 1
    for low, high in tiles.cols:
        rows = np.flatnonzero(kept[:, low])
        index = rows if bias is None else np.append(rows, ones)
        now = np.vstack([weights[:, low:high], np.zeros((1, high - low)) if bias is None else bias[None, low:high]])
        wanted = sums.cross[:, low:high] + held @ now
        found = np.linalg.solve(gram[np.ix_(index, index)], wanted[index])
        weights[rows, low:high] = found[: len(rows)]
        if bias is not None:
            bias[low:high] = found[-1]
    weights[~kept] = 0
