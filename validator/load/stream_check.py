"""Checks instruction streams without running them.

Streams have no branches, so the order of a stream is the order of execution, and most rules look at whole columns.
"""

from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.arch import Target
from raptor.target.isa import (
    BY_OPCODE,
    OPCODE,
    REGISTER_COUNT,
    OperandKind,
    Records,
)
from raptor.target.opcode_tables import NEEDS_WIDTH, SETS_WIDTH, opcode_mask
from validator.engines.integer_semantics import (
    CONVERSION_INSTRUCTIONS,
    FLOAT_BITS,
    FLOAT_INSTRUCTIONS,
    INTEGER_INSTRUCTIONS,
    TABLE_BITS,
)
from validator.errors import ProgramError
from validator.program.lookup_bounds import check_lookups
from validator.program.program import Indices, LoadedProgram, Matrix

Mask = npt.NDArray[np.bool_]
StreamRule = Callable[[LoadedProgram, Target, int, Records], None]

# The ISA always adds the offset of these instructions, the simulator only if a bit of offset_select is set. Any of the
# bits given here makes both agree; vmv has no offset at all.
_OFFSET_BITS = {"vavg": 0b010, "lldi": 0b001, "recv": 0b001, "send": 0b011, "vmv": 0}
_NOT_FLOAT = {
    "vvsll": "shifts have no meaning in a program of floats",
    "vvsra": "shifts have no meaning in a program of floats",
    **dict.fromkeys(("vlut", "vrequant", "setfp", "vfloat", "vround"), "a program of floats has no integers"),
}


def check_program(program: LoadedProgram, target: Target) -> None:
    """Raises `ProgramError` for the first instruction of the first core that breaks a rule."""
    for core, records in enumerate(program.streams):
        for rule in _RULES:
            rule(program, target, core, records)


