"""PimIR: one straight-line program per core, on named buffers of local memory.

Every operation names the buffers it reads and the one it writes (destination passing; thesis, listings 4.2 and 4.3).
After `allocate` each buffer has an address. Sizes are in elements here; bytes appear when instructions are emitted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from raptor.frontend.graph import MapFunction, window_text
from raptor.layout import Image, Region
from raptor.mapping import Matrix
from raptor.window import Window


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of local memory of one core; names are unique within the core."""

    name: str
    elements: int

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Load:
    """`out` = global memory from `address` (elements)."""

    out: Buffer
    address: int
    reads = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Global memory from `address` (elements) = `source`."""

    source: Buffer
    address: int
    out = None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Send:
    """`source` to core `core`; returns when core `core` executes the receive of the same channel."""

    source: Buffer
    core: int
    channel: int
    out = None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Receive:
    """`out` from core `core`."""

    out: Buffer
    core: int
    channel: int
    reads = ()


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
    window: Window
    relu: bool

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Vector:
    """Element-wise function. An operand shorter than `out` repeats."""

    out: Buffer
    function: MapFunction
    operands: tuple[Buffer, ...]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class Repeat:
    """`out` = `source` again and again."""

    out: Buffer
    source: Buffer

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum or sum over a window, pixels of `channels` elements."""

    out: Buffer
    input: Buffer
    function: Literal["max", "sum"]
    channels: int
    window: Window

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input,)


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


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax over each pixel of `channels` elements."""

    out: Buffer
    input: Buffer
    channels: int

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.input,)


Operation = Load | Store | Send | Receive | ApplyFilters | Vector | Repeat | Pool | Gather | Softmax


@dataclass(frozen=True, slots=True)
class Step:
    """An operation and the ONNX node it serves."""

    operation: Operation
    node: str


@dataclass(frozen=True, slots=True)
class Group:
    """An array group: crossbars side by side that hold one matrix of a layer."""

    layer: str
    matrix: Matrix


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
            yield f"    {operation_text(step.operation)}  # {step.node}"
        yield "    pim.halt"
        yield "  }"
    yield "}"


def _group_text(groups: tuple[Group, ...]) -> str:
    return f"[{', '.join(str(g.matrix.xbars) for g in groups)}]"


def _allocations(operation: Operation, core: CoreProgram, known: set[str]) -> Iterator[str]:
    new = [operation.out] if operation.out else []
    if isinstance(operation, ApplyFilters) and operation.accum:
        new.append(operation.accum)
    for buffer in new:
        if buffer.name not in known:
            known.add(buffer.name)
            where = "" if core.addresses is None else f", address = {core.addresses[buffer.name]}"
            yield f"    {buffer} = pim.alloc {{elements = {buffer.elements}{where}}}"


def operation_text(op: Operation) -> str:
    """One operation as text, as in the thesis's listings 4.2 and 4.3."""
    match op:
        case Load():
            return f"pim.load {op.out} {{globalSrc = {op.address}, size = {op.out.elements}}}"
        case Store():
            return f"pim.store {op.source} {{globalDst = {op.address}, size = {op.source.elements}}}"
        case Send():
            return f"pim.channel_send {op.source} {{channel = {op.channel}, core = {op.core}}}"
        case Receive():
            return f"pim.channel_receive {op.out} {{channel = {op.channel}, core = {op.core}}}"
        case ApplyFilters():
            accum = f", accumBuf = {op.accum}" if op.accum else ""
            relu = ", relu" if op.relu else ""
            buffers = f"input = {op.input}, outBuf = {op.out}{accum}"
            return f"pim.apply_filters({buffers}) {{groups = {list(op.groups)}, taps = {list(op.taps)}{relu}}}"
        case Vector():
            return f"pim.v{op.function}({', '.join(map(str, op.operands))}, outBuf = {op.out})"
        case Repeat():
            return f"pim.repeat({op.source}, outBuf = {op.out})"
        case Pool():
            return f"pim.pool_{op.function}({op.input}, outBuf = {op.out}) {{{window_text(op.window)}}}"
        case Gather():
            copies = (f"{c.source}[{c.source_channel}:{c.source_channel + c.channels}]" for c in op.copies)
            return f"pim.gather({', '.join(copies)}, outBuf = {op.out})"
        case Softmax():
            return f"pim.softmax({op.input}, outBuf = {op.out})"
