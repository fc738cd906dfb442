"""Buffers, and operations that only PimIR has: transfers, embedding lookups, and repetition of rows."""

import re

import numpy as np
import numpy.typing as npt

from raptor.spatial.operations import OneResult, Operation, V
from raptor.spatial.tiles import ShapedValue


class Buffer(ShapedValue, frozen=True, gc=False):
    """A range of local memory of one core that holds a value.

    Its name identifies the range; its shape is how an operation interprets the elements.
    """


def make_slot(value: ShapedValue, number: int) -> Buffer:
    """Returns slot `number` of a form, with the shape of `value`."""
    return Buffer(f"{number}", value.rows, value.width, value.channels, value.element)


Span = tuple[int, int]
"""First element and number of elements of a part of a buffer."""


def span_of(buffer: ShapedValue, span: Span | None) -> Span:
    """Returns the span, or the whole buffer for None."""
    return (0, buffer.elements) if span is None else span


def span_text(buffer: ShapedValue, span: Span | None) -> str:
    """Returns buffer and span in the text form."""
    return str(buffer) if span is None else f"{buffer}[{span[0]}:{span[0] + span[1]}]"


class Load(OneResult[V], frozen=True, gc=False):
    """Loads from global memory at byte `address` into `result`; with `span`, into those elements only."""

    address: int
    span: Span | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.result, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"globalSrc = {self.address}", f"size = {span_of(self.result, self.span)[1]}")


class LoadRows(OneResult[V], frozen=True, gc=False, eq=False):
    """Embedding lookup: loads a row of a table in global memory into each pixel of `result`.

    Row r begins at byte `table` + r * `stride`, for r < `rows`. ids: for each pixel, the global address of its row
    number.
    """

    table: int
    stride: int
    rows: int
    ids: npt.NDArray[np.int64]

    @property
    def arguments(self) -> tuple[str, ...]:
        return (str(self.result),)

    @property
    def attributes(self) -> tuple[str, ...]:
        ids = f"{self.ids.min()}..{self.ids.max()}"
        return (f"globalTable = {self.table}", f"rows = {self.rows}", f"stride = {self.stride}", f"globalIds = {ids}")


class Store(Operation[V], frozen=True, gc=False):
    """Stores `source` in global memory at byte `address`."""

    source: V
    address: int

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"globalDst = {self.address}", f"size = {self.source.elements}")


class Send(Operation[V], frozen=True, gc=False):
    """Sends `source` to core `core`; with `span`, those elements only.

    Blocks until the other core has executed the receive of the same channel.
    """

    source: V
    core: int
    channel: int
    span: Span | None = None

    @property
    def mnemonic(self) -> str:
        return "channel_send"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.source, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"channel = {self.channel}", f"core = {self.core}")


class Receive(OneResult[V], frozen=True, gc=False):
    """Receives `result` from core `core`; with `span`, those elements only."""

    core: int
    channel: int
    span: Span | None = None

    @property
    def mnemonic(self) -> str:
        return "channel_receive"

    @property
    def arguments(self) -> tuple[str, ...]:
        return (span_text(self.result, self.span),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"channel = {self.channel}", f"core = {self.core}")


class Repeat(OneResult[V], frozen=True, gc=False):
    """Fills row i of `result` with copies of piece i of `source`, which is cut into as many equal pieces."""

    source: V


def operation_name(kind: type[Operation[Buffer]]) -> str:
    """Returns the readable name of an operation class, such as `apply filters`."""
    return re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
