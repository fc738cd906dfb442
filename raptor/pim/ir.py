"""PimIR: one straight-line program per core, on named buffers of local memory.

Every operation names the buffers that it reads and writes (destination passing; thesis, listings 4.2 and 4.3).
After `allocate` each buffer has an address. Addresses count bytes; shapes and spans count elements.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import Matrix
from raptor.mapping.line_unfolding import LineMatrix
from raptor.spatial.operations import OneResult, Operation, V, W
from raptor.spatial.tiles import Value
from raptor.target.element import MODELLED, Coding, ElementType
from raptor.target.layout import Image, Region


@dataclass(frozen=True, slots=True)
class Buffer(Value):
    """A range of local memory of one core that holds a value.

    Its name says which range, its shape how an operation sees the elements.
    """


Span = tuple[int, int]
"""A part of a buffer: first element, number of elements."""


def span_of(buffer: Value, span: Span | None) -> Span:
    """Returns the span; the whole buffer if it is None."""
    return (0, buffer.elements) if span is None else span


def span_text(buffer: Value, span: Span | None) -> str:
    """Writes a buffer and its span as the text of a program shows them."""
    return str(buffer) if span is None else f"{buffer}[{span[0]}:{span[0] + span[1]}]"


@dataclass(frozen=True, slots=True)
class Load(OneResult[V]):
    """Loads global memory from `address` (bytes) on into `result`; with `span`, into those elements only."""

    address: int
    span: Span | None = None

    @property
    def operands(self) -> tuple[V, ...]:
        return ()

    def map_operands(self, f: Callable[[V], W]) -> "Load[W]":
        return Load(f(self.result), self.address, self.span)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.result, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"globalSrc = {self.address}", f"size = {span_of(self.result, self.span)[1]}")


@dataclass(frozen=True, slots=True, eq=False)
class LoadRows(OneResult[V]):
    """Loads a row of a table from global memory into each pixel of `result`.

    Row r begins at `table` + r * `stride` (bytes), for r below `rows`. ids: for each pixel the address of the number of
    its row, in global memory, too.
    """

    table: int
    stride: int
    rows: int
    ids: npt.NDArray[np.int64]

    @property
    def operands(self) -> tuple[V, ...]:
        return ()

    def map_operands(self, f: Callable[[V], W]) -> "LoadRows[W]":
        return LoadRows(f(self.result), self.table, self.stride, self.rows, self.ids)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (str(self.result),)

    @property
    def attributes(self) -> tuple[str, ...]:
        ids = f"{self.ids.min()}..{self.ids.max()}"
        return (f"globalTable = {self.table}", f"rows = {self.rows}", f"stride = {self.stride}", f"globalIds = {ids}")


@dataclass(frozen=True, slots=True)
class Store(Operation[V]):
    """Stores `source` in global memory, from `address` (bytes) on."""

    source: V
    address: int

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    def map_operands(self, f: Callable[[V], W]) -> "Store[W]":
        return Store(f(self.source), self.address)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"globalDst = {self.address}", f"size = {self.source.elements}")


@dataclass(frozen=True, slots=True)
class Send(Operation[V]):
    """Sends `source` to core `core`; with `span`, those elements only.

    Ends when the other core has executed the receive of the same channel.
    """

    source: V
    core: int
    channel: int
    span: Span | None = None

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    def map_operands(self, f: Callable[[V], W]) -> "Send[W]":
        return Send(f(self.source), self.core, self.channel, self.span)

    @property
    def mnemonic(self) -> str:
        return "channel_send"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.source, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"channel = {self.channel}", f"core = {self.core}")


@dataclass(frozen=True, slots=True)
class Receive(OneResult[V]):
    """Receives `result` from core `core`; with `span`, those elements only."""

    core: int
    channel: int
    span: Span | None = None

    @property
    def operands(self) -> tuple[V, ...]:
        return ()

    def map_operands(self, f: Callable[[V], W]) -> "Receive[W]":
        return Receive(f(self.result), self.core, self.channel, self.span)

    @property
    def mnemonic(self) -> str:
        return "channel_receive"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.result, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"channel = {self.channel}", f"core = {self.core}")


@dataclass(frozen=True, slots=True)
class Repeat(OneResult[V]):
    """Fills each row of `result` with copies of a piece of `source`, one after another; it has a piece for each row."""

    source: V

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    def map_operands(self, f: Callable[[V], W]) -> "Repeat[W]":
        return Repeat(f(self.result), f(self.source))


@dataclass(frozen=True, slots=True)
class Step:
    """An operation and the ONNX node it serves."""

    operation: Operation[Buffer]
    node: str


@dataclass(frozen=True, slots=True)
class Group:
    """An array group: crossbars side by side that hold one matrix of a layer. `weight_bits`: see `Filter`."""

    layer: str
    matrix: Matrix | LineMatrix
    weight_bits: int = 0


@dataclass(frozen=True, slots=True)
class CoreProgram:
    """Program of one core.

    addresses: in bytes, by name of the buffer; None before allocation. local_bytes: local memory that is used.
    """

    core: int
    groups: tuple[Group, ...]
    steps: tuple[Step, ...]
    addresses: Mapping[str, int] | None = None
    local_bytes: int = 0

    def address(self, buffer: Buffer) -> int:
        """Returns the address of a buffer, in bytes."""
        assert self.addresses is not None, "buffers have no addresses before allocation"
        return self.addresses[buffer.name]


@dataclass(frozen=True, slots=True)
class Spot:
    """Part `region` of a tensor is in local memory of `core` right after the first `step` steps: the last wrote it."""

    region: Region
    core: int
    step: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Places in local memories where the parts of an ONNX tensor can be seen."""

    tensor: str
    node: str
    image: Image
    spots: tuple[Spot, ...]
    element: ElementType = MODELLED
    coding: Coding | None = None


@dataclass(frozen=True, slots=True)
class PimProgram:
    """Programs of all cores that have work, by number of the core, and the number of channels between them."""

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
            yield f"    {_operation_text(step.operation)}  # {step.node}"
        yield "    pim.halt"
        yield "  }"
    yield "}"


def _group_text(groups: tuple[Group, ...]) -> str:
    return f"[{', '.join(str(g.matrix.xbars) for g in groups)}]"


def _operation_text(op: Operation[Buffer]) -> str:
    """Writes an operation: its operands, then the buffers that it overwrites. A transfer has only one buffer."""
    braces = op.braces("groups")
    if isinstance(op, Load | LoadRows | Store | Send | Receive):
        return f"pim.{op.mnemonic} {', '.join(op.arguments)}{braces}"
    written = (*(f"outBuf = {b}" for b in op.results), *(f"accumBuf = {b}" for b in op.scratch))
    return f"pim.{op.mnemonic}({', '.join((*op.arguments, *written))}){braces}"


def _allocations(operation: Operation[Buffer], core: CoreProgram, known: set[str]) -> Iterator[str]:
    """Writes a line for each buffer that the operation is the first to write; `known`: names of those before."""
    for buffer in (*operation.results, *operation.scratch):
        if buffer.name not in known:
            known.add(buffer.name)
            where = "" if core.addresses is None else f", address = {core.addresses[buffer.name]}"
            yield f"    {buffer} = pim.alloc {{elements = {buffer.elements}{where}}}"
