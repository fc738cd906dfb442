"""Protocol between a program and a driver in another process, described in docs/how-to/device-drivers.md.

A message is a frame: two lengths in bytes (little-endian, 4 bytes each), a header in msgpack, and the bytes of an
array. No part of a frame is executed, and every length is checked before memory is allocated.
"""

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from raptor.common.errors import UserError
from raptor.common.files.json_decoding import json_decoder
from raptor.device.back_end import Array, DeviceInfo

PROTOCOL_VERSION = 1
MAX_VECTORS = 1024
"""Largest number of vectors of a product in one message."""
_MOST_HEADER_BYTES = 2**16
_MOST_PART_BYTES = 2**20
"""Memory is allocated in steps of this size as bytes arrive, so a false length costs nothing."""
_LENGTHS = struct.Struct("<II")
_LOOPBACK = ("127.0.0.1", "localhost")


class ProtocolError(Exception):
    """The other side violated the protocol, or is gone."""


def read_exactly(receive: Callable[[int], bytes], count: int, other: str) -> bytes:
    """Reads `count` bytes with `receive`, which returns at most its argument. `BrokenError` if the `other` is gone."""
    content = bytearray()
    while len(content) < count:
        part = receive(min(count - len(content), _MOST_PART_BYTES))
        if not part:
            raise ProtocolError(f"{other} is gone")
        content += part
    return bytes(content)


class _Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class HelloMessage(_Message, frozen=True, tag="hello"):
    """First message of a program. The driver drops all matrices."""

    version: int


class WelcomeMessage(_Message, frozen=True, tag="welcome"):
    """Answer to `HelloMessage`: the version of the protocol, and the device (the fields of `DeviceInfo`)."""

    version: int
    device: dict[str, Any]


class WriteRequest(_Message, frozen=True, tag="write"):
    """Request: write the matrix that follows, of `shape`, to rows from `row` on."""

    number: int
    crossbar: int
    row: int
    shape: tuple[int, int]


class MultiplyRequest(_Message, frozen=True, tag="multiply"):
    """Request: multiply the vectors that follow, of `shape`, with the first `columns` of a crossbar."""

    number: int
    crossbar: int
    columns: int
    shape: tuple[int, int]


class PingRequest(_Message, frozen=True, tag="ping"):
    """Request to confirm that the driver is alive."""


class PingReply(_Message, frozen=True, tag="pong"):
    """Answer to `PingRequest`."""


class WriteReply(_Message, frozen=True, tag="done"):
    """Answer to a write."""

    number: int


class ProductReply(_Message, frozen=True, tag="product"):
    """Answer to a product; the results follow, of `shape`."""

    number: int
    shape: tuple[int, int]


class FailureReply(_Message, frozen=True, tag="failed"):
    """Answer to a write or a product that failed, or to a refused `HelloMessage` (number 0)."""

    number: int
    message: str


Message = (
    HelloMessage
    | WelcomeMessage
    | WriteRequest
    | MultiplyRequest
    | PingRequest
    | PingReply
    | WriteReply
    | ProductReply
    | FailureReply
)
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
json_decoder(DeviceInfo)  # msgspec analyses the class before threads use it
_ENCODER = msgspec.msgpack.Encoder()


def encode_frame(message: Message, content: bytes = b"") -> bytes:
    """Encodes a message."""
    header = _ENCODER.encode(message)
    return b"".join((_LENGTHS.pack(len(header), len(content)), header, content))


def read_frame(read: Callable[[int], bytes], most_bytes: int) -> tuple[Message, bytes]:
    """Reads a message. `read` returns exactly the requested bytes. Raises `BrokenError` if invalid or too long."""
    header, content = _LENGTHS.unpack(read(_LENGTHS.size))
    if header > _MOST_HEADER_BYTES or content > most_bytes:
        raise ProtocolError(f"a message of {header} and {content} bytes is longer than allowed")
    try:
        return _DECODER.decode(read(header)), read(content)
    except (msgspec.DecodeError, RecursionError) as e:
        raise ProtocolError(f"not a message: {e}") from e


def max_array_bytes(info: DeviceInfo) -> int:
    """Returns the largest size in bytes of an array in a message."""
    rows, cols = info.xbar
    return 8 * max(rows * cols, MAX_VECTORS * max(rows, cols))


def array_to_bytes(array: Array) -> bytes:
    """Returns the elements, row by row, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def array_from_bytes(content: bytes, dtype: "np.dtype[Any]", shape: tuple[int, int]) -> Array:
    """Returns an array of `shape`. Raises `BrokenError` if the number of bytes differs."""
    if min(shape) < 1 or len(content) != shape[0] * shape[1] * dtype.itemsize:
        raise ProtocolError(f"{len(content)} bytes are not an array of {shape} of {dtype}")
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def parse_device_info(fields: dict[str, Any]) -> DeviceInfo:
    """Returns the description of a device. Raises `BrokenError` if it is invalid."""
    try:
        info = msgspec.convert(fields, DeviceInfo)
    except msgspec.ValidationError as e:
        raise ProtocolError(f"not a description of a device: {e}") from e
    sizes = (*info.xbar, info.weight_bits, info.cell_bits, info.input_bits, info.output_bits)
    is_known = info.dtype in ("float32", "int8", "int16")
    if not is_known or not all(0 < size < 2**16 for size in sizes) or not 0 < info.crossbars <= 2**20:
        raise ProtocolError(f"not the description of a device: {info}")
    if max(sizes[2:]) > 64:
        raise ProtocolError(f"not the description of a device: {info}")
    return info


def parse_address(address: str) -> tuple[int, Any]:
    """Returns family and address of a socket from `/a/path` or `tcp://127.0.0.1:4711`. Raises `UserError`."""
    if not address.startswith("tcp://"):
        if not address or len(address.encode()) > 100:
            raise UserError(f"address {address!r}: expected a path of at most 100 bytes, or tcp://127.0.0.1:PORT")
        return socket.AF_UNIX, str(Path(address))
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host not in _LOOPBACK or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"address {address!r}: expected tcp://127.0.0.1:PORT; other computers are not served")
    return socket.AF_INET, ("127.0.0.1", int(port))
