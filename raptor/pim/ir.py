"""PimIR: one straight-line program per core, on named buffers of local memory.

Every operation names the buffers it reads and the one it writes (destination passing; thesis, listings 4.2 and 4.3).
After `allocate` each buffer has an address. Sizes are in elements here; bytes appear when instructions are emitted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import MapFunction, window_text
from raptor.graph.window import Table, Window
from raptor.mapping.decision import Matrix
from raptor.mapping.line_unfolding import LineMatrix
from raptor.target.layout import Image, Region


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of local memory of one core; names are unique within the core."""

    name: str
    elements: int

    def __str__(self) -> str:
        return f"%{self.name}"


Span = tuple[int, int]
"""First element of a buffer, and how many."""


def span_of(buffer: Buffer, span: Span | None) -> Span:
    return (0, buffer.elements) if span is None else span


def span_text(buffer: Buffer, span: Span | None) -> str:
    return str(buffer) if span is None else f"{buffer}[{span[0]}:{span[0] + span[1]}]"


@dataclass(frozen=True, slots=True)
class Load:
    """`out` = global memory from `address` (elements); with `span`, only those elements of it."""

    out: Buffer
    address: int
    span: Span | None = None
    reads = ()

    def __str__(self) -> str:
        out = span_text(self.out, self.span)
        return f"pim.load {out} {{globalSrc = {self.address}, size = {span_of(self.out, self.span)[1]}}}"


@dataclass(frozen=True, slots=True)
class Store:
    """Global memory from `address` (elements) = `source`."""

    source: Buffer
    address: int
    out = None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"pim.store {self.source} {{globalDst = {self.address}, size = {self.source.elements}}}"


@dataclass(frozen=True, slots=True)
class Send:
    """`source` to core `core`; returns when core `core` executes the receive of the same channel.

    With `span`, only those elements of it.
    """

    source: Buffer
    core: int
    channel: int
    span: Span | None = None
    out = None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"pim.channel_send {span_text(self.source, self.span)} {{channel = {self.channel}, core = {self.core}}}"


@dataclass(frozen=True, slots=True)
class Receive:
    """`out` from core `core`; with `span`, only those elements of it."""

    out: Buffer
    core: int
    channel: int
    span: Span | None = None
    reads = ()

    def __str__(self) -> str:
        return f"pim.channel_receive {span_text(self.out, self.span)} {{channel = {self.channel}, core = {self.core}}}"


@dataclass(frozen=True, slots=True)
class ApplyFilters:
    """Products of `input` with array groups, summed in `out` per output pixel (thesis, algorithm 4.2).

    `groups[i]` is the array group of this core for kernel position `taps[i]`. A pixel of `input` has `in_channels`
    elements, of which those from `channel` on are read; a pixel of `out` has `out_channels`. `accum` holds one
    product; None when no pixel adds a second one.
    """

    out: Buffer
    input: Buffer
    accum: Buffer | None
    groups: tuple[int, ...]
    taps: tuple[int, ...]
    channel: int
    in_channels: int
    out_channels: int
    window: Window | Table
    relu: bool

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input,)

    def __str__(self) -> str:
        accum = f", accumBuf = {self.accum}" if self.accum else ""
        relu = ", relu" if self.relu else ""
        buffers = f"input = {self.input}, outBuf = {self.out}{accum}"
        return f"pim.apply_filters({buffers}) {{groups = {list(self.groups)}, taps = {list(self.taps)}{relu}}}"


@dataclass(frozen=True, slots=True, eq=False)
class ApplyLine:
    """Products of blocks of lines with array groups, one after another in `out` (`raptor.mapping.line_unfolding`).

    products: one row a product: array group, index of the line, first element in it, first element in `out`.
    """

    out: Buffer
    lines: tuple[Buffer, ...]
    products: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.lines

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.lines))
        return f"pim.apply_line({lines}, outBuf = {self.out}) {{groups = {self.products[:, 0].tolist()}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """`out` = sum of runs of the sources, as `Overlap` of SpatialIR."""

    out: Buffer
    sources: tuple[Buffer, ...]
    runs: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.sources

    def __str__(self) -> str:
        return f"pim.overlap({', '.join(map(str, self.sources))}, outBuf = {self.out}) {{runs = {len(self.runs)}}}"


@dataclass(frozen=True, slots=True)
class Vector:
    """Element-wise function. An operand shorter than `out` repeats."""

    out: Buffer
    function: MapFunction
    operands: tuple[Buffer, ...]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.operands

    def __str__(self) -> str:
        return f"pim.v{self.function}({', '.join(map(str, self.operands))}, outBuf = {self.out})"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`out` = `source` again and again."""

    out: Buffer
    source: Buffer

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"pim.repeat({self.source}, outBuf = {self.out})"


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum or sum over a window, pixels of `channels` elements, of the output rows from `row` on.

    `inputs`: buffers and the first input row of each; `widths`: pixels in a row of the input and of the result.
    """

    out: Buffer
    inputs: tuple[tuple[int, Buffer], ...]
    function: Literal["max", "sum"]
    channels: int
    window: Window
    row: int
    widths: tuple[int, int]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(buffer for _, buffer in self.inputs)

    def __str__(self) -> str:
        inputs = ", ".join(str(buffer) for _, buffer in self.inputs)
        return f"pim.pool_{self.function}({inputs}, outBuf = {self.out}) {{{window_text(self.window)}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Stencil:
    """Weighted sum over a window, pixels of `channels` elements.

    `vectors` holds the weight vectors one after another; None if all weights are 0 or 1. index: [output pixels or 1,
    taps] -> vector, or ZERO_WEIGHT, UNIT_WEIGHT of SpatialIR. `accum` holds one weighted pixel.
    """

    out: Buffer
    input: Buffer
    vectors: Buffer | None
    accum: Buffer
    index: npt.NDArray[np.int32]
    channels: int
    window: Window | Table

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input, self.vectors) if self.vectors else (self.input,)

    def __str__(self) -> str:
        buffers = f"{self.input}, {self.vectors or 'ones'}, outBuf = {self.out}, accumBuf = {self.accum}"
        return f"pim.stencil({buffers}) {{{window_text(self.window)}}}"


@dataclass(frozen=True, slots=True)
class Dot:
    """Dot products of pixels of `left` with pixels `first` to `first + count` of each batch of `right`.

    A batch has `rows` pixels in `left` and `cols` in `right`, of `channels` elements.
    """

    out: Buffer
    left: Buffer
    right: Buffer
    batch: int
    rows: int
    cols: int
    first: int
    count: int
    channels: int

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        cols = f"{self.first}:{self.first + self.count}"
        return f"pim.dot({self.left}, {self.right}, outBuf = {self.out}) {{batch = {self.batch}, columns = {cols}}}"


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Runs of elements, as `MoveTile` of SpatialIR."""

    out: Buffer
    sources: tuple[Buffer, ...]
    runs: npt.NDArray[np.int64]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.sources

    def __str__(self) -> str:
        return f"pim.move({', '.join(map(str, self.sources))}, outBuf = {self.out}) {{runs = {len(self.runs)}}}"


