"""Frozen values of both kinds."""

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    """Returns a dataclass or a struct with other fields."""
    made: Any = value
    return (
        msgspec.structs.replace(made, **changes)
        if isinstance(value, msgspec.Struct)
        else dataclasses.replace(made, **changes)
    )
