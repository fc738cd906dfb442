"""Parameters of the extended instruction `vrequant`, which multiplies and rounds exactly in hardware."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class VrequantParams:
    """Parameters of `vrequant`: y = clamp(round((x + bias) * factor / 2^shift) + zero_point, low, high); ties to even.

    bias, factor, shift: [classes or 1, width or 1, channels or 1], as in `Requantise`.
    """

    bias: Ints
    factor: Ints
    shift: Ints
    zero_point: int
    low: int
    high: int

    def to_records(self) -> Ints:
        """Returns the parameter records as stored in memory: [classes, width or 1, channels or 1, 4 words]."""
        bias, factor, shift = np.broadcast_arrays(self.bias, self.factor, self.shift)
        rounding = _pair(shift, np.full_like(shift, self.zero_point))
        bounds = _pair(np.full_like(shift, self.low), np.full_like(shift, self.high))
        return np.stack([bias, factor, rounding, bounds], axis=-1)


def _pair(low: Ints, high: Ints) -> Ints:
    return (low & 0xFFFF) | (high << 16)
