"""Checks of what callers pass: each returns the value in its own type, or raises `UserError` that names the option.

Python passes anything, so nothing is taken for granted: `True` is no number here, and `"20"` neither.
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
    """A choice: `keyword` is the option, `names` are the values it takes."""

    keyword: str
    names: tuple[T, ...]

    def parse(self, value: object) -> T:
        """The value as one of the names. Raises `UserError` that lists them."""
        if not isinstance(value, str) or value not in self.names:
            raise fault(self.keyword, value, f"one of: {', '.join(map(str, self.names))}")
        return self.names[cast(tuple[object, ...], self.names).index(value)]

    def __str__(self) -> str:
        """`json, pim or both`, for a help text."""
        *first, last = map(str, self.names)
        return f"{', '.join(first)} or {last}"


def fault(keyword: str, value: object, expected: str) -> UserError:
    """The error for a value that is not what was expected."""
    if _is_short(value):
        return UserError(f"{option(keyword, value)}: expected {expected}")
    return UserError(f"{name(keyword)}: expected {expected}, got {_kind(value)}")


def whole(keyword: str, value: object, least: int, most: int = MOST, *, expected: str = "") -> int:
    """A whole number, also one of numpy. `expected`: what the message says instead of the range."""
    number = _index(value)
    if number is None or not least <= number <= most:
        raise fault(keyword, value, expected or f"a whole number, {least} to {most}")
    return number


def whole_or_none(keyword: str, value: object, least: int, most: int = MOST) -> int | None:
    """The same of an option that may be left out."""
    return None if value is None else whole(keyword, value, least, most)


def finite(keyword: str, value: object, least: float) -> float:
    """A finite number, also one of numpy."""
    try:
        number = math.nan if isinstance(value, str | bytes) or _is_flag(value) else float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number < math.inf:
        raise fault(keyword, value, f"a finite number, {least:g} or more")
    return number


def flag(keyword: str, value: object) -> bool:
    """True or False, and nothing that merely counts as one: `"no"` would be true."""
    if not _is_flag(value):
        raise fault(keyword, value, "True or False")
    return bool(value)


def path(keyword: str, value: object, *, expected: str = "a path") -> Path:
    """A path that the system can reach, whether anything is there or not."""
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
        pass  # whoever opens it says so
    except OSError as e:
        raise fault(keyword, value, f"a path that can be reached ({e.strerror})") from e
    return Path(value)


def path_or_none(keyword: str, value: object) -> Path | None:
    """The same of an option that may be left out."""
    return None if value is None else path(keyword, value)


def new_file(keyword: str, value: object) -> Path | None:
    """The path of a file that can be written once there is something to write; None if it is left out."""
    if value is None:
        return None
    found = path(keyword, value, expected="the path of a file")
    if found.is_dir() or not found.parent.is_dir():
        raise fault(keyword, value, "the path of a file in a folder that exists")
    return found


def by_name(keyword: str, value: object, expected: str) -> dict[str, Any]:
    """The entries of a mapping whose keys are texts."""
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
    """Whether a message may show it."""
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return value is None or isinstance(value, float) or (isinstance(value, str | Path) and len(str(value)) <= _LONGEST)


def _kind(value: object) -> str:
    if isinstance(value, str | Path):
        return f"{len(str(value))} characters"
    return "a number of many digits" if isinstance(value, int) else f"an object of type {type(value).__name__}"
