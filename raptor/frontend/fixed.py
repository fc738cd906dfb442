"""Facts about the inputs of a model that the user adds to the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Shapes of inputs, sizes of dimensions by name, and inputs that become constants with their values."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=_nothing)
    dims: Mapping[str, int] = field(default_factory=_nothing)
    constants: Mapping[str, Any] = field(default_factory=_nothing)
