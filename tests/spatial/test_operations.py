"""Every operation class tells all it reads and writes, and `map_operands` changes all of it and nothing else."""

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from msgspec.structs import fields, replace

from raptor.codegen.pimsim.emit import EMITTERS
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.pim.operations import Buffer, Load, LoadRows, Receive, Repeat, Send, Store
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import ChannelPiece, OneResult, Operation, V, Vector, W
from raptor.spatial.tiles import ConstantTile, ShapedValue, Tile


def concrete(kind: type) -> Iterator[type[Operation[Buffer]]]:
    """The classes of operations of both levels."""
    for below in kind.__subclasses__():
        module = sys.modules[below.__module__]
        if module.__name__.startswith("raptor.") and below is not OneResult:
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
    if get_origin(annotation) is ChannelPiece:
        return ChannelPiece(sample(V, number), 0, 0, 1)
    if get_origin(annotation) is Union and V in arguments:
        return sample(V, number)
    if get_origin(annotation) is np.ndarray:
        return np.zeros(4, np.int64)
    if annotation is RequantiseRecipe:
        return RequantiseRecipe(((0, 1), (0, 1)), (), (), 0, 1)
    return next(number) if annotation is int else object()


def made(kind: type[Operation[Buffer]]) -> Operation[Buffer]:
    number = count()
    hints = get_type_hints(kind)
    return kind(**{field.name: sample(hints[field.name], number) for field in fields(kind)})


def values_in(thing: Any) -> list[ShapedValue]:
    """The values that a field holds, however deep."""
    if isinstance(thing, ShapedValue):
        return [thing]
    if isinstance(thing, ChannelPiece):
        return [thing.value]
    return [value for part in thing for value in values_in(part)] if isinstance(thing, tuple) else []


def held(operation: Operation[Buffer]) -> dict[str, list[ShapedValue]]:
    """Values by field."""
    return {field.name: values_in(getattr(operation, field.name)) for field in fields(operation)}


def other(value: ShapedValue) -> Buffer:
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


class Biased(OneResult[V], frozen=True, gc=False):
    """Forgets that it reads `bias`."""

    input: V
    bias: V

    def map_operands(self, f: Callable[[V], W]) -> "Biased[Any]":
        return Biased(f(self.result), f(self.input), self.bias)


class Untold(Biased[V], frozen=True, gc=False):
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


def changed(thing: Any) -> Any:
    """A field with the same values, and with everything else different."""
    if isinstance(thing, ShapedValue):
        return thing
    if isinstance(thing, ChannelPiece):
        return ChannelPiece(thing.value, thing.source + 1, thing.target, thing.channels)
    if isinstance(thing, tuple):
        return tuple(map(changed, thing))
    if isinstance(thing, int | np.ndarray):
        return thing + 1
    return dataclasses.replace(thing, low=thing.low - 1) if isinstance(thing, RequantiseRecipe) else object()


def tells_all(operation: Operation[Buffer]) -> None:
    """Raises `AssertionError` if a field may change, and the form of the operation stays."""
    for field in fields(operation):
        before = getattr(operation, field.name)
        after = changed(before)
        if values_in(before) and not isinstance(before, ShapedValue) and after == before:
            continue  # nothing but values
        if not isinstance(before, ShapedValue):
            assert replace(operation, **{field.name: after}).form != operation.form, f"the form forgets {field.name}"


@pytest.mark.parametrize("kind", sorted(set(ALL) - BUFFERS_ONLY, key=lambda kind: kind.__name__))
def test_a_form_tells_all_but_the_values(kind: type[Operation[Buffer]]) -> None:
    operation = made(kind)
    tells_all(operation)
    assert operation.map_operands(other).form == operation.form


class Scaled(OneResult[V], frozen=True, gc=False):
    """Forgets that it has a factor."""

    input: V
    factor: int

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return ()


def test_a_parameter_that_the_form_forgets_is_noticed() -> None:
    with pytest.raises(AssertionError, match="the form forgets factor"):
        tells_all(made(Scaled))


def test_equal_operands_are_equal_in_all_operations_of_a_form() -> None:
    a, b, out = (Buffer(name, 1, 1, 4) for name in ("a", "b", "out"))
    assert Vector(out, "add", (a, a)).form != Vector(out, "add", (a, b)).form
    assert Vector(out, "add", (a, a)).form == Vector(a, "add", (b, b)).form
    constant = ConstantTile.from_pixels("a", np.zeros((1, 1, 4)))
    tile = Tile("a", 1, 1, 4)
    assert Vector(Tile("t", 1, 1, 4), "relu", (constant,)).form != Vector(Tile("t", 1, 1, 4), "relu", (tile,)).form


def test_every_operation_of_a_core_has_an_emitter() -> None:
    assert set(EMITTERS) == set(ALL) - TILES_ONLY


@pytest.mark.parametrize("kind", [kind for kind in ALL if made(kind).results])
def test_scratch_is_named_after_the_result(kind: type[Operation[Buffer]]) -> None:
    """So that operations whose results differ have memory of their own, also after renaming."""
    operation = made(kind)
    (result,) = operation.results
    for scratch in operation.scratch:
        assert scratch.name.startswith(f"{result.name}.")
        assert scratch.elements <= result.elements
