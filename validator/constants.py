"""Inputs that became constants when the model was compiled: onnxruntime gets the same values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files

Array = npt.NDArray[Any]
_TYPES: Mapping[str, tuple[npt.DTypeLike, str]] = MappingProxyType(
    {
        "tensor(float)": (np.float32, "fiu"),
        "tensor(float16)": (np.float16, "fiu"),
        "tensor(double)": (np.float64, "fiu"),
        "tensor(int8)": (np.int8, "iu"),
        "tensor(int16)": (np.int16, "iu"),
        "tensor(int32)": (np.int32, "iu"),
        "tensor(int64)": (np.int64, "iu"),
        "tensor(uint8)": (np.uint8, "iu"),
        "tensor(uint16)": (np.uint16, "iu"),
        "tensor(uint32)": (np.uint32, "iu"),
        "tensor(uint64)": (np.uint64, "iu"),
        "tensor(bool)": (np.bool_, "b"),
        "tensor(string)": (np.object_, "U"),
    }
)
"""numpy's type for onnxruntime's name of a type, and the kinds that its values have in JSON."""


def constant_inputs(options: Mapping[str, Any], inputs: Sequence[Any]) -> dict[str, Array]:
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
    if type_ not in _TYPES:
        raise _bad(f"{name!r} is no input that can be a constant")
    dtype, kinds = _TYPES[type_]
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
