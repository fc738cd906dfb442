"""Layers of one output pixel, such as classifiers: matrices of several output tiles, so that few products are needed.

A product on many crossbars side by side takes little longer than on one.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from raptor.graph.ir import Filter
from raptor.graph.window import input_pixels
from raptor.mapping.decision import Matrix
from raptor.mapping.kernel_unfolding import fill_cores, row_blocks
from raptor.mapping.streaming import cut_channels
from raptor.target.arch import Arch
from raptor.target.timing import message_ns, mvmul_ns, vector_ns


def is_dense(filter_: Filter) -> bool:
    """One output pixel that nothing is shared with or folded into, and that reads an input."""
    window = filter_.window
    alone = window.out_pixels == 1 and filter_.groups == 1 and not filter_.key and not filter_.relu
    return alone and len(_taps(filter_)) > 0


def _taps(filter_: Filter) -> list[int]:
    """The kernel positions that do not lie in the padding."""
    return np.flatnonzero(input_pixels(filter_.window)[0] >= 0).tolist()


def dense_unfolding(filter_: Filter, arch: Arch, tile: int, core: int, free: int) -> tuple[Matrix, ...]:
    """The width that takes the least time on the fewest cores, from `core` on, which has `free` crossbars."""
    most = max(1, arch.xbars_per_core // -(-tile // arch.outputs_per_xbar))
    tiles = -(-filter_.weights.shape[2] // tile)
    found = (tuple(dense_matrices(filter_, arch, tile, n)) for n in range(1, min(most, tiles) + 1))
    return min(found, key=lambda matrices: _cost(matrices, fill_cores(matrices, core, free, arch)[0], arch, tile))


def dense_matrices(filter_: Filter, arch: Arch, tile: int, tiles: int) -> Iterator[Matrix]:
    """Matrices of `tiles` output tiles each, those of the same outputs one after another."""
    taps = _taps(filter_)
    for cols in cut_channels(filter_.weights.shape[2], tiles * tile):
        for rows in row_blocks(filter_.in_channels, tile, arch.xbar_rows):
            for tap in taps:
                yield Matrix(tap, rows, cols, -(-(cols[1] - cols[0]) // arch.outputs_per_xbar))


def _cost(matrices: tuple[Matrix, ...], cores: tuple[int, ...], arch: Arch, tile: int) -> tuple[int, float]:
    """Last core, and ns until the sums are there: products, their sums on each core, then those of all cores."""
    count, width = max(Counter(cores).values()), matrices[0].cols[1] - matrices[0].cols[0]
    own = count * mvmul_ns(arch, matrices[0].xbars) + (count - 1) * vector_ns(arch, width, 2)
    met = len({c for c, m in zip(cores, matrices, strict=True) if m.cols == matrices[0].cols})
    messages = (met - 1) * -(-width // tile) / met
    added = max(messages, met - 1) * (message_ns(arch, tile) + vector_ns(arch, tile, 2))
    return cores[-1], own + added
