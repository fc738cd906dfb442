"""Operations on integers: requantisation, bounds, tables. They are declared as in `raptor.spatial.operations`."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from raptor.graph.steps import Recipe, Step
from raptor.spatial.operations import OneResult, V, W
from raptor.target.element import ElementType, integer

WORD = integer(32)
"""The integers that a requantisation computes with."""
SCALAR = -1
"""Entry of `Requantise.index` for a step that needs no vector of constants."""


@dataclass(frozen=True, slots=True, eq=False)
class Requantise(OneResult[V]):
    """Runs a recipe on every row of its sources, and clamps.

    tables: different vectors of constants, each a pixel or a row. index: [row of the result, step] -> number of the
    table that the step reads, or `SCALAR`.
    """

    sources: tuple[V, ...]
    tables: tuple[V, ...]
    index: npt.NDArray[np.int64]
    recipe: Recipe

    @property
    def operands(self) -> tuple[V, ...]:
        return (*self.sources, *self.tables)

    @property
    def reads(self) -> tuple[V, ...]:
        return self.sources

    @property
    def scratch(self) -> tuple[V, ...]:
        """Rows of words: one for each source that is made wider, and one for each register of the recipe."""
        registers = max(self.recipe.registers(), default=0) + 1
        types = [integer(self.widths[i]) for i in self.widened] + [WORD] * registers
        row = replace(self.result, rows=1)
        return tuple(replace(row, name=f"{self.result.name}.word{k}", element=type_) for k, type_ in enumerate(types))

    @property
    def widths(self) -> tuple[int, ...]:
        """The bits with which the steps read each source."""
        return operand_widths(self.recipe, tuple(source.element.bits for source in self.sources))

    @property
    def widened(self) -> tuple[int, ...]:
        """Numbers of the sources that are made wider first."""
        return tuple(i for i, bits in enumerate(self.widths) if bits > self.sources[i].element.bits)

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return (len(self.sources), self.index.tobytes(), self.recipe)

    def map_operands(self, f: Callable[[V], W]) -> "Requantise[W]":
        sources, tables = tuple(map(f, self.sources)), tuple(map(f, self.tables))
        return Requantise(f(self.result), sources, tables, self.index, self.recipe)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"steps = {len(self.recipe.steps)}",)


@lru_cache(maxsize=4096)
def operand_widths(recipe: Recipe, bits: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the bits with which the steps of a recipe read its operands, which have `bits`.

    An instruction reads both operands in one width. A product writes words, but reads what both its operands need;
    every other step computes in words. Bounds read integers of any width.
    """
    wanted = list(bits)
    for step in recipe.steps:
        read = (step.left, step.right) if isinstance(step.right, int) else (step.left,)
        for number in (n for n in read if n < len(bits) and step.op not in ("max", "min")):
            narrow = step.op == "mul" and not isinstance(step.right, int)
            wanted[number] = max(wanted[number], _bits_of(step) if narrow else WORD.bits)
    return tuple(wanted)


def _bits_of(step: Step) -> int:
    """Returns the bits, in whole bytes, that hold all constants of a step."""
    assert not isinstance(step.right, int)
    low, high = int(step.right.min()), int(step.right.max())
    return next(bits for bits in (8, 16, 24, 32) if integer(bits).low <= low and high <= integer(bits).high)


def table_type(recipe: Recipe, number: int, bits: tuple[int, ...]) -> ElementType:
    """Returns the type of the constants of a step: that with which it reads its other operand."""
    left = recipe.steps[number].left
    return integer(operand_widths(recipe, bits)[left]) if left < len(bits) else WORD


@dataclass(frozen=True, slots=True, eq=False)
class RequantiseAtOnce(OneResult[V]):
    """Requantises every row of its source with one instruction.

    tables: different vectors of parameters, four words for each element, each for a pixel or a row. index: [row of the
    result] -> number of its table.
    """

    source: V
    tables: tuple[V, ...]
    index: npt.NDArray[np.int64]

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source, *self.tables)

    @property
    def reads(self) -> tuple[V, ...]:
        return (self.source,)

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return (self.index.tobytes(),)

    def map_operands(self, f: Callable[[V], W]) -> "RequantiseAtOnce[W]":
        return RequantiseAtOnce(f(self.result), f(self.source), tuple(map(f, self.tables)), self.index)


@dataclass(frozen=True, slots=True)
class Bound(OneResult[V]):
    """min(max(source, low), high), in the type of the result; a bound that is None is left out."""

    source: V
    low: int | None
    high: int | None

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    @property
    def scratch(self) -> tuple[V, ...]:
        """The result of the first bound, if there are two."""
        if self.low is None or self.high is None:
            return ()
        return (replace(self.result, name=f"{self.result.name}.bounded", element=self.source.element),)

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        return (self.low, self.high)

    def map_operands(self, f: Callable[[V], W]) -> "Bound[W]":
        return Bound(f(self.result), f(self.source), self.low, self.high)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"low = {self.low}", f"high = {self.high}")


@dataclass(frozen=True, slots=True)
class Lookup(OneResult[V]):
    """table[source - smallest source], element by element."""

    source: V
    table: V

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source, self.table)

    @property
    def reads(self) -> tuple[V, ...]:
        return (self.source,)

    def map_operands(self, f: Callable[[V], W]) -> "Lookup[W]":
        return Lookup(f(self.result), f(self.source), f(self.table))
