"""Kernel unfolding: a matrix for each kernel position, input tile and output tile; cores are filled in order."""

from collections.abc import Iterator, Sequence

from raptor.graph.ir import Filter
from raptor.graph.zero_weights import has_weights
from raptor.mapping.decision import Matrix, Range
from raptor.target.arch import Target


def unfold_kernel(filter_: Filter, arch: Target, tile: int) -> Iterator[Matrix]:
    """Yields a matrix for each input tile, output tile and kernel position, in this order (thesis, 4.3.2 and 4.4).

    A tile wider than the crossbar's rows is cut into row blocks; a block never crosses a tile. A grouped convolution
    has matrices only for the blocks that hold weights of some group. Matrices of zeros are left out.
    """
    yield from drop_zero_matrices(filter_, list(_unfold_all(filter_, arch, tile)))


def drop_zero_matrices(filter_: Filter, matrices: Sequence[Matrix]) -> Iterator[Matrix]:
    """Yields the matrices that are not all zeros. Outputs whose weights are all 0 keep their first matrix."""
    zero = [is_zero(filter_, matrix) for matrix in matrices]
    kept = {matrix.cols for matrix, is_empty in zip(matrices, zero, strict=True) if not is_empty}
    for matrix, is_empty in zip(matrices, zero, strict=True):
        if matrix.cols not in kept or not is_empty:
            kept.add(matrix.cols)
            yield matrix


def count_zero_matrices(filter_: Filter, arch: Target, tile: int) -> tuple[int, int]:
    """Returns the number of matrices that are all zeros, and the number of all matrices (`unfold_kernel`)."""
    every = list(_unfold_all(filter_, arch, tile))
    return sum(is_zero(filter_, matrix) for matrix in every), len(every)


def is_zero(filter_: Filter, matrix: Matrix) -> bool:
    """True if all weights of a matrix are 0."""
    return not has_weights(filter_, matrix.rows, matrix.cols, (matrix.tap, matrix.tap + 1))


def _unfold_all(filter_: Filter, arch: Target, tile: int) -> Iterator[Matrix]:
    taps, _, outs = filter_.weights.shape
    most = arch.weight_columns(filter_.weight_bits)
    for block in cut_row_blocks(filter_.in_channels, tile, arch.xbar_rows):
        for col in range(0, outs, tile):
            cols = (col, min(col + tile, outs))
            needed = filter_.input_range(cols)
            rows = (max(block[0], needed[0]), min(block[1], needed[1]))
            xbars = -(-(cols[1] - cols[0]) // most)
            for tap in range(taps if rows[0] < rows[1] else 0):
                yield Matrix(tap, rows, cols, xbars)


def cut_row_blocks(channels: int, tile: int, xbar_rows: int) -> Iterator[Range]:
    """Cuts channels into ranges of at most `xbar_rows`, none of which crosses a tile."""
    for start in range(0, channels, tile):
        stop = min(start + tile, channels)
        yield from ((row, min(row + xbar_rows, stop)) for row in range(start, stop, xbar_rows))


def fill_cores(
    matrices: Sequence[Matrix], core: int, free: int, arch: Target
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Fills cores with matrices in order (next fit), from `core` on, which has `free` crossbars left.

    Returns the core of each matrix, and (last core, crossbars left on it).
    """
    cores: list[int] = []
    for matrix in matrices:
        if matrix.xbars > free:
            core, free = core + 1, arch.xbars_per_core
        free -= matrix.xbars
        cores.append(core)
    return tuple(cores), (core, free)
