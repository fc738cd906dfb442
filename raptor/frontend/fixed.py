"""User-given shapes, sizes and values of model inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Fixed:
    """User-given shapes of inputs, sizes of named dimensions, and values of inputs that become constants."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=_nothing)
    dims: Mapping[str, int] = field(default_factory=_nothing)
    constants: Mapping[str, Any] = field(default_factory=_nothing)
