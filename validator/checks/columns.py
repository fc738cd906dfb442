"""Table of the streams of all cores, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.isa import OPCODE, RECORD, Instruction, Records
from validator.checks.findings import Indices

Column = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


def opcodes(*names: str) -> Column:
    return np.array([OPCODE[name] for name in names], np.int32)


def flags_of(*names: str) -> Mask:
    """Returns a table by opcode: true for the instructions with these names."""
    table = np.zeros(256, np.bool_)
    table[opcodes(*names)] = True
    return table


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Instructions of all streams, one after another.

    `starts[core]` is the first instruction of `core`; one more entry is the end.
    """

    records: Records
    starts: Indices
    core: Column
    opcode: Bytes
    rd: Column
    rs1: Column
    a: Column
    b: Column
    c: Column
    d: Column

    @property
    def core_count(self) -> int:
        return len(self.starts) - 1

    def __len__(self) -> int:
        return len(self.opcode)

    def is_(self, *names: str) -> Mask:
        """Returns a mask of the instructions that have one of these names."""
        if len(names) == 1:
            return self.opcode == OPCODE[names[0]]
        return flags_of(*names)[self.opcode]

    def where(self, *names: str) -> Indices:
        return np.flatnonzero(self.is_(*names))

    def place(self, index: int) -> tuple[int, int, str]:
        """Returns core, pc and text of an instruction."""
        core = int(self.core[index])
        return core, index - int(self.starts[core]), isa.text(self.records[index])

    def lengths(self) -> Indices:
        return np.diff(self.starts)

    def present(self) -> Column:
        """Returns the opcodes that occur, in ascending order."""
        return np.flatnonzero(np.bincount(self.opcode, minlength=256)).astype(np.int32)


def columns_of(streams: Sequence[Records]) -> Columns:
    """Makes the columns of all cores' records, each of them contiguous."""
    lengths = np.array([len(s) for s in streams], np.int64)
    records = np.concatenate([np.zeros(0, RECORD), *streams])
    words = np.ascontiguousarray(records).view("<i4").reshape(-1, 5)
    first = words[:, 0]
    return Columns(
        records=records,
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        core=np.repeat(np.arange(len(streams), dtype=np.int32), lengths),
        opcode=(first & 255).astype(np.uint8),
        rd=(first >> 8) & 255,
        rs1=(first >> 16) & 255,
        a=np.ascontiguousarray(words[:, 1]),
        b=np.ascontiguousarray(words[:, 2]),
        c=np.ascontiguousarray(words[:, 3]),
        d=np.ascontiguousarray(words[:, 4]),
    )


def spec_of(opcode: int) -> Instruction:
    return isa.BY_OPCODE[opcode]
