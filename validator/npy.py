"""Reads .npy content from untrusted bytes: the header is checked before memory is allocated, and never evaluated."""

import io
import math
import re
from typing import IO

import numpy as np

from raptor.common.errors import UserError
from raptor.target.layout import Floats

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_MAX_HEADER_BYTES = 4096
_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*"
)


def read_header(stream: IO[bytes], where: str) -> tuple[int, ...]:
    """Returns the shape of the float32 array in C order whose data follow in `stream`. Raises `UserError` otherwise."""
    start = stream.read(len(_MAGIC) + 2)
    width = _LENGTH_BYTES.get(start[len(_MAGIC)]) if len(start) == len(_MAGIC) + 2 else None
    if not start.startswith(_MAGIC) or width is None:
        raise UserError(f"{where}: not a .npy array")
    length = int.from_bytes(stream.read(width), "little")
    header = _HEADER.fullmatch(stream.read(length)) if length <= _MAX_HEADER_BYTES else None
    if header is None:
        raise UserError(f"{where}: a .npy header of another kind than numpy writes for plain arrays")
    dtype, order, shape = header.groups()
    if dtype != b"<f4" or order == b"True":
        found = dtype.decode(errors="replace") + (" in Fortran order" if order == b"True" else "")
        raise UserError(f"{where}: expected <f4 (float32) in C order, found {found}")
    return tuple(int(n) for n in shape.split(b",") if n.strip())


def read_data(stream: IO[bytes], shape: tuple[int, ...], where: str) -> Floats:
    """Reads the array after its header. The caller has checked `shape`. Refuses missing bytes and bytes left over."""
    size = math.prod(shape) * 4
    content = stream.read(size + 1)
    if len(content) != size:
        raise UserError(f"{where}: shape {shape} takes {size} bytes, found {'more' if len(content) > size else 'less'}")
    return np.frombuffer(content, "<f4").reshape(shape)


def parse_npy(content: bytes, shape: tuple[int, ...], where: str) -> Floats:
    """Returns the finite float32 array of `shape` in `content`. Raises `UserError` for anything else."""
    stream = io.BytesIO(content)
    found = read_header(stream, where)
    if found != shape:
        raise UserError(f"{where}: expected shape {shape}, found {found}")
    array = read_data(stream, shape, where)
    if not np.isfinite(array).all():
        raise UserError(f"{where}: holds NaN or infinity")
    return array
