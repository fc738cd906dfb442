"""Reading .npy content from untrusted bytes: the header is judged before anything is allocated."""

import io
import math
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from raptor.errors import UserError
from raptor.layout import Floats

_MAX_HEADER_BYTES = 10_000


def read_header(stream: IO[bytes], where: str) -> tuple[int, ...]:
    """The shape of the float32, C-ordered array whose data follow in `stream`; anything else is a `UserError`."""
    try:
        version = npy_format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER_BYTES)
        else:
            shape, fortran, dtype = npy_format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER_BYTES)
    except (ValueError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError) as e:
        raise UserError(f"{where}: not a .npy array: {str(e) or type(e).__name__:.200}") from e
    if dtype != np.dtype("<f4") or fortran:
        raise UserError(f"{where}: expected float32 in C order, found {dtype}{' in Fortran order' if fortran else ''}")
    return shape


def read_data(stream: IO[bytes], shape: tuple[int, ...], where: str) -> Floats:
    """The array after its header. `shape` must have been found reasonable. Refuses bytes missing or left over."""
    size = math.prod(shape) * 4
    content = stream.read(size + 1)
    if len(content) != size:
        raise UserError(f"{where}: shape {shape} takes {size} bytes, found {'more' if len(content) > size else 'less'}")
    return np.frombuffer(content, "<f4").reshape(shape)


def parse_npy(content: bytes, shape: tuple[int, ...], where: str) -> Floats:
    """The finite float32 array of `shape` that `content` must be."""
    stream = io.BytesIO(content)
    found = read_header(stream, where)
    if found != shape:
        raise UserError(f"{where}: expected shape {shape}, found {found}")
    array = read_data(stream, shape, where)
    if not np.isfinite(array).all():
        raise UserError(f"{where}: holds NaN or infinity")
    return array
