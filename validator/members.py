"""Finds the members of a large JSON object, so that one can be read without the others."""

import numpy as np
import numpy.typing as npt
import orjson

Span = tuple[int, int]


def members(content: bytes, span: Span | None = None) -> dict[str, Span]:
    """Returns first and last byte of each member's value. The object is `content`, or its bytes `span`.

    Empty if that is not a JSON object. The values themselves are not parsed.
    """
    from validator.json_kernels import top_level

    start, stop = span or (0, len(content))
    text = np.frombuffer(content, np.uint8)
    spans = np.zeros((8192, 2), np.int64)
    count = top_level(text, start, stop, spans)
    if count > len(spans):
        spans = np.zeros((count, 2), np.int64)
        count = top_level(text, start, stop, spans)
    return _named(content, start, stop, spans[: max(count, 0)])


def _named(content: bytes, start: int, stop: int, spans: npt.NDArray[np.int64]) -> dict[str, Span]:
    """Reads the object with a number in place of each value: this decodes the keys and checks commas and ends."""
    pieces: list[bytes] = []
    values = [(int(first), int(last)) for first, last in spans]
    for k, (first, last) in enumerate(values):
        pieces += [content[start:first], b"%d" % k]
        start = last
    try:
        order = orjson.loads(b"".join([*pieces, content[start:stop]]) if pieces else b"{}")
    except orjson.JSONDecodeError:
        return {}
    return {key: values[k] for key, k in order.items()}
