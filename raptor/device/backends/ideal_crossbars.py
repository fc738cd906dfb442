"""Ideal back ends in this process: `numpy` (float32) and `integer` (exact)."""

from dataclasses import replace

import numpy as np

from raptor.common.options.arguments import parse_integer
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.errors import DriverError

_FEW = 6
"""Largest number of vectors for which one product after another is faster than all of them row by row (at 128x128)."""


class NumpyCrossbars:
    """Ideal crossbars of float32.

    A product adds the rows in order and rounds each product and sum to float32, as the engines of the validator do, so
    results are equal to the bit.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._cells: dict[int, Array] = {}

    def write(self, crossbar: int, row: int, matrix: Array) -> None:
        if crossbar not in self._cells:
            self._cells[crossbar] = np.zeros(self.info.xbar, matrix.dtype)
        self._cells[crossbar][row : row + matrix.shape[0], : matrix.shape[1]] = matrix

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> Array:
        return multiply_in_order(vectors, self._held(crossbar, vectors.shape[1], columns))

    def close(self) -> None:
        self._cells.clear()

    def _held(self, crossbar: int, rows: int, columns: int) -> Array:
        if crossbar not in self._cells:
            raise DriverError(f"crossbar {crossbar} was never written")
        return self._cells[crossbar][:rows, :columns]


class IntegerCrossbars(NumpyCrossbars):
    """Ideal crossbars of integers: exact sums, and `DriverError` for a sum that does not fit `output_bits`."""

    def __init__(self, info: DeviceInfo, *, weight_bits: int = 8, input_bits: int = 8) -> None:
        bits = parse_integer("weight_bits", weight_bits, 1, 16), parse_integer("input_bits", input_bits, 1, 32)
        super().__init__(
            replace(info, dtype="int8" if bits[0] <= 8 else "int16", weight_bits=bits[0], input_bits=bits[1])
        )

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> Array:
        matrix = self._held(crossbar, vectors.shape[1], columns)
        total = vectors.astype(np.int64) @ matrix.astype(np.int64)
        most = 2 ** (self.info.output_bits - 1)
        if total.min() < -most or total.max() >= most:
            raise DriverError(f"a sum of {total.min()} to {total.max()} does not fit {self.info.output_bits} bits")
        return total.astype(self.info.result_dtype)


def multiply_in_order(vectors: Array, matrix: Array) -> Array:
    """Returns [n, rows] times [rows, columns] in float32, with the rows added in order."""
    with np.errstate(all="ignore"):
        if len(vectors) > _FEW or matrix.shape[1] == 1:  # NOTE: numpy adds a single column in another order
            total = np.zeros((len(vectors), matrix.shape[1]), np.float32)
            for i, row in enumerate(matrix):
                total += vectors[:, i : i + 1] * row
            return total
        total = np.empty((len(vectors), matrix.shape[1]), np.float32)
        for vector, result in zip(vectors, total, strict=True):
            np.add.reduce(vector[:, None] * matrix, axis=0, initial=np.float32(0), out=result)
        return total
