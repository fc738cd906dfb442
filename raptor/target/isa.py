"""The PIMSim instruction set, declared once.

JSON, `.pim`, text, range checks and documentation derive from `INSTRUCTIONS`, and so do time, energy, and the bytes of
local memory that an instruction reads and writes (`raptor.target.opcode_tables`). The two engines of the validator
define what it computes. Opcodes and slots are those of pimsim-nn's binary records (little endian, 20 bytes each).

A row has four more entries besides its name and its operands:

- `timing`: the way in which pimsim-nn spends time on it. An instruction that pimsim-nn does not have also names an
  instruction of pimsim-nn that takes as long (`simulated_as`);
- `access` of an operand with a local address: the number of elements that are read or written there, their width, and
  their distance;
- `seen` of an operand: the bytes that pimsim-nn's hazard check assumes for it, which are wrong for some;
- `meaning`: a text for people.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
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


class OperandKind(StrEnum):
    """The use of an operand, from which all checks derive."""

    DEFINE = "register written"
    USE = "register read"
    USE_PAIR = "even register of a pair read: high word, low word"
    SOURCE = "register holding the local address read"
    TARGET = "register holding the local address written"
    IMMEDIATE = "immediate"


class Timing(IntEnum):
    """Timing class: how pimsim-nn spends time on an instruction (docs/developers/target.md, 4.2). 0 is reserved for
    unknown instructions."""

    NEVER_ENDS = 1
    """Enters the reorder buffer and never leaves it."""
    REGISTER = 2
    """Is computed in decode, in one cycle."""
    SET_WIDTHS = 3
    """Is executed in decode, too; sets the widths (`ibiw`, `obiw`) of all later instructions."""
    PRODUCT = 4
    """Reads local memory, uses the crossbars of an array group, writes local memory."""
    VECTOR = 5
    """Reads each of its operands, takes one step per `vector_width` elements, writes."""
    LOAD = 6
    STORE = 7
    FILL = 8
    """Writes local memory."""
    COPY = 9
    """Reads and writes local memory."""
    SEND = 10
    RECEIVE = 11
    WAIT = 12
    """Waits until there are enough tokens."""
    GIVE_TOKEN = 13

    @property
    def unit(self) -> Unit:
        """The part of the core that executes instructions of this timing."""
        if self in (Timing.NEVER_ENDS, Timing.REGISTER, Timing.SET_WIDTHS):
            return Unit.SCALAR
        return {Timing.PRODUCT: Unit.MATRIX, Timing.VECTOR: Unit.VECTOR}.get(self, Unit.TRANSFER)


class AccessWidth(StrEnum):
    """Size of one element in local memory."""

    BYTE = "a byte"
    INPUT = "ibiw bits, by the last setbw or setfp of the core, in whole bytes"
    OUTPUT = "obiw bits, likewise"
    PARAMETERS = "the 16 bytes of the parameters of a channel"


class AccessCount(StrEnum):
    """Number of elements at an address."""

    ONE = "one"
    LENGTH = "the operand len or size"
    ROWS = "rows of the matrix of the array group"
    COLUMNS = "columns of the matrix of the array group"
    TABLE = "one for each of the 2^ibiw input elements"


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """A part of local memory, from an address on. If `strided`, register rs2 holds the distance of its elements."""

    count: AccessCount
    width: AccessWidth
    strided: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: its name, the record slot and JSON keys that hold it, its range and its use.

    `access`: the elements that are read or written at the local address in the register. `seen`: the elements that the
    hazard check of pimsim-nn assumes there; None if it does not look at this operand. Offsets count elements of
    `access`.
    """

    name: str
    slot: str
    json: tuple[str, ...]
    low: int
    high: int
    kind: OperandKind
    meaning: str
    access: LocalAccess | None = None
    seen: LocalAccess | None = None

    @property
    def is_register(self) -> bool:
        return self.kind is not OperandKind.IMMEDIATE


