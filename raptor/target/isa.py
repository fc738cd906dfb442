"""The PIMSim instruction set, declared once.

JSON, `.pim`, text, range checks and documentation derive from `INSTRUCTIONS`; what an instruction *does* is the
validator's business. Opcodes and slots are those of pimsim-nn's binary records (little endian, 20 bytes each).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

RECORD = np.dtype(
    [
        ("opcode", "u1"),
        ("rd", "u1"),
        ("rs1", "u1"),
        ("flags", "u1"),
        ("a", "<i4"),
        ("b", "<i4"),
        ("c", "<i4"),
        ("d", "<i4"),
    ]
)
"""One instruction. Streams are one-dimensional arrays of this type."""

Records = npt.NDArray[np.void]

REGISTER_COUNT = 32
INT32_MAX = 2**31 - 1


class Unit(StrEnum):
    """The part of a core that executes an instruction."""

    SCALAR = "scalar"
    MATRIX = "matrix"
    VECTOR = "vector"
    TRANSFER = "transfer"


class Kind(StrEnum):
    """What an operand means, so that checks need no list of their own."""

    DEFINE = "register written"
    USE = "register read"
    USE_PAIR = "even register of a pair read: high word, low word"
    SOURCE = "register holding the local address read"
    TARGET = "register holding the local address written"
    IMMEDIATE = "immediate"


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: its name, the record slot and JSON keys that carry it, its range and unit."""

    name: str
    slot: str
    json: tuple[str, ...]
    low: int
    high: int
    kind: Kind
    meaning: str

    @property
    def is_register(self) -> bool:
        return self.kind is not Kind.IMMEDIATE


_LAST_PUBLISHED = 32
_REFUSED = (21,)
"""Opcodes that are published, and that pimsim-nn refuses."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One row of the instruction set.

    `simulated_as`: for an instruction that pimsim-nn does not have, the one of its set that takes as long.
    """

    opcode: int
    name: str
    unit: Unit
    operands: tuple[Operand, ...]
    meaning: str
    simulated_as: str | None = None

    def __post_init__(self) -> None:
        """Without it, the simulator model would have no time for the instruction."""
        if (self.opcode in _REFUSED or self.opcode > _LAST_PUBLISHED) and self.simulated_as is None:
            raise ValueError(f"{self.name}: simulated_as must say which instruction of pimsim-nn takes as long")

    @property
    def extension(self) -> bool:
        """Whether pimsim-nn refuses it."""
        return self.simulated_as is not None

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)


def _register(name: str, kind: Kind, meaning: str, slot: str | None = None) -> Operand:
    return Operand(name, slot or name, (name,), 0, REGISTER_COUNT - 1, kind, meaning)


def _number(name: str, slot: str, low: int, high: int, meaning: str, json: tuple[str, ...] | None = None) -> Operand:
    return Operand(name, slot, json or (name,), low, high, Kind.IMMEDIATE, meaning)


def _rs2(kind: Kind, meaning: str) -> Operand:
    return _register("rs2", kind, meaning, slot="a")


_RD = _register("rd", Kind.DEFINE, "result register")
_RS1 = _register("rs1", Kind.USE, "first operand")
_IMM = _number("imm", "a", -(2**31), INT32_MAX, "value")
_TARGET = _register("rd", Kind.TARGET, "address of the result")
_SOURCE = _register("rs1", Kind.SOURCE, "address of the first operand")
_SOURCE2 = _rs2(Kind.SOURCE, "address of the second operand")
_LENGTH = _number("len", "d", 1, INT32_MAX, "elements")
_SIZE = _number("size", "d", 1, INT32_MAX, "bytes")
_PARTNER = _number("core", "a", 0, INT32_MAX, "partner core")
_WIDTH_IN = _number("ibiw", "b", 1, 32, "bits of an input element")
_WIDTH_OUT = _number("obiw", "c", 1, 32, "bits of an output element")
_EVENT = _number("event_register", "b", 0, 31, "event register")
_OFFSET = (
    _number("offset_select", "b", 0, 7, "bit 0: add to rd, 1: to rs1, 2: to rs2", ("offset.offset_select",)),
    _number("offset_value", "c", 0, INT32_MAX, "elements (vector ops) or bytes", ("offset.offset_value",)),
)


def _scalar(opcode: int, name: str, *operands: Operand, meaning: str) -> Instruction:
    return Instruction(opcode, name, Unit.SCALAR, operands, meaning)


