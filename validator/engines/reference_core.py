"""A core of the plain engine, and the instructions that are the same in all programs: scalars, moves, messages.

`float_semantics` has the instructions on float32 numbers, `integer_semantics` those on integers.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from raptor.target.isa import BY_OPCODE, OPCODE
from validator.engines.machine import EVENT_COUNT, SHARED, UNUSED, WORD_BYTES, EngineFault, EngineStop, Machine
from validator.program.program import Bytes, Values

Planes = tuple[Values, ...]
"""A memory: its values and, with integers, a flag for each: 1 if it was written. Moves copy all planes."""


class DecodedInstruction(NamedTuple):
    """One decoded record."""

    opcode: int
    rd: int
    rs1: int
    a: int
    b: int
    c: int
    d: int


class BlockedError(Exception):
    """Raised if an instruction must wait for another core."""


class FaultError(Exception):
    def __init__(self, fault: EngineFault) -> None:
        super().__init__(fault)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ReferenceCore:
    """A core of the machine, with checked memory accesses."""

    machine: Machine
    number: int
    meanings: Mapping[int, "Semantics"]

    @property
    def pc(self) -> int:
        return int(self.machine.pc[self.number])

    @property
    def is_finished(self) -> bool:
        return self.pc == self.machine.first[self.number + 1]

    @property
    def local(self) -> Values:
        return self.machine.local[self._part]

    @property
    def written(self) -> Bytes:
        """Flags of the bytes of local memory that were written; only in integer programs."""
        assert self.machine.written is not None  # tells the type checker
        return self.machine.written.local[self._part]

    @property
    def _part(self) -> slice:
        first = int(self.machine.local_first[self.number])
        return slice(first, first + int(self.machine.local_size[self.number]))

    @property
    def local_planes(self) -> Planes:
        return (self.local,) if self.machine.written is None else (self.local, self.written)

    @property
    def global_planes(self) -> Planes:
        m = self.machine
        return (m.memory,) if m.written is None else (m.memory, m.written.memory)

    @property
    def captured_planes(self) -> Planes:
        m = self.machine
        return (m.probes.captured,) if m.written is None else (m.probes.captured, m.written.captured)

    def decode_instruction(self) -> DecodedInstruction:
        head, a, b, c, d = (int(word) for word in self.machine.words[self.pc])
        return DecodedInstruction(head & 255, head >> 8 & 255, head >> 16 & 255, a, b, c, d)

    def step(self) -> bool:
        """Executes one instruction. Returns false if the core has finished or must wait."""
        self.capture()
        if self.is_finished:
            return False
        instruction = self.decode_instruction()
        if (meaning := self.meanings.get(instruction.opcode)) is None:
            raise self.make_fault(EngineStop.NO_MEANING)
        try:
            meaning(self, instruction)
        except BlockedError:
            return False
        self.advance()
        return True

    def advance(self) -> None:
        self.machine.pc[self.number] += 1
        self.capture()

    def capture(self) -> None:
        """Copies the spans of the probes at the program counter, before its instruction is executed."""
        p = self.machine.probes
        while (i := int(p.next[self.number])) < p.first[self.number + 1] and p.pc[i] == self.pc:
            target, source = (slice(at[i], at[i] + p.size[i]) for at in (p.offset, p.address))
            copy_planes(self.captured_planes, target, self.local_planes, source)
            p.next[self.number] += 1

    def read_register(self, index: int) -> int:
        return int(self.machine.registers[self.number, index])

    def write_register(self, index: int, value: int) -> None:
        self.machine.registers[self.number, index] = (value + 2**31) % 2**32 - 2**31

    def make_fault(self, stop: EngineStop, address: int = 0, size: int = 0, **of_element: int) -> FaultError:
        """Returns the exception for a fault; `of_element`: the last fields of `Fault`."""
        return FaultError(EngineFault(stop, self.number, address, size, **of_element))

    def span(self, memory: Values, address: int, size: int, range_fault: EngineStop) -> slice:
        """Returns the elements of `size` bytes at `address`. Raises `FaultError` if they are unaligned or outside."""
        width = self.machine.element_bytes
        if address % width or size % width:
            raise self.make_fault(EngineStop.UNALIGNED, address, size)
        if address < 0 or address + size > len(memory) * width:
            raise self.make_fault(range_fault, address, size)
        return slice(address // width, (address + size) // width)

    def byte_span(self, address: int, size: int) -> slice:
        return self.span(self.local, address, size, EngineStop.LOCAL_RANGE)

    def element_span(self, address: int, count: int) -> slice:
        return self.byte_span(address, count * self.machine.element_bytes)

    def global_span(self, register: int, offset: int, size: int) -> slice:
        address = (self.read_register(register) << 32) + self.read_register(register + 1) % 2**32 + offset
        return self.span(self.machine.memory, address, size, EngineStop.GLOBAL_RANGE)

    def check_owner(self, part: slice, *, shared: bool) -> None:
        """Raises `FaultError` if a part of global memory belongs to another core or (unless `shared`) to all cores."""
        owners = self.machine.owners[part]
        if not np.isin(owners, (self.number, UNUSED, *((SHARED,) if shared else ()))).all():
            width = self.machine.element_bytes
            raise self.make_fault(EngineStop.NOT_OWNED, part.start * width, len(owners) * width)

    def vector_span(self, i: DecodedInstruction, register: int, bit: int, count: int) -> slice:
        """Returns the operand of a vector instruction; bit `bit` of offset_select adds the offset, in elements."""
        offset = i.c * self.machine.element_bytes if i.b >> bit & 1 else 0
        return self.element_span(self.read_register(register) + offset, count)

    def check_overlap(self, target: slice, source: slice, *, exact: bool) -> None:
        """Raises `FaultError` if a target overlaps a source. `exact`: a target equal to the source is allowed."""
        if target.stop <= source.start or source.stop <= target.start or (exact and target == source):
            return
        width = self.machine.element_bytes
        raise self.make_fault(EngineStop.OVERLAP, target.start * width, (target.stop - target.start) * width)


def copy_planes(target: Planes, to: slice, source: Planes, of: slice) -> None:
    """Copies a part of a memory, in all planes."""
    for left, right in zip(target, source, strict=True):
        left[to] = right[of]


Semantics = Callable[[ReferenceCore, DecodedInstruction], None]


def _scalar(function: Callable[[int, int], int]) -> Semantics:
    """Makes a scalar instruction. `function` gets registers rs1 and rs2, or rs1 and `imm` if there is no rs2."""

    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        names = [o.name for o in BY_OPCODE[i.opcode].operands]
        core.write_register(
            i.rd, function(core.read_register(i.rs1), core.read_register(i.a) if "rs2" in names else i.a)
        )

    return run


def _sld(core: ReferenceCore, i: DecodedInstruction) -> None:
    """Loads the number of a row: a float32 in a program of floats, else an integer of 4 bytes."""
    m = core.machine
    size = m.element_bytes if m.written is None else WORD_BYTES
    part = core.global_span(i.rs1, i.c, size)
    core.check_owner(part, shared=True)
    span = part.start * m.element_bytes, size
    if m.written is not None and not m.written.memory[part].all():
        raise core.make_fault(EngineStop.UNWRITTEN, *span)
    content = m.memory[part]
    value = float(content[0]) if m.written is None else int.from_bytes(content.tobytes(), "little", signed=True)
    if value != np.floor(value):
        raise core.make_fault(EngineStop.NOT_WHOLE, *span)
    if not 0 <= value < m.rows[m.next_id[core.number]]:
        raise core.make_fault(EngineStop.NO_ROW, *span, value=0 if m.written is None else int(value))
    m.next_id[core.number] += 1
    core.write_register(i.rd, int(value))


def _nop(core: ReferenceCore, i: DecodedInstruction) -> None:
    pass


def _ld(core: ReferenceCore, i: DecodedInstruction) -> None:
    target = core.byte_span(core.read_register(i.rd) + (i.c if i.b & 1 else 0), i.d)
    source = core.global_span(i.rs1, i.c if i.b & 2 else 0, i.d)
    core.check_owner(source, shared=True)
    copy_planes(core.local_planes, target, core.global_planes, source)


def _st(core: ReferenceCore, i: DecodedInstruction) -> None:
    source = core.byte_span(core.read_register(i.rs1) + (i.c if i.b & 2 else 0), i.d)
    target = core.global_span(i.rd, i.c if i.b & 1 else 0, i.d)
    core.check_owner(target, shared=False)
    core.machine.owners[target] = core.number
    copy_planes(core.global_planes, target, core.local_planes, source)


def _lldi(core: ReferenceCore, i: DecodedInstruction) -> None:
    target = core.byte_span(core.read_register(i.rd) + (i.c if i.b & 1 else 0), i.d)
    for plane, value in zip(core.local_planes, (i.a & 255, 1), strict=False):  # a program of floats fills with 0 only
        plane[target] = value


def _lmv(core: ReferenceCore, i: DecodedInstruction) -> None:
    target = core.byte_span(core.read_register(i.rd) + (i.c if i.b & 1 else 0), i.d)
    source = core.byte_span(core.read_register(i.rs1) + (i.c if i.b & 2 else 0), i.d)
    core.check_overlap(target, source, exact=False)
    copy_planes(core.local_planes, target, core.local_planes, source)


def _send(core: ReferenceCore, i: DecodedInstruction) -> None:
    _exchange(core, _partner(core, i, OPCODE["recv"]))


def _recv(core: ReferenceCore, i: DecodedInstruction) -> None:
    _exchange(_partner(core, i, OPCODE["send"]), core, first=core)


def _partner(core: ReferenceCore, i: DecodedInstruction, opcode: int) -> ReferenceCore:
    """Returns the other core if it is at the matching instruction. Else raises `BlockedError`."""
    partner = replace(core, number=i.a)
    if partner.is_finished:
        raise BlockedError
    there = partner.decode_instruction()
    if there.opcode != opcode or there.a != core.number:
        raise BlockedError
    return partner


def _exchange(sender: ReferenceCore, receiver: ReferenceCore, first: ReferenceCore | None = None) -> None:
    """Copies the data and advances the core that waited; `step` advances the other core."""
    send, recv = sender.decode_instruction(), receiver.decode_instruction()
    waiting = sender if first is receiver else receiver
    waiting.capture()
    if sender.read_register(send.rd) != sender.read_register(send.rs1):
        raise sender.make_fault(EngineStop.SEND_REGISTERS)
    source = sender.byte_span(sender.read_register(send.rd) + (send.c if send.b & 3 else 0), send.d)
    target = receiver.byte_span(receiver.read_register(recv.rd) + (recv.c if recv.b & 1 else 0), recv.d)
    if send.d != recv.d:
        raise sender.make_fault(EngineStop.SIZES_DIFFER, size=recv.d)
    copy_planes(receiver.local_planes, target, sender.local_planes, source)
    waiting.advance()


def _wait(core: ReferenceCore, i: DecodedInstruction) -> None:
    events = core.machine.events
    if events[core.number * EVENT_COUNT + i.b] < i.c:
        raise BlockedError
    events[core.number * EVENT_COUNT + i.b] -= i.c


def _sync(core: ReferenceCore, i: DecodedInstruction) -> None:
    core.machine.events[i.a * EVENT_COUNT + i.b] += 1


COMMON_SEMANTICS: dict[str, Semantics] = {
    "nop": _nop,
    "sld": _sld,
    "sldi": _scalar(lambda x, y: y),
    "sadd": _scalar(operator.add),
    "ssub": _scalar(operator.sub),
    "smul": _scalar(operator.mul),
    "saddi": _scalar(operator.add),
    "smuli": _scalar(operator.mul),
    "ld": _ld,
    "st": _st,
    "lldi": _lldi,
    "lmv": _lmv,
    "send": _send,
    "recv": _recv,
    "wait": _wait,
    "sync": _sync,
}
"""Meaning of the common instructions, keyed by name."""
