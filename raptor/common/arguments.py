"""Validation of arguments: each function returns the value in its own type, or raises `UserError` with the option.

Python callers can pass any object, so nothing is assumed: `True` does not count as a number, and neither does `"20"`.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from raptor.common.errors import UserError
from raptor.common.spelling import name, option

T = TypeVar("T")

MOST = 2**31 - 1
_LONGEST = 100
_MOST_BITS = 200


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """Check of the option `keyword`, whose value must be one of `names`."""

    keyword: str
    names: tuple[T, ...]

    def __call__(self, keyword: str, value: object) -> T:
        """Returns the value as one of the names. Raises `UserError` that lists them."""
        if not isinstance(value, str) or value not in self.names:
            raise fault(keyword, value, f"one of: {', '.join(map(str, self.names))}")
        return self.names[cast(tuple[object, ...], self.names).index(value)]

    def parse(self, value: object) -> T:
        """Returns the value of the option `keyword` as one of the names."""
        return self(self.keyword, value)

    def __str__(self) -> str:
        """Returns the names as a help text shows them: `json, pim or both`."""
        *first, last = map(str, self.names)
        return f"{', '.join(first)} or {last}"


@dataclass(frozen=True, slots=True)
class Whole:
    """Check for an integer from `least` to `most`."""

    least: int
    most: int = MOST

    def __call__(self, keyword: str, value: object) -> int:
        """Returns the value as an integer. Raises `UserError` with the range for any other value."""
        return whole(keyword, value, self.least, self.most)


def fault(keyword: str, value: object, expected: str) -> UserError:
    """Returns a `UserError` for a wrong value. `expected` completes the sentence "expected ..."."""
    if _is_short(value):
        return UserError(f"{option(keyword, value)}: expected {expected}")
    return UserError(f"{name(keyword)}: expected {expected}, got {_kind(value)}")


def whole(keyword: str, value: object, least: int, most: int = MOST, *, expected: str = "") -> int:
    """Returns an integer from `least` to `most`, also from numpy. `expected`: replaces the range in the error."""
    number = _index(value)
    if number is None or not least <= number <= most:
        raise fault(keyword, value, expected or f"a whole number, {least} to {most}")
    return number


def whole_or_none(keyword: str, value: object, least: int, most: int = MOST) -> int | None:
    """Returns an integer as `whole` does, or None for an omitted option."""
    return None if value is None else whole(keyword, value, least, most)


def finite(keyword: str, value: object, least: float) -> float:
    """Returns a finite float of at least `least`; numpy numbers are accepted."""
    try:
        number = math.nan if isinstance(value, str | bytes) or _is_flag(value) else float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number < math.inf:
        raise fault(keyword, value, f"a finite number, {least:g} or more")
    return number


def flag(keyword: str, value: object) -> bool:
    """Returns True or False. Refuses other values that Python counts as true, such as `"no"`."""
    if not _is_flag(value):
        raise fault(keyword, value, "True or False")
    return bool(value)


def text(keyword: str, value: object) -> str:
    """Returns the value if it is a string. Raises `UserError` otherwise."""
    if not isinstance(value, str):
        raise fault(keyword, value, "a text")
    return value


def path(keyword: str, value: object, *, expected: str = "a path") -> Path:
    """Returns a path that the system can access; the file need not exist."""
    if not isinstance(value, str | Path):
        raise fault(keyword, value, expected)
    try:
        str(value).encode()
        os.lstat(value)
    except UnicodeEncodeError:
        raise fault(keyword, value, "a path in UTF-8") from None
    except ValueError:
        raise fault(keyword, value, "a path without a null character") from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # the code that opens the file reports it
    except OSError as e:
        raise fault(keyword, value, f"a path that can be reached ({e.strerror})") from e
    return Path(value)


def path_or_none(keyword: str, value: object) -> Path | None:
    """Returns a path as `path` does, or None for an omitted option."""
    return None if value is None else path(keyword, value)


def new_file(keyword: str, value: object) -> Path:
    """Returns the path of a file to write. Raises `UserError` for a directory or a path without a parent directory."""
    file = path(keyword, value, expected="the path of a file")
    if file.is_dir() or not file.parent.is_dir():
        raise fault(keyword, value, "the path of a file in a folder that exists")
    return file


def by_name(keyword: str, value: object, expected: str) -> dict[str, Any]:
    """Returns the entries of the mapping given for `keyword`. Raises an error unless all keys are strings."""
    if not isinstance(value, Mapping):
        raise fault(keyword, value, expected)
    entries = dict(cast(Mapping[Any, Any], value))
    for key in entries:
        if not isinstance(key, str):
            raise fault(keyword, key, expected)
    return entries


def _index(value: object) -> int | None:
    try:
        return None if _is_flag(value) else index(cast(int, value))
    except (TypeError, ValueError):  # also of arrays with several numbers
        return None


def _is_flag(value: object) -> bool:
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_short(value: object) -> bool:
    """Returns True if the value is short enough to be part of an error message."""
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return value is None or isinstance(value, float) or (isinstance(value, str | Path) and len(str(value)) <= _LONGEST)


def _kind(value: object) -> str:
    if isinstance(value, str | Path):
        return f"{len(str(value))} characters"
    return "a number of many digits" if isinstance(value, int) else f"an object of type {type(value).__name__}"
