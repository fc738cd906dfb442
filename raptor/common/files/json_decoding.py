"""Thread-safe JSON decoders for typed classes.

msgspec analyses a class when its first decoder is made, and publishes the result before it is complete. Another thread
that decodes the same class meanwhile follows a null pointer (msgspec 0.22). So a lock serialises this step. Types of
JSON itself (`dict[str, float]`) are analysed for each decoder, and need no lock.
"""

from functools import cache
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_learning = RLock()


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """Returns the decoder of a type, cached. `kind`: a msgspec class, or a type composed of such classes."""
    with _learning:
        return _decoder(kind)


@cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)