def _ranges(_program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    for fault in isa.find_range_faults(records):
        _fail(core, records, fault.pc, str(fault))


def _pairs(_program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    for where, slot in _operands(records, OperandKind.USE_PAIR):
        _refuse(core, records, where[records[slot][where] % 2 == 1], "a global address needs an even register")


def _registers(_program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    never = len(records)
    written, read = (np.full(REGISTER_COUNT, never, np.int64) for _ in range(2))
    for where, slot in _operands(records, OperandKind.DEFINE):
        _first_use(written, records[slot][where], where)
    for kind in (OperandKind.USE, OperandKind.SOURCE, OperandKind.TARGET, OperandKind.USE_PAIR):
        for where, slot in _operands(records, kind):
            _first_use(read, records[slot][where], where)
            if kind is OperandKind.USE_PAIR:
                _first_use(read, records[slot][where] + 1, where)
    for register in np.flatnonzero((read < never) & (read <= written)):
        _fail(core, records, int(read[register]), f"reads register {register}, which nothing has written")


def _first_use(first: Indices, registers: npt.NDArray[np.integer], where: Indices) -> None:
    """Lowers `first[register]` to the first instruction of `where`, which is sorted, that names the register."""
    found = np.full(REGISTER_COUNT, np.iinfo(np.int64).max)
    found[registers[::-1]] = where[::-1]  # for equal indices, numpy keeps the last value assigned
    np.minimum(first, found, out=first)


def _widths(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    sets = SETS_WIDTH[records["opcode"]]
    if not program.has_integers:
        bits = program.memory.element_bits
        wrong = sets & ((records["b"] != bits) | (records["c"] != bits))
        _refuse(core, records, np.flatnonzero(wrong), f"elements of this program have {bits} bits")
    needs = np.flatnonzero(NEEDS_WIDTH[records["opcode"]])
    if len(needs) and not sets[: needs[0]].any():
        _fail(core, records, int(needs[0]), "no setbw before it: the simulator would count no bytes")


def _integers(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    """Refuses instructions that have no meaning at the widths set before them."""
    if not program.has_integers:
        return
    if program.manifest.numbers == "int":
        _refuse(core, records, np.flatnonzero(_is(records, "setfp")), "the numbers of this program are int")
    setters = np.flatnonzero(SETS_WIDTH[records["opcode"]])
    at = np.flatnonzero(NEEDS_WIDTH[records["opcode"]])
    last = setters[np.searchsorted(setters, at) - 1] if len(at) else at
    code, bits, out = records["opcode"][at], records["b"][last], records["c"][last]
    floats = _is(records, "setfp")[last]
    for faulty, reason in (
        (~floats & ~_AFTER_SETBW[code], "it has no meaning for integers; use setfp before it"),
        (~floats & (code == OPCODE["vlut"]) & (bits > TABLE_BITS), f"a table has inputs of at most {TABLE_BITS} bits"),
        (floats & ~_AFTER_SETFP[code], "it has no meaning for floats; use setbw before it"),
        (floats & (code == OPCODE["vfloat"]) & (out != FLOAT_BITS), "its result is a float32, but obiw is not 32"),
        (floats & (code == OPCODE["vround"]) & (bits != FLOAT_BITS), "its operand is a float32, but ibiw is not 32"),
        (
            floats & ~_CONVERTS[code] & ((bits != FLOAT_BITS) | (out != FLOAT_BITS)),
            "it is for float32, but ibiw and obiw are not both 32",
        ),
    ):
        _refuse(core, records, at[faulty], reason)


def _weights(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    """Refuses products whose weights do not fit `mbiw` bits."""
    if not program.has_integers:
        return
    products = np.flatnonzero(_is(records, "mvmul"))
    highest = [_most_bits(program.weights.matrix(core, g)) for g in range(len(program.config.group_sizes(core)))]
    needed = np.array(highest, np.int64)[records["c"][products]] if len(products) else products
    _refuse(core, records, products[needed > records["a"][products]], "the group has weights of more than mbiw bits")


def _most_bits(matrix: Matrix) -> int:
    """Returns the bits of the largest integer of a matrix, including its sign."""
    low, high = min(0, int(matrix.min())), max(0, int(matrix.max()))
    return 1 + max(high.bit_length(), (~low if low else 0).bit_length())


def _floats(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    if program.has_integers:
        return
    for name, reason in _NOT_FLOAT.items():
        _refuse(core, records, np.flatnonzero(_is(records, name)), reason)
    filled = _is(records, "lldi") & (records["a"] != 0)
    _refuse(core, records, np.flatnonzero(filled), "a program of floats can fill with 0 only")


def _lookups(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    check_lookups(core, records, program.memory.tables)


def _groups(program: LoadedProgram, target: Target, core: int, records: Records) -> None:
    counts = np.array(program.config.group_sizes(core), np.int64)
    products = np.flatnonzero(_is(records, "mvmul"))
    groups, bits = records["c"][products], records["a"][products]
    _refuse(core, records, products[groups >= len(counts)], f"core {core} has {len(counts)} array groups")
    outputs = counts[groups] * (target.cell_bits * target.xbar_cols // bits)
    cols = program.weights.cols[program.weights.first[core] + groups]
    _refuse(core, records, products[cols > outputs], "the group's matrix has more columns than the crossbars hold")


def _partners(program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    names = _is(records, "send") | _is(records, "recv")
    _refuse(core, records, np.flatnonzero(names & (records["a"] == core)), "a core cannot exchange with itself")
    names |= _is(records, "sync")
    count = program.core_count
    _refuse(core, records, np.flatnonzero(names & (records["a"] >= count)), f"the program has {count} cores")


def _offsets(_program: LoadedProgram, _target: Target, core: int, records: Records) -> None:
    for name, bits in _OFFSET_BITS.items():
        unclear = _is(records, name) & (records["c"] != 0) & (records["b"] & bits == 0)
        reason = f"set the bit in offset_select, {bits}: the ISA adds offset_value, the simulator only then"
        _refuse(core, records, np.flatnonzero(unclear), reason if bits else f"{name} takes no offset")


_RULES: tuple[StreamRule, ...] = (
    _ranges,
    _pairs,
    _registers,
    _widths,
    _integers,
    _floats,
    _lookups,
    _groups,
    _weights,
    _partners,
    _offsets,
)
_AFTER_SETBW, _AFTER_SETFP, _CONVERTS = (
    opcode_mask(lambda row, names=names: row.name in names)
    for names in (INTEGER_INSTRUCTIONS, FLOAT_INSTRUCTIONS | CONVERSION_INSTRUCTIONS, CONVERSION_INSTRUCTIONS)
)
"""Masks of opcodes that are defined after setbw, after setfp, and after setfp with widths other than 32."""


def _is(records: Records, name: str) -> Mask:
    return records["opcode"] == OPCODE[name]


def _operands(records: Records, kind: OperandKind) -> Iterator[tuple[Indices, str]]:
    """Yields for each opcode with operands of `kind` its instructions in ascending order, and the operand's slot."""
    for opcode in np.flatnonzero(np.bincount(records["opcode"], minlength=256)):
        operands = [o for o in BY_OPCODE[int(opcode)].operands if o.kind is kind]
        if operands:
            where = np.flatnonzero(records["opcode"] == opcode)
            yield from ((where, o.slot) for o in operands)


def _refuse(core: int, records: Records, faults: Indices, reason: str) -> None:
    if len(faults):
        _fail(core, records, int(faults[0]), reason)


def _fail(core: int, records: Records, pc: int, reason: str) -> NoReturn:
    raise ProgramError(core, pc, isa.format_record(records[pc]), reason)
