"""Unfolding of layers with one output pixel, such as classifiers: each matrix spans several output tiles.

So there are few MVMs, and an MVM on many crossbars side by side takes only a little longer than on one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from raptor.graph.ir import Filter
from raptor.graph.layers import find_inner_taps
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.kernel_unfolding import cut_row_blocks, drop_zero_matrices
from raptor.mapping.modes.line_streaming import Range, cut_channels
from raptor.target.arch import Target
from raptor.target.timing import message_ns, mvmul_ns, vector_ns


def choose_dense_matrices(filter_: Filter, arch: Target, tile: int, core: int, free: int) -> tuple[Matrix, ...]:
    """Returns the matrices of a layer, with the width that fills the fewest cores; on ties the fastest one.

    If narrow matrices of zeros can be left out, it is the width with the fewest crossbars. `arch` has the widths of the
    layer. `core`: the first core to fill, which has `free` crossbars left.
    """
    most = max(1, arch.xbars_per_core // -(-tile // arch.weight_columns(filter_.weight_bits)))
    widths = range(1, min(most, -(-filter_.weights.shape[2] // tile)) + 1)
    chosen = min(widths, key=partial(_cost, filter_, arch, tile, core, free))
    found = {tiles: tuple(unfold_dense(filter_, arch, tile, tiles)) for tiles in dict.fromkeys((chosen, 1))}
    narrow = sum(matrix.xbars for matrix in found[1])
    if len(found[1]) == _count_all(filter_, arch, tile) or narrow >= sum(matrix.xbars for matrix in found[chosen]):
        return found[chosen]
    every = {tiles: tuple(unfold_dense(filter_, arch, tile, tiles)) for tiles in widths}
    return min(every.values(), key=lambda matrices: (sum(matrix.xbars for matrix in matrices), len(matrices)))


def _count_all(filter_: Filter, arch: Target, tile: int) -> int:
    """Returns the number of matrices of one output tile each, with the matrices that are all zeros."""
    blocks = sum(1 for _ in cut_row_blocks(filter_.in_channels, tile, arch.xbar_rows))
    return len(find_inner_taps(filter_)) * blocks * sum(1 for _ in cut_channels(filter_.weights.shape[2], tile))


def _cost(filter_: Filter, arch: Target, tile: int, core: int, free: int, tiles: int) -> tuple[int, float]:
    """Returns the last core that a layer fills if its matrices span `tiles` output tiles, and its time in ns.

    The time is until all outputs are complete. `core`: the first core to fill, which has `free` crossbars left.
    """
    rows = len(find_inner_taps(filter_)) * sum(1 for _ in cut_row_blocks(filter_.in_channels, tile, arch.xbar_rows))
    columns = [high - low for low, high in cut_channels(filter_.weights.shape[2], tiles * tile)]
    xbars = [-(-width // arch.weight_columns(filter_.weight_bits)) for width in columns]
    held, met = Counter[int](), 0
    for each in xbars:  # as `fill_cores` does, but for all matrices of the same outputs at once
        left = rows
        while left:
            if each > free:
                core, free = core + 1, arch.xbars_per_core
            count = min(left, free // each)
            held[core] += count
            left, free = left - count, free - count * each
        met = met or len(held)
    return core, _latency_ns(arch, tile, max(held.values()), xbars[0], columns[0], met)


def unfold_dense(filter_: Filter, arch: Target, tile: int, tiles: int) -> Iterator[Matrix]:
    """Yields matrices that span `tiles` output tiles each; matrices of the same outputs are adjacent.

    Matrices of zeros are left out.
    """
    taps, most = find_inner_taps(filter_), arch.weight_columns(filter_.weight_bits)
    blocks = [*cut_row_blocks(filter_.in_channels, tile, arch.xbar_rows)]
    for cols in cut_channels(filter_.weights.shape[2], tiles * tile):
        xbars = -(-(cols[1] - cols[0]) // most)
        every = [Matrix(tap, rows, cols, xbars) for rows in blocks for tap in taps]
        yield from drop_zero_matrices(filter_, every)


def spread_matrices(
    matrices: tuple[Matrix, ...], first: int, most: int, arch: Target, tile: int, enough_ns: float = 0.0
) -> tuple[int, ...] | None:
    """Assigns the matrices to up to `most` consecutive cores from `first` on, so that the layer is fastest.

    Returns the core of each matrix, with equally many matrices on each core and the fewest cores on ties; the fewest
    with which the layer takes at most `enough_ns`, if there are any. None if `most` cores are too few for such an
    assignment.
    """
    least, held = -(-len(matrices) // most), arch.xbars_per_core // matrices[0].xbars
    ways = (tuple(first + i // each for i in range(len(matrices))) for each in range(held, least - 1, -1))
    return min(ways, key=lambda way: max(enough_ns, dense_latency_ns(matrices, way, arch, tile)), default=None)


def summing_cores(matrices: Sequence[Matrix], cores: Sequence[int], tile: int) -> list[int]:
    """Returns the core on which each output tile is added up, in order: the tiles of a range are spread over its cores.

    cores: the core of each matrix.
    """
    columns: dict[Range, dict[int, None]] = {}
    for matrix, core in zip(matrices, cores, strict=True):
        columns.setdefault(matrix.cols, {})[core] = None
    found: list[int] = []
    for (low, high), own in columns.items():
        tiles = -(-(high - low) // tile)
        found += [[*own][n * len(own) // tiles] for n in range(tiles)]
    return found


def dense_latency_ns(matrices: tuple[Matrix, ...], cores: tuple[int, ...], arch: Target, tile: int) -> float:
    """Returns the time in ns until the outputs of a layer are complete.

    A core multiplies and adds its own products; then the sums of all cores are added.
    """
    first = matrices[0]
    met = len({c for c, m in zip(cores, matrices, strict=True) if m.cols == first.cols})
    return _latency_ns(arch, tile, max(Counter(cores).values()), first.xbars, first.cols[1] - first.cols[0], met)


def _latency_ns(arch: Target, tile: int, count: int, xbars: int, width: int, met: int) -> float:
    """Returns the time in ns until the outputs of a fully connected layer are complete.

    count: matrices of the core with most of them, each with `width` outputs on `xbars` crossbars. met: cores that have
    matrices of the same outputs.
    """
    sums = with_accumulators(arch)
    own = count * mvmul_ns(arch, xbars) + (count - 1) * vector_ns(sums, width, 2)
    messages = (met - 1) * -(-width // tile) / met
    added = max(messages, met - 1) * (message_ns(sums, tile) + vector_ns(sums, tile, 2))
    return own + added
