"""Columnar table of the instructions of all cores."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.isa import OPCODE, RECORD, Instruction, Records
from validator.checks.findings import Indices

Column = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T", bound=np.generic)


def opcode_array(*names: str) -> Column:
    return np.array([OPCODE[name] for name in names], np.int32)


def opcode_mask(*names: str) -> Mask:
    """Returns a mask by opcode, [256]: true for the instructions with these names."""
    table = np.zeros(256, np.bool_)
    table[opcode_array(*names)] = True
    return table


@dataclass(frozen=True, slots=True, eq=False)
class InstructionTable:
    """Columns of the instructions of all `streams`, one stream after another.

    `starts[core]` is the first instruction of `core`; one more entry is the end. Columns have the narrowest types that
    hold their numbers, because there are millions of them.
    """

    streams: Sequence[Records]
    starts: Indices
    core: npt.NDArray[np.unsignedinteger[Any]]
    opcode: Bytes
    rd: Bytes
    rs1: Bytes
    a: Column
    b: Column
    c: Column
    d: Column

    @property
    def core_count(self) -> int:
        return len(self.starts) - 1

    def __len__(self) -> int:
        return len(self.opcode)

    def named_mask(self, *names: str) -> Mask:
        """Returns a mask of the instructions that have one of these names."""
        if len(names) == 1:
            return self.opcode == OPCODE[names[0]]
        return self.look_up_opcodes(opcode_mask(*names))

    def find_named(self, *names: str) -> Indices:
        return np.flatnonzero(self.named_mask(*names))

    def look_up_opcodes(self, table: npt.NDArray[T]) -> npt.NDArray[T]:
        """Returns for each instruction the entry of its opcode in a table of all opcodes."""
        found = np.empty(len(self), table.dtype)
        # By core, because numpy converts opcodes to indices of 8 bytes.
        for first, end in pairwise(self.starts.tolist()):
            found[first:end] = table[self.opcode[first:end]]
        return found

    def locate_instruction(self, index: int) -> tuple[int, int, str]:
        """Returns core, pc and text of an instruction."""
        core = int(self.core[index])
        pc = index - int(self.starts[core])
        return core, pc, isa.format_record(self.streams[core][pc])

    def flag_column(self) -> Bytes:
        """Returns the column of the flags, built on demand because hardly any rule reads it."""
        return _column(self.streams, "flags")

    def stream_lengths(self) -> Indices:
        return np.diff(self.starts)

    def present_opcodes(self) -> Column:
        """Returns the opcodes that occur, in ascending order."""
        return np.flatnonzero(np.bincount(self.opcode, minlength=256)).astype(np.int32)


def make_instruction_table(streams: Sequence[Records]) -> InstructionTable:
    """Returns the columns of all cores' records, each of them contiguous."""
    lengths = np.array([len(s) for s in streams], np.int64)
    return InstructionTable(
        streams=streams,
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        core=np.repeat(np.arange(len(streams)).astype(np.min_scalar_type(len(streams))), lengths),
        opcode=_column(streams, "opcode"),
        rd=_column(streams, "rd"),
        rs1=_column(streams, "rs1"),
        a=_column(streams, "a"),
        b=_column(streams, "b"),
        c=_column(streams, "c"),
        d=_column(streams, "d"),
    )


def _column(streams: Sequence[Records], name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, RECORD[name]), *(s[name] for s in streams)])


def instruction_spec(opcode: int) -> Instruction:
    return isa.BY_OPCODE[opcode]
