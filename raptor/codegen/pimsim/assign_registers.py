"""Register assignment: virtual instructions name values, and register loads are inserted where needed.

An emitter states which register must hold which value; `materialise` inserts the register loads (`sldi`) and width
changes (`setbw`) that this requires, and no others. Instructions are rows of structured arrays, without Python objects.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.target import isa


def _instructions(integer: str) -> np.dtype[np.void]:
    """Returns the record type of a virtual instruction whose `value` and `c` have type `integer`."""
    operands = [("opcode", "u1"), ("register", "u1", (3,)), ("value", integer, (3,)), ("widths", "<u4")]
    return np.dtype([*operands, ("a", "<i4"), ("b", "<i4"), ("c", integer), ("d", "<i4")])


VIRTUAL = _instructions("<i4")
"""A virtual instruction. `register` and `value` of operands rd, rs1, rs2: `NONE` if unused, `named` if computed.

widths: the width code that must be set (`width_code`); 0 for an instruction that does not depend on it. a, b, c, d: the
other fields, as in `isa.RECORD`.
"""

SYMBOLIC = _instructions("<i8")
"""A virtual instruction with symbols:

`value` and `c` may be an unknown address (`address_symbol`) plus a number of bytes.
"""

UNUSED_REGISTER = 255
COMPUTED_OFFSET = 128
"""Offset of `register` entries for registers that are named without loading, because their value is computed."""

Virtual = npt.NDArray[np.void]
Symbolic = npt.NDArray[np.void]
Ints = npt.NDArray[np.intp]

_SLDI, _SETBW, _SETFP = (isa.OPCODE[name] for name in ("sldi", "setbw", "setfp"))
_RS2_OPCODES = np.array(
    [i.opcode for i in isa.INSTRUCTIONS if any(o.name == "rs2" for o in i.operands)], dtype=np.uint8
)


def width_code(input_bits: int, output_bits: int, *, floats: bool = False) -> int:
    """Returns the encoding of the widths of an instruction. floats: whether elements of 32 bits are floats."""
    return floats << 16 | input_bits << 8 | output_bits


def computed_register(register: int) -> int:
    """Returns the entry of `register` for a register whose value is computed instead of loaded."""
    return COMPUTED_OFFSET + register


_FAR = 40
"""Bits of the byte offset in a symbol."""


def address_symbol(number: int) -> int:
    """Returns the symbol of unknown address `number`."""
    return (number + 1) << _FAR


def resolve_symbols(symbols: Ints) -> tuple[Ints, Ints]:
    """Returns, for each symbol, the number of its address (-1 for a plain number), and the offset from it."""
    number = (symbols + (1 << (_FAR - 1))) >> _FAR
    return number - 1, symbols - (number << _FAR)


def make_virtual(name: str, count: int) -> Symbolic:
    """Returns `count` instructions of one opcode, without operands."""
    block = np.zeros(count, SYMBOLIC)
    block["opcode"] = isa.OPCODE[name]
    block["register"] = UNUSED_REGISTER
    return block


def make_width_setter(widths: int) -> Symbolic:
    """Returns the instruction that sets a width code."""
    block = make_virtual("setfp" if widths >> 16 else "setbw", 1)
    block["b"], block["c"] = widths >> 8 & 255, widths & 255
    return block


def set_operand(block: Symbolic, slot: int, register: int, value: npt.ArrayLike) -> None:
    """Sets operand `slot` (0 rd, 1 rs1, 2 rs2) of every instruction to `register`, which must hold `value`."""
    block["register"][:, slot] = register
    block["value"][:, slot] = value


@dataclass(slots=True)
class RegisterState:
    """The known register values and the width code of a core. Registers not yet written are missing in `values`."""

    values: dict[int, int] = field(default_factory=dict[int, int])
    widths: int = 0

    def materialise(self, block: Virtual) -> tuple[isa.Records, Ints]:
        """Returns the instructions with the width changes and register loads that they need; updates the state.

        The second result has an entry for each k: the number of records that the first k instructions become.
        """
        needed = self._needed(block)
        loads = np.concatenate([[0], np.cumsum(needed.sum(axis=1))])
        ends = loads + np.arange(len(block) + 1)
        records = np.zeros(int(ends[-1]), isa.RECORD)
        which, state = np.nonzero(needed)
        at = which + np.arange(len(which))
        sets = state == 0
        _fill_widths(records, at[sets], block["widths"][which[sets]])
        at, which, slot = at[~sets], which[~sets], state[~sets] - 1
        records["opcode"][at] = _SLDI
        records["rd"][at] = block["register"][which, slot]
        records["a"][at] = block["value"][which, slot]
        self._fill(records, ends[1:] - 1, block)
        return records, ends

    def _needed(self, block: Virtual) -> npt.NDArray[np.bool_]:
        """Returns [instructions, 1 + slots]: True if the widths must be set, or the register loaded, first."""
        return np.column_stack([self._new_widths(block["widths"]), self._changes(block)])

    def _new_widths(self, widths: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the instructions before which the widths change."""
        uses = np.flatnonzero(widths)
        needed = np.zeros(len(widths), np.bool_)
        if len(uses):
            wanted = widths[uses]
            needed[uses] = wanted != np.append(np.uint32(self.widths), wanted[:-1])
            self.widths = int(wanted[-1])
        return needed

    def _changes(self, block: Virtual) -> npt.NDArray[np.bool_]:
        """Returns [instructions, slots]: True if the register must be loaded first."""
        register = block["register"].reshape(-1)
        value = block["value"].reshape(-1)
        needed = np.zeros(len(register), np.bool_)
        for r in np.unique(register):
            if r >= COMPUTED_OFFSET:
                continue
            uses = np.flatnonzero(register == r)
            held = value[uses]
            needed[uses[1:]] = held[1:] != held[:-1]
            needed[uses[0]] = self.values.get(int(r)) != int(held[0])
            self.values[int(r)] = int(held[-1])
        return needed.reshape(-1, 3)

    @staticmethod
    def _fill(records: isa.Records, at: Ints, block: Virtual) -> None:
        register = np.where(block["register"] == UNUSED_REGISTER, 0, block["register"] % COMPUTED_OFFSET)
        records["opcode"][at] = block["opcode"]
        records["rd"][at] = register[:, 0]
        records["rs1"][at] = register[:, 1]
        records["a"][at] = np.where(np.isin(block["opcode"], _RS2_OPCODES), register[:, 2], block["a"])
        for name in ("b", "c", "d"):
            records[name][at] = block[name]


def _fill_widths(records: isa.Records, at: Ints, widths: npt.NDArray[np.uint32]) -> None:
    records["opcode"][at] = np.where(widths >> 16 > 0, _SETFP, _SETBW)
    records["b"][at], records["c"][at] = widths >> 8 & 255, widths & 255
