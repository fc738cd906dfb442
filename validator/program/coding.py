"""Conversions between elements on the chip and values of the model, and checks of a `ElementCoding`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output.files import Numbers, TensorCoding
from validator.model.types import FEW_BITS, named_type
from validator.program.program import Bytes

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOATS = ("bfloat16", "float16", "float32", "float64", *FEW_BITS)
_SCALED = _FLOATS[:4]
"""Types of real numbers that integers with a scale can represent; they are computed in float32."""
_HELD_AS_FLOATS = ("bool", "bfloat16", "float16", "float64", "int64", "uint64", *FEW_BITS)


def dtype_range(name: str) -> tuple[int, int]:
    """Returns the range of an integer type, or of bool."""
    if name == "bool":
        return 0, 1
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def element_range(coding: TensorCoding) -> tuple[int, int]:
    """Returns the smallest and the largest integer that an element can hold."""
    return -(2 ** (coding.bits - 1)), 2 ** (coding.bits - 1) - 1


def element_bytes(coding: TensorCoding | None, floats: int = 1) -> int:
    """Returns the size of an element in bytes; `floats` in a program of floats (1 if it counts memory in elements)."""
    return -(-coding.bits // 8) if coding and coding.bits else floats


def value_range(coding: TensorCoding) -> tuple[int, int]:
    """Returns the smallest and the largest value that an input of integers or booleans accepts."""
    low, high = dtype_range(coding.dtype)
    return (low if coding.low is None else coding.low), (high if coding.high is None else coding.high)


def holds_floats(coding: TensorCoding | None) -> bool:
    """Checks whether the model's tensor has a float type."""
    return coding is None or coding.dtype in _FLOATS


def find_coding_fault(coding: TensorCoding, shape: Sequence[int], numbers: Numbers) -> str | None:
    """Returns the fault in the coding of a tensor of `shape`, in a program of these `numbers`; None if it is valid."""
    if (coding.low is None) != (coding.high is None):
        return "low and high belong together"
    if coding.kind == "float":
        return _check_float(coding, numbers)
    if numbers == "float":
        return "integers, in a program of floats"
    if (coding.dtype in _HELD_AS_FLOATS and not coding.scale) or not coding.bits:
        return f"integers of {coding.bits} bits for {coding.dtype}, which are held as floats"
    return _check_scaled(coding, shape) if coding.scale else _check_shifted(coding) or _check_bounds(coding)


def _check_shifted(coding: TensorCoding) -> str | None:
    if coding.dtype == "float32":
        return "integers that stand for float32 values need a scale"
    if coding.zero_point != (0,) or coding.axis is not None:
        return "zero_point and axis have a meaning only with a scale"
    (low, high), (least, most) = element_range(coding), dtype_range(coding.dtype)
    least, most = least - coding.offset, most - coding.offset
    if not (low <= least and most <= high) and not (least <= low and high <= most):
        return (
            f"{coding.dtype} with offset {coding.offset} is {least} to {most}, elements of {coding.bits} bits are not"
        )
    return None


def _check_float(coding: TensorCoding, numbers: Numbers) -> str | None:
    if numbers == "int":
        return "floats, in a program whose numbers are int"
    plain = not coding.scale and coding.offset == 0 and coding.zero_point == (0,) and coding.axis is None
    bits = 32 if numbers == "mixed" else 0
    if coding.bits != bits or not plain:
        return f"floats have {bits} bits here, and neither offset nor scale"
    return _check_bounds(coding)


def _check_bounds(coding: TensorCoding) -> str | None:
    if coding.low is None or coding.high is None:
        return None
    if holds_floats(coding):
        return "low and high are for integers"
    least, most = dtype_range(coding.dtype)
    if not least <= coding.low <= coding.high <= most:
        return f"low {coding.low} and high {coding.high} are no range of {coding.dtype}"
    return None


def _check_scaled(coding: TensorCoding, shape: Sequence[int]) -> str | None:
    if coding.dtype not in _SCALED or coding.offset:
        return f"a scale is for floats without offset, found {coding.dtype} with offset {coding.offset}"
    if coding.axis is not None and coding.axis >= len(shape):
        return f"axis {coding.axis} of a tensor of {len(shape)} dimensions"
    count = 1 if coding.axis is None else shape[coding.axis]
    for name, entries in (("scale", coding.scale), ("zero_point", coding.zero_point)):
        if len(entries) != count:
            return f"{name} has {len(entries)} entries, expected {count}"
    if any(s > _FLOAT32_MAX or np.float32(s) == 0 for s in coding.scale):
        return "a scale is 0 or infinite as a float32"
    low, high = element_range(coding)
    if not all(low <= z <= high for z in coding.zero_point):
        return f"a zero_point is outside {low}..{high}, the range of {coding.bits} bits"
    return None


def encode(array: Array, coding: TensorCoding, what: str) -> Integers | npt.NDArray[np.float32]:
    """Converts values of the model to elements. Raises `UserError` for a value that no element represents."""
    if coding.kind == "float":
        return _as_floats(array, coding, what)
    if coding.scale:
        with np.errstate(over="ignore"):
            return _quantised(_floats(array.astype(named_type(coding.dtype))), coding, what)
    return _shifted(array, coding, what)


