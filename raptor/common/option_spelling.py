"""Spells options in messages: as Python keywords, or as flags while the command line runs.

Code that raises an error names the option by its keyword in the API, `option("cores", 12)`, and need not know whether
Python or the command line called it.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

_FLAGS = {
    "base_isa": "--isa base",
    "constants": "--set",
    "dims": "--dim",
    "fields": "--field",
    "folder": "-o",
    "inputs": "--input",
    "knobs": "--knob",
    "layers": "--layer",
    "power_file": "--power",
    "resident_constants": "--constants resident",
    "shapes": "--shape",
    "states": "--state",
    "stream_format": "--format",
    "trace_file": "--trace",
    "weight_format": "--weights",
}
"""Keyword -> flag, where the flag is not the keyword with dashes."""

_by_flags = False


@contextmanager
def spell_as_flags() -> Generator[None]:
    """Spells options as flags inside of the block, in all threads of the process."""
    global _by_flags
    before, _by_flags = _by_flags, True
    try:
        yield
    finally:
        _by_flags = before


def is_spelled_as_flags() -> bool:
    """Returns True if messages spell options as flags."""
    return _by_flags


def flag_name(keyword: str) -> str:
    """Returns the flag of an option, such as `--cores`; some flags have a value, as `--isa base` for `base_isa`."""
    return _FLAGS.get(keyword, f"--{keyword.replace('_', '-')}")


def spell_name(keyword: str) -> str:
    """Spells an option without its value: `cores`, or `--cores`."""
    return flag_name(keyword) if _by_flags else keyword


def spell_option(keyword: str, *value: Any) -> str:
    """Spells an option with its value: `cores=12`, or `--cores 12`. Without a value: `cores=`, or `--cores`.

    The value True spells a flag without an argument: `--force`.
    """
    if not _by_flags:
        return f"{keyword}={''.join(map(_python_value, value))}"
    alone = not value or value[0] is True  # 1 is a number
    return spell_name(keyword) if alone else f"{spell_name(keyword)} {_flag_value(*value)}"


def _flag_value(value: Any) -> str:
    """Formats a value as on the command line: 8x4 for a crossbar, x=1,3 for a shape, H=8 for a dimension."""
    if isinstance(value, Mapping):
        entries = cast(Mapping[str, Any], value).items()
        return " ".join(f"{key}={_joined(entry, ',')}" for key, entry in entries)
    return _joined(value, "x")


def _joined(value: Any, by: str) -> str:
    """Joins the elements of a tuple with `by`; converts any other value to text."""
    return by.join(map(str, cast(tuple[Any, ...], value))) if isinstance(value, tuple) else str(value)


def _python_value(value: Any) -> str:
    return repr(str(value) if isinstance(value, Path) else value)