_LAST_PUBLISHED = 32
_REFUSED = (21,)
"""Published opcodes that pimsim-nn refuses."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One row of the instruction set.

    `simulated_as`: for an instruction that pimsim-nn does not have, an instruction of pimsim-nn that takes as long.
    """

    opcode: int
    name: str
    timing: Timing
    operands: tuple[Operand, ...]
    meaning: str
    simulated_as: str | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for an incomplete row: everything that derives from it would be silently wrong."""
        if not isinstance(self.timing, Timing):  # pyright: ignore[reportUnnecessaryIsInstance] for rows made elsewhere
            raise ValueError(f"{self.name}: timing must say how pimsim-nn spends time on it")
        if (self.opcode in _REFUSED or self.opcode > _LAST_PUBLISHED) and self.simulated_as is None:
            raise ValueError(f"{self.name}: simulated_as must say which instruction of pimsim-nn takes as long")
        for operand in self.operands:
            if (operand.kind in (OperandKind.SOURCE, OperandKind.TARGET)) != (operand.access is not None):
                raise ValueError(f"{self.name}: access of {operand.name} must say what is at its local address, if any")

    @property
    def unit(self) -> Unit:
        return self.timing.unit

    @property
    def extension(self) -> bool:
        """True if pimsim-nn refuses the instruction."""
        return self.simulated_as is not None

    def operand(self, name: str) -> Operand:
        """Returns the operand of a name. Raises `StopIteration` if the instruction has none of this name."""
        return next(o for o in self.operands if o.name == name)


def _register(name: str, kind: OperandKind, meaning: str, slot: str | None = None) -> Operand:
    return Operand(name, slot or name, (name,), 0, REGISTER_COUNT - 1, kind, meaning)


def _number(name: str, slot: str, low: int, high: int, meaning: str, json: tuple[str, ...] | None = None) -> Operand:
    return Operand(name, slot, json or (name,), low, high, OperandKind.IMMEDIATE, meaning)


def _rs2(kind: OperandKind, meaning: str) -> Operand:
    return _register("rs2", kind, meaning, slot="a")


def _at(operand: Operand, access: LocalAccess) -> Operand:
    """Makes an operand that holds a local address. The hazard check assumes that strided elements are adjacent."""
    return replace(operand, access=access, seen=replace(access, strided=False))


def _seen(operand: Operand, seen: LocalAccess | None) -> Operand:
    return replace(operand, seen=seen)


_BYTES = LocalAccess(AccessCount.LENGTH, AccessWidth.BYTE)
_INPUTS, _OUTPUTS = (LocalAccess(AccessCount.LENGTH, width) for width in (AccessWidth.INPUT, AccessWidth.OUTPUT))
_PARAMETERS, _TABLE = (
    LocalAccess(AccessCount.LENGTH, AccessWidth.PARAMETERS),
    LocalAccess(AccessCount.TABLE, AccessWidth.OUTPUT),
)
_STRIDED = LocalAccess(AccessCount.LENGTH, AccessWidth.INPUT, strided=True)
_ONE_BYTE, _ONE_OUTPUT = (LocalAccess(AccessCount.ONE, width) for width in (AccessWidth.BYTE, AccessWidth.OUTPUT))

_RD = _register("rd", OperandKind.DEFINE, "result register")
_RS1 = _register("rs1", OperandKind.USE, "first operand")
_IMM = _number("imm", "a", -(2**31), INT32_MAX, "value")
_TARGET = _register("rd", OperandKind.TARGET, "address of the result")
_SOURCE = _register("rs1", OperandKind.SOURCE, "address of the first operand")
_SOURCE2 = _rs2(OperandKind.SOURCE, "address of the second operand")
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

_TO_INPUTS, _TO_OUTPUTS, _TO_ONE = (_at(_TARGET, access) for access in (_INPUTS, _OUTPUTS, _ONE_OUTPUT))
"""Results of a vector instruction: elements of the input width, elements of the output width, a single element."""
_FROM, _FROM2, _FROM_STRIDED = _at(_SOURCE, _INPUTS), _at(_SOURCE2, _INPUTS), _at(_SOURCE, _STRIDED)
_TO_BYTES, _FROM_BYTES = _at(_TARGET, _BYTES), _at(_SOURCE, _BYTES)
# pimsim-nn's hazard check sees what the instruction that they are simulated as reads at rs2.
_FROM_TABLE = _seen(_at(_rs2(OperandKind.SOURCE, "address of the table"), _TABLE), None)
_FROM_PARAMETERS = _seen(_at(_rs2(OperandKind.SOURCE, "address of the parameters"), _PARAMETERS), _INPUTS)


def _scalar(opcode: int, name: str, *operands: Operand, meaning: str) -> Instruction:
    return Instruction(opcode, name, Timing.REGISTER, operands, meaning)


def _vector(opcode: int, name: str, *operands: Operand, meaning: str, simulated_as: str | None = None) -> Instruction:
    """Makes an instruction of the vector unit, whose operands are its registers, offset and length."""
    return Instruction(opcode, name, Timing.VECTOR, (*operands, *_OFFSET, _LENGTH), meaning, simulated_as)


INSTRUCTIONS: tuple[Instruction, ...] = (
    Instruction(0, "nop", Timing.NEVER_ENDS, (), "nothing (hangs a core of the simulator)"),
    _scalar(1, "sldi", _RD, _IMM, meaning="R[rd] = imm"),
    _scalar(
        2,
        "sld",
        _RD,
        _register("rs1", OperandKind.USE_PAIR, "global address"),
        _number("offset_value", "c", 0, INT32_MAX, "bytes"),
        meaning="R[rd] = whole number in global memory: 4 bytes, or an element of a program of floats",
    ),
    _scalar(3, "sadd", _RD, _RS1, _rs2(OperandKind.USE, "second operand"), meaning="R[rd] = R[rs1] + R[rs2]"),
    _scalar(4, "ssub", _RD, _RS1, _rs2(OperandKind.USE, "second operand"), meaning="R[rd] = R[rs1] - R[rs2]"),
    _scalar(5, "smul", _RD, _RS1, _rs2(OperandKind.USE, "second operand"), meaning="R[rd] = R[rs1] * R[rs2]"),
    _scalar(6, "saddi", _RD, _RS1, _IMM, meaning="R[rd] = R[rs1] + imm"),
    _scalar(7, "smuli", _RD, _RS1, _IMM, meaning="R[rd] = R[rs1] * imm"),
    Instruction(8, "setbw", Timing.SET_WIDTHS, (_WIDTH_IN, _WIDTH_OUT), "set the element widths of this core"),
    Instruction(
        9,
        "mvmul",
        Timing.PRODUCT,
        (
            _at(_TARGET, LocalAccess(AccessCount.COLUMNS, AccessWidth.OUTPUT)),
            _at(
                _register("rs1", OperandKind.SOURCE, "address of the input vector"),
                LocalAccess(AccessCount.ROWS, AccessWidth.INPUT),
            ),
            _number("mbiw", "a", 1, 32, "bits of a weight"),
            _number("relu", "b", 0, 1, "apply ReLU to the result"),
            _number("group", "c", 0, INT32_MAX, "array group of this core"),
        ),
        "y = x * W[group]; a cell with weight 0 adds 0, even for an infinite input",
    ),
    _vector(10, "vvadd", _TO_INPUTS, _FROM, _FROM2, meaning="y = a + b"),
    _vector(11, "vvsub", _TO_INPUTS, _FROM, _FROM2, meaning="y = a - b"),
    _vector(12, "vvmul", _TO_OUTPUTS, _FROM, _FROM2, meaning="y = a * b"),
    _vector(13, "vvdmul", _seen(_TO_ONE, _OUTPUTS), _FROM, _FROM2, meaning="y[0] = sum(a * b)"),
    _vector(14, "vvmax", _TO_INPUTS, _FROM, _FROM2, meaning="y = max(a, b)"),
    _vector(15, "vvsll", _TO_OUTPUTS, _FROM, _FROM2, meaning="y = a << b"),
    _vector(16, "vvsra", _TO_OUTPUTS, _FROM, _FROM2, meaning="y = a >> b"),
    _vector(
        17,
        "vavg",
        _TO_ONE,
        _FROM_STRIDED,
        _rs2(OperandKind.USE, "stride in elements"),
        meaning="y[0] = mean of len elements of a, rs2 apart",
    ),
    _vector(18, "vrelu", _seen(_TO_INPUTS, _OUTPUTS), _FROM, meaning="y = max(a, 0)"),
    _vector(19, "vtanh", _TO_OUTPUTS, _FROM, meaning="y = tanh(a)"),
    _vector(20, "vsigm", _TO_OUTPUTS, _FROM, meaning="y = 1 / (1 + exp(-a))"),
    _vector(21, "vsoftmax", _TO_OUTPUTS, _FROM, meaning="y = exp(a) / sum(exp(a))", simulated_as="vsigm"),
    _vector(
        22,
        "vmv",
        _seen(_TO_INPUTS, None),
        _seen(_FROM_STRIDED, None),
        _rs2(OperandKind.USE, "stride in elements"),
        meaning="y[i] = a[i * rs2]",
    ),
    # NOTE: the hazard check of the simulator takes the bound for an address.
    _vector(
        23,
        "vrsu",
        _TO_OUTPUTS,
        _FROM,
        _seen(_rs2(OperandKind.USE, "upper bound"), _INPUTS),
        meaning="resize to obiw, at most rs2",
    ),
    _vector(
        24,
        "vrsl",
        _TO_OUTPUTS,
        _FROM,
        _seen(_rs2(OperandKind.USE, "lower bound"), _INPUTS),
        meaning="resize to obiw, at least rs2",
    ),
    Instruction(
        25,
        "ld",
        Timing.LOAD,
        (_TO_BYTES, _register("rs1", OperandKind.USE_PAIR, "global address"), *_OFFSET, _SIZE),
        "local = global",
    ),
    Instruction(
        26,
        "st",
        Timing.STORE,
        (_register("rd", OperandKind.USE_PAIR, "global address"), _FROM_BYTES, *_OFFSET, _SIZE),
        "global = local",
    ),
    Instruction(
        27,
        "lldi",
        Timing.FILL,
        (
            _seen(_TO_BYTES, _ONE_BYTE),
            _number("imm", "a", -128, 255, "byte value"),
            *_OFFSET,
            _number("len", "d", 1, INT32_MAX, "bytes"),
        ),
        "every byte of local = imm",
    ),
    Instruction(
        28,
        "lmv",
        Timing.COPY,
        (
            _TO_BYTES,
            _FROM_BYTES,
            *_OFFSET,
            # NOTE: the simulator times `len` but checks hazards with `size`, so JSON carries both.
            _number("len", "d", 1, INT32_MAX, "bytes", ("len", "size")),
        ),
        "local copy",
    ),
    Instruction(
        29,
        "send",
        Timing.SEND,
        (
            # NOTE: the ISA reads rs1, the simulator rd for the transfer and rs1 for hazards: both carry the address.
            _seen(_at(_register("rd", OperandKind.SOURCE, "address of the data"), _BYTES), None),
            _FROM_BYTES,
            _PARTNER,
            *_OFFSET,
            _SIZE,
        ),
        "rendezvous: data to core",
    ),
    Instruction(30, "recv", Timing.RECEIVE, (_TO_BYTES, _PARTNER, *_OFFSET, _SIZE), "rendezvous: data from core"),
    Instruction(
        31,
        "wait",
        Timing.WAIT,
        (_EVENT, _number("wait_value", "c", 0, INT32_MAX, "tokens")),
        "take tokens",
    ),
    Instruction(32, "sync", Timing.GIVE_TOKEN, (_PARTNER, _EVENT), "give one token to core"),
    # Opcodes from 64 on are RAPTOR's own: functions that the published set lacks (docs/reference/programs.md).
    _vector(64, "vexp", _TO_OUTPUTS, _FROM, meaning="y = exp(a)", simulated_as="vsigm"),
    _vector(65, "vlog", _TO_OUTPUTS, _FROM, meaning="y = log(a)", simulated_as="vsigm"),
    _vector(66, "vsqrt", _TO_OUTPUTS, _FROM, meaning="y = sqrt(a)", simulated_as="vsigm"),
    _vector(67, "verf", _TO_OUTPUTS, _FROM, meaning="y = erf(a)", simulated_as="vsigm"),
    _vector(68, "vvdiv", _TO_OUTPUTS, _FROM, _FROM2, meaning="y = a / b", simulated_as="vvmul"),
    # Those from 69 on are for programs with integers (docs/reference/programs.md).
    _vector(69, "vlut", _TO_OUTPUTS, _FROM, _FROM_TABLE, meaning="y = table[a + 2^(ibiw-1)]", simulated_as="vsigm"),
    _vector(
        70,
        "vrequant",
        _TO_OUTPUTS,
        _FROM,
        _FROM_PARAMETERS,
        meaning="y = clamp(round((a + bias) * m / 2^s) + z, lo, hi), ties to even",
        simulated_as="vvmul",
    ),
    Instruction(
        71,
        "setfp",
        Timing.SET_WIDTHS,
        (_WIDTH_IN, _WIDTH_OUT),
        "like setbw, but vector elements of 32 bits are float32",
        simulated_as="setbw",
    ),
    _vector(72, "vfloat", _TO_OUTPUTS, _FROM, meaning="y = float32(a), a an integer", simulated_as="vsigm"),
    _vector(73, "vround", _TO_OUTPUTS, _FROM, meaning="y = round(a), ties to even, saturated", simulated_as="vsigm"),
    # The only one that makes a number of what is none: where b is no number, it is not above 0.
    _vector(74, "vvmask", _TO_OUTPUTS, _FROM, _FROM2, meaning="y = a if b > 0, else -infinity", simulated_as="vvmul"),
)

BY_NAME: dict[str, Instruction] = {i.name: i for i in INSTRUCTIONS}
BY_OPCODE: dict[int, Instruction] = {i.opcode: i for i in INSTRUCTIONS}
OPCODE: dict[str, int] = {i.name: i.opcode for i in INSTRUCTIONS}
WIDTH_SETTERS = tuple(i.name for i in INSTRUCTIONS if i.timing is Timing.SET_WIDTHS)
"""Names of the instructions that set the widths of elements: in slots b (`ibiw`) and c (`obiw`)."""


def format_record(record: np.void) -> str:
    """Returns one instruction as text, such as `vvadd rd=1 rs1=1 rs2=3 len=128`; zero offsets are left out."""
    spec = BY_OPCODE.get(int(record["opcode"]))
    if spec is None:
        return f"<unknown opcode {int(record['opcode'])}>"
    operands = ((o, int(record[o.slot])) for o in spec.operands)
    shown = (f"{o.name}={value}" for o, value in operands if value or not o.name.startswith("offset"))
    return " ".join([spec.name, *shown])


@dataclass(frozen=True, slots=True)
class RangeFault:
    """An operand out of its range, at index `pc` of the stream; without `operand`, an unknown opcode of this value."""

    pc: int
    operand: Operand | None
    value: int

    def __str__(self) -> str:
        if self.operand is None:
            return f"unknown opcode {self.value}"
        return f"{self.operand.name}={self.value} is outside {self.operand.low}..{self.operand.high}"


OpcodePositions = Mapping[int, npt.NDArray[np.intp]]


def find_positions(records: Records) -> OpcodePositions:
    """Returns the indices of the instructions of each opcode in the stream; opcodes are ascending."""
    opcodes = np.ascontiguousarray(records["opcode"])
    present = np.zeros(256, np.bool_)
    present[opcodes] = True
    return {int(opcode): np.flatnonzero(opcodes == opcode) for opcode in np.flatnonzero(present)}


def find_range_faults(records: Records, at: OpcodePositions | None = None) -> Iterator[RangeFault]:
    """Yields every operand of `records` outside its range, and every unknown opcode.

    `at`: the `positions` of the records, if the caller has them already.
    """
    for opcode, where in (find_positions(records) if at is None else at).items():
        spec = BY_OPCODE.get(opcode)
        if spec is None:
            yield from (RangeFault(int(pc), None, opcode) for pc in where)
            continue
        for operand in spec.operands:
            yield from _operand_faults(records[operand.slot][where], where, operand)


def _operand_faults(values: npt.NDArray[Any], where: npt.NDArray[np.intp], operand: Operand) -> Iterator[RangeFault]:
    """Yields the values of one operand that are out of its range; `where`: their indices in the stream."""
    if operand.low <= values.min() and values.max() <= operand.high:
        return
    for i in np.flatnonzero((values < operand.low) | (values > operand.high)):
        yield RangeFault(int(where[i]), operand, int(values[i]))
