"""Strips large weights from a serialised ONNX model without parsing it, on the bytes of the protobuf wire format.

protobuf copies every byte that it parses, and so does each library that gets the model. Touching memory for the first
time costs more than everything else that the import does with weights.
"""

from collections.abc import Iterator

from onnx import TensorProto

Range = tuple[int, int]
"""Byte range (first, end)."""

_GRAPH, _INITIALIZER = 7, 5
_DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 2, 9, 13, 14
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


class _OddError(Exception):
    """Raised for bytes that protobuf would not write in this form; the parser reports the fault, if there is one."""


def strip_weights(data: bytes, least_bytes: int) -> tuple[bytes, list[Range | None]]:
    """Returns the model without the raw data of float32 initializers of at least `least_bytes` bytes.

    Also returns the byte range of each initializer's data in `data`, None for data that stays. The list is empty if the
    bytes are not in protobuf's usual form; then nothing is removed.
    """
    ranges: list[Range | None] = []
    try:
        return bytes(_without(memoryview(data), (0, len(data)), (_GRAPH, _INITIALIZER), least_bytes, ranges)), ranges
    except (_OddError, IndexError):
        return data, []


def _without(data: memoryview, of: Range, path: tuple[int, ...], least: int, ranges: list[Range | None]) -> bytearray:
    """Rebuilds a message: fields on the path are rebuilt recursively, other fields copied."""
    if not path:
        return _tensor(data, of, least, ranges)
    out = bytearray()
    for number, kind, start, (first, stop) in _fields(data, of):
        if (number, kind) != (path[0], _DELIMITED):
            out += data[start:stop]
            continue
        inner = _without(data, (first, stop), path[1:], least, ranges)
        out += bytes([number << 3 | kind]) + _to_varint(len(inner)) + inner
    return out


def _tensor(data: memoryview, of: Range, least: int, ranges: list[Range | None]) -> bytearray:
    fields = list(_fields(data, of))
    at = {number: value for number, _, _, value in fields}
    first, stop = at.get(_RAW_DATA, (0, 0))
    is_float = _DATA_TYPE in at and _varint(data, at[_DATA_TYPE][0])[0] == TensorProto.FLOAT
    once = sum(number == _RAW_DATA for number, *_ in fields) == 1
    if not (is_float and once and stop - first >= least) or at.keys() & {_EXTERNAL_DATA, _DATA_LOCATION}:
        ranges.append(None)
        return bytearray(data[slice(*of)])
    ranges.append((first, stop))
    return bytearray().join(data[start:end] for number, _, start, (_, end) in fields if number != _RAW_DATA)


def _fields(data: memoryview, of: Range) -> Iterator[tuple[int, int, int, Range]]:
    """Yields field number, wire type, first byte, and byte range of the value."""
    at, end = of
    while at < end:
        start = at
        key, at = _varint(data, at)
        size = {_FIXED64: 8, _FIXED32: 4}.get(key & 7)
        if key & 7 == _DELIMITED:
            size, at = _varint(data, at)
        elif key & 7 == _VARINT:
            size = _varint(data, at)[1] - at
        if size is None or at + size > end:
            raise _OddError
        yield key >> 3, key & 7, start, (at, at + size)
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decodes a varint of up to 64 bits; returns the value and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise _OddError


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
