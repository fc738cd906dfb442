"""Instruction selection for operations on integers: requantisation, clamping, table lookup.

Operations of one layer differ in their addresses only. So their instructions are made once (and cached), with the
number of a value in place of each address (`_CodeTemplate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Protocol

import numpy as np

from raptor.codegen.pimsim.assign_registers import UNUSED_REGISTER, Ints, Symbolic, make_virtual, width_code
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.pim.operations import Buffer
from raptor.spatial.integer_operations import WORD, Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.target import isa
from raptor.target.chip_elements import ElementType, bytes_of

_OUT, _IN, _LOW, _HIGH, _TABLES, _WORDS = 1, 2, 8, 9, 10, 22
"""First registers by purpose: result, sources, bounds, tables, words. Tables keep their registers from line to line."""
_OPCODE = {"mul": "vvmul", "add": "vvadd", "sub": "vvsub", "sra": "vvsra", "sll": "vvsll"}


class _Places(Protocol):
    """The part of an emitter that returns addresses of buffers."""

    def address_of(self, buffer: Buffer) -> int: ...


@dataclass(frozen=True, slots=True)
class _SymbolicOperand:
    """An operand in `register`: the address of value `value` plus `offset` bytes, or `offset` if `value` < 0."""

    register: int
    value: int
    offset: int = 0


_NOTHING = _SymbolicOperand(UNUSED_REGISTER, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _CodeTemplate:
    """Instructions without addresses. value: [instructions, operands], number of the value addressed; -1 for none."""

    block: Symbolic
    value: Ints

    def place_at(self, addresses: Sequence[int]) -> Symbolic:
        """Returns the instructions for values at these addresses."""
        block = self.block.copy()
        block["value"] += np.array([*addresses, 0], np.int64)[self.value]
        return block


_Row = tuple[int, int, int, tuple[_SymbolicOperand, ...]]
"""Opcode, width code, length and operands of an instruction."""


@dataclass(frozen=True, slots=True)
class _InstructionWriter:
    """Collects instructions."""

    rows: list[_Row] = field(default_factory=list[_Row])

    def add(self, name: str, bits: tuple[int, int], length: int, *operands: _SymbolicOperand) -> None:
        """Adds an instruction. bits: widths of the elements that it reads and writes."""
        self.rows.append((isa.OPCODE[name], width_code(*bits), length, (*operands, _NOTHING, _NOTHING)[:3]))

    def template(self) -> _CodeTemplate:
        block = make_virtual("vvadd", len(self.rows))
        operands = np.array([[(o.register, o.offset, o.value) for o in row[3]] for row in self.rows], np.int64)
        block["opcode"], block["widths"], block["d"] = np.array([row[:3] for row in self.rows], np.int64).T
        block["register"], block["value"] = operands[:, :, 0], operands[:, :, 1]
        return _CodeTemplate(block, operands[:, :, 2].astype(np.intp))


@dataclass(frozen=True, slots=True)
class _Shape:
    """The values of a requantisation, numbered in the order: result, sources, tables, words.

    widths: bits with which the steps read each source. tables: number of tables. row: elements of a row.
    """

    result: ElementType
    sources: tuple[ElementType, ...]
    widths: tuple[int, ...]
    tables: int
    row: int

    @property
    def widened(self) -> tuple[int, ...]:
        """Numbers of the sources that are converted to a wider type first."""
        return tuple(i for i, bits in enumerate(self.widths) if bits > self.sources[i].bits)

    def out(self, row: int) -> _SymbolicOperand:
        return _SymbolicOperand(_OUT, 0, row * self.row * bytes_of(self.result.bits))

    def source(self, number: int, row: int) -> _SymbolicOperand:
        return _SymbolicOperand(_IN + number % 2, 1 + number, row * self.row * bytes_of(self.sources[number].bits))

    def table(self, number: int) -> _SymbolicOperand:
        return _SymbolicOperand(_TABLES + number % (_WORDS - _TABLES), 1 + len(self.sources) + number)

    def word(self, number: int) -> _SymbolicOperand:
        register = _WORDS + number % (isa.REGISTER_COUNT - _WORDS)
        return _SymbolicOperand(register, 1 + len(self.sources) + self.tables + number)


def emit_requantise(emitter: _Places, op: Requantise[Buffer]) -> Symbolic:
    """Emits the steps of the recipe, row by row, then the clamps, the last of which also narrows the integers."""
    shape = _Shape(
        op.result.element,
        tuple(s.element for s in op.sources),
        op.widths,
        len(op.tables),
        op.result.width * op.result.channels,
    )
    template = _requantise(op.recipe, shape, op.index.shape[0], op.index.tobytes())
    return template.place_at([emitter.address_of(b) for b in chain(op.results, op.sources, op.tables, op.scratch)])


@lru_cache(maxsize=4096)
def _requantise(recipe: RequantiseRecipe, shape: _Shape, rows: int, index: bytes) -> _CodeTemplate:
    writer = _InstructionWriter()
    tables = np.frombuffer(index, np.int64).reshape(rows, -1).tolist()
    for row in range(rows):
        _RowWriter(recipe, shape, row, tables[row], writer).write()
    return writer.template()


@dataclass(frozen=True, slots=True)
class _RowWriter:
    """Writes the instructions of one row. tables: number of the table that each step reads."""

    recipe: RequantiseRecipe
    shape: _Shape
    row: int
    tables: Sequence[int]
    writer: _InstructionWriter

    def write(self) -> None:
        for k, n in enumerate(self.shape.widened):
            element, source = self.shape.sources[n], self.shape.source(n, self.row)
            self.bound("max", element.low, (element.bits, self.shape.widths[n]), self.shape.word(k), source)
        for number in range(len(self.recipe.steps)):
            self.step(number)
        self.finish()

    def step(self, number: int) -> None:
        step = self.recipe.steps[number]
        (target, _), (left, bits) = self.value(len(self.shape.sources) + number), self.value(step.left)
        narrow = self.last_bits if number + 1 == len(self.recipe.steps) else WORD.bits
        if step.op in ("max", "min"):
            assert not isinstance(step.right, int)
            self.bound(step.op, int(step.right.item()), (bits, narrow), target, left)
            return
        right = self.value(step.right)[0] if isinstance(step.right, int) else self.shape.table(self.tables[number])
        self.writer.add(_OPCODE[step.op], (bits, narrow), self.shape.row, target, left, right)

    def value(self, number: int) -> tuple[_SymbolicOperand, int]:
        """Returns the operand of value `number` of the recipe, and its bits."""
        shape, step = self.shape, number - len(self.shape.sources)
        if step >= 0:
            return shape.word(len(shape.widened) + self.recipe.assign_registers()[step]), WORD.bits
        if number in shape.widened:
            return shape.word(shape.widened.index(number)), shape.widths[number]
        return shape.source(number, self.row), shape.sources[number].bits

    @property
    def last_bits(self) -> int:
        """Bits of the value of the last step: 16 take half the time of 32. Sums have the width of their operands."""
        fits = self.recipe.result_low >= -(2**15) and self.recipe.result_high < 2**15
        return 16 if fits and self.recipe.steps[-1].op not in ("add", "sub") else WORD.bits

    def finish(self) -> None:
        """Writes the clamps of the result."""
        recipe, shape, result = self.recipe, self.shape, self.shape.result.bits
        value, bits = self.value(len(shape.sources) + len(recipe.steps) - 1) if recipe.steps else self.value(0)
        bits = self.last_bits if recipe.steps else bits
        below, above = recipe.result_low < recipe.low, recipe.result_high > recipe.high
        if below and above:
            word = value if recipe.steps else shape.word(len(shape.widened))
            self.bound("max", recipe.low, (bits, bits), word, value)
            self.bound("min", recipe.high, (bits, result), shape.out(self.row), word)
        else:
            end = recipe.low if below else recipe.high
            self.bound("max" if below else "min", end, (bits, result), shape.out(self.row), value)

    def bound(
        self, op: str, end: int, bits: tuple[int, int], target: _SymbolicOperand, source: _SymbolicOperand
    ) -> None:
        name, register = ("vrsl", _LOW) if op == "max" else ("vrsu", _HIGH)
        self.writer.add(name, bits, self.shape.row, target, source, _SymbolicOperand(register, -1, end))


def emit_requantise_at_once(emitter: _Places, op: RequantiseAtOnce[Buffer]) -> Symbolic:
    """Emits one `vrequant` for each row."""
    row = op.result.width * op.result.channels
    shape = _Shape(op.result.element, (op.source.element,), (op.source.element.bits,), len(op.tables), row)
    writer = _InstructionWriter()
    for number, table in enumerate(op.index.tolist()):
        bits = op.source.element.bits, op.result.element.bits
        writer.add("vrequant", bits, row, shape.out(number), shape.source(0, number), shape.table(table))
    return writer.template().place_at([emitter.address_of(b) for b in chain(op.results, (op.source,), op.tables)])


def emit_bound(emitter: _Places, op: Bound[Buffer]) -> Symbolic:
    """Emits one instruction for each bound. Without bounds, the lowest integer of the type serves as a lower bound."""
    given, result, length = op.source.element.bits, op.result.element.bits, op.result.elements
    writer = _InstructionWriter()
    out, source = _SymbolicOperand(_OUT, 0), _SymbolicOperand(_IN, 1)
    if op.low is not None and op.high is not None:
        middle = _SymbolicOperand(_WORDS, 2)
        writer.add("vrsl", (given, given), length, middle, source, _SymbolicOperand(_LOW, -1, op.low))
        writer.add("vrsu", (given, result), length, out, middle, _SymbolicOperand(_HIGH, -1, op.high))
    elif op.high is not None:
        writer.add("vrsu", (given, result), length, out, source, _SymbolicOperand(_HIGH, -1, op.high))
    else:
        low = op.source.element.low if op.low is None else op.low
        writer.add("vrsl", (given, result), length, out, source, _SymbolicOperand(_LOW, -1, low))
    return writer.template().place_at([emitter.address_of(b) for b in chain(op.results, (op.source,), op.scratch)])


def emit_table_lookup(emitter: _Places, op: Lookup[Buffer]) -> Symbolic:
    """Emits one `vlut`."""
    writer = _InstructionWriter()
    bits = op.source.element.bits, op.result.element.bits
    writer.add(
        "vlut",
        bits,
        op.result.elements,
        _SymbolicOperand(_OUT, 0),
        _SymbolicOperand(_IN, 1),
        _SymbolicOperand(_TABLES, 2),
    )
    return writer.template().place_at([emitter.address_of(b) for b in (op.result, op.source, op.table)])
