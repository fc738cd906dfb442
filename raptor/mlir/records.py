"""Records of the compiler (windows, recipes, matrices, codings) as MLIR attributes, by the annotations of their fields.

A record is a dictionary with an entry for each field. A reader gets the annotation of what it expects, so a wrong kind
of value is found where it stands.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from raptor.common.mlir.syntax import UNIT, MlirType, SymbolRef, is_array, is_dictionary, is_list
from raptor.target.chip_elements import FLOAT32, MODELLED_FLOAT, ElementType, integer_type

MOST_BITS = 64
"""Most bits of an integer type that is read."""


def to_attribute(value: Any) -> Any:
    """Returns a record, or a field of one, as a value that `write_attribute` takes."""
    if isinstance(value, ElementType):
        return MlirType("scalar", (), element_name(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_attribute(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: to_attribute(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        kinds: set[type] = {type(item) for item in items}
        if items and kinds in ({int}, {float}):
            return np.array(items, np.int64 if kinds == {int} else np.float64)
        return [to_attribute(item) for item in items]
    if is_array(value) and value.dtype == object:
        return value.astype(np.int64)
    return value


def element_name(element: ElementType) -> str:
    """Returns MLIR's name of an element type. Both types of floats are `f32`: the module says which of them it uses."""
    return f"i{element.bits}" if element.kind == "int" else "f32"


def element_of(name: str, *, modelled: bool) -> ElementType:
    """Returns the element type of a name. Raises `ValueError` for other types."""
    if name == "f32":
        return MODELLED_FLOAT if modelled else FLOAT32
    if name[0] != "i" or name == "index" or not 0 < int(name[1:]) <= MOST_BITS:
        raise ValueError(f"{name} is no type of elements: expected f32 or an integer")
    return integer_type(int(name[1:]))


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Makes records of attributes.

    modelled: whether `f32` stands for floats of the width that the target models. slots: the values that numbers stand
    for in fields of operations that hold values.
    """

    modelled: bool
    slots: Sequence[Any] = ()

    def decode(self, value: Any, wanted: Any) -> Any:
        """Returns the value of type `wanted`, an annotation, that an attribute stands for. Raises `ValueError`."""
        if isinstance(wanted, TypeVar):
            return self.slot(value)
        origin = get_origin(wanted)
        if origin is Annotated:
            return self.decode(value, get_args(wanted)[0])
        if origin in (Union, types.UnionType):
            return self._union(value, get_args(wanted))
        if origin is tuple:
            return self._tuple(value, get_args(wanted))
        if origin is Literal:
            if value not in get_args(wanted):
                raise ValueError(f"{_shown(value)} is none of {', '.join(map(str, get_args(wanted)))}")
            return value
        if origin is np.ndarray:
            return self._array(value, get_args(wanted))
        return self._plain(value, wanted)

    def _plain(self, value: Any, wanted: Any) -> Any:
        """Decodes a value of a class without arguments."""
        if wanted is ElementType:
            if not isinstance(value, MlirType) or value.kind != "scalar":
                raise ValueError(f"{_shown(value)} is no type of elements")
            return element_of(value.element, modelled=self.modelled)
        if wanted in (int, bool, str, float):
            if type(value) is not wanted:
                raise ValueError(f"{_shown(value)} is no {_NAMES[wanted]}")
            return value
        if wanted is type(None):
            if value is not UNIT:
                raise ValueError(f"{_shown(value)} is not unit")
            return None
        return self._record(value, wanted)

    def slot(self, value: Any) -> Any:
        """Returns the slot of a number. Raises `ValueError` for others."""
        if type(value) is not int or not 0 <= value < len(self.slots):
            raise ValueError(f"{_shown(value)} is no number of one of {len(self.slots)} slots")
        return self.slots[value]

    def _union(self, value: Any, kinds: tuple[Any, ...]) -> Any:
        faults: list[str] = []
        for kind in kinds:
            try:
                return self.decode(value, kind)
            except ValueError as e:
                faults.append(str(e))
        raise ValueError("; or ".join(dict.fromkeys(faults)))

    def _tuple(self, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
        if is_array(value) and value.ndim == 1:
            items: list[Any] = value.tolist()
        elif is_list(value):
            items = value
        else:
            raise ValueError(f"{_shown(value)} is no array")
        if len(kinds) == 2 and kinds[1] is ...:
            kinds = kinds[:1] * len(items)
        if len(kinds) != len(items):
            raise ValueError(f"{len(items)} entries instead of {len(kinds)}")
        return tuple([self.decode(item, kind) for item, kind in zip(items, kinds, strict=True)])

    @staticmethod
    def _array(value: Any, kinds: tuple[Any, ...]) -> Any:
        """Returns an array of integers; those of any type are of 64 bits."""
        shape, flat = None, value
        if is_dictionary(value) and value.keys() == {"shape", "values"}:
            shape, flat = value["shape"], value["values"]
        if not is_array(flat) or flat.dtype != np.int64:
            raise ValueError(f"{_shown(value)} is no array of integers")
        if shape is not None:
            if not is_array(shape) or shape.dtype != np.int64:
                raise ValueError("the shape of an array is no array of integers")
            if (shape < 0).any() or len(shape) > 4 or int(np.prod(shape.astype(object))) != flat.size:
                raise ValueError(f"{flat.size} values do not fill the shape {shape.tolist()}")
            flat = flat.reshape(shape.tolist())
        (dtype,) = get_args(kinds[1])
        if dtype is Any:
            return flat
        info = np.iinfo(dtype)
        if flat.size and not (info.min <= flat.min() and flat.max() <= info.max):
            raise ValueError(f"an entry does not fit {info.bits} bits")
        return flat.astype(dtype)

    def _record(self, value: Any, kind: Any) -> Any:
        return kind(**self.fields(value, kind))

    def fields(self, value: Any, kind: Any, *, without: str = "") -> dict[str, Any]:
        """Returns the fields of a record of class `kind`, but the field `without`. Raises `ValueError`."""
        hints = _hints(kind)
        names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [each.name for each in fields(kind)]
        names = [name for name in names if name != without]
        if not is_dictionary(value):
            raise ValueError(f"{_shown(value)} is no dictionary of {kind.__name__}")
        if value.keys() != set(names):
            wrong = sorted(value.keys() ^ set(names))[0]
            raise ValueError(f"{wrong} is {'missing' if wrong in names else 'no field'} in {kind.__name__}")
        made: dict[str, Any] = {}
        for name in names:
            try:
                made[name] = self.decode(value[name], hints[name])
            except ValueError as e:
                raise ValueError(f"{name}: {e}") from None
        return made


_NAMES = {int: "integer", bool: "boolean", str: "string", float: "float"}


def _shown(value: Any) -> str:
    if is_array(value):
        return f"an array of {value.size}"
    if isinstance(value, dict):
        return "a dictionary"
    text = f"@{value.name}" if isinstance(value, SymbolRef) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
