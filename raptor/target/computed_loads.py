"""Finds, in a stream, the loads at global addresses that a core computes from a number in global memory.

There is one form: `sld` reads a number from global memory, `smuli` multiplies it with the distance of two rows,
`saddi` adds the address of the first row, and the sum is the low word of the address of one or more `ld`. So the number
and the constants of a stream determine the addresses that a load can reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.isa import BY_OPCODE, OPCODE, REGISTER_COUNT, OperandKind, Records

Indices = npt.NDArray[np.int64]
_SLD, _SMULI, _SADDI, _LD = (OPCODE[name] for name in ("sld", "smuli", "saddi", "ld"))


class ComputedLoadError(Exception):
    """Raised for an instruction that uses a number from global memory other than to compute the address of a load."""

    def __init__(self, pc: int, reason: str) -> None:
        self.pc, self.reason = pc, reason
        super().__init__(f"pc {pc}: {reason}")


@dataclass(frozen=True, slots=True)
class ComputedLoads:
    """The loads at computed addresses of a stream, with an entry for each in all arrays.

    read, load: index of the `sld` and of the `ld`. stride, base: bytes from row to row, and the address of row 0. size:
    bytes that are loaded.
    """

    read: Indices
    load: Indices
    stride: Indices
    base: Indices
    size: Indices


def find_computed_loads(records: Records) -> ComputedLoads:
    """Returns the loads at computed addresses.

    Raises `ComputedLoadError` for any other use of a number that was read.
    """
    opcode = records["opcode"]
    if not (opcode == _SLD).any():
        nothing = np.zeros(0, np.int64)
        return ComputedLoads(nothing, nothing, nothing, nothing, nothing)
    writes = _Writes(records)
    computed = np.flatnonzero(opcode == _SLD)
    for name, code in (("smuli", _SMULI), ("saddi", _SADDI), ("ld", _LD)):
        users = writes.users(computed)
        _refuse(users[opcode[users] != code], f"a number from global memory goes into it, where only {name} takes it")
        if code == _LD:
            high, low = writes.last_write(users, "rs1"), writes.last_write(users, "rs1", 1)
            known = (high >= 0) & (opcode[high] == OPCODE["sldi"])
            _refuse(users[~known | ~np.isin(low, computed)], "of its address only the low word may be computed")
        _refuse(np.setdiff1d(computed, writes.last_write(users, "rs1", code == _LD)), f"no {name} uses its result")
        computed = users
    add = writes.last_write(computed, "rs1", 1)
    times = writes.last_write(add, "rs1")
    read = writes.last_write(times, "rs1")
    imm = records["a"].astype(np.int64)
    base = (imm[writes.last_write(computed, "rs1")] << 32) + imm[add] % 2**32
    return ComputedLoads(read, computed, imm[times], base, records["d"][computed].astype(np.int64))


def _refuse(pcs: Indices, reason: str) -> None:
    if len(pcs):
        raise ComputedLoadError(int(pcs[0]), reason)


class _Writes:
    """The instruction that wrote each register last, before each instruction that reads it."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.positions = isa.find_positions(records)
        self.by_register: Mapping[int, Indices] = self._written()

    def _written(self) -> Mapping[int, Indices]:
        defines = [
            at for code, at in self.positions.items() if any(o.kind is OperandKind.DEFINE for o in _operands(code))
        ]
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *defines]))
        return {r: every[self.records["rd"][every] == r] for r in range(REGISTER_COUNT)}

    def last_write(self, pcs: Indices, slot: str, after: int = 0) -> Indices:
        """Returns the last write of register (slot + `after`) before each of `pcs`; -1 where there is none."""
        registers = self.records[slot][pcs].astype(np.int64) + after
        found = np.full(len(pcs), -1)
        for r in np.unique(registers):
            mine = np.flatnonzero(registers == r)
            writes = np.append(self.by_register.get(int(r), np.zeros(0, np.int64)), -1)
            found[mine] = writes[np.searchsorted(writes[:-1], pcs[mine]) - 1]
        return found

    def users(self, writes: Indices) -> Indices:
        """Returns the instructions that read a register written by one of the instructions `writes`, in order."""
        found = [np.zeros(0, np.int64)]
        for code, at in self.positions.items():
            for operand in _operands(code):
                if operand.is_register and operand.kind is not OperandKind.DEFINE:
                    for step in range(1 + (operand.kind is OperandKind.USE_PAIR)):
                        found.append(at[np.isin(self.last_write(at, operand.slot, step), writes)])
        return np.unique(np.concatenate(found))


def _operands(opcode: int) -> tuple[isa.Operand, ...]:
    return BY_OPCODE[opcode].operands if opcode in BY_OPCODE else ()
