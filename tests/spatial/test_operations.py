"""Every operation class tells all it reads and writes, and `map_operands` changes all of it and nothing else."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest

from raptor.codegen.emit import EMIT
from raptor.graph.steps import Recipe
from raptor.pim.operations import Buffer, Load, LoadRows, Receive, Repeat, Send, Store
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import OneResult, Operation, Piece, V, W
from raptor.spatial.tiles import Value


def concrete(kind: type) -> Iterator[type[Operation[Buffer]]]:
    """The classes of operations of both levels."""
    for below in kind.__subclasses__():
        module = sys.modules[below.__module__]
        # A dataclass with slots is a second class: what the decorator was given may still be there.
        if module.__name__.startswith("raptor.") and getattr(module, below.__name__) is below is not OneResult:
            yield below
        yield from concrete(below)


ALL = sorted(set(concrete(Operation)), key=lambda kind: kind.__name__)
BUFFERS_ONLY = {Load, LoadRows, Store, Send, Receive, Repeat}
TILES_ONLY = {Copy, TakeRows}


def sample(annotation: Any, number: Iterator[int]) -> Any:
    """Something that fits the annotation of a field. Each value in it has a name of its own."""
    if isinstance(annotation, TypeVar):
        return Buffer(f"b{next(number)}", 2, 3, 4)
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple and arguments[-1] is ...:
        return (sample(arguments[0], number), sample(arguments[0], number))
    if get_origin(annotation) is tuple:
        return tuple(sample(argument, number) for argument in arguments)
    if get_origin(annotation) is Piece:
        return Piece(sample(V, number), 0, 0, 1)
    if get_origin(annotation) is Union and V in arguments:
        return sample(V, number)
    if annotation is Recipe:
        return Recipe(((0, 1), (0, 1)), (), (), 0, 1)
    return next(number) if annotation is int else object()


def made(kind: type[Operation[Buffer]]) -> Operation[Buffer]:
    number = count()
    hints = get_type_hints(kind)
    return kind(**{field.name: sample(hints[field.name], number) for field in fields(kind)})


def values_in(thing: Any) -> list[Value]:
    """The values that a field holds, however deep."""
    if isinstance(thing, Value):
        return [thing]
    if isinstance(thing, Piece):
        return [thing.value]
    return [value for part in thing for value in values_in(part)] if isinstance(thing, tuple) else []


def held(operation: Operation[Buffer]) -> dict[str, list[Value]]:
    """Values by field."""
    return {field.name: values_in(getattr(operation, field.name)) for field in fields(operation)}


def other(value: Value) -> Buffer:
    return Buffer(f"other_{value.name}", value.rows, value.width, value.channels)


def check(kind: type[Operation[Buffer]]) -> None:
    operation = made(kind)
    mapped = operation.map_operands(other)
    before, after = held(operation), held(mapped)
    assert type(mapped) is kind
    assert any(before.values()), "the sample holds no value"
    assert after == {name: list(map(other, values)) for name, values in before.items()}
    for name, values in before.items():
        if not values:
            assert getattr(mapped, name) is getattr(operation, name), f"{name} is no value, and changes"
    told = [*operation.operands, *operation.results]
    assert sorted(v.name for v in told) == sorted(v.name for values in before.values() for v in values)


@pytest.mark.parametrize("kind", ALL)
def test_every_value_is_told_and_mapped_and_nothing_else(kind: type[Operation[Buffer]]) -> None:
    check(kind)


@dataclass(frozen=True, slots=True)
class Biased(OneResult[V]):
    """Forgets that it reads `bias`."""

    input: V
    bias: V

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.input, self.bias)

    def map_operands(self, f: Callable[[V], W]) -> "Biased[Any]":
        return Biased(f(self.result), f(self.input), self.bias)


@dataclass(frozen=True, slots=True)
class Untold(Biased[V]):
    """Maps `bias`, and does not tell it."""

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.input,)

    def map_operands(self, f: Callable[[V], W]) -> "Untold[Any]":
        return Untold(f(self.result), f(self.input), f(self.bias))


@pytest.mark.parametrize("kind", [Biased, Untold])
def test_a_forgotten_operand_is_noticed(kind: type[Operation[Buffer]]) -> None:
    with pytest.raises(AssertionError, match="b2"):
        check(kind)


def test_every_operation_of_a_core_has_an_emitter() -> None:
    assert set(EMIT) == set(ALL) - TILES_ONLY


@pytest.mark.parametrize("kind", [kind for kind in ALL if made(kind).results])
def test_scratch_is_named_after_the_result(kind: type[Operation[Buffer]]) -> None:
    """So that operations whose results differ have memory of their own, also after renaming."""
    operation = made(kind)
    (result,) = operation.results
    for scratch in operation.scratch:
        assert scratch.name.startswith(f"{result.name}.")
        assert scratch.elements <= result.elements