def _as_floats(array: Array, coding: TensorCoding, what: str) -> npt.NDArray[np.float32]:
    """Returns values as float32, rounded to the model's type. Raises `UserError` for integers out of bounds."""
    if holds_floats(coding):
        with np.errstate(over="ignore"):
            return array.astype(named_type(coding.dtype)).astype(np.float32)
    given = array if array.dtype.kind in "iub" else array.astype(np.float64)
    _check_given(np.isfinite(given), given, f"{what}, {coding.dtype}: holds {{}}, which is no integer")
    _check_given(given == np.trunc(given), given, f"{what}, {coding.dtype}: holds {{}}, which is no whole number")
    low, high = value_range(coding)
    bounds = f"{low}..{high}" + ("" if coding.low is None else ", for which the program is exact")
    _check_given((given >= low) & (given <= high), given, f"{what}, {coding.dtype}: holds {{}}, outside {bounds}")
    return given.astype(np.float32)


def _check_given(good: Array, given: Array, message: str) -> None:
    if not good.all():
        raise UserError(message.format(given[~good].flat[0]))


def _floats(array: Array) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _quantised(x: npt.NDArray[np.float32], coding: TensorCoding, what: str) -> Integers:
    """Quantises as QuantizeLinear: a division in float32, ties to even, the zero point, saturation."""
    if np.isnan(x).any():
        raise UserError(f"{what}: holds NaN, which cannot be quantised")
    with np.errstate(over="ignore"):
        rounded = np.rint(x / _broadcast_along(np.array(coding.scale, np.float32), coding, x.ndim)).astype(np.float64)
    low, high = element_range(coding)
    zero = _broadcast_along(np.array(coding.zero_point, np.float64), coding, x.ndim)
    return np.clip(rounded + zero, low, high).astype(np.int64)


def _shifted(array: Array, coding: TensorCoding, what: str) -> Integers:
    wide = _as_integers(array if array.dtype.kind in "iub" else array.astype(np.float64), what)
    least, most = value_range(coding)
    bounds = f"the range of {coding.dtype}" if coding.low is None else "for which the program is exact"
    _check_range(wide, least, most, f"{what}: a value outside {least}..{most}, {bounds}")
    low, high = element_range(coding)
    elements = wide - coding.offset
    _check_range(elements, low, high, f"{what}: a value that elements of {coding.bits} bits do not hold")
    return elements


def _as_integers(array: Array, what: str) -> Integers:
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.int64)
    if not (wide == array).all():
        raise UserError(f"{what}: holds numbers that are not whole, but the model takes integers")
    return wide


def _check_range(values: Integers, low: int, high: int, message: str) -> None:
    if values.size and (values.min() < low or values.max() > high):
        raise UserError(message)


def _broadcast_along(entries: Array, coding: TensorCoding, dims: int) -> Array:
    """Reshapes the entries of `scale` or `zero_point` to broadcast along the axis of the coding."""
    if coding.axis is None:
        return entries[0]
    return entries.reshape([-1 if k == coding.axis else 1 for k in range(dims)])


def decode(elements: Integers | npt.NDArray[np.float32], coding: TensorCoding, what: str) -> Array:
    """Converts elements to values in the model's type: (e - zero_point) * scale in float32, or e + offset."""
    if coding.kind == "float":
        return _as_values(elements, coding, what)
    if coding.scale:
        zero = _broadcast_along(np.array(coding.zero_point, np.int64), coding, elements.ndim)
        units = (elements - zero).astype(np.float32)
        scale = _broadcast_along(np.array(coding.scale, np.float32), coding, elements.ndim)
        with np.errstate(over="ignore"):
            return (units * scale).astype(named_type(coding.dtype), copy=False)
    values = elements.astype(np.int64) + coding.offset
    least, most = dtype_range(coding.dtype)
    _check_range(values, least, most, f"{what}: an element stands for a value outside {coding.dtype}")
    return values.astype(named_type(coding.dtype))


def _as_values(elements: Array, coding: TensorCoding, what: str) -> Array:
    """Returns floats in the model's type. Raises `UserError` for a number that this type cannot represent."""
    dtype = named_type(coding.dtype)
    if holds_floats(coding):
        with np.errstate(over="ignore"):
            return elements.astype(dtype, copy=False)
    low, high = dtype_range(coding.dtype)
    wide = elements.astype(np.float64)
    # NOTE: 2^63 and 2^64 are floats, but above the largest integers.
    bad = ~((wide >= low) & (wide < float(high + 1)) & (np.trunc(wide) == wide))
    if bad.any():
        raise UserError(f"{what}: an element is {elements[bad].flat[0]}, which is no {coding.dtype}")
    return wide.astype(dtype)


def elements_to_bytes(elements: Array, coding: TensorCoding) -> Bytes:
    """Returns the bytes of elements, in order."""
    if coding.kind == "float":
        return np.ascontiguousarray(elements, "<f4").view(np.uint8).ravel()
    content = np.ascontiguousarray(elements, "<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(content[:, : element_bytes(coding)]).ravel()


def elements_from_bytes(content: Bytes, coding: TensorCoding, what: str) -> Array:
    """Returns the elements: int64 or float32. Raises `UserError` for an integer that does not fit its bits."""
    if coding.kind == "float":
        return content.view("<f4")
    size = element_bytes(coding)
    wide = np.zeros((content.size // size, 8), np.uint8)
    wide[:, 8 - size :] = content.reshape(-1, size)
    elements = wide.view("<i8").ravel() >> 8 * (8 - size)
    low, high = element_range(coding)
    _check_range(elements, low, high, f"{what}: an element does not fit its {coding.bits} bits")
    return elements
