"""Decoders of typed JSON, for all threads.

msgspec learns the fields of a class when it is first asked to read one, and shows what it has learnt before it knows
all. A thread that reads the same class meanwhile follows a null pointer (msgspec 0.22). Here, one thread at a time
learns. Types of JSON itself (`dict[str, float]`) are learnt anew each time, and need no care.
"""

from functools import cache
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_learning = RLock()


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """Returns the decoder of a type, the same one each time. `kind`: a class of msgspec, or made of such."""
    with _learning:
        return _decoder(kind)


@cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)
