"""What the user says of a model's inputs, beside what the model says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Shapes of inputs, sizes of dimensions by their names, and inputs that become constants, with their values."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=_nothing)
    dims: Mapping[str, int] = field(default_factory=_nothing)
    constants: Mapping[str, Any] = field(default_factory=_nothing)
