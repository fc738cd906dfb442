"""PimIR to virtual instructions, as columns of arrays: one function for each class of operations."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.codegen.emit_integers import bound, lookup, requantise, requantise_at_once
from raptor.codegen.emit_rows import load_rows
from raptor.codegen.registers import (
    NONE,
    VIRTUAL,
    Ints,
    Virtual,
    set_operand,
    virtual,
    width_code,
)
from raptor.common.errors import VerifyError
from raptor.graph.window import input_pixels
from raptor.pim import ir
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
    Piece,
    Pool,
    Softmax,
    Stencil,
    Vector,
)
from raptor.target import isa
from raptor.target.arch import Target
from raptor.target.element import FLOAT32

# Registers by purpose, so that a value stays where it is for as long as possible.
ZERO = 0
"""Register that always holds 0: base of transfers that carry their address as offset."""
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
}
"""Function of a `Vector`, `Pool` or `Stencil` -> name of the instruction."""


Batch = tuple[Virtual, Ints | int]
"""Instructions of several operations, one operation after another; and the number of instructions of each."""


@dataclass(frozen=True, slots=True)
class Emitter:
    """Emits the instructions of one core. Their addresses and sizes are in bytes."""

    core: ir.CoreProgram
    target: Target

    def at(self, buffer: ir.Buffer) -> int:
        """Returns the byte address of a buffer."""
        return self.core.address(buffer)

    def size(self, buffer: ir.Buffer) -> int:
        """Returns the bytes of an element of a buffer."""
        return self.target.bytes_of(buffer.element)

    def widths(self, given: ir.Buffer, result: ir.Buffer) -> int:
        """Returns the widths (see `width_code`) of an instruction that reads and writes elements of these buffers."""
        floats = FLOAT32 in (given.element, result.element)
        return width_code(self.target.bits_of(given.element), self.target.bits_of(result.element), floats=floats)

    def sizes(self, buffers: Iterable[ir.Buffer]) -> Ints:
        """Returns the bytes of an element of each buffer."""
        return np.array([self.size(buffer) for buffer in buffers], np.intp)

    def emit(self, operations: Sequence[Operation[ir.Buffer]]) -> tuple[Virtual, Ints]:
        """Returns the instructions of operations, in order, and the number of instructions of each.

        Operations of one class are emitted together: most are small, and a short array takes as long as a long one.
        """
        kinds: defaultdict[type[Operation[ir.Buffer]], list[int]] = defaultdict(list)
        for i, operation in enumerate(operations):
            kinds[type(operation)].append(i)
        counts = np.zeros(len(operations), np.intp)
        blocks: list[Virtual] = []
        for kind, which in kinds.items():
            block, counts[which] = EMIT[kind](self, [operations[i] for i in which])
            blocks.append(block)
        owners = [np.repeat(which, counts[which]) for which in kinds.values()]
        # NOTE: with the type given numpy does not look for a common one, which takes longer than the copying.
        order = np.argsort(np.concatenate(owners), kind="stable")
        return np.concatenate(blocks, dtype=VIRTUAL)[order], counts

    def load(self, op: ir.Load[ir.Buffer]) -> Virtual:
        """Emits a load from global memory."""
        block = virtual("ld", 1)
        set_operand(block, 0, ZERO, 0)
        self._global(block, 1, op.address)
        # NOTE: the simulator ignores rd of ld; with the address as offset both readings agree.
        block["b"] = 1
        block["c"], block["d"] = self._bytes_of(op.result, op.span)
        return block

    def load_rows(self, op: ir.LoadRows[ir.Buffer]) -> Virtual:
        """Emits loads of rows of a table."""
        size = op.result.channels * self.size(op.result)
        return load_rows(op, self.at(op.result), size, (ZERO, GLOBAL_HIGH, GLOBAL_LOW))

    def store(self, op: ir.Store[ir.Buffer]) -> Virtual:
        """Emits a store to global memory."""
        # NOTE: the simulator ignores rs1 of st too; rd and the register after it hold the global address.
        block = virtual("st", 1)
        self._global(block, 0, op.address)
        set_operand(block, 1, ZERO, 0)
        block["b"] = 2
        block["c"], block["d"] = self._bytes_of(op.source, None)
        return block

    def _global(self, block: Virtual, slot: int, address: int) -> None:
        """Sets the register pair of a global address; the low word takes the third slot, which is free."""
        high, low = divmod(address, 2**32)
        set_operand(block, slot, GLOBAL_HIGH, high)
        set_operand(block, 2, GLOBAL_LOW, np.uint32(low).astype(np.int32))

    def send(self, ops: Sequence[ir.Send[ir.Buffer]]) -> Batch:
        block = virtual("send", len(ops))
        spans = np.array([self._bytes_of(op.source, op.span) for op in ops])
        set_operand(block, 0, IN, spans[:, 0])
        set_operand(block, 1, IN, spans[:, 0])
        block["a"], block["d"] = [op.core for op in ops], spans[:, 1]
        return block, 1

    def receive(self, ops: Sequence[ir.Receive[ir.Buffer]]) -> Batch:
        block = virtual("recv", len(ops))
        spans = np.array([self._bytes_of(op.result, op.span) for op in ops])
        set_operand(block, 0, OUT, spans[:, 0])
        block["a"], block["d"] = [op.core for op in ops], spans[:, 1]
        return block, 1

    def _bytes_of(self, buffer: ir.Buffer, span: ir.Span | None) -> tuple[int, int]:
        """Returns address and size of a span of a buffer, in bytes."""
        (first, elements), size = ir.span_of(buffer, span), self.size(buffer)
        return self.at(buffer) + first * size, elements * size

    def apply_filters(self, op: ApplyFilters[ir.Buffer]) -> Virtual:
        """Emits an MVM for each output pixel and each matrix whose input pixel is not padding (thesis, algorithm 4.2).

        The first product of a pixel goes straight into the output, the others through the accumulation buffer.
        """
        inputs = input_pixels(op.window)[:, list(op.taps)]
        pixel, index = np.nonzero(inputs >= 0)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        # A product takes one instruction, and one more to add it unless it is the first.
        product = np.arange(len(pixel)) + np.concatenate([[0], np.cumsum(~first)])[:-1]
        block = virtual("mvmul", len(pixel) + int((~first).sum()))
        block["widths"] = self.widths(op.input, op.result)
        out_address = self.at(op.result) + pixel * op.result.channels * self.size(op.result)
        in_address = (inputs[pixel, index] * op.input.channels + op.channel) * self.size(op.input) + self.at(op.input)
        scratch = self.at(op.scratch[0]) if op.scratch else 0

        block["register"][product, 0] = np.where(first, OUT, SCRATCH)
        block["value"][product, 0] = np.where(first, out_address, scratch)
        block["register"][product, 1] = IN
        block["value"][product, 1] = in_address
        block["b"][product] = op.relu
        block["c"][product] = np.array(op.weights)[index]
        block["a"][product] = self.weight_bits(block["c"][product])
        add = product[~first] + 1
        block["opcode"][add] = isa.OPCODE["vvadd"]
        block["widths"][add] = self.widths(op.result, op.result)
        block["register"][add] = (OUT, OUT, SCRATCH)
        block["value"][add, 0] = block["value"][add, 1] = out_address[~first]
        block["value"][add, 2] = scratch
        block["d"][add] = op.result.channels
        untouched = np.flatnonzero((inputs < 0).all(axis=1))
        return np.concatenate([self._zeros(op.result, untouched, op.result.channels), block])

    def weight_bits(self, groups: Ints) -> Ints:
        """Returns the bits of a weight of each array group."""
        bits = [group.weight_bits or self.target.widths.weights for group in self.core.groups]
        return np.array(bits, np.intp)[groups]

    def _zeros(self, out: ir.Buffer, pixels: Ints, channels: int) -> Virtual:
        """Emits zeros for pixels that no product or tap reaches."""
        starts, lengths = runs(pixels)
        block = virtual("lldi", len(starts))
        pixel_bytes = channels * self.size(out)
        set_operand(block, 0, OUT, self.at(out) + starts * pixel_bytes)
        block["d"] = lengths * pixel_bytes
        return block

    def apply_line(self, ops: Sequence[ApplyLine[ir.Buffer]]) -> Batch:
        """Emits one MVM for each product."""
        counts = np.array([len(op.products) for op in ops])
        group, line, source, target = np.concatenate([op.products for op in ops]).T
        out = np.repeat([self.at(op.result) for op in ops], counts)
        size_in, size_out = (
            np.repeat(self.sizes(of), counts) for of in ([op.lines[0] for op in ops], [op.result for op in ops])
        )
        block = virtual("mvmul", len(group))
        block["widths"] = np.repeat([self.widths(op.lines[0], op.result) for op in ops], counts)
        set_operand(block, 0, OUT, out + target * size_out)
        set_operand(block, 1, IN, self._bases([op.lines for op in ops], counts, line) + source * size_in)
        block["a"], block["c"] = self.weight_bits(group), group
        return block, counts

    def overlap(self, ops: Sequence[Overlap[ir.Buffer]]) -> Batch:
        """Emits sums of runs.

        Elements of one run are copied; of several runs, the first two are added into the result, the others to it.
        """
        tables = [sums(op.runs.tobytes(), op.result.elements) for op in ops]
        counts = np.array([len(table) for table in tables])
        kind, target, elements, left, left_at, right, right_at = np.concatenate(tables).T
        sources = [op.sources for op in ops]
        size = np.repeat(self.sizes(op.result for op in ops), counts)
        out = np.repeat([self.at(op.result) for op in ops], counts) + target * size
        block = virtual("vvadd", len(kind))
        added = np.repeat([self.widths(op.result, op.result) for op in ops], counts)
        block["widths"] = np.where(kind <= COPY, 0, added)
        block["opcode"] = np.array([isa.OPCODE[name] for name in ("lldi", "lmv", "vvadd", "vvadd")])[kind]
        block["d"] = np.where(kind <= COPY, elements * size, elements)
        set_operand(block, 0, OUT, out)
        more = kind == ADD_MORE
        block["register"][:, 1] = np.where(kind == CLEAR, NONE, np.where(more, OUT, IN))
        block["value"][:, 1] = np.where(more, out, self._bases(sources, counts, left) + left_at * size)
        block["register"][:, 2] = np.where(kind >= ADD_TWO, SCRATCH, NONE)
        block["value"][:, 2] = self._bases(sources, counts, right) + right_at * size
        return block, counts

    def _bases(self, sources: Sequence[Sequence[ir.Buffer]], counts: Ints, index: npt.NDArray[np.integer]) -> Ints:
        """Returns for each instruction the byte address of source `index` of its operation.

        counts: instructions of each operation. An index of -1 means no source: the address has no meaning then.
        """
        addresses = np.array([*(self.at(buffer) for of in sources for buffer in of), 0])
        firsts = np.cumsum([0, *map(len, sources[:-1])])
        return addresses[np.repeat(firsts, counts) + np.maximum(index, 0)]

    def vector(self, ops: Sequence[Vector[ir.Buffer]]) -> Batch:
        """Emits functions of whole buffers: one instruction each time that the shortest operand repeats."""
        lengths = np.array([min(b.elements for b in (op.result, *op.operands)) for op in ops])
        counts = np.array([op.result.elements for op in ops]) // lengths
        owner = np.repeat(np.arange(len(ops)), counts)
        block = virtual("vvadd", len(owner))
        block["opcode"] = np.array([isa.OPCODE[VECTOR_OPCODE[op.function]] for op in ops])[owner]
        block["d"] = lengths[owner]
        block["widths"] = np.array([self.widths(op.operands[0], op.result) for op in ops])[owner]
        step = (np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]) * block["d"]
        for slot, register in enumerate((OUT, IN, SCRATCH)):
            used = np.array([slot <= len(op.operands) for op in ops])
            buffers = [(op.result, *op.operands)[slot] for op in ops if slot <= len(op.operands)]
            address, advances = np.zeros(len(ops), np.intp), np.zeros(len(ops), np.intp)
            address[used] = [self.at(buffer) for buffer in buffers]
            longer = np.array([buffer.elements for buffer in buffers]) > lengths[used]
            advances[used] = self.sizes(buffers) * longer
            block["register"][:, slot] = np.where(used, register, NONE)[owner]
            block["value"][:, slot] = address[owner] + step * advances[owner]
        return block, counts

    def repeat(self, op: ir.Repeat[ir.Buffer]) -> Virtual:
        """Emits for each row a copy of its piece, then copies of all that the row holds already: each doubles it."""
        rows, size = op.result.rows, self.size(op.result)
        piece, whole = op.source.elements // rows, op.result.elements // rows
        done = [0, piece]
        while done[-1] < whole:
            done.append(min(2 * done[-1], whole))
        row, start = np.repeat(np.arange(rows), len(done) - 1), np.tile(done[:-1], rows)
        block = virtual("lmv", len(row))
        first = self.at(op.result) + row * whole * size
        set_operand(block, 0, OUT, first + start * size)
        set_operand(block, 1, IN, np.where(start == 0, self.at(op.source) + row * piece * size, first))
        block["d"] = np.tile(np.diff(done), rows) * size
        return block

    def pool(self, op: Pool[ir.Buffer]) -> Virtual:
        """Emits copies of the pixels with one tap; then tap after tap, over runs of neighbouring pixels.

        The second tap is combined with the first, the following taps with the result. Raises `VerifyError` for the
        maximum of a window of padding alone.
        """
        inputs = input_pixels(op.window)[op.row * op.result.width :][: op.result.pixels]
        taps = np.take_along_axis(inputs, np.argsort(inputs < 0, axis=1, kind="stable"), axis=1)
        counts = (inputs >= 0).sum(axis=1)
        empty = np.flatnonzero(counts == 0)
        if len(empty) and op.function == "max":
            raise VerifyError(f"pool into {op.result}: a window of a maximum lies in the padding")
        tap_numbers = np.arange(op.window.tap_count)
        used = tap_numbers[:, None] < counts
        used[0] = counts == 1
        tap, pixel = np.nonzero(used)
        left, right = np.where(tap == 1, taps[pixel, 0], pixel), taps[pixel, tap].astype(np.intp)
        width = op.inputs[0][1].width
        rows = [np.where(tap == 1, left // width, 0), right // width] if len(op.inputs) > 1 else []
        starts, lengths = joint_runs([pixel, left, right], [tap, *rows])
        block = self._pool_runs(op, tap[starts], pixel[starts], left[starts], right[starts])
        copies = tap[starts] == 0
        block["d"] = lengths * op.result.channels * np.where(copies, self.size(op.result), 1)
        return np.concatenate([self._zeros(op.result, empty, op.result.channels), block])

    def _pool_runs(self, op: Pool[ir.Buffer], tap: Ints, pixel: Ints, left: Ints, right: Ints) -> Virtual:
        """Emits one instruction for each run. `pixel`, `left`, `right`: first pixels of the result and of two operands.

        `right` is a pixel of the input; `left` too at the second tap (`tap` 1), later it is a pixel of the result.
        """
        block = virtual(VECTOR_OPCODE[op.function], len(tap))
        block["widths"] = np.where(tap == 0, 0, self.widths(op.result, op.result))
        block["opcode"][tap == 0] = isa.OPCODE["lmv"]
        out = self.at(op.result) + pixel * op.result.channels * self.size(op.result)
        source = self._source(op, right)
        first = self._source(op, np.where(tap == 1, left, 0))
        set_operand(block, 0, OUT, out)
        block["register"][:, 1] = np.choose(np.minimum(tap, 2), (IN, SCRATCH, OUT))
        block["value"][:, 1] = np.choose(np.minimum(tap, 2), (source, first, out))
        block["register"][:, 2] = np.where(tap == 0, NONE, IN)
        block["value"][:, 2] = source
        return block

    def _source(self, op: Pool[ir.Buffer] | Stencil[ir.Buffer], pixel: Ints) -> Ints:
        """Returns the byte addresses of input pixels, each in the last buffer that begins at or before its row."""
        rows = np.array([row for row, _ in op.inputs])
        bases = np.array([self.at(buffer) for _, buffer in op.inputs])
        width = op.inputs[0][1].width
        which = np.searchsorted(rows, pixel // width, side="right") - 1
        inside = pixel.astype(np.intp) - rows[which] * width
        return bases[which] + inside * op.result.channels * self.size(op.inputs[0][1])

    def gather(self, op: Gather[ir.Buffer]) -> Virtual:
        """Emits copies of the pieces: pixel by pixel, or at once if a piece is all channels on both sides."""
        return np.concatenate([self._copy(piece, op.result) for piece in op.pieces])

    def _copy(self, piece: Piece[ir.Buffer], result: ir.Buffer) -> Virtual:
        whole = piece.channels == result.channels == piece.value.channels
        block = virtual("lmv", 1 if whole else result.pixels)
        pixel = np.arange(len(block))
        target = pixel * result.channels + piece.target
        source = pixel * piece.value.channels + piece.source
        size = self.size(result)
        set_operand(block, 0, OUT, self.at(result) + target * size)
        set_operand(block, 1, IN, self.at(piece.value) + source * size)
        block["d"] = piece.channels * (result.pixels if whole else 1) * size
        return block

    def stencil(self, op: Stencil[ir.Buffer]) -> Virtual:
        """Emits, for each output pixel and each tap with a weight, a product with the weight vector and its addition.

        The first product goes straight into the output; a weight of one needs no product. With `Stencil.together`, an
        instruction takes neighbouring pixels, and tap follows tap.
        """
        inputs, given = input_pixels(op.window), op.inputs[0][1]
        index = np.broadcast_to(op.index, inputs.shape)
        used = (inputs >= 0) & (index != ZERO_WEIGHT)
        pixel, tap = np.nonzero(used)
        first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]
        pixels: Ints = np.ones(len(pixel), np.intp)
        if op.together > 1:
            order = np.lexsort((pixel, tap))
            pixel, tap, first = pixel[order], tap[order], first[order]
            read = inputs[pixel, tap]
            chosen, pixels = _pieces(*joint_runs([pixel, read], [tap, first, read // given.width]), op.together)
            pixel, tap, first = pixel[chosen], tap[chosen], first[chosen]
        unit = index[pixel, tap] == UNIT_WEIGHT
        count = np.where(first | unit, 1, 2)
        ends = np.cumsum(count)
        block = virtual("vvmul", int(ends[-1]) if len(ends) else 0)
        pixel_bytes = op.result.channels * self.size(op.result)
        given_bytes = op.result.channels * self.size(given)
        out = self.at(op.result) + pixel * pixel_bytes
        source = self._source(op, inputs[pixel, tap].astype(np.intp))
        weight = (self.at(op.vectors) if op.vectors else 0) + index[pixel, tap].astype(
            np.intp
        ) * given_bytes * op.together
        accum = self.at(op.scratch[0])
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
        block["register"][at] = (OUT, IN, NONE)
        block["value"][at, 0], block["value"][at, 1] = out[copied], source[copied]
        block["d"][at] = pixels[copied] * pixel_bytes
        return np.concatenate([self._zeros(op.result, np.flatnonzero(~used.any(axis=1)), op.result.channels), block])

    @staticmethod
    def _binary(block: Virtual, at: Ints, function: str, *operands: tuple[npt.ArrayLike, npt.ArrayLike]) -> None:
        """Makes the instructions `at` a vector function of three operands, each given as register and value."""
        block["opcode"][at] = isa.OPCODE[VECTOR_OPCODE[function]]
        for slot, (register, value) in enumerate(operands):
            block["register"][at, slot] = register
            block["value"][at, slot] = value

    def dot(self, op: Dot[ir.Buffer]) -> Virtual:
        """Emits one dot product for each element of the result."""
        rows = op.result.pixels // op.batch
        batch, row, col = (a.reshape(-1) for a in np.indices((op.batch, rows, op.result.channels)))
        block = virtual("vvdmul", len(batch))
        block["widths"] = self.widths(op.left, op.result)
        pixel_bytes = op.left.channels * self.size(op.left)
        set_operand(block, 0, OUT, self.at(op.result) + np.arange(len(batch)) * self.size(op.result))
        set_operand(block, 1, IN, self.at(op.left) + (batch * rows + row) * pixel_bytes)
        set_operand(block, 2, SCRATCH, self.at(op.right) + (batch * op.cols + op.first + col) * pixel_bytes)
        block["d"] = op.left.channels
        return block

    def average(self, op: Average[ir.Buffer]) -> Virtual:
        """Emits one mean for each pixel, of neighbouring elements."""
        block = virtual("vavg", op.result.pixels)
        block["widths"] = self.widths(op.input, op.result)
        pixel = np.arange(len(block))
        set_operand(block, 0, OUT, self.at(op.result) + pixel * self.size(op.result))
        set_operand(block, 1, IN, self.at(op.input) + pixel * op.input.channels * self.size(op.input))
        set_operand(block, 2, STRIDE, 1)
        block["d"] = op.input.channels
        return block

    def move(self, ops: Sequence[Move[ir.Buffer]]) -> Batch:
        """Emits one instruction for each run: copies neighbours, gathers elements a stride apart, or clears."""
        counts = np.array([len(op.runs) for op in ops])
        target, source, first, stride, elements = np.concatenate([op.runs for op in ops]).T
        out = np.repeat([self.at(op.result) for op in ops], counts)
        size = np.repeat(self.sizes(op.result for op in ops), counts)
        block = virtual("lmv", len(target))
        set_operand(block, 0, OUT, out + target * size)
        set_operand(block, 1, IN, self._bases([op.sources for op in ops], counts, source) + first * size)
        block["d"] = elements * size
        strided = np.flatnonzero((source >= 0) & (stride != 1) & (elements > 1))
        block["opcode"][strided] = isa.OPCODE["vmv"]
        block["register"][strided, 2] = STRIDE
        block["value"][strided, 2] = stride[strided]
        block["d"][strided] = elements[strided]
        block["widths"][strided] = np.repeat([self.widths(op.result, op.result) for op in ops], counts)[strided]
        zeros = np.flatnonzero(source < 0)
        block["opcode"][zeros] = isa.OPCODE["lldi"]
        block["register"][zeros, 1] = NONE
        return block, counts

    def softmax(self, op: Softmax[ir.Buffer]) -> Virtual:
        """Emits one softmax for each pixel."""
        block = virtual("vsoftmax", op.result.pixels)
        block["widths"] = self.widths(op.input, op.result)
        steps = np.arange(len(block)) * op.result.channels * self.size(op.result)
        set_operand(block, 0, OUT, self.at(op.result) + steps)
        set_operand(block, 1, IN, self.at(op.input) + steps)
        block["d"] = op.result.channels
        return block


def _each(emit: Callable[[Emitter, Any], Virtual]) -> Callable[[Emitter, Sequence[Any]], Batch]:
    """Makes a function that emits several operations from one that emits a single operation."""

    def batch(emitter: Emitter, ops: Sequence[Any]) -> Batch:
        blocks = [emit(emitter, op) for op in ops]
        return np.concatenate(blocks, dtype=VIRTUAL), np.array([len(block) for block in blocks])

    return batch


EMIT: dict[type[Operation[ir.Buffer]], Callable[[Emitter, Sequence[Any]], Batch]] = {
    ir.Load: _each(Emitter.load),
    ir.LoadRows: _each(Emitter.load_rows),
    ir.Store: _each(Emitter.store),
    ir.Send: Emitter.send,
    ir.Receive: Emitter.receive,
    ApplyFilters: _each(Emitter.apply_filters),
    ApplyLine: Emitter.apply_line,
    Overlap: Emitter.overlap,
    Vector: Emitter.vector,
    ir.Repeat: _each(Emitter.repeat),
    Pool: _each(Emitter.pool),
    Stencil: _each(Emitter.stencil),
    Dot: _each(Emitter.dot),
    Average: _each(Emitter.average),
    Gather: _each(Emitter.gather),
    Move: Emitter.move,
    Softmax: _each(Emitter.softmax),
    Requantise: _each(requantise),
    RequantiseAtOnce: _each(requantise_at_once),
    Bound: _each(bound),
    Lookup: _each(lookup),
}
"""Class of operations -> function that emits them."""


CLEAR, COPY, ADD_TWO, ADD_MORE = range(4)
"""Kinds of instruction in a sum: zeros, a copy of one run, the sum of two runs, one more run added."""


@lru_cache(maxsize=1024)
def sums(runs: bytes, elements: int) -> npt.NDArray[np.int64]:
    """Returns the instructions that add up the runs of an `Overlap` with a result of `elements`.

    One row per instruction: kind, first element of the result, elements, and source and first element of two operands.
    """
    table = np.frombuffer(runs, np.int64).reshape(-1, 4)
    ends = table[:, 0] + table[:, 3]
    cuts = np.unique(np.concatenate([[0, elements], table[:, 0], ends])).tolist()
    first: list[list[int]] = []
    more: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for a, b in pairwise(cuts):
        met: list[int] = np.flatnonzero((table[:, 0] <= a) & (ends >= b)).tolist()
        operands = [(int(table[r, 1]), int(table[r, 2] + a - table[r, 0])) for r in met]
        left, right, *_ = [*operands, (-1, 0), (-1, 0)]
        first.append([min(len(operands), 2), a, b - a, *left, *right])
        for r, (source, at) in zip(met[2:], operands[2:], strict=True):
            if r in latest and latest[r][1] + latest[r][2] == a:
                latest[r][2] += b - a
            else:
                latest[r] = [ADD_MORE, a, b - a, -1, 0, source, at]
                more.append(latest[r])
    return np.array([*first, *more], np.int64).reshape(-1, 7)


def runs(pixels: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Returns the first pixel and the length of each run of consecutive pixels."""
    starts, lengths = joint_runs([pixels])
    return pixels[starts].astype(np.intp), lengths


def _pieces(starts: Ints, lengths: Ints, most: int) -> tuple[Ints, Ints]:
    """Cuts runs into pieces of at most `most`. Returns the start and the length of each piece."""
    counts = -(-lengths // most)
    number: Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + number * most, np.minimum(np.repeat(lengths, counts) - number * most, most)


def joint_runs(
    columns: Sequence[npt.NDArray[np.integer]], constant: Sequence[npt.NDArray[np.integer]] = ()
) -> tuple[Ints, Ints]:
    """Returns index and length of each run of rows.

    Inside a run, every column of `columns` advances by one from row to row, and those of `constant` stay equal.
    """
    count = len(columns[0])
    if count == 0:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    together = np.ones(count - 1, np.bool_)
    for column in columns:
        together &= np.diff(column) == 1
    for column in constant:
        together &= np.diff(column) == 0
    starts = np.concatenate([[0], np.flatnonzero(~together) + 1])
    return starts, np.diff(np.append(starts, count))
