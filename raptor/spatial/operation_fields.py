"""Fields of operations by their annotations: which of them hold values, and which are parameters.

`Operation` derives its operands, its parameters and the same operation on other values from these fields.
"""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, get_origin

import numpy as np


@dataclass(frozen=True, slots=True)
class ValueField:
    """A kind of field that holds values: functions to its values, and to the field with other values.

    `parameter`: function to the rest of the field in hashable form; None if there is none.
    """

    values: Callable[[Any], tuple[Any, ...]]
    map_values: Callable[[Callable[[Any], Any], Any], Any]
    parameter: Callable[[Any], Hashable] | None


_ONE = ValueField(lambda value: (value,), lambda f, value: f(value), None)
_SOME = ValueField(lambda values: values, lambda f, values: tuple(map(f, values)), len)
_OPTIONAL = ValueField(
    lambda value: () if value is None else (value,),
    lambda f, value: None if value is None else f(value),
    lambda value: value is None,
)
_NUMBERED = ValueField(
    lambda pairs: tuple(value for _, value in pairs),
    lambda f, pairs: tuple((number, f(value)) for number, value in pairs),
    lambda pairs: tuple(number for number, _ in pairs),
)

_Getter = Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class OperationFields:
    """The fields of a class of operations by name, in the order of its constructor.

    `values`: fields that hold values, `result` among them. `parameters`: for each field that holds something else, too,
    a function from an operation to that, in hashable form.
    """

    values: dict[str, ValueField]
    parameters: tuple[Callable[[Any], Hashable], ...]

    @classmethod
    def from_class(cls, kind: type, value: TypeVar) -> "OperationFields":
        """Reads the annotations of a class and its base classes. `value`: the type variable that stands for values."""
        by_annotation: dict[Any, ValueField] = {
            value: _ONE,
            value | None: _OPTIONAL,
            tuple[value, ...]: _SOME,
            tuple[tuple[int, value], ...]: _NUMBERED,
        }
        annotations = {n: a for base in reversed(kind.__mro__) for n, a in inspect.get_annotations(base).items()}
        fields = {name: a for name, a in annotations.items() if not name.startswith("_")}
        values = {name: by_annotation[a] for name, a in fields.items() if a in by_annotation}
        found = ((name, values[name].parameter if name in values else _rest(a)) for name, a in fields.items())
        return cls(values, tuple(_composed(rest, name) for name, rest in found if rest))

    def operands_getter(self) -> _Getter:
        """Returns a function from an operation to its operands, field after field."""
        fields = [(attrgetter(name), field) for name, field in self.values.items() if name != "result"]
        if not fields:
            return lambda _: ()
        if len(fields) > 1 and all(field is _ONE for _, field in fields):
            return attrgetter(*(name for name in self.values if name != "result"))
        if len(fields) == 1:
            get, field = fields[0]
            return get if field is _SOME else lambda op: field.values(get(op))
        return lambda op: tuple(value for get, field in fields for value in field.values(get(op)))

    def parameters_of(self, op: Any) -> tuple[Hashable, ...]:
        """Returns what the fields of an operation hold beside values."""
        return tuple([parameter(op) for parameter in self.parameters])

    def map_values(self, op: Any, f: Callable[[Any], Any]) -> dict[str, Any]:
        """Returns the fields of an operation that hold values, with `f` applied to each value."""
        return {name: field.map_values(f, getattr(op, name)) for name, field in self.values.items()}


def _rest(annotation: Any) -> Callable[[Any], Hashable]:
    return _array_bytes if get_origin(annotation) is np.ndarray else _itself


def _composed(rest: Callable[[Any], Hashable], name: str) -> Callable[[Any], Hashable]:
    get = attrgetter(name)
    return get if rest is _itself else lambda op: rest(get(op))


def _itself(parameter: Any) -> Hashable:
    return parameter


def _array_bytes(array: Any) -> Hashable:
    return array.tobytes()