def _binary(opcode: int, name: str, meaning: str, *, simulated_as: str | None = None) -> Instruction:
    operands = (_TARGET, _SOURCE, _SOURCE2, *_OFFSET, _LENGTH)
    return Instruction(opcode, name, Unit.VECTOR, operands, meaning, simulated_as)


def _unary(opcode: int, name: str, meaning: str, *, simulated_as: str | None = None) -> Instruction:
    return Instruction(opcode, name, Unit.VECTOR, (_TARGET, _SOURCE, *_OFFSET, _LENGTH), meaning, simulated_as)


def _with_register(opcode: int, name: str, what: str, meaning: str) -> Instruction:
    operands = (_TARGET, _SOURCE, _rs2(Kind.USE, what), *_OFFSET, _LENGTH)
    return Instruction(opcode, name, Unit.VECTOR, operands, meaning)


def _transfer(opcode: int, name: str, *operands: Operand, meaning: str) -> Instruction:
    return Instruction(opcode, name, Unit.TRANSFER, operands, meaning)


INSTRUCTIONS: tuple[Instruction, ...] = (
    _scalar(0, "nop", meaning="nothing (hangs a core of the simulator)"),
    _scalar(1, "sldi", _RD, _IMM, meaning="R[rd] = imm"),
    _scalar(
        2,
        "sld",
        _RD,
        _register("rs1", Kind.USE_PAIR, "global address"),
        _number("offset_value", "c", 0, INT32_MAX, "bytes"),
        meaning="R[rd] = word of global memory",
    ),
    _scalar(3, "sadd", _RD, _RS1, _rs2(Kind.USE, "second operand"), meaning="R[rd] = R[rs1] + R[rs2]"),
    _scalar(4, "ssub", _RD, _RS1, _rs2(Kind.USE, "second operand"), meaning="R[rd] = R[rs1] - R[rs2]"),
    _scalar(5, "smul", _RD, _RS1, _rs2(Kind.USE, "second operand"), meaning="R[rd] = R[rs1] * R[rs2]"),
    _scalar(6, "saddi", _RD, _RS1, _IMM, meaning="R[rd] = R[rs1] + imm"),
    _scalar(7, "smuli", _RD, _RS1, _IMM, meaning="R[rd] = R[rs1] * imm"),
    Instruction(8, "setbw", Unit.SCALAR, (_WIDTH_IN, _WIDTH_OUT), "set the element widths of this core"),
    Instruction(
        9,
        "mvmul",
        Unit.MATRIX,
        (
            _TARGET,
            _register("rs1", Kind.SOURCE, "address of the input vector"),
            _number("mbiw", "a", 1, 32, "bits of a weight"),
            _number("relu", "b", 0, 1, "apply ReLU to the result"),
            _number("group", "c", 0, INT32_MAX, "array group of this core"),
        ),
        "y = x * W[group]",
    ),
    _binary(10, "vvadd", "y = a + b"),
    _binary(11, "vvsub", "y = a - b"),
    _binary(12, "vvmul", "y = a * b"),
    _binary(13, "vvdmul", "y[0] = sum(a * b)"),
    _binary(14, "vvmax", "y = max(a, b)"),
    _binary(15, "vvsll", "y = a << b"),
    _binary(16, "vvsra", "y = a >> b"),
    _with_register(17, "vavg", "stride in elements", "y[0] = mean of len elements of a, rs2 apart"),
    _unary(18, "vrelu", "y = max(a, 0)"),
    _unary(19, "vtanh", "y = tanh(a)"),
    _unary(20, "vsigm", "y = 1 / (1 + exp(-a))"),
    _unary(21, "vsoftmax", "y = exp(a) / sum(exp(a))", simulated_as="vsigm"),
    _with_register(22, "vmv", "stride in elements", "y[i] = a[i * rs2]"),
    _with_register(23, "vrsu", "upper bound", "resize to obiw, at most rs2"),
    _with_register(24, "vrsl", "lower bound", "resize to obiw, at least rs2"),
    _transfer(
        25,
        "ld",
        _TARGET,
        _register("rs1", Kind.USE_PAIR, "global address"),
        *_OFFSET,
        _SIZE,
        meaning="local = global",
    ),
    _transfer(
        26,
        "st",
        _register("rd", Kind.USE_PAIR, "global address"),
        _SOURCE,
        *_OFFSET,
        _SIZE,
        meaning="global = local",
    ),
    _transfer(
        27,
        "lldi",
        _TARGET,
        _number("imm", "a", -128, 255, "byte value"),
        *_OFFSET,
        _number("len", "d", 1, INT32_MAX, "bytes"),
        meaning="every byte of local = imm",
    ),
    _transfer(
        28,
        "lmv",
        _TARGET,
        _SOURCE,
        *_OFFSET,
        # NOTE: the simulator times `len` but checks hazards with `size`, so JSON carries both.
        _number("len", "d", 1, INT32_MAX, "bytes", ("len", "size")),
        meaning="local copy",
    ),
    _transfer(
        29,
        "send",
        # NOTE: the ISA reads rs1, the simulator rd for the transfer and rs1 for hazards: both carry the address.
        _register("rd", Kind.SOURCE, "address of the data"),
        _SOURCE,
        _PARTNER,
        *_OFFSET,
        _SIZE,
        meaning="rendezvous: data to core",
    ),
    _transfer(30, "recv", _TARGET, _PARTNER, *_OFFSET, _SIZE, meaning="rendezvous: data from core"),
    _transfer(31, "wait", _EVENT, _number("wait_value", "c", 0, INT32_MAX, "tokens"), meaning="take tokens"),
    _transfer(32, "sync", _PARTNER, _EVENT, meaning="give one token to core"),
    # Opcodes from 64 on are RAPTOR's own: what the published set cannot compute (docs/design.md, 5).
    _unary(64, "vexp", "y = exp(a)", simulated_as="vsigm"),
    _unary(65, "vlog", "y = log(a)", simulated_as="vsigm"),
    _unary(66, "vsqrt", "y = sqrt(a)", simulated_as="vsigm"),
    _unary(67, "verf", "y = erf(a)", simulated_as="vsigm"),
    _binary(68, "vvdiv", "y = a / b", simulated_as="vvmul"),
)

