"""Instruction selection: one function per operation class emits virtual instructions for a form, as array columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.codegen.pimsim.assign_registers import (
    UNUSED_REGISTER,
    Ints,
    Symbolic,
    address_symbol,
    make_virtual,
    set_operand,
    width_code,
)
from raptor.codegen.pimsim.emit_integers import emit_bound, emit_requantise, emit_requantise_at_once, emit_table_lookup
from raptor.codegen.pimsim.emit_lookups import emit_load_rows
from raptor.codegen.pimsim.pixel_runs import find_joint_runs, find_pixel_runs, pieces
from raptor.common.errors import VerifyError
from raptor.graph.window import cached_input_pixels
from raptor.pim.operations import Buffer, Load, LoadRows, Receive, Repeat, Send, Store
from raptor.pim.pool_terms import BOTH, NEXT, ONE, TOTAL, PoolTerms, order_terms
from raptor.pim.step_columns import OperationForm
from raptor.spatial.integer_operations import Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.spatial.operations import (
    UNIT_WEIGHT,
    ZERO_WEIGHT,
    ApplyFilters,
    ApplyLine,
    Average,
    ChannelPiece,
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
from raptor.spatial.scatter_plan import ADD_MORE, ADD_TWO, CLEAR, COPY, plan_scatter_add
from raptor.target import isa
from raptor.target.arch import Target
from raptor.target.chip_elements import FLOAT32
from raptor.target.timing import copied_ends

# Each register has one purpose, so that its value is rarely overwritten and rarely loaded again.
ZERO = 0
"""Register that always holds 0: base of transfers whose address is in the offset field."""
OUT = 1
IN = 2
SCRATCH = 3
GLOBAL_HIGH = 4
GLOBAL_LOW = 5
STRIDE = 6
WEIGHT = 7

VECTOR_OPCODE = {
    "add": "vvadd",
    "sub": "vvsub",
    "mul": "vvmul",
    "max": "vvmax",
    "sum": "vvadd",
    "relu": "vrelu",
    "tanh": "vtanh",
    "sigmoid": "vsigm",
    "exp": "vexp",
    "log": "vlog",
    "sqrt": "vsqrt",
    "erf": "verf",
    "div": "vvdiv",
    "float": "vfloat",
    "round": "vround",
    "mask": "vvmask",
}
"""Instruction of each function of a `Vector`, `Pool` or `Stencil`."""


@dataclass(frozen=True, slots=True)
class Emitter:
    """Emits the instructions of one form.

    Sizes are in bytes; the addresses of slots are symbols (see `address_symbol`).
    """

    form: OperationForm
    target: Target

    def address_of(self, buffer: Buffer) -> int:
        """Returns the symbol of the byte address of a slot."""
        return address_symbol(self.form.slots.index(buffer))

    def size(self, buffer: Buffer) -> int:
        """Returns the bytes of an element of a buffer."""
        return self.target.bytes_of(buffer.element)

    def widths(self, given: Buffer, result: Buffer) -> int:
        """Returns the width code (see `width_code`) of an instruction that reads and writes such elements."""
        floats = FLOAT32 in (given.element, result.element)
        return width_code(self.target.bits_of(given.element), self.target.bits_of(result.element), floats=floats)

    def emit(self) -> Symbolic:
        operation = self.form.operation
        return EMITTERS[type(operation)](self, operation)

    def load(self, op: Load[Buffer]) -> Symbolic:
        block = make_virtual("ld", 1)
        set_operand(block, 0, ZERO, 0)
        set_operand(block, 1, GLOBAL_HIGH, 0)
        set_operand(block, 2, GLOBAL_LOW, 0)  # the low word takes the third slot, which is free
        # NOTE: the simulator ignores rd of ld; with the address as offset both readings agree.
        block["b"], block["c"] = 1, self.address_of(op.result)
        return block

    def load_rows(self, op: LoadRows[Buffer]) -> Symbolic:
        """Emits an embedding lookup (`raptor.codegen.pimsim.emit_lookups`)."""
        size = op.result.channels * self.size(op.result)
        return emit_load_rows(op, self.address_of(op.result), size, (ZERO, GLOBAL_HIGH, GLOBAL_LOW))

    def store(self, op: Store[Buffer]) -> Symbolic:
        # NOTE: the simulator ignores rs1 of st too; rd and the register after it hold the global address.
        block = make_virtual("st", 1)
        set_operand(block, 0, GLOBAL_HIGH, 0)
        set_operand(block, 1, ZERO, 0)
        set_operand(block, 2, GLOBAL_LOW, 0)
        block["b"], block["c"] = 2, self.address_of(op.source)
        return block

    def send(self, op: Send[Buffer]) -> Symbolic:
        block = make_virtual("send", 1)
        set_operand(block, 0, IN, self.address_of(op.source))
        set_operand(block, 1, IN, self.address_of(op.source))
        return block

    def receive(self, op: Receive[Buffer]) -> Symbolic:
        block = make_virtual("recv", 1)
        set_operand(block, 0, OUT, self.address_of(op.result))
        return block

    def apply_filters(self, op: ApplyFilters[Buffer]) -> Symbolic:
        """Emits an MVM for each output pixel and each matrix whose input pixel is not padding (thesis, algorithm 4.2).

        The first product of a pixel is written to the output; each later one to the accumulation buffer, then added.
        """
        inputs = cached_input_pixels(op.window)[:, list(op.taps)].astype(np.int64)
        pixel, index = np.nonzero(inputs >= 0)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        # A product takes one instruction, and one more to add it unless it is the first.
        product = np.arange(len(pixel)) + np.concatenate([[0], np.cumsum(~first)])[:-1]
        block = make_virtual("mvmul", len(pixel) + int((~first).sum()))
        block["widths"] = self.widths(op.input, op.result)
        out_address = self.address_of(op.result) + pixel * op.result.channels * self.size(op.result)
        in_address = (inputs[pixel, index] * op.input.channels + op.channel) * self.size(op.input) + self.address_of(
            op.input
        )
        scratch = self.address_of(op.scratch[0]) if op.scratch else 0

        block["register"][product, 0] = np.where(first, OUT, SCRATCH)
        block["value"][product, 0] = np.where(first, out_address, scratch)
        block["register"][product, 1] = IN
        block["value"][product, 1] = in_address
        block["b"][product] = op.relu
        block["c"][product] = np.array(op.weights)[index]
        block["a"][product] = self.weight_bits
        add = product[~first] + 1
        block["opcode"][add] = isa.OPCODE["vvadd"]
        block["widths"][add] = self.widths(op.result, op.result)
        block["register"][add] = (OUT, OUT, SCRATCH)
        block["value"][add, 0] = block["value"][add, 1] = out_address[~first]
        block["value"][add, 2] = scratch
        block["d"][add] = op.result.channels
        untouched = np.flatnonzero((inputs < 0).all(axis=1))
        return np.concatenate([self._zeros(op.result, untouched, op.result.channels), block])

    @property
    def weight_bits(self) -> int:
        return self.form.weight_bits or self.target.widths.weights

    def _zeros(self, out: Buffer, pixels: Ints, channels: int) -> Symbolic:
        """Emits zeros for output pixels that read only padding."""
        starts, lengths = find_pixel_runs(pixels)
        block = make_virtual("lldi", len(starts))
        pixel_bytes = channels * self.size(out)
        set_operand(block, 0, OUT, self.address_of(out) + starts * pixel_bytes)
        block["d"] = lengths * pixel_bytes
        return block

    def apply_line(self, op: ApplyLine[Buffer]) -> Symbolic:
        """Emits one MVM for each product."""
        group, line, source, target = op.products.T
        block = make_virtual("mvmul", len(group))
        block["widths"] = self.widths(op.lines[0], op.result)
        set_operand(block, 0, OUT, self.address_of(op.result) + target * self.size(op.result))
        set_operand(block, 1, IN, self._bases(op.lines, line) + source * self.size(op.lines[0]))
        block["a"], block["c"] = self.weight_bits, group
        return block

    def overlap(self, op: Overlap[Buffer]) -> Symbolic:
        """Emits a scatter-add of runs.

        An element of a single run is copied; of several runs, the first two are added into the result, all others to
        it.
        """
        kind, target, elements, left, left_at, right, right_at = plan_scatter_add(op.runs, op.result.elements).T
        size = self.size(op.result)
        out = self.address_of(op.result) + target * size
        block = make_virtual("vvadd", len(kind))
        block["widths"] = np.where(kind <= COPY, 0, self.widths(op.result, op.result))
        block["opcode"] = np.array([isa.OPCODE[name] for name in ("lldi", "lmv", "vvadd", "vvadd")])[kind]
        block["d"] = np.where(kind <= COPY, elements * size, elements)
        set_operand(block, 0, OUT, out)
        more = kind == ADD_MORE
        block["register"][:, 1] = np.where(kind == CLEAR, UNUSED_REGISTER, np.where(more, OUT, IN))
        block["value"][:, 1] = np.where(more, out, self._bases(op.sources, left) + left_at * size)
        block["register"][:, 2] = np.where(kind >= ADD_TWO, SCRATCH, UNUSED_REGISTER)
        block["value"][:, 2] = self._bases(op.sources, right) + right_at * size
        return block

    def _bases(self, sources: Sequence[Buffer], index: npt.NDArray[np.integer]) -> Ints:
        """Returns the byte address of each source in `index`; without meaning for -1 (no source)."""
        return np.array([*map(self.address_of, sources), 0], np.int64)[index]

    def vector(self, op: Vector[Buffer]) -> Symbolic:
        """Emits an element-wise function: one instruction for each repetition of the shortest operand."""
        buffers = op.result, *op.operands
        length = min(buffer.elements for buffer in buffers)
        block = make_virtual(VECTOR_OPCODE[op.function], op.result.elements // length)
        block["d"], block["widths"] = length, self.widths(op.operands[0], op.result)
        for slot, (buffer, register) in enumerate(zip(buffers, (OUT, IN, SCRATCH), strict=False)):
            advance = length * self.size(buffer) if buffer.elements > length else 0
            set_operand(block, slot, register, self.address_of(buffer) + np.arange(len(block)) * advance)
        return block

    def repeat(self, op: Repeat[Buffer]) -> Symbolic:
        """Emits, for each row, a copy of its piece, then copies of the filled part of the row, each doubling it.

        One element is read again and again by a single move with a stride of 0.
        """
        rows, size = op.result.rows, self.size(op.result)
        piece, whole = op.source.elements // rows, op.result.elements // rows
        if piece == 1:
            at = np.arange(rows)
            runs = np.stack(np.broadcast_arrays(at * whole, 0, at, 0, whole), axis=1)
            return self.move(Move(op.result, (op.source,), runs))
        done = copied_ends(piece, whole)
        row, start = np.repeat(np.arange(rows), len(done) - 1), np.tile(done[:-1], rows)
        block = make_virtual("lmv", len(row))
        first = self.address_of(op.result) + row * whole * size
        set_operand(block, 0, OUT, first + start * size)
        set_operand(block, 1, IN, np.where(start == 0, self.address_of(op.source) + row * piece * size, first))
        block["d"] = np.tile(np.diff(done), rows) * size
        return block

    def pool(self, op: Pool[Buffer]) -> Symbolic:
        """Emits the terms of a pool (`raptor.pim.pool_terms`), each term for a run of neighbouring pixels at once.

        Raises `VerifyError` for the maximum of a window that reads only padding.
        """
        inputs = cached_input_pixels(op.window)[op.row * op.result.width :][: op.result.pixels]
        taps = np.take_along_axis(inputs, np.argsort(inputs < 0, axis=1, kind="stable"), axis=1)
        counts = (inputs >= 0).sum(axis=1)
        empty = np.flatnonzero(counts == 0)
        if len(empty) and op.function == "max":
            raise VerifyError("pool: a window of a maximum lies in the padding")
        terms = order_terms(taps, counts, op.block)
        width = op.inputs[0][1].width
        rows = [np.where(terms.reads == BOTH, terms.left // width, 0), terms.right // width]
        split = rows if len(op.inputs) > 1 else []
        starts, lengths = find_joint_runs([terms.pixel, terms.left, terms.right], [terms.step, terms.reads, *split])
        block = self._pool_runs(op, terms.select(starts))
        copies = terms.reads[starts] == ONE
        block["d"] = lengths * op.result.channels * np.where(copies, self.size(op.result), 1)
        return np.concatenate([self._zeros(op.result, empty, op.result.channels), block])

    def _pool_runs(self, op: Pool[Buffer], terms: PoolTerms) -> Symbolic:
        """Emits one instruction for each run. `terms`: the terms of the first pixel of each run."""
        block = make_virtual(VECTOR_OPCODE[op.function], len(terms.pixel))
        copies, pixel_bytes = terms.reads == ONE, op.result.channels * self.size(op.result)
        block["widths"] = np.where(copies, 0, self.widths(op.result, op.result))
        block["opcode"][copies] = isa.OPCODE["lmv"]
        totals = np.array([self.address_of(buffer) for buffer in (op.result, *op.scratch)])
        out = totals[terms.total] + terms.pixel * pixel_bytes
        right = self._source(op, np.where(terms.reads == TOTAL, 0, terms.right))
        right = np.where(terms.reads == TOTAL, totals[terms.part] + terms.pixel * pixel_bytes, right)
        left = self._source(op, np.where(terms.reads == BOTH, terms.left, 0))
        more = (terms.reads == NEXT) | (terms.reads == TOTAL)
        set_operand(block, 0, OUT, out)
        block["register"][:, 1] = np.select([copies, terms.reads == BOTH], [IN, SCRATCH], OUT)
        block["value"][:, 1] = np.select([copies, more], [right, out], left)
        block["register"][:, 2] = np.where(copies, UNUSED_REGISTER, IN)
        block["value"][:, 2] = right
        return block

    def _source(self, op: Pool[Buffer] | Stencil[Buffer], pixel: Ints) -> Ints:
        """Returns the byte addresses of input pixels: in the last input buffer that begins at or before their row."""
        rows = np.array([row for row, _ in op.inputs])
        bases = np.array([self.address_of(buffer) for _, buffer in op.inputs])
        width = op.inputs[0][1].width
        which = np.searchsorted(rows, pixel // width, side="right") - 1
        inside = pixel.astype(np.intp) - rows[which] * width
        return bases[which] + inside * op.result.channels * self.size(op.inputs[0][1])

    def gather(self, op: Gather[Buffer]) -> Symbolic:
        """Emits copies of the pieces: one per pixel, or a single one if piece, source and result are equally wide."""
        return np.concatenate([self._copy(piece, op.result) for piece in op.pieces])

    def _copy(self, piece: ChannelPiece[Buffer], result: Buffer) -> Symbolic:
        whole = piece.channels == result.channels == piece.value.channels
        block = make_virtual("lmv", 1 if whole else result.pixels)
        pixel = np.arange(len(block))
        target = pixel * result.channels + piece.target
        source = pixel * piece.value.channels + piece.source
        size = self.size(result)
        set_operand(block, 0, OUT, self.address_of(result) + target * size)
        set_operand(block, 1, IN, self.address_of(piece.value) + source * size)
        block["d"] = piece.channels * (result.pixels if whole else 1) * size
        return block

    def stencil(self, op: Stencil[Buffer]) -> Symbolic:
        """Emits a multiplication by the weight vector and an addition for each output pixel and tap with a weight.

        The first product is written to the output; weights of 1 need no product. With `Stencil.together`, an
        instruction processes neighbouring pixels, and taps are the outer loop.
        """
        inputs, given = cached_input_pixels(op.window), op.inputs[0][1]
        index = np.broadcast_to(op.index, inputs.shape)
        used = (inputs >= 0) & (index != ZERO_WEIGHT)
        pixel, tap = np.nonzero(used)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        pixels: Ints = np.ones(len(pixel), np.intp)
        if op.together > 1:
            order = np.lexsort((pixel, tap))
            pixel, tap, first = pixel[order], tap[order], first[order]
            read = inputs[pixel, tap]
            chosen, pixels = pieces(*find_joint_runs([pixel, read], [tap, first, read // given.width]), op.together)
            pixel, tap, first = pixel[chosen], tap[chosen], first[chosen]
        unit = index[pixel, tap] == UNIT_WEIGHT
        count = np.where(first | unit, 1, 2)
        ends = np.cumsum(count)
        block = make_virtual("vvmul", int(ends[-1]) if len(ends) else 0)
        pixel_bytes = op.result.channels * self.size(op.result)
        given_bytes = op.result.channels * self.size(given)
        out = self.address_of(op.result) + pixel * pixel_bytes
        source = self._source(op, inputs[pixel, tap].astype(np.intp))
        weight = (self.address_of(op.vectors) if op.vectors else 0) + index[pixel, tap].astype(
            np.intp
        ) * given_bytes * op.together
        accum = self.address_of(op.scratch[0])
        block["d"] = np.repeat(pixels, count) * op.result.channels
        weighted = np.flatnonzero(~unit)
        self._binary(
            block,
            ends[weighted] - count[weighted],
            "mul",
            (np.where(first, OUT, SCRATCH)[weighted], np.where(first, out, accum)[weighted]),
            (IN, source[weighted]),
            (WEIGHT, weight[weighted]),
        )
        block["widths"][ends[weighted] - count[weighted]] = self.widths(given, op.result)
        added = np.flatnonzero(~first)
        block["widths"][ends[added] - 1] = self.widths(op.result, op.result)
        addend = (np.where(unit, IN, SCRATCH)[added], np.where(unit, source, accum)[added])
        self._binary(block, ends[added] - 1, "add", (OUT, out[added]), (OUT, out[added]), addend)
        copied = np.flatnonzero(first & unit)
        at = ends[copied] - 1
        block["opcode"][at] = isa.OPCODE["lmv"]
        block["register"][at] = (OUT, IN, UNUSED_REGISTER)
        block["value"][at, 0], block["value"][at, 1] = out[copied], source[copied]
        block["d"][at] = pixels[copied] * pixel_bytes
        return np.concatenate([self._zeros(op.result, np.flatnonzero(~used.any(axis=1)), op.result.channels), block])

    @staticmethod
    def _binary(block: Symbolic, at: Ints, function: str, *operands: tuple[npt.ArrayLike, npt.ArrayLike]) -> None:
        """Turns instructions `at` into vector functions of three operands, each given as (register, value)."""
        block["opcode"][at] = isa.OPCODE[VECTOR_OPCODE[function]]
        for slot, (register, value) in enumerate(operands):
            block["register"][at, slot] = register
            block["value"][at, slot] = value

    def dot(self, op: Dot[Buffer]) -> Symbolic:
        """Emits one dot product for each element of the result."""
        rows = op.result.pixels // op.batch
        batch, row, col = (a.reshape(-1) for a in np.indices((op.batch, rows, op.result.channels)))
        block = make_virtual("vvdmul", len(batch))
        block["widths"] = self.widths(op.left, op.result)
        pixel_bytes = op.left.channels * self.size(op.left)
        set_operand(block, 0, OUT, self.address_of(op.result) + np.arange(len(batch)) * self.size(op.result))
        set_operand(block, 1, IN, self.address_of(op.left) + (batch * rows + row) * pixel_bytes)
        set_operand(block, 2, SCRATCH, self.address_of(op.right) + (batch * op.cols + op.first + col) * pixel_bytes)
        block["d"] = op.left.channels
        return block

    def average(self, op: Average[Buffer]) -> Symbolic:
        """Emits one mean of adjacent elements for each pixel."""
        block = make_virtual("vavg", op.result.pixels)
        block["widths"] = self.widths(op.input, op.result)
        pixel = np.arange(len(block))
        set_operand(block, 0, OUT, self.address_of(op.result) + pixel * self.size(op.result))
        set_operand(block, 1, IN, self.address_of(op.input) + pixel * op.input.channels * self.size(op.input))
        set_operand(block, 2, STRIDE, 1)
        block["d"] = op.input.channels
        return block

    def move(self, op: Move[Buffer]) -> Symbolic:
        """Emits one instruction for each run: a copy of adjacent elements, a strided gather, or zeros."""
        target, source, first, stride, elements = op.runs.T
        size = self.size(op.result)
        block = make_virtual("lmv", len(target))
        set_operand(block, 0, OUT, self.address_of(op.result) + target * size)
        set_operand(block, 1, IN, self._bases(op.sources, source) + first * size)
        block["d"] = elements * size
        strided = np.flatnonzero((source >= 0) & (stride != 1) & (elements > 1))
        block["opcode"][strided] = isa.OPCODE["vmv"]
        block["register"][strided, 2] = STRIDE
        block["value"][strided, 2] = stride[strided]
        block["d"][strided] = elements[strided]
        block["widths"][strided] = self.widths(op.result, op.result)
        zeros = np.flatnonzero(source < 0)
        block["opcode"][zeros] = isa.OPCODE["lldi"]
        block["register"][zeros, 1] = UNUSED_REGISTER
        return block

    def softmax(self, op: Softmax[Buffer]) -> Symbolic:
        """Emits one softmax for each pixel."""
        block = make_virtual("vsoftmax", op.result.pixels)
        block["widths"] = self.widths(op.input, op.result)
        steps = np.arange(len(block)) * op.result.channels * self.size(op.result)
        set_operand(block, 0, OUT, self.address_of(op.result) + steps)
        set_operand(block, 1, IN, self.address_of(op.input) + steps)
        block["d"] = op.result.channels
        return block


EMITTERS: dict[type[Operation[Buffer]], Callable[[Emitter, Any], Symbolic]] = {
    Load: Emitter.load,
    LoadRows: Emitter.load_rows,
    Store: Emitter.store,
    Send: Emitter.send,
    Receive: Emitter.receive,
    ApplyFilters: Emitter.apply_filters,
    ApplyLine: Emitter.apply_line,
    Overlap: Emitter.overlap,
    Vector: Emitter.vector,
    Repeat: Emitter.repeat,
    Pool: Emitter.pool,
    Stencil: Emitter.stencil,
    Dot: Emitter.dot,
    Average: Emitter.average,
    Gather: Emitter.gather,
    Move: Emitter.move,
    Softmax: Emitter.softmax,
    Requantise: emit_requantise,
    RequantiseAtOnce: emit_requantise_at_once,
    Bound: emit_bound,
    Lookup: emit_table_lookup,
}
"""Emitting function of each operation class."""
