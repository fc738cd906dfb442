"""Subject of the rules: program, files and chip. Expensive parts are computed once, when a rule needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raptor.output.files import MemoryMap
from raptor.output.repair_files import RepairTable
from raptor.output.resident_files import ResidentMap
from raptor.target.arch import Target
from raptor.target.chip_file import Chip
from raptor.target.isa import Records
from raptor.target.opcode_tables import OPCODE_RULES, Bytes
from validator.checks.findings import Indices
from validator.checks.instruction_table import Column, InstructionTable, make_instruction_table
from validator.checks.json_faults import TextFaults
from validator.program.network_table import NetworkTable

GroupShapes = Sequence[Sequence[tuple[int, int]] | None]


@dataclass(frozen=True, slots=True)
class ArchitectureFile:
    """An architecture file as the simulator reads it.

    `target`: what it describes, with defaults for impossible values. `unknown`: names of fields that do not exist, with
    the name perhaps meant. `impossible`: names of fields, with the reason. `network_file`: the network table that
    the file names. `core_memory_id`: the name of the global memory for the cores, if the chip has another one.
    """

    path: str
    target: Target
    unknown_fields: tuple[tuple[str, str], ...] = ()
    impossible_fields: tuple[tuple[str, str], ...] = ()
    network_file: str | None = None
    core_memory_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RegisterTrace:
    """Registers and widths at each instruction (see `check_kernels.trace`)."""

    values: Column
    widths: Bytes
    unset_registers: Bytes


@dataclass(eq=False)
class CheckSubject:
    """A program to check; parts that do not exist are None.

    `streams` has one entry per core; `groups` too, None if the array_group_map has no entry. `load_faults`: reasons why
    the simulator refuses to load the program. `network`: None if it was not read; `network_fault` is the reason.
    `shapes`: rows and columns of the matrix of each array group, from the weights. `extended`: the user of the compiler
    allowed instructions that pimsim-nn does not have. `compiled`: made by RAPTOR, so the user cannot change the
    streams. `alone`: a chip without a program. `computed`: cached results that several rules of one module share.
    `resident`: what stays in local memory between two samples. `defects`: the chip that the program is for, `repair`:
    how it is repaired.
    """

    streams: Sequence[Records]
    groups: Sequence[tuple[int, ...] | None]
    instantiated: Sequence[bool]
    source: Path = Path()
    core_files: Sequence[str] = ()
    directory: bool = True
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Sequence[str] = ()
    ignored_streams: Sequence[str] = ()
    load_faults: Sequence[str] = ()
    chip: ArchitectureFile | None = None
    memory: MemoryMap | None = None
    resident: ResidentMap | None = None
    shapes: GroupShapes | None = None
    text: Mapping[int, TextFaults] = field(default_factory=dict[int, TextFaults])
    allows_extensions: bool = False
    made_by_raptor: bool = False
    is_chip_only: bool = False
    network: NetworkTable | None = None
    network_fault: str = ""
    defects: Chip | None = None
    repair: RepairTable | None = None
    computed: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def core_count(self) -> int:
        return len(self.streams)

    @property
    def rob_size(self) -> int:
        return self.chip.target.rob_size if self.chip else 1

    @cached_property
    def columns(self) -> InstructionTable:
        return make_instruction_table(self.streams)

    @cached_property
    def trace(self) -> RegisterTrace:
        """Registers and widths at each instruction."""
        from validator.checks.check_kernels import trace_registers

        s = self.columns
        result = RegisterTrace(
            np.zeros((len(s), 3), np.int32), np.zeros((len(s), 3), np.uint8), np.zeros(len(s), np.uint8)
        )
        trace_registers(
            s.starts,
            s.opcode,
            s.rd,
            s.rs1,
            s.a,
            s.b,
            s.c,
            OPCODE_RULES,
            result.values,
            result.widths,
            result.unset_registers,
        )
        return result

    @cached_property
    def group_starts(self) -> Indices:
        """Index of the first array group of each core among all groups."""
        return np.concatenate([[0], np.cumsum([len(g or ()) for g in self.groups])]).astype(np.int64)

    def file_of(self, core: int | None) -> str:
        if core is None or core >= len(self.core_files):
            return self.source.name
        return self.core_files[core] or self.source.name
