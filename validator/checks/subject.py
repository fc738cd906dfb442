"""What the rules look at: the program, its files, the chip. Costly parts are computed once, when a rule asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raptor.output.files import Memory
from raptor.target.arch import ArchFile
from raptor.target.isa import Records
from raptor.target.opcode_tables import RULES, Bytes
from validator.checks.columns import Column, Columns, columns_of
from validator.checks.findings import Indices
from validator.checks.text import TextFaults
from validator.network import NetworkTable

Shapes = Sequence[Sequence[tuple[int, int]] | None]


@dataclass(frozen=True, slots=True)
class Chip:
    """An architecture file as the simulator would read it.

    `file`: unknown fields left out, impossible values replaced by defaults; `unknown` and `impossible` name them.
    `named` holds the dotted names of the fields that the file sets.
    """

    path: str
    file: ArchFile
    unknown: tuple[tuple[str, str], ...] = ()
    impossible: tuple[tuple[str, str], ...] = ()
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Per instruction: contents of rd, rs1, rs2; bytes of input and output elements; operands never written."""

    values: Column
    widths: Bytes
    unset: Bytes


@dataclass(eq=False)
class Subject:
    """A program to check, without the parts that are not there (None).

    `streams` has one entry per core; `groups` None where the array_group_map has no entry. `load_faults` is what the
    simulator refuses to load. `network`: None if it was not read, for the reason `network_fault`. `shapes`: rows and
    columns of the matrix of each array group, from the weights. `extended`: the compiler's user allowed instructions
    that pimsim-nn does not have. `compiled`: by RAPTOR, whose user cannot change the streams. `alone`: a chip without a
    program.
    `computed` keeps what several rules of one module share.
    """

    streams: Sequence[Records]
    groups: Sequence[tuple[int, ...] | None]
    instantiated: Sequence[bool]
    source: Path = Path()
    core_files: Sequence[str] = ()
    directory: bool = True
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Sequence[str] = ()
    ignored: Sequence[str] = ()
    load_faults: Sequence[str] = ()
    chip: Chip | None = None
    memory: Memory | None = None
    shapes: Shapes | None = None
    text: Mapping[int, TextFaults] = field(default_factory=dict[int, TextFaults])
    extended: bool = False
    compiled: bool = False
    alone: bool = False
    network: NetworkTable | None = None
    network_fault: str = ""
    computed: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def core_count(self) -> int:
        return len(self.streams)

    @property
    def rob_size(self) -> int:
        return self.chip.file.chip_config.core_config.rob_size if self.chip else 1

    @cached_property
    def columns(self) -> Columns:
        return columns_of(self.streams)

    @cached_property
    def trace(self) -> Trace:
        from validator.checks.kernels import trace

        s = self.columns
        result = Trace(np.zeros((len(s), 3), np.int32), np.zeros((len(s), 2), np.uint8), np.zeros(len(s), np.uint8))
        trace(s.starts, s.opcode, s.rd, s.rs1, s.a, s.b, s.c, RULES, result.values, result.widths, result.unset)
        return result

    @cached_property
    def group_starts(self) -> Indices:
        """Index of the first array group of each core among all groups."""
        return np.concatenate([[0], np.cumsum([len(g or ()) for g in self.groups])]).astype(np.int64)

    def file_of(self, core: int | None) -> str:
        if core is None or core >= len(self.core_files):
            return self.source.name
        return self.core_files[core] or self.source.name
