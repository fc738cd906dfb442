"""Reads .npy content from untrusted bytes: the header is checked before memory is allocated, and never evaluated."""

import io
import math
import re
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError

Array = npt.NDArray[Any]
FLOAT_TYPES, BYTE_TYPES, INTEGER_TYPES = ("<f4",), ("|u1",), ("|i1", "<i2")
"""Element types, by numpy's names: in a program of floats, of bytes, of integer weights."""
_NAMES = {"<f4": "float32", "|u1": "uint8", "|i1": "int8", "<i2": "int16", "<i4": "int32"}

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_MAX_HEADER_BYTES = 4096
_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*"
)


def read_header(stream: IO[bytes], where: str, wanted: Sequence[str] = FLOAT_TYPES) -> tuple[tuple[int, ...], str]:
    """Returns shape and type of the array in C order whose data follow in `stream`.

    Raises `UserError` for other headers, and for a type that is not in `wanted`.
    """
    start = stream.read(len(_MAGIC) + 2)
    width = _LENGTH_BYTES.get(start[len(_MAGIC)]) if len(start) == len(_MAGIC) + 2 else None
    if not start.startswith(_MAGIC) or width is None:
        raise UserError(f"{where}: not a .npy array")
    length = int.from_bytes(stream.read(width), "little")
    header = _HEADER.fullmatch(stream.read(length)) if length <= _MAX_HEADER_BYTES else None
    if header is None:
        raise UserError(f"{where}: a .npy header of another kind than numpy writes for plain arrays")
    dtype, order, shape = (group.decode(errors="replace") for group in header.groups())
    if dtype not in wanted or order == "True":
        expected = " or ".join(f"{name} ({_NAMES[name]})" for name in wanted)
        found = dtype + (" in Fortran order" if order == "True" else "")
        raise UserError(f"{where}: expected {expected} in C order, found {found}")
    return tuple(int(n) for n in shape.split(",") if n.strip()), dtype


def read_array_data(stream: IO[bytes], shape: tuple[int, ...], dtype: str, where: str) -> Array:
    """Reads the array after its header. The caller has checked `shape`. Raises `UserError` for a wrong byte count."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    content = stream.read(size + 1)
    if len(content) != size:
        raise UserError(f"{where}: shape {shape} takes {size} bytes, found {'more' if len(content) > size else 'less'}")
    return np.frombuffer(content, dtype).reshape(shape)


def parse_npy(content: bytes, shape: tuple[int, ...], where: str, wanted: Sequence[str] = FLOAT_TYPES) -> Array:
    """Returns the array in `content`; infinities are allowed. Raises `UserError` for NaN and other shapes or types."""
    stream = io.BytesIO(content)
    found, dtype = read_header(stream, where, wanted)
    if found != shape:
        raise UserError(f"{where}: expected shape {shape}, found {found}")
    array = read_array_data(stream, shape, dtype, where)
    if np.isnan(array).any():
        raise UserError(f"{where}: holds NaN")
    return array
