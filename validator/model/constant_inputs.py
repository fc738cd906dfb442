"""Inputs that became constants when the model was compiled: onnxruntime gets the same values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from raptor.common.errors import UserError
from raptor.output import files
from validator.model.node import Array
from validator.model.types import parse_tensor_type

_KINDS: Mapping[str, str] = MappingProxyType({"f": "fiu", "i": "iu", "u": "iu", "b": "b", "O": "U"})
"""Kinds of a constant's values in JSON, for each kind of its type."""


def read_constant_inputs(options: Mapping[str, Any], inputs: Sequence[Any]) -> dict[str, Array]:
    """Returns the constants in `options`, keyed by name, in the types of `inputs` (as onnxruntime describes them).

    Raises `UserError` for a name that is not an input, and for a value of another type.
    """
    types = {i.name: i.type for i in inputs}
    return {name: _constant(name, value, types.get(name, "")) for name, value in _recorded(options).items()}


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    found = options.get(files.CONSTANT_INPUTS, {})
    if not isinstance(found, dict):
        raise _bad("expected values by name")
    return cast(dict[str, Any], found)


def _constant(name: str, value: object, type_: str) -> Array:
    dtype = parse_tensor_type(type_)
    kinds = _KINDS.get(dtype.kind) if dtype is not None and dtype.isbuiltin == 1 else None
    if kinds is None:
        raise _bad(f"{name!r} is no input that can be a constant")
    try:
        raw = np.asarray(value)
        array = raw.astype(dtype)
        if raw.dtype.kind not in kinds or (
            kinds == "iu" and not np.array_equal(array.astype(object), raw.astype(object))
        ):
            raise ValueError("another type of value")
    except (ValueError, TypeError, OverflowError) as e:
        raise _bad(f"{name!r}, a {type_}: {e}") from e
    return array


def _bad(message: str) -> UserError:
    return UserError(f"{files.MANIFEST}: options: {files.CONSTANT_INPUTS}: {message}")
