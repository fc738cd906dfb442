"""Meaning of every instruction, in plain Python. It is slow, and the compiled engine is compared with it.

The places that an instruction reads and writes follow from its row (`raptor.target.isa`); `_BY_NAME` gives the function
that it computes.

All results are float32. Elementwise operations are computed in float32; the transcendental functions, means and dot
products in float64 and rounded once; a matrix product adds its rows in order, every product and sum rounded to
float32. Both engines keep to this order, so their results are equal to the bit.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.isa import BY_OPCODE, OPCODE, Count, Kind, Operand
from raptor.target.layout import Floats
from validator.machine import EVENT_COUNT, SHARED, UNUSED, Fault, Machine, Stop


class Instruction(NamedTuple):
    """One decoded record."""

    opcode: int
    rd: int
    rs1: int
    a: int
    b: int
    c: int
    d: int


class _BlockedError(Exception):
    """Raised if the instruction must wait for another core."""


class _FaultError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def execute(machine: Machine, *, block: bool, max_steps: int) -> Fault:
    """Runs all cores to the end, or until `max_steps` instructions; returns the reason why it stopped.

    Each core runs until it blocks (`block`), or one instruction in turn (thesis, algorithm 5.1).
    """
    try:
        with np.errstate(all="ignore"):
            return _run_all(machine, block=block, max_steps=max_steps)
    except _FaultError as e:
        return e.fault


def _run_all(machine: Machine, *, block: bool, max_steps: int) -> Fault:
    cores = [_Core(machine, number) for number in range(machine.core_count)]
    while True:
        before = machine.executed
        for core in cores:
            going = True
            while going:
                if machine.executed >= max_steps and not core.finished:
                    return Fault(Stop.STEPS, core.number)
                going = core.step() and block
        if all(core.finished for core in cores):
            return Fault(Stop.DONE)
        if machine.executed == before:
            return Fault(Stop.DEADLOCK)


@dataclass(frozen=True, slots=True)
class _Core:
    """One core of the machine. Its accesses are checked."""

    machine: Machine
    number: int

    @property
    def at(self) -> int:
        return int(self.machine.pc[self.number])

    @property
    def finished(self) -> bool:
        return self.at == self.machine.first[self.number + 1]

    @property
    def local(self) -> Floats:
        first, last = self.machine.local_first[self.number : self.number + 2]
        return self.machine.local[first:last]

    def instruction(self) -> Instruction:
        head, a, b, c, d = (int(word) for word in self.machine.words[self.at])
        return Instruction(head & 255, head >> 8 & 255, head >> 16 & 255, a, b, c, d)

    def step(self) -> bool:
        """Executes one instruction. Returns false if the core has finished or must wait."""
        self.capture()
        if self.finished:
            return False
        instruction = self.instruction()
        if (meaning := SEMANTICS.get(instruction.opcode)) is None:
            raise self.fail(Stop.NO_MEANING)
        try:
            meaning(self, instruction)
        except _BlockedError:
            return False
        self.advance()
        return True

    def advance(self) -> None:
        self.machine.pc[self.number] += 1
        self.capture()

    def capture(self) -> None:
        """Copies the spans of the probes at the program counter, before its instruction is executed."""
        p = self.machine.probes
        while (i := int(p.next[self.number])) < p.first[self.number + 1] and p.pc[i] == self.at:
            p.captured[p.offset[i] : p.offset[i] + p.size[i]] = self.local[p.address[i] : p.address[i] + p.size[i]]
            p.next[self.number] += 1

    def register(self, index: int) -> int:
        return int(self.machine.registers[self.number, index])

    def set_register(self, index: int, value: int) -> None:
        self.machine.registers[self.number, index] = (value + 2**31) % 2**32 - 2**31

    def fail(self, stop: Stop, address: int = 0, size: int = 0) -> _FaultError:
        return _FaultError(Fault(stop, self.number, address, size))

    def span(self, memory: Floats, address: int, size: int, range_fault: Stop) -> slice:
        """Returns the elements of `size` bytes at `address`. Raises `_FaultError` for a span that is not allowed."""
        width = self.machine.element_bytes
        if address % width or size % width:
            raise self.fail(Stop.UNALIGNED, address, size)
        if address < 0 or address + size > len(memory) * width:
            raise self.fail(range_fault, address, size)
        return slice(address // width, (address + size) // width)

    def bytes(self, address: int, size: int) -> slice:
        return self.span(self.local, address, size, Stop.LOCAL_RANGE)

    def elements(self, address: int, count: int) -> slice:
        return self.bytes(address, count * self.machine.element_bytes)

    def global_bytes(self, register: int, offset: int, size: int) -> slice:
        address = (self.register(register) << 32) + self.register(register + 1) % 2**32 + offset
        return self.span(self.machine.memory, address, size, Stop.GLOBAL_RANGE)

    def check_owner(self, part: slice, *, shared: bool) -> None:
        """Raises `_FaultError` if a part of global memory belongs to another core, or (unless `shared`) to all."""
        owners = self.machine.owners[part]
        if not np.isin(owners, (self.number, UNUSED, *((SHARED,) if shared else ()))).all():
            width = self.machine.element_bytes
            raise self.fail(Stop.NOT_OWNED, part.start * width, len(owners) * width)

    def vector(self, i: Instruction, register: int, bit: int, count: int) -> slice:
        """Returns the operand of a vector instruction; `bit` of offset_select adds the offset, in elements."""
        offset = i.c * self.machine.element_bytes if i.b >> bit & 1 else 0
        return self.elements(self.register(register) + offset, count)

    def check_overlap(self, target: slice, source: slice, *, exact: bool) -> None:
        """Raises `_FaultError` if a target overlaps a source. `exact`: a target equal to the source is allowed."""
        if target.stop <= source.start or source.stop <= target.start or (exact and target == source):
            return
        width = self.machine.element_bytes
        raise self.fail(Stop.OVERLAP, target.start * width, (target.stop - target.start) * width)


Semantics = Callable[[_Core, Instruction], None]


def _scalar(function: Callable[[int, int], int]) -> Semantics:
    """Makes a scalar instruction. `function` gets register rs1, and rs2 or (in a row without it) `imm`."""

    def run(core: _Core, i: Instruction) -> None:
        names = [o.name for o in BY_OPCODE[i.opcode].operands]
        core.set_register(i.rd, function(core.register(i.rs1), core.register(i.a) if "rs2" in names else i.a))

    return run


def _vector(function: Callable[..., npt.ArrayLike]) -> Semantics:
    """Makes a vector instruction. `function` gets an array for each operand that is read, also for a bound in rs2."""

    def run(core: _Core, i: Instruction) -> None:
        row = BY_OPCODE[i.opcode]
        strided = any(o.access is not None and o.access.strided for o in row.operands)
        target, single = _result(core, i, row, strided=strided)
        sources = [_source(core, i, o) for o in row.operands if o.kind is Kind.SOURCE]
        for source in sources if not single else ():
            core.check_overlap(target, source, exact=not strided)
        step = core.register(i.a) if strided else 1
        values = [core.local[source.start + np.arange(i.d) * step] for source in sources]
        if not strided:
            values += [np.full(i.d, core.register(i.a), np.float32) for o in row.operands if o.kind is Kind.USE]
        core.local[target] = function(*values)

    return run


def _result(core: _Core, i: Instruction, row: isa.Instruction, *, strided: bool) -> tuple[slice, bool]:
    """Returns the elements written, and true if it is a single one.

    A single result, and vmv, have no offset (ISA 4.3.6, 4.3.10).
    """
    access = row.operand("rd").access
    single = access is not None and access.count is Count.ONE
    if single or strided:
        return core.elements(core.register(i.rd), 1 if single else i.d), single
    return core.vector(i, i.rd, 0, i.d), single


def _source(core: _Core, i: Instruction, operand: Operand) -> slice:
    """Returns the elements that an operand spans."""
    register, bit = (i.rs1, 1) if operand.name == "rs1" else (i.a, 2)
    if operand.access is None or not operand.access.strided:
        return core.vector(i, register, bit, i.d)
    stride = core.register(i.a)
    if stride < 0:
        raise core.fail(Stop.LOCAL_RANGE, core.register(register), stride)
    return core.vector(i, register, bit, (i.d - 1) * stride + 1)


def _nop(core: _Core, i: Instruction) -> None:
    pass


def _setbw(core: _Core, i: Instruction) -> None:
    """Does nothing: a program of floats has one width only (`check`)."""


def _mvmul(core: _Core, i: Instruction) -> None:
    matrix = core.machine.weights.matrix(core.number, i.c)
    source = core.elements(core.register(i.rs1), matrix.shape[0])
    target = core.elements(core.register(i.rd), matrix.shape[1])
    total = np.zeros(matrix.shape[1], np.float32)
    for x, row in zip(core.local[source], matrix, strict=True):
        total = total + x * row
    core.local[target] = _relu(total) if i.b else total


def _relu(x: Floats) -> Floats:
    return np.where(x < 0, np.float32(0), x)  # NaN stays


def _maximum(x: Floats, y: Floats) -> Floats:
    return np.where((x >= y) | (x != x), x, y)  # NaN of either stays


def _each(function: Callable[[float], float]) -> Callable[[Floats], npt.ArrayLike]:
    """Makes a function of arrays that applies `function` to each element in double precision, like the other engine."""
    return lambda x: [function(value) for value in x.tolist()]


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    if x > 0 or x != x:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _dot(x: Floats, y: Floats) -> float:
    total = 0.0
    for p, q in zip(x.tolist(), y.tolist(), strict=True):
        total += p * q
    return total


def _mean(x: Floats) -> float:
    total = 0.0
    for value in x.tolist():
        total += value
    return total / len(x)


def _minimum(x: Floats, y: Floats) -> Floats:
    return np.where((x <= y) | (x != x), x, y)


def _tanh(x: Floats) -> npt.ArrayLike:
    return [math.tanh(v) for v in x.tolist()]


def _sigmoid(x: Floats) -> npt.ArrayLike:
    return [1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v)) for v in x.tolist()]


def _softmax(x: Floats) -> npt.ArrayLike:
    values: list[float] = x.tolist()
    largest = values[0]
    for v in values:
        largest = v if v > largest or v != v else largest
    powers = [math.exp(v - largest) for v in values]
    total = 0.0
    for p in powers:
        total += p
    return [p / total for p in powers]


def _ld(core: _Core, i: Instruction) -> None:
    target = core.bytes(core.register(i.rd) + (i.c if i.b & 1 else 0), i.d)
    source = core.global_bytes(i.rs1, i.c if i.b & 2 else 0, i.d)
    core.check_owner(source, shared=True)
    core.local[target] = core.machine.memory[source]


def _st(core: _Core, i: Instruction) -> None:
    source = core.bytes(core.register(i.rs1) + (i.c if i.b & 2 else 0), i.d)
    target = core.global_bytes(i.rd, i.c if i.b & 1 else 0, i.d)
    core.check_owner(target, shared=False)
    core.machine.owners[target] = core.number
    core.machine.memory[target] = core.local[source]


def _lldi(core: _Core, i: Instruction) -> None:
    core.local[core.bytes(core.register(i.rd) + (i.c if i.b & 1 else 0), i.d)] = 0


def _lmv(core: _Core, i: Instruction) -> None:
    target = core.bytes(core.register(i.rd) + (i.c if i.b & 1 else 0), i.d)
    source = core.bytes(core.register(i.rs1) + (i.c if i.b & 2 else 0), i.d)
    core.check_overlap(target, source, exact=False)
    core.local[target] = core.local[source]


def _send(core: _Core, i: Instruction) -> None:
    _exchange(core, _partner(core, i, OPCODE["recv"]))


def _recv(core: _Core, i: Instruction) -> None:
    _exchange(_partner(core, i, OPCODE["send"]), core, first=core)


def _partner(core: _Core, i: Instruction, opcode: int) -> _Core:
    """Returns the other core if it is at the matching instruction. Else raises `_BlockedError`."""
    partner = _Core(core.machine, i.a)
    if partner.finished:
        raise _BlockedError
    there = partner.instruction()
    if there.opcode != opcode or there.a != core.number:
        raise _BlockedError
    return partner


def _exchange(sender: _Core, receiver: _Core, first: _Core | None = None) -> None:
    """Copies the data and advances the core that waited; `step` advances the core that came last."""
    send, recv = sender.instruction(), receiver.instruction()
    waiting = sender if first is receiver else receiver
    waiting.capture()
    if sender.register(send.rd) != sender.register(send.rs1):
        raise sender.fail(Stop.SEND_REGISTERS)
    source = sender.bytes(sender.register(send.rd) + (send.c if send.b & 3 else 0), send.d)
    target = receiver.bytes(receiver.register(recv.rd) + (recv.c if recv.b & 1 else 0), recv.d)
    if send.d != recv.d:
        raise sender.fail(Stop.SIZES_DIFFER, size=recv.d)
    receiver.local[target] = sender.local[source]
    waiting.advance()


def _wait(core: _Core, i: Instruction) -> None:
    events = core.machine.events
    if events[core.number * EVENT_COUNT + i.b] < i.c:
        raise _BlockedError
    events[core.number * EVENT_COUNT + i.b] -= i.c


def _sync(core: _Core, i: Instruction) -> None:
    core.machine.events[i.a * EVENT_COUNT + i.b] += 1


_BY_NAME: dict[str, Semantics] = {
    "nop": _nop,
    "sldi": _scalar(lambda x, y: y),
    "sadd": _scalar(operator.add),
    "ssub": _scalar(operator.sub),
    "smul": _scalar(operator.mul),
    "saddi": _scalar(operator.add),
    "smuli": _scalar(operator.mul),
    "setbw": _setbw,
    "mvmul": _mvmul,
    "vvadd": _vector(np.add),
    "vvsub": _vector(np.subtract),
    "vvmul": _vector(np.multiply),
    "vvdmul": _vector(_dot),
    "vvmax": _vector(_maximum),
    "vavg": _vector(_mean),
    "vrelu": _vector(_relu),
    "vtanh": _vector(_tanh),
    "vsigm": _vector(_sigmoid),
    "vsoftmax": _vector(_softmax),
    "vexp": _vector(_each(_exp)),
    "vlog": _vector(_each(_log)),
    "vsqrt": _vector(_each(_sqrt)),
    "verf": _vector(_each(math.erf)),
    "vvdiv": _vector(np.divide),
    "vmv": _vector(np.positive),
    "vrsu": _vector(_minimum),
    "vrsl": _vector(_maximum),
    "ld": _ld,
    "st": _st,
    "lldi": _lldi,
    "lmv": _lmv,
    "send": _send,
    "recv": _recv,
    "wait": _wait,
    "sync": _sync,
}
SEMANTICS = {OPCODE[name]: function for name, function in _BY_NAME.items()}
"""Meaning by opcode. Every instruction that `check` accepts has one (tested)."""
