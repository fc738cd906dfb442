"""The calls of the NeuroBoard's Python package, as in "Using MLIR to test ReRAM cells" (EuroLLVM 2024).

`matvec` adds W x to its output, with W of shape [outputs, inputs]; a crossbar holds it transposed.
"""

import numpy as np

from raptor.common.errors import UserError
from raptor.device.back_end import Array
from raptor.device.crossbar import Crossbar
from raptor.device.device import Device


class NeuroBoard:
    """Crossbars as memory: numbered allocations, with matrices at the offset of their first element."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._sizes: list[int] = []
        self._crossbars: dict[tuple[int, int], Crossbar] = {}

    def alloc(self, elements: int) -> int:
        """Returns the index of a new allocation of `elements` elements."""
        self._sizes.append(elements)
        return len(self._sizes) - 1

    def write_matrix(self, base: int, offset: int, matrix: Array) -> None:
        """Writes a matrix [outputs, inputs] that fits a crossbar."""
        if not 0 <= base < len(self._sizes) or not 0 <= offset <= self._sizes[base] - matrix.size:
            raise UserError(f"a matrix of {matrix.size} elements at {offset} is outside of allocation {base}")
        if (base, offset) not in self._crossbars:
            self._crossbars[base, offset] = self._device.acquire()
        self._crossbars[base, offset].write(matrix.T)

    def matvec(self, base: int, offset: int, vector: Array, out: Array) -> None:
        """Adds the matrix times a vector to `out`. Only the numbers of elements of the two matter."""
        if (base, offset) not in self._crossbars:
            raise UserError(f"allocation {base} has no matrix at {offset}")
        out += self._crossbars[base, offset].matvec(np.ravel(vector)).result().reshape(out.shape)
