"""OCC's interfaces: the operations of its `cim` dialect, and the calls of its runtime library.

Source: "OCC: An Automated End-to-End Machine Learning Optimizing Compiler for Computing-In-Memory", table I, and the
header `cim.h` of its repository. The library receives matrices as flat buffers.
"""

import numpy as np

from raptor.common.errors import UserError
from raptor.device.back_end import Array
from raptor.device.device import Device
from raptor.device.shims.tile_buffers import PendingResults


class CimDialect(PendingResults):
    """The dialect: numbered tiles, operations on whole matrices. `size`: rows and columns of a tile."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.size = min(device.info.xbar)

    def write(self, tile: int, matrix: Array) -> None:
        """`cim.write`: writes a matrix, and waits until it is written."""
        self.get_tile(tile).write(matrix).result()

    def matmul(self, tile: int, a: Array, c: Array) -> None:
        """`cim.matmul`: starts `a` times the matrix of the tile; the result is in `c` after a barrier."""
        self.store_later(tile, self.get_tile(tile).matmat(a), c)

    def barrier(self, tile: int) -> None:
        """`cim.barrier`: waits for a tile."""
        self.store_results(tile)

    def copy_tile(self, matrix: Array, row: int, col: int) -> Array:
        """`cim.copyTile`: returns a contiguous copy of a tile; at the border it is smaller."""
        return matrix[self._part(row), self._part(col)].copy()

    def store_tile(self, tile: Array, matrix: Array, row: int, col: int) -> None:
        """`cim.storeTile`: copies a tile back."""
        matrix[self._part(row), self._part(col)] = tile

    @staticmethod
    def accumulate(lhs: Array, rhs: Array) -> None:
        """`cim.accumulate`: adds `rhs` to `lhs`."""
        lhs += rhs

    @staticmethod
    def alloc_duplicate(buffer: Array) -> Array:
        """`cim.allocDuplicate`: returns an empty buffer of equal shape and type."""
        return np.zeros_like(buffer)

    def _part(self, index: int) -> slice:
        return slice(index * self.size, (index + 1) * self.size)


class CimRuntime(PendingResults):
    """The runtime library. OCC passes 0 for both positions, and a bias that is never read."""

    def cim_configure_crossbar(self, cim_id: int, b: Array, bias: Array | None, n: int, k: int) -> None:
        """Writes a matrix [k, n]."""
        self.get_tile(cim_id).write(b[: k * n].reshape(k, n)).result()

    def cim_gemm(
        self, cim_id: int, a: Array, m: int, n: int, k: int, k_lda: int, x_pos: int, y_pos: int, c: Array, n_ldc: int
    ) -> None:
        """Starts C[m, n] = A[m, k] times the matrix. Rows of A are `k_lda` elements apart, rows of C `n_ldc`."""
        _check_position(x_pos, y_pos)
        self.store_later(cim_id, self.get_tile(cim_id).matmat(_rows(a, m, k, k_lda)), _rows(c, m, n, n_ldc))

    def cim_gevm(self, cim_id: int, a: Array, k: int, n: int, x_pos: int, y_pos: int, c: Array) -> None:
        """Starts C[n] = A[k] times the matrix."""
        _check_position(x_pos, y_pos)
        self.store_later(cim_id, self.get_tile(cim_id).matvec(a[:k]), c[:n])

    def cim_await(self, cim_id: int) -> None:
        """Waits for a tile; then its results are in their buffers."""
        self.store_results(cim_id)


def _rows(buffer: Array, rows: int, cols: int, step: int) -> Array:
    """Returns a view of rows that are `step` elements apart. Raises `UserError` if they leave the flat buffer."""
    if buffer.ndim != 1 or step < cols or not 0 < (rows - 1) * step + cols <= buffer.size:
        raise UserError(f"{rows} rows of {cols} elements, {step} apart, leave a buffer of shape {buffer.shape}")
    strides = step * buffer.strides[0], buffer.strides[0]
    return np.lib.stride_tricks.as_strided(buffer, (rows, cols), strides)


def _check_position(x_pos: int, y_pos: int) -> None:
    if x_pos or y_pos:
        raise UserError(f"x_pos={x_pos}, y_pos={y_pos}: expected 0, as OCC passes; a tile holds one matrix")
