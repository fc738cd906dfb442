"""Values of MLIR's textual form: attributes, types, locations, and the fault that a reader reports with its line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

MOST_DIMENSIONS = 8
"""Most dimensions of a memref or tensor that is read."""


class MlirError(ValueError):
    """A module is wrong at character `position` of its text."""

    def __init__(self, position: int, message: str) -> None:
        self.position = position
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class SymbolRef:
    """A reference to a symbol, `@name`."""

    name: str


@dataclass(frozen=True, slots=True)
class MlirType:
    """A type: `f32`, `i8`, or a memref or tensor of such elements.

    kind: `scalar`, `memref`, `tensor` or, for any other type, `other`. shape: empty for a scalar. element: name of the
    element type, or the text of another type.
    """

    kind: str
    shape: tuple[int, ...]
    element: str

    def __str__(self) -> str:
        if self.kind in ("scalar", "other"):
            return self.element
        return f"{self.kind}<{''.join(f'{size}x' for size in self.shape)}{self.element}>"


@dataclass(frozen=True, slots=True)
class ResourceHandle:
    """A `dense_resource`: the name of values that are stored elsewhere, and their type."""

    key: str
    type: MlirType


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A constant, `dense<...>` or a resource with its values: the bytes of its elements, little-endian, in C order."""

    shape: tuple[int, ...]
    element: str
    content: bytes


@dataclass(frozen=True, slots=True)
class UnitAttribute:
    """The attribute `unit`, which stands for None."""


UNIT = UnitAttribute()

Attributes: TypeAlias = Mapping[str, Any]


def is_array(value: object) -> TypeGuard[npt.NDArray[Any]]:
    """True for `array<...>`."""
    return isinstance(value, np.ndarray)


def is_dictionary(value: object) -> TypeGuard[dict[str, Any]]:
    """True for a dictionary of attributes."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """True for an array of attributes in brackets."""
    return isinstance(value, list)


_TYPE = re.compile(r"(memref|tensor)<((?:\d{1,18}x)*)([fi]\d{1,4})>|([fi]\d{1,4}|index)")
_OTHER = re.compile(r"tensor<(?:\*x|(?:(?:\d{1,18}|\?)x)*)(?:[usb]?[fi]\d{1,4})>|[us]i\d{1,4}|bf16|none")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> MlirType | None:
    """Returns the type that a text names; None for any other text."""
    found = _TYPE.fullmatch(text)
    if found is None:
        return MlirType("other", (), text) if _OTHER.fullmatch(text) else None
    kind, dims, element, scalar = found.groups()
    if scalar is not None:
        return MlirType("scalar", (), scalar)
    shape = tuple(map(int, dims.split("x")[:-1]))
    return MlirType(kind, shape, element) if len(shape) <= MOST_DIMENSIONS else None


def tensor_shape(type_: MlirType) -> tuple[tuple[int, ...] | None, str]:
    """Returns the shape of a tensor, None if sizes are not known, and the name of its element type."""
    if type_.kind == "tensor":
        return type_.shape, type_.element
    *sizes, element = type_.element.removeprefix("tensor<").rstrip(">").split("x")
    known = type_.element.startswith("tensor<") and all(size.isdecimal() for size in sizes)
    return tuple(map(int, sizes)) if known and len(sizes) <= MOST_DIMENSIONS else None, element


_DTYPES = {"i1": "?", "f16": "<f2", "f32": "<f4", "f64": "<f8"} | {
    f"{name}{8 * size}": f"<{letter}{size}" for size in (1, 2, 4, 8) for name, letter in (("i", "i"), ("ui", "u"))
}


def element_dtype(element: str) -> np.dtype[Any]:
    """Returns the numpy type of an element type by its name. Raises `ValueError` for one that has none."""
    if element == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    if element not in _DTYPES:
        raise ValueError(f"{element} is no type of elements that is read")
    return np.dtype(_DTYPES[element])


_SPECIAL = re.compile(rb'[^ -~]|[\\"]')
_ESCAPE = re.compile(rb'\\(?:([0-9A-Fa-f]{2})|(["\\nt]))')
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}


def quote(text: str) -> str:
    """Returns a string literal of MLIR: quotes, backslashes and bytes outside of printable ASCII as hex digits."""
    return '"' + _SPECIAL.sub(lambda found: b"\\%02X" % found[0][0], text.encode()).decode() + '"'


def unquote(literal: str) -> str:
    """Returns the text of a string literal. Raises `ValueError` if it is no UTF-8."""
    inside = literal[1:-1]
    if "\\" not in inside:
        return inside
    raw = _ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else _ESCAPED[m[2]], inside.encode())
    return raw.decode()


def write_attribute(value: Any) -> str:
    """Returns an attribute as text. Arrays of more than one dimension are written with their shape."""
    match value:
        case None | UnitAttribute():
            return "unit"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value} : i64"
        case float():
            return f"{write_float(value)} : f64"
        case str():
            return quote(value)
        case SymbolRef():
            return f"@{value.name}"
        case MlirType():
            return str(value)
        case ResourceHandle():
            return f"dense_resource<{value.key}> : {value.type}"
        case _:
            return _write_many(value)


def _write_many(value: Any) -> str:
    if is_array(value):
        return _write_array(value)
    if is_dictionary(value):
        return "{" + ", ".join(f"{key} = {write_attribute(each)}" for key, each in value.items()) + "}"
    if is_list(value):
        return f"[{', '.join(map(write_attribute, value))}]"
    raise TypeError(f"no attribute for {type(value).__name__}")


def write_float(value: float) -> str:
    """Returns a finite float64 as text that reads back as the same number, with the point that MLIR requires."""
    text = repr(value)
    if "e" in text and "." not in text:
        return text.replace("e", ".0e")
    return text


def _write_array(values: npt.NDArray[Any]) -> str:
    flat = values.reshape(-1).tolist()
    kind, texts = ("f64", map(write_float, flat)) if values.dtype.kind == "f" else ("i64", map(str, flat))
    array = f"array<{kind}{': ' if flat else ''}{', '.join(texts)}>"
    if values.ndim == 1:
        return array
    shape = ", ".join(map(str, values.shape))
    return f"{{shape = array<i64: {shape}>, values = {array}}}"
