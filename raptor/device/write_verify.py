"""Writes a matrix until its cells hold it: write, read back, and write the weights that are too far off again.

A cell takes another value at each write, so a weight that is near enough is left alone. Source: Alibart et al. 2012
(Nanotechnology 23, 075201), who tune memristors by pulses with reads between them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.options.arguments import parse_finite, parse_integer
from raptor.device.crossbar import Crossbar

_MOST_VECTORS = 1024
"""Most vectors of a product."""


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedWrite:
    """A matrix that was written and read back. Errors are in steps of the weights.

    `rms`: root mean square error after each write. `written`: weights that each write set. `off` [rows, columns]: True
    for the weights that are off by more than the tolerance in the end.
    """

    rms: tuple[float, ...]
    written: tuple[int, ...]
    off: npt.NDArray[np.bool_]

    @property
    def converged(self) -> bool:
        return not self.off.any()

    @property
    def pulses_per_weight(self) -> float:
        """Mean number of writes of a weight."""
        return sum(self.written) / self.written[0]


def write_verified(
    crossbar: Crossbar, matrix: npt.NDArray[np.integer], *, tolerance: float, most_writes: int = 10
) -> VerifiedWrite:
    """Writes a matrix [rows, columns] of integers, reads it back, and writes again the weights that are off.

    `tolerance`: largest error that is left alone, in steps of the weights. `most_writes`: of a weight. Waits for the
    device. Raises `DriverError` if the back end cannot write single cells, and the errors of `write` and `matmat`.
    """
    allowed, most = parse_finite("tolerance", tolerance, 0), parse_integer("most_writes", most_writes, 1)
    info = crossbar.device.info
    if np.dtype(info.dtype).kind == "f":
        raise UserError("write_verified: needs a device of integers, whose weights have steps")
    crossbar.write(matrix).result()
    rms, written = [0.0] * 0, [matrix.size]
    while True:
        errors = _read_back(crossbar, len(matrix), info.input_bits) - matrix
        rms.append(float(np.sqrt((errors**2).mean())))
        off = np.abs(errors) > allowed
        if not off.any() or len(written) == most:
            return VerifiedWrite(tuple(rms), tuple(written), off)
        crossbar.write(matrix, mask=off).result()
        written.append(int(off.sum()))


def _read_back(crossbar: Crossbar, rows: int, bits: int) -> npt.NDArray[np.float64]:
    """Returns the weights [rows, columns] that products with one row at a time show."""
    largest = (1 << bits - 1) - 1
    vectors = np.eye(rows, dtype=np.int64) * largest
    parts = [crossbar.matmat(vectors[k : k + _MOST_VECTORS]).result() for k in range(0, rows, _MOST_VECTORS)]
    return np.concatenate(parts).astype(np.float64) / largest
