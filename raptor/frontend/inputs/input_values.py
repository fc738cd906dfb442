"""Values that the user gives for inputs, converted to constants of the declared type and shape."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from raptor.common import option_spelling
from raptor.common.errors import UserError
from raptor.frontend.inputs.declared_shapes import Dim, format_dims
from raptor.frontend.proto.model_checks import FLOAT_TYPES, INDEX_TYPES, type_name

Array = npt.NDArray[Any]
MOST_VALUES = 1024
"""Maximum number of values of one input; larger inputs are data or weights."""
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_TYPES = INDEX_TYPES | (FLOAT_TYPES - {TensorProto.BFLOAT16}) | {TensorProto.INT8, TensorProto.UINT8}


def convert_value(name: str, given: Any, elem_type: int, dims: Sequence[Dim]) -> Array:
    """Returns the constant that input `name` becomes; open sizes of `dims` follow from the number of values.

    given: a number, bool, string or array-like of these; except for string inputs also text as on the command line
    (`1.5,2`). Raises `UserError` for a wrong type, shape or number of values.
    """
    option = f"{option_spelling.spell_name('constants')} {name}"
    if elem_type not in _TYPES:
        raise UserError(f"{option}: the input is {type_name(elem_type)}, which has no constants")
    if isinstance(given, str) and elem_type != TensorProto.STRING:
        # Count the values by commas first, so that a long text is refused without parsing it.
        _check_count(option, given.count(",") + 1)
        given = [_parsed(option, text.strip(), elem_type) for text in given.split(",")]
    raw = _array(option, given)
    _check_count(option, raw.size)
    values = _cast(option, raw, elem_type)
    return values if raw.ndim > 1 else values.reshape(_shape(option, raw.size, dims))


def _check_count(option: str, count: int) -> None:
    if count > MOST_VALUES:
        raise UserError(f"{option}: {count} values; at most {MOST_VALUES} can be set")


def _parsed(option: str, value: str, elem_type: int) -> object:
    try:
        if elem_type == TensorProto.BOOL:
            return _TRUTH[value.lower()]
        return float(value) if _kind(elem_type) == "f" else int(value)
    except (KeyError, ValueError):
        raise _wrong(option, value, elem_type) from None


def _array(option: str, given: object) -> Array:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, OverflowError):
        raise UserError(f"{option}: expected a number, or numbers in rows of one length") from None


def _cast(option: str, raw: Array, elem_type: int) -> Array:
    """Converts the values to the type of the input; floats are rounded, other values must be exact."""
    kind = _kind(elem_type)
    if not raw.size or not _is_of(raw, kind):
        raise _wrong(option, str(raw.flat[0]) if raw.size else "nothing", elem_type)
    if kind == "O":
        return raw.astype(object)
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = raw.astype(dtype)
    good = np.isfinite(cast) if kind == "f" else np.equal(cast.astype(object), raw.astype(object))
    if not good.all():
        raise _wrong(option, str(raw[~good.astype(bool)].flat[0]), elem_type)
    return cast


def _kind(elem_type: int) -> str:
    """Returns numpy's kind letter of the type: `f`, `i`, `u`, `b`, or `O` for strings."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).kind


def _is_of(raw: Array, kind: str) -> bool:
    if kind == "O":
        return raw.dtype.kind == "U" or all(isinstance(v, str) for v in raw.flat)
    if kind == "b":
        return raw.dtype.kind == "b" or (raw.dtype.kind in "iu" and bool(np.isin(raw, (0, 1)).all()))
    if kind == "f":
        return raw.dtype.kind in "fiu"
    # Python integers beyond 64 bits are objects; bools are not accepted as integers.
    return raw.dtype.kind in "iu" or (raw.dtype.kind == "O" and all(type(v) is int for v in raw.flat))


def _shape(option: str, count: int, dims: Sequence[Dim]) -> tuple[int, ...]:
    """Resolves the open sizes of `dims`: the batch to 1, and one other size from the number of values."""
    sizes = list(dims)
    if sum(isinstance(d, str) for d in sizes) > 1 and isinstance(sizes[0], str):
        sizes[0] = 1
    fixed = math.prod(d for d in sizes if isinstance(d, int))
    left = [d for d in sizes if isinstance(d, str)]
    shape = tuple(d if isinstance(d, int) else count // fixed for d in sizes)
    if len(left) > 1 or math.prod(shape) != count:
        values = f"{count} value{'s' if count != 1 else ''}"
        raise UserError(f"{option}: {values}, but the input is {f'of {format_dims(dims)}' if dims else 'a scalar'}")
    return shape


def _wrong(option: str, value: str, elem_type: int) -> UserError:
    return UserError(f"{option}={value[:80]}: the input is {type_name(elem_type)}, and this is not")
