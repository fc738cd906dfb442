"""Buffers, and operations that only PimIR has: transfers, embedding lookups, and repetition of rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.spatial.operations import OneResult, Operation, V, W
from raptor.spatial.tiles import Value


@dataclass(frozen=True, slots=True)
class Buffer(Value):
    """A range of local memory of one core that holds a value.

    Its name identifies the range; its shape is how an operation interprets the elements.
    """


def slot_for(value: Value, number: int) -> Buffer:
    """Returns slot `number` of a form, with the shape of `value`."""
    return Buffer(f"{number}", value.rows, value.width, value.channels, value.element)


Span = tuple[int, int]
"""First element and number of elements of a part of a buffer."""


def span_of(buffer: Value, span: Span | None) -> Span:
    """Returns the span, or the whole buffer for None."""
    return (0, buffer.elements) if span is None else span


def span_text(buffer: Value, span: Span | None) -> str:
    """Returns buffer and span in the text form."""
    return str(buffer) if span is None else f"{buffer}[{span[0]}:{span[0] + span[1]}]"


@dataclass(frozen=True, slots=True)
class Load(OneResult[V]):
    """Loads from global memory at byte `address` into `result`; with `span`, into those elements only."""

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
    """Embedding lookup: loads a row of a table in global memory into each pixel of `result`.

    Row r begins at byte `table` + r * `stride`, for r < `rows`. ids: for each pixel, the global address of its row
    number.
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
    """Stores `source` in global memory at byte `address`."""

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

    Blocks until the other core has executed the receive of the same channel.
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
    """Fills row i of `result` with copies of piece i of `source`, which is cut into as many equal pieces."""

    source: V

    @property
    def operands(self) -> tuple[V, ...]:
        return (self.source,)

    def map_operands(self, f: Callable[[V], W]) -> "Repeat[W]":
        return Repeat(f(self.result), f(self.source))
