"""C functions of the forms of quantised models, element by element in 64 bits.

The compiler has proved that every value fits the type in which it is stored, so nothing is checked here.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from raptor.codegen.c.c_types import format_table
from raptor.pim.operations import Buffer
from raptor.spatial.integer_operations import SCALAR, Bound, Lookup, Requantise, RequantiseAtOnce

_STEPS = {
    "mul": "{} * {}",
    "add": "{} + {}",
    "sub": "{} - {}",
    "sra": "{} >> {}",
    "sll": "(int64_t)((uint64_t){} << {})",
    "max": "pim_max({}, {})",
    "min": "pim_min({}, {})",
}
"""C expression of each step of a recipe."""
_PARAMETER_BYTES = 16
"""Bytes of the parameters of an element of `RequantiseAtOnce`: four words."""


class _Accesses(Protocol):
    """The part of a writer of forms that writes accesses to buffers."""

    def slot(self, buffer: Buffer) -> int: ...
    def load(self, buffer: Buffer, at: str, base: str = "") -> str: ...
    def store(self, buffer: Buffer, at: str, value: str, base: str = "") -> str: ...


def write_requantise(writer: _Accesses, op: Requantise[Buffer]) -> Iterator[str]:
    """Yields the steps of the recipe for each element, then the clamp."""
    row = op.result.width * op.result.channels
    numbers = np.where(op.index == SCALAR, 0, op.index)
    slots = np.array([*map(writer.slot, op.tables)] or [0])[numbers]
    if op.recipe.steps:
        yield format_table(slots, len(op.recipe.steps))
    yield f"for (int y = 0; y < {op.result.rows}; y++) for (int i = 0; i < {row}; i++) {{"
    for number, source in enumerate(op.sources):
        yield f"int64_t v{number} = {writer.load(source, f'y * {row}L + i')};"
    last = 0
    for number, step in enumerate(op.recipe.steps):
        if isinstance(step.right, int):
            right = f"v{step.right}"
        elif int(op.index[0, number]) == SCALAR:
            right = f"({int(step.right.item())})"
        else:
            held = op.tables[int(op.index[0, number])]
            at = "i" if held.elements == row else f"i % {held.elements}"
            right = writer.load(held, at, f"p[t[y][{number}]]")
        last = len(op.sources) + number
        yield f"int64_t v{last} = {_STEPS[step.op].format(f'v{step.left}', right)};"
    clamped = f"pim_min(pim_max(v{last}, {op.recipe.low}), {op.recipe.high})"
    yield f"{writer.store(op.result, f'y * {row}L + i', clamped)}}}"


def write_requantise_at_once(writer: _Accesses, op: RequantiseAtOnce[Buffer]) -> Iterator[str]:
    """Yields a requantisation of each element, whose parameters take 16 bytes in the table of its row."""
    row = op.result.width * op.result.channels
    slots = np.array([writer.slot(held) for held in op.tables])[op.index]
    yield format_table(slots.reshape(-1, 1), 1)
    yield f"for (int y = 0; y < {op.result.rows}; y++) for (int i = 0; i < {row}; i++) {{"
    source = writer.load(op.source, f"y * {row}L + i")
    found = f"pim_requantise({source}, p[t[y][0]] + i * {_PARAMETER_BYTES}L)"
    yield f"{writer.store(op.result, f'y * {row}L + i', found)}}}"


def write_bound(writer: _Accesses, op: Bound[Buffer]) -> Iterator[str]:
    """Yields the clamp of each element."""
    value = writer.load(op.source, "i")
    value = value if op.low is None else f"pim_max({value}, {op.low})"
    value = value if op.high is None else f"pim_min({value}, {op.high})"
    yield f"for (int i = 0; i < {op.result.elements}; i++) {writer.store(op.result, 'i', value)}"


def write_lookup(writer: _Accesses, op: Lookup[Buffer]) -> Iterator[str]:
    """Yields the lookup of each element."""
    found = writer.load(op.table, f"{writer.load(op.source, 'i')} + {-op.source.element.low}")
    yield f"for (int i = 0; i < {op.result.elements}; i++) {writer.store(op.result, 'i', found)}"