@dataclass(frozen=True, slots=True)
class Copy:
    """For each of `pixels`: `channels` elements from `source_channel` of a pixel to `target_channel` of another."""

    source: Buffer
    source_channel: int
    source_channels: int
    target_channel: int
    channels: int


@dataclass(frozen=True, slots=True)
class Gather:
    """`out`, pixels of `out_channels` elements, put together from copies."""

    out: Buffer
    out_channels: int
    copies: tuple[Copy, ...]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(c.source for c in self.copies)

    def __str__(self) -> str:
        copies = (f"{c.source}[{c.source_channel}:{c.source_channel + c.channels}]" for c in self.copies)
        return f"pim.gather({', '.join(copies)}, outBuf = {self.out})"


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax over each pixel of `channels` elements."""

    out: Buffer
    input: Buffer
    channels: int

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input,)

    def __str__(self) -> str:
        return f"pim.softmax({self.input}, outBuf = {self.out})"


Operation = (
    Load
    | Store
    | Send
    | Receive
    | ApplyFilters
    | ApplyLine
    | Overlap
    | Vector
    | Repeat
    | Pool
    | Stencil
    | Dot
    | Gather
    | Move
    | Softmax
)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation and the ONNX node it serves."""

    operation: Operation
    node: str


@dataclass(frozen=True, slots=True)
class Group:
    """An array group: crossbars side by side that hold one matrix of a layer."""

    layer: str
    matrix: Matrix | LineMatrix


@dataclass(frozen=True, slots=True)
class CoreProgram:
    """What one core does. `addresses` (elements) is None before allocation."""

    core: int
    groups: tuple[Group, ...]
    steps: tuple[Step, ...]
    addresses: Mapping[str, int] | None = None
    local_elements: int = 0

    def address(self, buffer: Buffer) -> int:
        assert self.addresses is not None, "buffers have no addresses before allocation"
        return self.addresses[buffer.name]


@dataclass(frozen=True, slots=True)
class Spot:
    """A tile of a tensor is the result of the last of the first `step` steps of `core`."""

    region: Region
    core: int
    step: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Where an ONNX tensor can be seen in local memories."""

    tensor: str
    node: str
    image: Image
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class PimProgram:
    """All cores of the chip that have work, by id, and the channels between them."""

    name: str
    cores: Mapping[int, CoreProgram]
    channel_count: int
    traces: tuple[Trace, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def _lines(program: PimProgram) -> Iterator[str]:
    yield f'pim.program "{program.name}" {{'
    for core in program.cores.values():
        yield f"  pim.core {{coreId = {core.core}, groups = {_group_text(core.groups)}}} {{"
        known: set[str] = set()
        for step in core.steps:
            yield from _allocations(step.operation, core, known)
            yield f"    {step.operation}  # {step.node}"
        yield "    pim.halt"
        yield "  }"
    yield "}"


def _group_text(groups: tuple[Group, ...]) -> str:
    return f"[{', '.join(str(g.matrix.xbars) for g in groups)}]"


def _allocations(operation: Operation, core: CoreProgram, known: set[str]) -> Iterator[str]:
    new = [operation.out] if operation.out else []
    if isinstance(operation, ApplyFilters | Stencil) and operation.accum:
        new.append(operation.accum)
    for buffer in new:
        if buffer.name not in known:
            known.add(buffer.name)
            where = "" if core.addresses is None else f", address = {core.addresses[buffer.name]}"
            yield f"    {buffer} = pim.alloc {{elements = {buffer.elements}{where}}}"
