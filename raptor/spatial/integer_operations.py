"""Operations on integers: requantisation, bounds, tables. They are declared as in `raptor.spatial.operations`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.steps import Recipe, Step
from raptor.spatial.operations import OneResult, V, W
from raptor.target.element import integer

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
        count = len(self.widened) + max(self.recipe.registers(), default=0) + 1
        row = replace(self.result, rows=1, element=WORD)
        return tuple(replace(row, name=f"{self.result.name}.word{k}") for k in range(count))

    @property
    def widened(self) -> tuple[int, ...]:
        """Numbers of the sources that become words first: not those that are words, or that are only bounded."""
        used = {n for step in self.recipe.steps for n in _computed_with(step)}
        return tuple(i for i, source in enumerate(self.sources) if i in used and source.element != WORD)

    def map_operands(self, f: Callable[[V], W]) -> "Requantise[W]":
        sources, tables = tuple(map(f, self.sources)), tuple(map(f, self.tables))
        return Requantise(f(self.result), sources, tables, self.index, self.recipe)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"steps = {len(self.recipe.steps)}",)


def _computed_with(step: Step) -> tuple[int, ...]:
    """Returns the numbers of the values that a step reads as words. A bound reads integers of any width."""
    if step.op in ("max", "min"):
        return ()
    return (step.left, step.right) if isinstance(step.right, int) else (step.left,)


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
