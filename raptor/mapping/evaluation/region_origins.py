"""Origins of the elements of a region of a rearranged tensor."""

from dataclasses import dataclass
from typing import NamedTuple

from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.packed_runs import RunCounts


@dataclass(frozen=True, slots=True)
class LineRegion:
    """The pixels and channels that a region needs of a line and channel range: a rectangle that contains them.

    cut: True if the channels are cut out on the cores that have them, and only they are sent.
    """

    name: str
    row: int
    part: int
    cols: Range
    channels: Range
    cut: bool


@dataclass(frozen=True, slots=True)
class OperandBegin:
    """The first element of a region that comes from an operand: its position in the region, and in the operand."""

    operand: str
    position: int
    element: int


class MoveRegion(NamedTuple):
    """Facts about a region for all decisions with the same channel ranges: see `RegionOrigins`; begins: of operands."""

    lines: tuple[LineRegion, ...]
    runs: RunCounts
    begins: tuple[OperandBegin, ...]


@dataclass(frozen=True, slots=True)
class RegionOrigins:
    """Origins of the elements of a region of a moved tensor. `core`: that of the first one; 0 for global memory.

    runs: copies that put the elements in order; none if the elements are a whole tile.
    """

    lines: tuple[LineRegion, ...]
    core: int
    runs: RunCounts