BY_NAME: dict[str, Instruction] = {i.name: i for i in INSTRUCTIONS}
BY_OPCODE: dict[int, Instruction] = {i.opcode: i for i in INSTRUCTIONS}
OPCODE: dict[str, int] = {i.name: i.opcode for i in INSTRUCTIONS}


def text(record: np.void) -> str:
    """One instruction as a line of text, such as `vvadd rd=1 rs1=1 rs2=3 len=128`; zero offsets are left out."""
    spec = BY_OPCODE.get(int(record["opcode"]))
    if spec is None:
        return f"<unknown opcode {int(record['opcode'])}>"
    operands = ((o, int(record[o.slot])) for o in spec.operands)
    shown = (f"{o.name}={value}" for o, value in operands if value or not o.name.startswith("offset"))
    return " ".join([spec.name, *shown])


@dataclass(frozen=True, slots=True)
class RangeFault:
    """An operand out of its range: where in the stream, which one, and its value."""

    pc: int
    operand: Operand | None
    value: int

    def __str__(self) -> str:
        if self.operand is None:
            return f"unknown opcode {self.value}"
        return f"{self.operand.name}={self.value} is outside {self.operand.low}..{self.operand.high}"


Positions = Mapping[int, npt.NDArray[np.intp]]


def positions(records: Records) -> Positions:
    """By opcode, in rising order: where its instructions are in the stream."""
    opcodes = np.ascontiguousarray(records["opcode"])
    present = np.zeros(256, np.bool_)
    present[opcodes] = True
    return {int(opcode): np.flatnonzero(opcodes == opcode) for opcode in np.flatnonzero(present)}


def range_faults(records: Records, at: Positions | None = None) -> Iterator[RangeFault]:
    """Every operand of `records` outside its range, and every unknown opcode. `at`: their positions, if known.

    Vectorised over the stream.
    """
    for opcode, where in (positions(records) if at is None else at).items():
        spec = BY_OPCODE.get(opcode)
        if spec is None:
            yield from (RangeFault(int(pc), None, opcode) for pc in where)
            continue
        for operand in spec.operands:
            yield from _operand_faults(records[operand.slot][where], where, operand)


def _operand_faults(values: npt.NDArray[Any], where: npt.NDArray[np.intp], operand: Operand) -> Iterator[RangeFault]:
    if operand.low <= values.min() and values.max() <= operand.high:
        return
    for i in np.flatnonzero((values < operand.low) | (values > operand.high)):
        yield RangeFault(int(where[i]), operand, int(values[i]))
