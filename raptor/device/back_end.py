"""Interface of a back end: numbered crossbars to write and to multiply with.

A back end has three methods. Handles, order, futures, checks of arguments, time and usage statistics are common to all
back ends, and are part of `Device`.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Properties of the crossbars of a device.

    xbar: rows and columns of weights. crossbars: their number. dtype: type of a weight: `float32`, `int8` or `int16`. A
    weight of `weight_bits` takes as many cells of `cell_bits` as it needs. An input has at most `input_bits`, a result
    `output_bits`. For `float32`, these widths describe the modelled chip, and values are float32.
    """

    back_end: str
    version: str
    xbar: tuple[int, int]
    crossbars: int
    dtype: str = "float32"
    weight_bits: int = 8
    cell_bits: int = 8
    input_bits: int = 8
    output_bits: int = 32

    @property
    def is_float(self) -> bool:
        """True if weights, vectors and results are float32."""
        return self.dtype == "float32"

    @property
    def vector_dtype(self) -> "np.dtype[Any]":
        """Type of a vector: float32, or the smallest integer type of `input_bits`."""
        return np.dtype(np.float32) if self.is_float else _integer(self.input_bits)

    @property
    def result_dtype(self) -> "np.dtype[Any]":
        """Type of a result: float32, or the smallest integer type of `output_bits`."""
        return np.dtype(np.float32) if self.is_float else _integer(self.output_bits)

    @property
    def cells_per_weight(self) -> int:
        return -(-self.weight_bits // self.cell_bits)


def _integer(bits: int) -> "np.dtype[Any]":
    return np.dtype(next(kind for kind in ("int8", "int16", "int32", "int64") if np.dtype(kind).itemsize * 8 >= bits))


class BackEnd(Protocol):
    """Crossbars, numbered from 0.

    Methods return a result, or a future that they complete later, in any order. Calls for one crossbar are sequential,
    and must take effect in that order; calls for different crossbars may be concurrent. Shapes, types and ranges have
    been checked. An exception that a method raises becomes the failure of the operation.
    """

    @property
    def info(self) -> DeviceInfo: ...

    def write(self, crossbar: int, row: int, matrix: Array) -> "Future[None] | None":
        """Writes `matrix` [rows, columns] to the rows from `row` on, and the columns from 0 on."""
        ...

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> "Future[Array] | Array":
        """Returns `vectors` [n, rows] times the first `rows` rows and `columns` columns, as [n, columns]."""
        ...

    def close(self) -> None:
        """Closes the back end. Pending operations fail with `LostError`."""
        ...


class CellWriter(Protocol):
    """A back end that can write single cells, and leaves the others as they are."""

    def write_cells(self, crossbar: int, row: int, matrix: Array, mask: npt.NDArray[np.bool_]) -> "Future[None] | None":
        """Writes the weights of `matrix` [rows, columns] for which `mask` is True, to the rows from `row` on."""
        ...
