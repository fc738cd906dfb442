"""Validation of arguments: each function returns the value in its own type, or raises `UserError` with the option.

Python callers can pass any object, so nothing is assumed: `True` does not count as a number, and neither does `"20"`.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name, spell_option

T = TypeVar("T")

MAX_INTEGER = 2**31 - 1
_LONGEST = 100
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(ps|ns|us|ms|s)")
_NS = {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_MOST_BITS = 200


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """Check of the option `keyword`, whose value must be one of `names`."""

    keyword: str
    choices: tuple[T, ...]

    def __call__(self, keyword: str, value: object) -> T:
        """Returns the value as one of the names. Raises `UserError` that lists them."""
        if not isinstance(value, str) or value not in self.choices:
            raise argument_error(keyword, value, f"one of: {', '.join(map(str, self.choices))}")
        return self.choices[cast(tuple[object, ...], self.choices).index(value)]

    def parse(self, value: object) -> T:
        """Returns the value of the option `keyword` as one of the names."""
        return self(self.keyword, value)

    def __str__(self) -> str:
        """Returns the names as a help text shows them: `json, pim or both`."""
        *first, last = map(str, self.choices)
        return f"{', '.join(first)} or {last}"


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """Check for an integer from `least` to `most`."""

    minimum: int
    maximum: int = MAX_INTEGER

    def __call__(self, keyword: str, value: object) -> int:
        """Returns the value as an integer. Raises `UserError` with the range for any other value."""
        return parse_integer(keyword, value, self.minimum, self.maximum)


def argument_error(keyword: str, value: object, expected: str) -> UserError:
    """Returns a `UserError` for a wrong value. `expected` completes the sentence "expected ..."."""
    if _is_short(value):
        return UserError(f"{spell_option(keyword, value)}: expected {expected}")
    return UserError(f"{spell_name(keyword)}: expected {expected}, got {_kind(value)}")


def parse_integer(keyword: str, value: object, least: int, most: int = MAX_INTEGER, *, expected: str = "") -> int:
    """Returns an integer from `least` to `most`, also from numpy. `expected`: replaces the range in the error."""
    number = _index(value)
    if number is None or not least <= number <= most:
        raise argument_error(keyword, value, expected or f"a whole number, {least} to {most}")
    return number


def parse_optional_integer(keyword: str, value: object, least: int, most: int = MAX_INTEGER) -> int | None:
    """Returns an integer as `whole` does, or None for an omitted option."""
    return None if value is None else parse_integer(keyword, value, least, most)


def parse_finite(keyword: str, value: object, least: float) -> float:
    """Returns a finite float of at least `least`; numpy numbers are accepted."""
    try:
        number = math.nan if isinstance(value, str | bytes) or _is_flag(value) else float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number < math.inf:
        raise argument_error(keyword, value, f"a finite number, {least:g} or more")
    return number


def parse_time_ns(keyword: str, value: object) -> float:
    """Returns a time above 0 in ns, from a number of ns or a text with a unit: `500ns`, `1us`, `0.25ms`, `1s`."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    number = float(found[1]) * _NS[found[2]] if found else value
    if isinstance(number, int | float) and not _is_flag(number) and 1e-3 <= number <= 1e12:
        return float(number)
    raise argument_error(keyword, value, "a time from 1ps to 1000s, such as 500ns, 1us or 0.25ms")


def parse_flag(keyword: str, value: object) -> bool:
    """Returns True or False. Refuses other values that Python counts as true, such as `"no"`."""
    if not _is_flag(value):
        raise argument_error(keyword, value, "True or False")
    return bool(value)


def parse_text(keyword: str, value: object) -> str:
    """Returns the value if it is a string. Raises `UserError` otherwise."""
    if not isinstance(value, str):
        raise argument_error(keyword, value, "a text")
    return value


def parse_path(keyword: str, value: object, *, expected: str = "a path") -> Path:
    """Returns a path that the system can access; the file need not exist."""
    if not isinstance(value, str | Path):
        raise argument_error(keyword, value, expected)
    try:
        str(value).encode()
        os.lstat(value)
    except UnicodeEncodeError:
        raise argument_error(keyword, value, "a path in UTF-8") from None
    except ValueError:
        raise argument_error(keyword, value, "a path without a null character") from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # the code that opens the file reports it
    except OSError as e:
        raise argument_error(keyword, value, f"a path that can be reached ({e.strerror})") from e
    return Path(value)


def parse_optional_path(keyword: str, value: object) -> Path | None:
    """Returns a path as `path` does, or None for an omitted option."""
    return None if value is None else parse_path(keyword, value)


def parse_new_file(keyword: str, value: object) -> Path:
    """Returns the path of a file to write. Raises `UserError` for a directory or a path without a parent directory."""
    file = parse_path(keyword, value, expected="the path of a file")
    if file.is_dir() or not file.parent.is_dir():
        raise argument_error(keyword, value, "the path of a file in a folder that exists")
    return file


def parse_dict(keyword: str, value: object, expected: str) -> dict[str, Any]:
    """Returns the entries of the mapping given for `keyword`. Raises an error unless all keys are strings."""
    if not isinstance(value, Mapping):
        raise argument_error(keyword, value, expected)
    entries = dict(cast(Mapping[Any, Any], value))
    for key in entries:
        if not isinstance(key, str):
            raise argument_error(keyword, key, expected)
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
