"""Invariants of instruction streams (docs/design.md), and rules of the simulator. All vectorised over a stream."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from raptor import isa
from raptor.arch import Arch
from raptor.codegen.generate import Stream, Streams
from raptor.errors import VerifyError
from raptor.pim.ir import CoreProgram, PimProgram

Ints = npt.NDArray[np.int64]


def verify_streams(streams: Streams, program: PimProgram, arch: Arch) -> None:
    """Raises `VerifyError` that names the core and the instruction."""
    for core, stream in streams.cores.items():
        records = stream.records
        if not len(records):
            continue
        if core >= arch.core_count:
            raise VerifyError(f"stream of core {core}: the chip has {arch.core_count} cores")
        fault = next(isa.range_faults(records), None)
        if fault is not None:
            raise VerifyError(f"stream of core {core}, pc {fault.pc}: {fault}")
        _check_ends(core, records)
        _check_groups(core, records, program.cores[core])
        _check_registers(core, records)
        _check_addresses(core, records, program.cores[core], arch)
    _check_messages(streams.cores)


def _check_ends(core: int, records: isa.Records) -> None:
    """`setbw` comes first, and an instruction that lets the simulator finish the core last."""
    if records["opcode"][0] != isa.OPCODE["setbw"]:
        raise VerifyError(f"stream of core {core}: setbw does not come first")
    last = isa.BY_OPCODE[int(records["opcode"][-1])]
    if last.unit is isa.Unit.SCALAR:
        raise VerifyError(f"stream of core {core}: ends with {last.name}, so the simulator never finishes it")


def _check_groups(core: int, records: isa.Records, program: CoreProgram) -> None:
    groups = records["c"][records["opcode"] == isa.OPCODE["mvmul"]]
    if len(groups) and groups.max() >= len(program.groups):
        raise VerifyError(f"stream of core {core}: array group {groups.max()} of {len(program.groups)}")


def _check_registers(core: int, records: isa.Records) -> None:
    """Registers are written before they are read."""
    first_write = np.full(isa.REGISTER_COUNT + 1, len(records))
    writes = np.flatnonzero(records["opcode"] == isa.OPCODE["sldi"])
    written, at = np.unique(records["rd"][writes], return_index=True)
    first_write[written] = writes[at]
    for opcode in np.unique(records["opcode"]):
        uses = np.flatnonzero(records["opcode"] == opcode)
        for operand in isa.BY_OPCODE[int(opcode)].operands:
            if not operand.is_register or operand.kind is isa.Kind.DEFINE:
                continue
            register = records[operand.slot][uses].astype(np.intp)
            ready = first_write[register]
            if operand.kind is isa.Kind.USE_PAIR:
                ready = np.maximum(ready, first_write[register + 1])
            early = uses[uses < ready]
            if len(early):
                raise VerifyError(f"stream of core {core}, pc {early[0]}: {operand.name} is read before it is written")


def _check_addresses(core: int, records: isa.Records, program: CoreProgram, arch: Arch) -> None:
    """Every range of local memory that an instruction touches lies inside what the core uses."""
    limit = program.local_elements * arch.element_bytes
    values = _RegisterValues(records)
    for opcode in np.unique(records["opcode"]):
        spec = isa.BY_OPCODE[int(opcode)]
        uses = np.flatnonzero(records["opcode"] == opcode)
        for operand in spec.operands:
            if operand.kind not in (isa.Kind.SOURCE, isa.Kind.TARGET):
                continue
            start = values.before(uses, operand.slot)
            if spec.name in ("ld", "st"):
                start = start + records["c"][uses]
            stop = start + _extent(spec, operand, uses, values, program, arch)
            outside = uses[(start < 0) | (stop > limit)]
            if len(outside):
                where = f"stream of core {core}, pc {outside[0]}"
                raise VerifyError(f"{where}: {operand.name} leaves the {limit} bytes of local memory used")


def _extent(
    spec: isa.Instruction,
    operand: isa.Operand,
    pcs: npt.NDArray[np.intp],
    values: "_RegisterValues",
    program: CoreProgram,
    arch: Arch,
) -> Ints:
    """Bytes that each instruction touches from the address of an operand on."""
    width, records = arch.element_bytes, values.records
    if spec.unit is isa.Unit.TRANSFER:
        return records["d"][pcs].astype(np.int64)
    if spec.unit is isa.Unit.MATRIX:
        side = "rows" if operand.kind is isa.Kind.SOURCE else "cols"
        spans = (getattr(group.matrix, side) for group in program.groups)
        return np.array([stop - start for start, stop in spans], np.int64)[records["c"][pcs]] * width
    if spec.name == "vvdmul" and operand.kind is isa.Kind.TARGET:
        return np.full(len(pcs), width, np.int64)
    length = records["d"][pcs].astype(np.int64)
    if spec.name == "vmv" and operand.kind is isa.Kind.SOURCE:
        length = (length - 1) * values.before(pcs, "a") + 1
    return length * width


class _RegisterValues:
    """What a register holds before an instruction; streams of the compiler write registers with `sldi` only."""

    def __init__(self, records: isa.Records) -> None:
        self.records = records
        loads = np.flatnonzero(records["opcode"] == isa.OPCODE["sldi"])
        self.loads = {int(r): loads[records["rd"][loads] == r] for r in np.unique(records["rd"][loads])}

    def before(self, pcs: npt.NDArray[np.intp], slot: str) -> Ints:
        """The values of the registers that `slot` names; 0 where it names none."""
        register = self.records[slot][pcs]
        result = np.zeros(len(pcs), np.int64)
        for r in np.unique(register):
            loads = self.loads.get(int(r))
            if loads is not None:
                mine = np.flatnonzero(register == r)
                latest = loads[np.searchsorted(loads, pcs[mine]) - 1]
                result[mine] = self.records["a"][latest]
        return result


def _check_messages(streams: Mapping[int, Stream]) -> None:
    """For each ordered pair of cores, the sizes sent are the sizes received, in order."""
    sent: dict[tuple[int, int], list[int]] = {}
    received: dict[tuple[int, int], list[int]] = {}
    for core, stream in streams.items():
        records = stream.records
        for record in records[np.isin(records["opcode"], [isa.OPCODE["send"], isa.OPCODE["recv"]])]:
            partner, size = int(record["a"]), int(record["d"])
            if record["opcode"] == isa.OPCODE["send"]:
                sent.setdefault((core, partner), []).append(size)
            else:
                received.setdefault((partner, core), []).append(size)
    if sent != received:
        pair = next(p for p in sorted(sent.keys() | received.keys()) if sent.get(p) != received.get(p))
        raise VerifyError(f"streams: sends and receives from core {pair[0]} to {pair[1]} disagree")
