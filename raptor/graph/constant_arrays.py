"""Arrays of constants: contiguous copies, and copies without repeated values."""

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Floats, Numbers

_LINE = 16
"""Number of float32 values in a cache line."""


_INTEGERS = (np.dtype(np.int16), np.dtype(np.int32))
"""Types of the constants of integer operators."""


def copy_contiguous(values: npt.ArrayLike) -> Numbers:
    """Returns a contiguous copy in float32. (Constants come as views of a file that will be deleted.)

    Integers of 16 and 32 bits keep their type.
    """
    source = np.asarray(values)
    dtype = source.dtype if source.dtype in _INTEGERS else np.dtype(np.float32)
    if source.flags.c_contiguous or source.ndim < 2:
        return np.array(source, dtype, order="C")
    # Weights are transposed here: a cache line at a time reads each line of the source once, in a third of the time.
    out = np.empty(source.shape, dtype)
    for first in range(0, source.shape[-1], _LINE):
        out[..., first : first + _LINE] = source[..., first : first + _LINE]
    return out


def drop_repetitions(pixels: Floats) -> Floats:
    """Returns a constant [rows, width, channels] without repetitions along whole dimensions."""
    for axis in (0, 1, 2):
        first = pixels.take([0], axis=axis)
        # A constant cannot vary by row only: it repeats by pixel, by row, or not at all.
        if (axis != 1 or pixels.shape[0] == 1) and pixels.shape[axis] > 1 and _same_values(pixels, first):
            pixels = first
    return copy_contiguous(pixels)


def _same_values(one: Floats, other: Floats) -> bool:
    """Compares two arrays, one broadcast to the other, with the signs of zeros."""
    return bool((one == other).all() and (np.signbit(one) == np.signbit(other)).all())
