"""Buffers, and the operations of PimIR that SpatialIR does not have: transfers, and copies of rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.spatial.operations import OneResult, Operation, V, W
from raptor.spatial.tiles import Value


@dataclass(frozen=True, slots=True)
class Buffer(Value):
    """A range of local memory of one core that holds a value.

    Its name says which range, its shape how an operation sees the elements.
    """


def slot_for(value: Value, number: int) -> Buffer:
    """Returns slot `number` of an operation on any buffers, for a value of this shape."""
    return Buffer(f"{number}", value.rows, value.width, value.channels, value.element)


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
