"""Verifier of instruction streams: registers, addresses, messages, rules of the simulator
(docs/developers/architecture.md)."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from raptor.codegen.pimsim.generate_streams import CoreStream, InstructionStreams
from raptor.common.errors import VerifyError
from raptor.pim.auxiliary_programs import auxiliary_programs
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.operations import LoadRows
from raptor.target import isa
from raptor.target.arch import Target
from raptor.target.computed_loads import ComputedLoadError, find_computed_loads
from raptor.target.opcode_tables import PARAMETER_BYTES, TIMING

Ints = npt.NDArray[np.int64]


def verify_streams(streams: InstructionStreams, program: PimProgram, arch: Target) -> None:
    """Checks the streams of a program. Raises `VerifyError` that names the core and the instruction."""
    _check_cores(streams.cores, program.cores, arch)
    beside = auxiliary_programs(program)
    for name, cores in streams.auxiliary.items():
        _check_cores(cores, beside[name], arch)
    _check_messages(streams.cores)


def _check_cores(streams: Mapping[int, CoreStream], programs: Mapping[int, CoreProgram], arch: Target) -> None:
    """Checks streams one by one. Raises `VerifyError` that names the core and the instruction."""
    for core, stream in streams.items():
        records = stream.records
        if not len(records):
            continue
        if core >= arch.core_count:
            raise VerifyError(f"stream of core {core}: the chip has {arch.core_count} cores")
        positions = isa.find_positions(records)
        fault = next(isa.find_range_faults(records, positions), None)
        if fault is not None:
            raise VerifyError(f"stream of core {core}, pc {fault.pc}: {fault}")
        _check_ends(core, records)
        _check_groups(core, records, programs[core])
        _check_registers(core, records, positions)
        _check_addresses(core, records, positions, programs[core])
        _check_rows(core, records, positions, programs[core], arch)


def _check_ends(core: int, records: isa.Records) -> None:
    """Checks that `setbw` comes first, and that the last instruction lets the simulator finish the core."""
    if TIMING[records["opcode"][0]] != isa.Timing.SET_WIDTHS:
        raise VerifyError(f"stream of core {core}: setbw does not come first")
    last = isa.BY_OPCODE[int(records["opcode"][-1])]
    if last.unit is isa.Unit.SCALAR:
        raise VerifyError(f"stream of core {core}: ends with {last.name}, so the simulator never finishes it")


def _check_groups(core: int, records: isa.Records, program: CoreProgram) -> None:
    """Checks that MVMs use array groups that the core has."""
    groups = records["c"][records["opcode"] == isa.OPCODE["mvmul"]]
    if len(groups) and groups.max() >= len(program.groups):
        raise VerifyError(f"stream of core {core}: array group {groups.max()} of {len(program.groups)}")


def _check_registers(core: int, records: isa.Records, positions: isa.OpcodePositions) -> None:
    """Checks that registers are written before they are read."""
    never = len(records)
    defining = [
        code for code in positions if any(o.kind is isa.OperandKind.DEFINE for o in isa.BY_OPCODE[code].operands)
    ]
    writes = np.sort(np.concatenate([np.zeros(0, np.intp), *(positions[code] for code in defining)]))
    first_write = _first(records["rd"], writes, never)
    for opcode, uses in positions.items():
        for operand in isa.BY_OPCODE[opcode].operands:
            if not operand.is_register or operand.kind is isa.OperandKind.DEFINE:
                continue
            ready = first_write[:-1]
            if operand.kind is isa.OperandKind.USE_PAIR:
                ready = np.maximum(ready, first_write[1:])
            first_use = _first(records[operand.slot], uses, never)[:-1]
            early = first_use[first_use < ready]
            if len(early):
                pc = early.min()
                raise VerifyError(f"stream of core {core}, pc {pc}: {operand.name} is read before it is written")


def _first(registers: npt.NDArray[np.integer], pcs: npt.NDArray[np.intp], never: int) -> npt.NDArray[np.intp]:
    """Returns, for each register and one more, the first of the ascending `pcs` that names it; `never` if none does."""
    first = np.full(isa.REGISTER_COUNT + 1, never)
    first[registers[pcs[::-1]]] = pcs[::-1]  # reversed: the assignment of the first pc is the last
    return first


def _check_addresses(core: int, records: isa.Records, positions: isa.OpcodePositions, program: CoreProgram) -> None:
    """Checks that every range of local memory that an instruction touches lies inside the core's buffers."""
    limit = program.local_bytes
    values, bits = _RegisterValues(records, positions), _bits(records)
    for opcode, uses in positions.items():
        spec = isa.BY_OPCODE[opcode]
        for operand in spec.operands:
            if operand.kind not in (isa.OperandKind.SOURCE, isa.OperandKind.TARGET):
                continue
            start = values.before(uses, operand.slot)
            if spec.name in ("ld", "st"):
                start = start + records["c"][uses]
            stop = start + _extent(operand, uses, values, bits, program)
            outside = uses[(start < 0) | (stop > limit)]
            if len(outside):
                where = f"stream of core {core}, pc {outside[0]}"
                raise VerifyError(f"{where}: {operand.name} leaves the {limit} bytes of local memory used")


