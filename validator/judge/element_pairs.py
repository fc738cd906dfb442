"""Elements of an integer program, paired with the numbers of the definition that they represent (`ElementCoding`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.output.files import TensorCoding
from validator.model.definition.exact_values import Array, ExactReal, Ints, Value, along, is_codes
from validator.program.coding import holds_floats


@dataclass(frozen=True, slots=True, eq=False)
class ElementPair:
    """A tensor by the program (`got`) and by the definition (`want`), in one shape: integers, or float32 values."""

    got: Array
    want: Array

    @property
    def is_float(self) -> bool:
        return self.want.dtype.kind == "f"


def pair_elements(name: str, elements: Array, coding: TensorCoding, value: Value) -> ElementPair:
    """Pairs the elements of a tensor of the program with its value in the definition.

    Raises `UserError` if the coding does not match the value.
    """
    if coding.kind == "float":
        # Booleans and integers can be held as floats, if the coding says so. Floats of other types are computed in
        # float32, by the program and by the definition.
        wanted = "float32" if holds_floats(coding) else coding.dtype
        if not isinstance(value, np.ndarray) or value.dtype.name != wanted:
            raise _coding_error(name, coding, "exact numbers" if isinstance(value, ExactReal) else value.dtype.name)
        return ElementPair(elements.astype(np.float32).reshape(value.shape), value.astype(np.float32))
    whole = _whole(elements)
    if isinstance(value, ExactReal):
        return _pair_units(name, whole, coding, value)
    if not is_codes(value) or coding.scale or value.dtype.name != coding.dtype:
        raise _coding_error(name, coding, value.dtype.name)
    return ElementPair((whole + coding.offset).reshape(value.shape), value.astype(np.int64))


def _whole(elements: Array) -> Ints:
    return elements.astype(np.int64)


def _pair_units(name: str, elements: Ints, coding: TensorCoding, value: ExactReal) -> ElementPair:
    """Pairs integers that represent real numbers: without the zero point, and with the scale of the definition."""
    term = value.single_term
    if term is None or not coding.scale or term.over.size != 1:
        raise _coding_error(name, coding, "a sum of several numbers")
    shape = term.units.shape
    zero, scale = (along(np.asarray(a), coding.axis, len(shape)) for a in (coding.zero_point, coding.scale))
    wanted = np.broadcast_to(term.scale, shape)
    if not np.array_equal(np.broadcast_to(scale, shape).astype(np.float32), wanted):
        raise UserError(f"tensor {name!r}: its coding has scale {coding.scale[0]:g}, the model {wanted.flat[0]:g}")
    return ElementPair(elements.reshape(shape) - zero, np.broadcast_to(term.units, shape))


def elements_to_codes(elements: Array, coding: TensorCoding, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Array:
    """Returns the integers of the model that elements of a program represent."""
    return (_whole(elements) + coding.offset).reshape(shape).astype(dtype)


def _coding_error(name: str, coding: TensorCoding, found: str) -> UserError:
    stands = f"{coding.dtype}, scaled" if coding.scale else coding.dtype
    return UserError(
        f"tensor {name!r}: the program has elements of {coding.kind}{coding.bits} for {stands}, not {found}"
    )
