"""SpatialIR operations of quantised models: requantisation, clamping, lookup (see `raptor.spatial.operations`)."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.requantise.vector_program import RequantiseRecipe, VectorStep
from raptor.spatial.operations import OneResult, V
from raptor.target.chip_elements import ElementType, integer_type

WORD = integer_type(32)
"""Element type of intermediate values of a requantisation."""
SCALAR = -1
"""Entry of `Requantise.index` for a step without a vector of constants."""


class Requantise(OneResult[V], frozen=True, gc=False, eq=False):
    """Applies a requantisation recipe to each row of its sources, and clamps the result.

    tables: distinct vectors of constants, each one pixel or one row. index: [rows of the result, steps] -> number of
    the table that the step reads, or `SCALAR`.
    """

    sources: tuple[V, ...]
    tables: tuple[V, ...]
    index: npt.NDArray[np.int64]
    recipe: RequantiseRecipe

    @property
    def reads(self) -> tuple[V, ...]:
        return self.sources

    @property
    def scratch(self) -> tuple[V, ...]:
        """Temporary rows: one for each source that is widened first, then one for each register of the recipe."""
        registers = max(self.recipe.assign_registers(), default=0) + 1
        types = [integer_type(self.widths[i]) for i in self.widened] + [WORD] * registers
        row = structs.replace(self.result, rows=1)
        return tuple(
            structs.replace(row, name=f"{self.result.name}.word{k}", element=type_) for k, type_ in enumerate(types)
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits with which the steps read each source."""
        return operand_widths(self.recipe, tuple(source.element.bits for source in self.sources))

    @property
    def widened(self) -> tuple[int, ...]:
        """Numbers of the sources that are converted to a wider type first."""
        return tuple(i for i, bits in enumerate(self.widths) if bits > self.sources[i].element.bits)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"steps = {len(self.recipe.steps)}",)


@lru_cache(maxsize=4096)
def operand_widths(recipe: RequantiseRecipe, bits: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the bits with which the steps of a recipe read its operands, which are stored in `bits`.

    An instruction reads both operands in one width. A multiplication by constants reads the width that holds both its
    operands; every other step reads 32-bit words. `max` and `min` read any width.
    """
    wanted = list(bits)
    for step in recipe.steps:
        read = (step.left, step.right) if isinstance(step.right, int) else (step.left,)
        for number in (n for n in read if n < len(bits) and step.op not in ("max", "min")):
            narrow = step.op == "mul" and not isinstance(step.right, int)
            wanted[number] = max(wanted[number], _bits_of(step) if narrow else WORD.bits)
    return tuple(wanted)


def _bits_of(step: VectorStep) -> int:
    """Returns the smallest multiple of 8 bits that holds all constants of a step."""
    assert not isinstance(step.right, int)
    low, high = int(step.right.min()), int(step.right.max())
    return next(bits for bits in (8, 16, 24, 32) if integer_type(bits).low <= low and high <= integer_type(bits).high)


def table_type(recipe: RequantiseRecipe, number: int, bits: tuple[int, ...]) -> ElementType:
    """Returns the element type of the constants of step `number`. `bits`: stored bits of the operands."""
    left = recipe.steps[number].left
    return integer_type(operand_widths(recipe, bits)[left]) if left < len(bits) else WORD


class RequantiseAtOnce(OneResult[V], frozen=True, gc=False, eq=False):
    """Requantises each row of its source with one `vrequant` instruction.

    tables: distinct vectors of parameters, four words per element, each one pixel or one row. index: [rows of the
    result] -> number of its table.
    """

    source: V
    tables: tuple[V, ...]
    index: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[V, ...]:
        return (self.source,)


class Bound(OneResult[V], frozen=True, gc=False):
    """Clamps to the integers [low, high], in the type of the result. A bound that is None is left out."""

    source: V
    low: int | None
    high: int | None

    @property
    def scratch(self) -> tuple[V, ...]:
        """The result of the first of two bounds."""
        if self.low is None or self.high is None:
            return ()
        return (structs.replace(self.result, name=f"{self.result.name}.bounded", element=self.source.element),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"low = {self.low}", f"high = {self.high}")


class Lookup(OneResult[V], frozen=True, gc=False):
    """Table lookup per element: result = table[source - lowest integer of the source's type]."""

    source: V
    table: V

    @property
    def reads(self) -> tuple[V, ...]:
        return (self.source,)