def _extent(
    operand: isa.Operand, pcs: npt.NDArray[np.intp], values: "_RegisterValues", bits: Ints, program: CoreProgram
) -> Ints:
    """Returns the number of bytes that each instruction touches from the address in an operand. `bits`: see `_bits`."""
    access, records = operand.access, values.records
    assert access is not None, "the operand has no address"
    match access.count:
        case isa.AccessCount.LENGTH:
            count = records["d"][pcs].astype(np.int64)
        case isa.AccessCount.ONE:
            count = np.ones(len(pcs), np.int64)
        case isa.AccessCount.TABLE:
            count = 1 << bits[pcs, 0]
        case _:
            side = "rows" if access.count is isa.AccessCount.ROWS else "cols"
            spans = (getattr(group.matrix, side) for group in program.groups)
            count = np.array([stop - start for start, stop in spans], np.int64)[records["c"][pcs]]
    if access.strided:
        count = (count - 1) * values.before(pcs, "a") + 1
    return count * _bytes(access.width, bits[pcs])


def _bytes(width: isa.AccessWidth, bits: Ints) -> Ints | int:
    """Returns the bytes of an element for each row of `bits`."""
    match width:
        case isa.AccessWidth.BYTE:
            return 1
        case isa.AccessWidth.PARAMETERS:
            return PARAMETER_BYTES
        case _:
            return -(-bits[:, int(width is isa.AccessWidth.OUTPUT)] // 8)


def _bits(records: isa.Records) -> Ints:
    """Returns [instructions, 2]: the current input and output bits of an element at each instruction."""
    sets = np.flatnonzero(TIMING[records["opcode"]] == isa.Timing.SET_WIDTHS)
    bits = np.stack([records["b"][sets], records["c"][sets]], axis=1).astype(np.int64)
    return bits[np.searchsorted(sets, np.arange(len(records)), side="right") - 1]


def _check_rows(
    core: int, records: isa.Records, positions: isa.OpcodePositions, program: CoreProgram, arch: Target
) -> None:
    """Checks that embedding lookups load from the tables, ids and local addresses that the program names."""
    try:
        loads = find_computed_loads(records)
    except ComputedLoadError as e:
        raise VerifyError(f"stream of core {core}, {e}") from None
    values = _RegisterValues(records, positions)
    ids = values.pair(loads.read, "rs1") + records["c"][loads.read]
    actual = np.stack([ids, loads.stride, loads.base, records["c"][loads.load], loads.size], axis=1)
    wanted: list[Ints] = []
    for op in map(program.steps.operation, program.steps.of_class(LoadRows).tolist()):
        assert isinstance(op, LoadRows)
        size = op.result.channels * arch.bytes_of(op.result.element)
        local = program.address(op.result) + np.arange(len(op.ids)) * size
        same = np.broadcast_to([op.stride, op.table, size], (len(op.ids), 3))
        wanted.append(np.column_stack([op.ids, same[:, :2], local, same[:, 2]]))
    expected = np.concatenate([np.zeros((0, 5), np.int64), *wanted])
    if actual.shape != expected.shape:
        raise VerifyError(f"stream of core {core}: {len(actual)} rows are loaded, not {len(expected)}")
    wrong = np.flatnonzero((actual != expected).any(axis=1))
    if len(wrong):
        pc, got, due = loads.load[wrong[0]], actual[wrong[0]].tolist(), expected[wrong[0]].tolist()
        what = "(id address, stride, table, local address, bytes)"
        raise VerifyError(f"stream of core {core}, pc {pc}: loads a row {what} {got}, not {due}")


class _RegisterValues:
    """Values of registers before an instruction, as far as they are written by `sldi`."""

    def __init__(self, records: isa.Records, positions: isa.OpcodePositions) -> None:
        self.records = records
        self._loads = positions.get(isa.OPCODE["sldi"], np.zeros(0, np.intp))
        self._loaded = records["rd"][self._loads]
        self._held: dict[int, npt.NDArray[np.int32]] = {}

    def before(self, pcs: npt.NDArray[np.intp], slot: str) -> Ints:
        """Returns the values of the registers in field `slot`, before each instruction of `pcs`.

        A register that has not been written yet holds 0.
        """
        registers = self.records[slot][pcs]
        if (registers == registers[0]).all():
            return self._values(int(registers[0]))[pcs].astype(np.int64)
        result = np.zeros(len(pcs), np.int64)
        for register in np.flatnonzero(np.bincount(registers)):
            mine = np.flatnonzero(registers == register)
            result[mine] = self._values(int(register))[pcs[mine]]
        return result

    def pair(self, pcs: npt.NDArray[np.intp], slot: str) -> Ints:
        """Returns the global addresses in the register pairs in field `slot`."""
        result = np.zeros(len(pcs), np.int64)
        registers = self.records[slot][pcs]
        for register in np.flatnonzero(np.bincount(registers, minlength=1)):
            mine = pcs[registers == register]
            high, low = (self._values(int(r))[mine].astype(np.int64) for r in (register, register + 1))
            result[registers == register] = (high << 32) + low % 2**32
        return result

    def _values(self, register: int) -> npt.NDArray[np.int32]:
        """Returns the value of a register before each instruction, cached."""
        if register not in self._held:
            loads = self._loads[self._loaded == register]
            values = np.append(np.int32(0), self.records["a"][loads])
            self._held[register] = np.repeat(values, np.diff(loads, prepend=0, append=len(self.records)))
        return self._held[register]


def _check_messages(streams: Mapping[int, CoreStream]) -> None:
    """Checks, for each ordered pair of cores, that the sizes sent equal the sizes received, in order."""
    sent, received = _messages(streams, "send"), _messages(streams, "recv")[:, [1, 0, 2]]
    sent, received = (ends[np.lexsort((ends[:, 1], ends[:, 0]))] for ends in (sent, received))
    count = min(len(sent), len(received))
    differ = np.flatnonzero((sent[:count] != received[:count]).any(axis=1))
    if not len(differ) and len(sent) == len(received):
        return
    k = int(differ[0]) if len(differ) else count
    source, target = min(ends[k, :2].tolist() for ends in (sent, received) if k < len(ends))
    raise VerifyError(f"streams: sends and receives from core {source} to {target} disagree")


def _messages(streams: Mapping[int, CoreStream], name: str) -> Ints:
    """Returns [instructions, 3] for one opcode: core, other core, size in bytes."""
    records = {core: stream.records[stream.records["opcode"] == isa.OPCODE[name]] for core, stream in streams.items()}
    columns = [np.stack([np.full(len(r), core), r["a"], r["d"]], axis=1) for core, r in records.items()]
    return np.concatenate([np.zeros((0, 3), np.int64), *columns])
