"""C functions of forms: loops over elements, and tables of offsets for what differs from run to run.

In a function, `p[k]` is the address of the buffer in slot k, and `w` the first of the step's matrices. Offsets in
tables count bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.codegen.c.c_types import element_size, format_table, spell_type
from raptor.codegen.c.integer_code import write_bound, write_lookup, write_requantise, write_requantise_at_once
from raptor.graph.window import cached_input_pixels
from raptor.pim.operations import Buffer, LoadRows, Repeat
from raptor.pim.pool_terms import BOTH, ONE, TOTAL, order_terms
from raptor.pim.step_columns import OperationForm
from raptor.spatial.integer_operations import Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.spatial.operations import (
    UNIT_WEIGHT,
    ZERO_WEIGHT,
    ApplyFilters,
    ApplyLine,
    Average,
    Dot,
    Gather,
    Move,
    Operation,
    Overlap,
    Pool,
    Softmax,
    Stencil,
    Vector,
)
from raptor.spatial.scatter_plan import ADD_MORE, CLEAR, COPY, plan_scatter_add
from raptor.target.chip_elements import ElementType

FLOAT_FUNCTIONS = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b",
    "max": "pim_maxf(a, b)",
    "sum": "a + b",
    "mask": "pim_maskf(a, b)",
    "relu": "pim_reluf(a)",
    "exp": "(float)exp((double)a)",
    "log": "(float)log((double)a)",
    "sqrt": "(float)sqrt((double)a)",
    "tanh": "(float)tanh((double)a)",
    "erf": "(float)erf((double)a)",
    "sigmoid": "pim_sigmoid(a)",
}
"""C expression of each function of floats `a` and `b`."""
INTEGER_FUNCTIONS = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "max": "pim_max(a, b)",
    "sum": "a + b",
    "relu": "pim_max(a, 0)",
}
"""C expression of each function of integers `a` and `b`, in 64 bits."""


def find_value_type(element: ElementType) -> str:
    """Returns the C type in which an element is computed."""
    return "float" if element.kind == "float" else "int64_t"


def find_expression(function: str, element: ElementType) -> str:
    """Returns the C expression that applies a vector function to the C variables `a` and `b`, two elements."""
    return (FLOAT_FUNCTIONS if element.kind == "float" else INTEGER_FUNCTIONS)[function]


@dataclass(frozen=True, slots=True)
class FormWriter:
    """Writes the C function of one form. `unit`: bytes of PimIR that a unit of memory in C stands for."""

    form: OperationForm
    unit: int

    def slot(self, buffer: Buffer) -> int:
        """Returns the number of the slot of a buffer."""
        return self.form.slots.index(buffer)

    def body(self) -> Iterator[str]:
        """Yields the statements. The class of the operation must be in `WRITERS`."""
        operation = self.form.operation
        yield from WRITERS[type(operation)](self, operation)

    def load(self, buffer: Buffer, at: str, base: str = "") -> str:
        """Returns the C expression of element `at` of a buffer, or of the address `base`."""
        return f"pim_ld_{spell_type(buffer.element)}({base or f'p[{self.slot(buffer)}]'}, {at})"

    def store(self, buffer: Buffer, at: str, value: str, base: str = "") -> str:
        """Returns the C statement that stores a value in element `at` of a buffer, or of the address `base`."""
        return f"pim_st_{spell_type(buffer.element)}({base or f'p[{self.slot(buffer)}]'}, {at}, {value});"

    def product(self, given: Buffer, result: Buffer, row: str, x: str, y: str) -> str:
        types = f"PIM_{spell_type(given.element).upper()}", f"PIM_{spell_type(result.element).upper()}"
        return f"pim_mvm(w + {row}, {types[0]}, {x}, {types[1]}, {y});"

    def apply_line(self, op: ApplyLine[Buffer]) -> Iterator[str]:
        x, y = element_size(op.lines[0].element), element_size(op.result.element)
        slots = [self.slot(line) for line in op.lines]
        products: list[list[int]] = op.products.tolist()
        yield format_table(([g, slots[k], x * first, y * to] for g, k, first, to in products), 4)
        product = self.product(op.lines[0], op.result, "r[0]", "p[r[1]] + r[2]", f"p[{self.slot(op.result)}] + r[3]")
        yield f"{_each(len(op.products), 4)} {product}"

    def apply_filters(self, op: ApplyFilters[Buffer]) -> Iterator[str]:
        """A product of each pixel and matrix; the first of a pixel is the result, each later one is added to it."""
        inputs = cached_input_pixels(op.window)[:, list(op.taps)].astype(np.int64)
        pixel, index = np.nonzero(inputs >= 0)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        x, y, n = element_size(op.input.element), element_size(op.result.element), op.result.channels
        source = (inputs[pixel, index] * op.input.channels + op.channel) * x
        yield from self.clear(op.result, np.flatnonzero((inputs < 0).all(axis=1)), n)
        rows = np.stack([np.array(op.weights, np.int64)[index], source, pixel * n * y, first], axis=1)
        yield format_table(rows, 4)
        yield f"{_each(len(rows), 4)} {{"
        out, given = f"p[{self.slot(op.result)}] + r[2]", f"p[{self.slot(op.input)}] + r[1]"
        made = f"r[3] ? o : p[{self.slot(op.scratch[0])}]" if op.scratch else "o"
        yield f"char *o = {out}, *y = {made};"
        yield self.product(op.input, op.result, "r[0]", given, "y")
        if op.relu:
            kind = find_value_type(op.result.element)
            yield f"for (int j = 0; j < {n}; j++) {{ {kind} a = {self.load(op.result, 'j', 'y')};"
            yield f"{self.store(op.result, 'j', find_expression('relu', op.result.element), 'y')}}}"
        if op.scratch:
            total = f"{self.load(op.result, 'j', 'o')} + {self.load(op.result, 'j', 'y')}"
            yield f"if (!r[3]) for (int j = 0; j < {n}; j++) {self.store(op.result, 'j', total, 'o')}"
        yield "}"

    def clear(self, out: Buffer, pixels: npt.NDArray[np.integer], channels: int) -> Iterator[str]:
        """Yields zeros for some pixels of a result."""
        size = channels * element_size(out.element)
        if len(pixels):
            yield f"static const int z[] = {{{','.join(map(str, (pixels * size).tolist()))}}};"
            yield f"for (int i = 0; i < {len(pixels)}; i++) memset(p[{self.slot(out)}] + z[i], 0, {size});"

    def overlap(self, op: Overlap[Buffer]) -> Iterator[str]:
        size, out = element_size(op.result.element), self.slot(op.result)
        slots = [self.slot(source) for source in op.sources] + [0]
        rows: list[list[int]] = []
        plan: list[list[int]] = plan_scatter_add(op.runs, op.result.elements).tolist()
        for kind, to, n, left, left_at, right, right_at in plan:
            a = [out, to * size] if kind == ADD_MORE else [slots[left], left_at * size]
            rows.append([min(kind, 2), to * size, n, *a, slots[right], right_at * size])
        yield format_table(rows, 7)
        yield f"{_each(len(rows), 7)} {{"
        yield f"char *o = p[{out}] + r[1], *x = p[r[3]] + r[4], *y = p[r[5]] + r[6];"
        yield f"if (r[0] == {CLEAR}) memset(o, 0, (size_t)r[2] * {size});"
        yield f"else if (r[0] == {COPY}) memmove(o, x, (size_t)r[2] * {size});"
        total = f"{self.load(op.result, 'j', 'x')} + {self.load(op.result, 'j', 'y')}"
        yield f"else for (int j = 0; j < r[2]; j++) {self.store(op.result, 'j', total, 'o')}"
        yield "}"

    def vector(self, op: Vector[Buffer]) -> Iterator[str]:
        """An element-wise function, for each repetition of the shortest operand."""
        used = op.operands
        length = min(buffer.elements for buffer in (op.result, *used))
        names = dict(zip("ab", used, strict=False))
        at = {name: "i" if b.elements == length else "k + i" for name, b in names.items()}
        if op.function == "float":
            value = "(float)a"
        elif op.function == "round":
            value = f"pim_round(a, {op.result.element.low}.0, {op.result.element.high}.0)"
        else:
            value = find_expression(op.function, used[0].element)
        yield f"for (int k = 0; k < {op.result.elements}; k += {length}) for (int i = 0; i < {length}; i++) {{"
        for name, buffer in names.items():
            yield f"{find_value_type(buffer.element)} {name} = {self.load(buffer, at[name])};"
        yield f"{self.store(op.result, 'k + i', value)}}}"

    def repeat(self, op: Repeat[Buffer]) -> Iterator[str]:
        size, rows = element_size(op.result.element), op.result.rows
        piece, whole = op.source.elements // rows * size, op.result.elements // rows * size
        yield f"for (int y = 0; y < {rows}; y++) for (int i = 0; i < {whole}; i += {piece})"
        left = f"{piece}" if whole % piece == 0 else f"{whole} - i < {piece} ? {whole} - i : {piece}"
        yield f"memcpy(p[{self.slot(op.result)}] + y * {whole} + i, p[{self.slot(op.source)}] + y * {piece}, {left});"

    def places(self, op: Pool[Buffer] | Stencil[Buffer], pixel: npt.NDArray[np.integer]) -> list[list[int]]:
        """Returns slot and offset of pixels of the input: in the last buffer that begins at or before their row."""
        first, width = np.array([row for row, _ in op.inputs]), op.inputs[0][1].width
        which = np.searchsorted(first, pixel // width, side="right") - 1
        slots = np.array([self.slot(buffer) for _, buffer in op.inputs])[which]
        size = op.result.channels * element_size(op.inputs[0][1].element)
        return np.stack([slots, (pixel.astype(np.int64) - first[which] * width) * size], axis=1).tolist()

    def pool(self, op: Pool[Buffer]) -> Iterator[str]:
        """The terms of each pixel, in the order of `order_terms`: a long sum of floats is a tree of blocks."""
        inputs = cached_input_pixels(op.window)[op.row * op.result.width :][: op.result.pixels]
        taps = np.take_along_axis(inputs, np.argsort(inputs < 0, axis=1, kind="stable"), axis=1)
        counts = (inputs >= 0).sum(axis=1)
        terms, n = order_terms(taps, counts, op.block), op.result.channels
        size = n * element_size(op.result.element)
        totals = np.array([self.slot(buffer) for buffer in (op.result, *op.scratch)])
        left = self.places(op, np.where(terms.reads == BOTH, terms.left, 0))
        right = self.places(op, np.where(terms.reads == TOTAL, 0, terms.right))
        rows: list[list[int]] = []
        for k, (reads, at) in enumerate(zip(terms.reads.tolist(), (terms.pixel * size).tolist(), strict=True)):
            out = [int(totals[terms.total[k]]), at]
            a = left[k] if reads == BOTH else out
            b = [int(totals[terms.part[k]]), at] if reads == TOTAL else right[k]
            rows.append([int(reads == ONE), *out, *a, *b])
        yield from self.clear(op.result, np.flatnonzero(counts == 0), n)
        yield format_table(rows, 7)
        yield f"{_each(len(rows), 7)} {{"
        yield "char *o = p[r[1]] + r[2], *x = p[r[3]] + r[4], *y = p[r[5]] + r[6];"
        yield f"if (r[0]) memcpy(o, y, {size}); else for (int j = 0; j < {n}; j++) {{"
        yield f"{find_value_type(op.result.element)} a = {self.load(op.result, 'j', 'x')}, "
        yield f"b = {self.load(op.result, 'j', 'y')};"
        yield f"{self.store(op.result, 'j', find_expression(op.function, op.result.element), 'o')}}}}}"

    def stencil(self, op: Stencil[Buffer]) -> Iterator[str]:
        """Weighted pixels, added tap after tap; a pixel of weight 1 needs no product."""
        inputs, given, n = cached_input_pixels(op.window), op.inputs[0][1], op.result.channels
        index = np.broadcast_to(op.index, inputs.shape)
        used = (inputs >= 0) & (index != ZERO_WEIGHT)
        pixel, tap = np.nonzero(used)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        chosen = index[pixel, tap].astype(np.int64)
        weight = np.where(chosen == UNIT_WEIGHT, -1, chosen * op.together * n)
        out = pixel * n * element_size(op.result.element)
        rows = [
            [int(first[k]), int(out[k]), *place, int(weight[k])]
            for k, place in enumerate(self.places(op, inputs[pixel, tap]))
        ]
        yield from self.clear(op.result, np.flatnonzero(~used.any(axis=1)), n)
        yield format_table(rows, 5)
        kind = find_value_type(op.result.element)
        yield f"{_each(len(rows), 5)} {{ char *o = p[{self.slot(op.result)}] + r[1], *x = p[r[2]] + r[3];"
        yield f"for (int j = 0; j < {n}; j++) {{ {kind} v = {self.load(given, 'j', 'x')};"
        if op.vectors is not None:
            yield f"if (r[4] >= 0) v = v * {self.load(op.vectors, 'r[4] + j')};"
        total = f"r[0] ? v : {self.load(op.result, 'j', 'o')} + v"
        yield f"{self.store(op.result, 'j', total, 'o')}}}}}"

    def dot(self, op: Dot[Buffer]) -> Iterator[str]:
        rows, n, k = op.result.pixels // op.batch, op.result.channels, op.left.channels
        kind = "double" if op.left.element.kind == "float" else "int64_t"
        yield f"for (int b = 0; b < {op.batch}; b++) for (int i = 0; i < {rows}; i++) for (int j = 0; j < {n}; j++) {{"
        yield f"long l = (b * {rows}L + i) * {k}, m = (b * {op.cols}L + {op.first} + j) * {k}; {kind} s = 0;"
        left, right = self.load(op.left, "l + x"), self.load(op.right, "m + x")
        yield f"for (int x = 0; x < {k}; x++) s += ({kind}){left} * ({kind}){right};"
        yield f"{self.store(op.result, f'(b * {rows}L + i) * {n} + j', 's')}}}"

    def average(self, op: Average[Buffer]) -> Iterator[str]:
        n = op.input.channels
        yield f"for (int i = 0; i < {op.result.pixels}; i++) {{ double s = 0;"
        yield f"for (int j = 0; j < {n}; j++) s += (double){self.load(op.input, f'i * {n}L + j')};"
        yield f"{self.store(op.result, 'i', f'(float)(s / {n}.0)')}}}"

    def softmax(self, op: Softmax[Buffer]) -> Iterator[str]:
        size, n = op.result.channels * 4, op.result.channels
        out, given = self.slot(op.result), self.slot(op.input)
        yield f"for (int i = 0; i < {op.result.pixels}; i++) "
        yield f"pim_softmax(p[{out}] + i * {size}L, p[{given}] + i * {size}L, {n});"

    def move(self, op: Move[Buffer]) -> Iterator[str]:
        size = element_size(op.result.element)
        slots = [self.slot(source) for source in op.sources] + [-1]
        runs: list[list[int]] = op.runs.tolist()
        rows = [[to * size, slots[k], at * size, step * size, n] for to, k, at, step, n in runs]
        yield format_table(rows, 5)
        yield f"{_each(len(rows), 5)} {{ char *o = p[{self.slot(op.result)}] + r[0];"
        yield f"if (r[1] < 0) memset(o, 0, (size_t)r[4] * {size});"
        yield f"else if (r[3] == {size}) memmove(o, p[r[1]] + r[2], (size_t)r[4] * {size});"
        yield f"else pim_move(o, p[r[1]] + r[2], r[3], r[4], {size});}}"

    def gather(self, op: Gather[Buffer]) -> Iterator[str]:
        size, out = element_size(op.result.element), self.slot(op.result)
        yield f"for (int i = 0; i < {op.result.pixels}; i++) {{"
        for piece in op.pieces:
            to = f"p[{out}] + i * {op.result.channels * size}L + {piece.target * size}"
            source = f"p[{self.slot(piece.value)}] + i * {piece.value.channels * size}L + {piece.source * size}"
            yield f"memmove({to}, {source}, {piece.channels * size});"
        yield "}"

    def load_rows(self, op: LoadRows[Buffer]) -> Iterator[str]:
        """Rows of a table in global memory, whose addresses are in units of its elements."""
        size = op.result.channels * element_size(op.result.element)
        ids = ",".join(map(str, (op.ids // self.unit).tolist()))
        yield f"static const int64_t t[] = {{{ids}}};"
        yield f"for (int i = 0; i < {len(op.ids)}; i++)"
        place = f"p[{self.slot(op.result)}] + i * {size}L"
        table, stride = op.table // self.unit, op.stride // self.unit
        yield f"pim_load_row({place}, {size}, t[i], {table}, {stride}, {op.rows});"


def _each(count: int, columns: int) -> str:
    """Returns the head of a loop over the rows `r` of table `t`."""
    return f"for (const int *r = t[0], *end = r + {count * columns}; r < end; r += {columns})"


WRITERS: dict[type[Operation[Buffer]], Callable[[FormWriter, Any], Iterator[str]]] = {
    ApplyLine: FormWriter.apply_line,
    ApplyFilters: FormWriter.apply_filters,
    Overlap: FormWriter.overlap,
    Vector: FormWriter.vector,
    Repeat: FormWriter.repeat,
    Pool: FormWriter.pool,
    Stencil: FormWriter.stencil,
    Dot: FormWriter.dot,
    Average: FormWriter.average,
    Gather: FormWriter.gather,
    Move: FormWriter.move,
    Softmax: FormWriter.softmax,
    LoadRows: FormWriter.load_rows,
    Requantise: write_requantise,
    RequantiseAtOnce: write_requantise_at_once,
    Bound: write_bound,
    Lookup: write_lookup,
}
"""Writer of each class of operations."""
