"""PimIR to instruction streams."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raptor import isa
from raptor.arch import Arch
from raptor.codegen.emit import Emitter
from raptor.codegen.virtual import Ints, Registers
from raptor.errors import VerifyError
from raptor.pim.ir import CoreProgram, Operation, PimProgram


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The instructions of one core. The first k steps of its program are the first `step_ends[k]` records."""

    records: isa.Records
    step_ends: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Streams of the cores that have work, by core."""

    cores: Mapping[int, Stream]

    def __str__(self) -> str:
        return "".join(map("".join, (_lines(core, stream) for core, stream in self.cores.items())))


def _lines(core: int, stream: Stream) -> Iterator[str]:
    yield f"core {core} {{\n"
    for pc, record in enumerate(stream.records):
        yield f"  {pc:6} {isa.text(record)}\n"
    yield "}\n"


def generate(program: PimProgram, arch: Arch) -> Streams:
    """Unrolls every operation into instructions."""
    return Streams({i: _stream(core, arch) for i, core in program.cores.items()})


def _stream(core: CoreProgram, arch: Arch) -> Stream:
    if not core.steps:
        return Stream(np.zeros(0, isa.RECORD), np.zeros(1, np.intp))
    emitter = Emitter(core, arch.element_bits, arch.element_bytes)
    blocks = [emitter.prologue(), *(emitter.emit(step.operation) for step in core.steps)]
    records, ends = Registers().materialise(np.concatenate(blocks))
    boundaries = np.cumsum([len(block) for block in blocks])
    return Stream(records, ends[boundaries])


def operation_name(operation: Operation) -> str:
    """The name of an operation for people, such as `apply filters`."""
    return re.sub("(?<!^)(?=[A-Z])", " ", type(operation).__name__).lower()


def verify_streams(streams: Streams, program: PimProgram, arch: Arch) -> None:
    """Raises `VerifyError` where a stream breaks an invariant of docs/design.md, 3, or a rule of the simulator."""
    for core, stream in streams.cores.items():
        records = stream.records
        if not len(records):
            continue
        fault = next(isa.range_faults(records), None)
        if fault is not None:
            raise VerifyError(f"stream of core {core}, pc {fault.pc}: {fault}")
        _check_order(core, records)
        _check_ranges(core, records, program.cores[core], arch)
    _check_messages(streams.cores)


def _check_order(core: int, records: isa.Records) -> None:
    """`setbw` first, a last instruction that ends the core, registers written before they are read."""
    if records["opcode"][0] != isa.OPCODE["setbw"]:
        raise VerifyError(f"stream of core {core}: setbw does not come first")
    last = isa.BY_OPCODE[int(records["opcode"][-1])]
    if last.unit is isa.Unit.SCALAR:
        raise VerifyError(f"stream of core {core}: ends with {last.name}, so the simulator never finishes it")
    first_write = np.full(isa.REGISTER_COUNT, len(records))
    written, at = np.unique(records["rd"][records["opcode"] == isa.OPCODE["sldi"]], return_index=True)
    first_write[written] = np.flatnonzero(records["opcode"] == isa.OPCODE["sldi"])[at]
    for opcode in np.unique(records["opcode"]):
        uses = np.flatnonzero(records["opcode"] == opcode)
        for operand in isa.BY_OPCODE[int(opcode)].operands:
            if not operand.is_register or operand.kind is isa.Kind.DEFINE:
                continue
            early = uses[uses < first_write[records[operand.slot][uses]]]
            if len(early):
                raise VerifyError(f"stream of core {core}, pc {early[0]}: {operand.name} is read before it is written")


def _check_ranges(core: int, records: isa.Records, program: CoreProgram, arch: Arch) -> None:
    if core >= arch.core_count:
        raise VerifyError(f"stream of core {core}: the chip has {arch.core_count} cores")
    groups = records["c"][records["opcode"] == isa.OPCODE["mvmul"]]
    if len(groups) and groups.max() >= len(program.groups):
        raise VerifyError(f"stream of core {core}: array group {groups.max()} of {len(program.groups)}")


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
