"""Encodes and decodes instruction streams: JSON text and `.pim` records. Both forms derive from the table in `isa`.

Streams are arrays of `isa.RECORD`. msgspec decodes JSON by the types in `instruction_json`. Python reads text again
that msgspec refuses, about twenty times slower: it may be spelt in a rare way, or the error message needs details."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from raptor.common.errors import InternalError, UserError
from raptor.target import instruction_json
from raptor.target.isa import (
    BY_NAME,
    BY_OPCODE,
    INSTRUCTIONS,
    RECORD,
    Instruction,
    Operand,
    Records,
)

RECORD_SLOTS = ("rd", "rs1", "a", "b", "c", "d")

_HEADER = struct.Struct("<4sII")
_MAGIC, _VERSION = b"PIMB", 1
_INT32 = range(-(2**31), 2**31)
_NUMBER_WIDTH = 11
_LMV = BY_NAME["lmv"].opcode
NO_SIZE_FLAG = 1
"""Value of `flags` that lenient readers set for an `lmv` of `size` 0. (The simulator's hazard check uses `size`.)"""
_CHUNK = 1 << 16
# In .pim files, pimsim-nn neither writes nor reads the second operand of these: it computes with r0.
_WITHOUT_RS2 = tuple(BY_NAME[name].opcode for name in ("sadd", "ssub", "smul"))

Bytes = npt.NDArray[np.uint8]


def encode_pim(records: Records) -> bytes:
    """Encodes a stream as `.pim`.

    Raises `UserError` if rs2 of `sadd`, `ssub` or `smul` is not r0, since the format has no place for it.
    """
    return b"".join(encode_pim_chunks(records))


def encode_pim_chunks(records: Records) -> Iterator[bytes]:
    """Encodes a stream as `.pim`, in pieces of about a megabyte, which stay in the cache; see `encode_pim`."""
    yield _HEADER.pack(_MAGIC, _VERSION, len(records))
    for first in range(0, len(records), _CHUNK):
        part = records[first : first + _CHUNK]
        _refuse_unknown(part)
        lost = np.flatnonzero(np.isin(part["opcode"], _WITHOUT_RS2) & (part["a"] != 0))
        if len(lost):
            name = BY_OPCODE[int(part["opcode"][lost[0]])].name
            where = f"instruction {first + lost[0]}"
            raise UserError(f"{where}: .pim cannot carry rs2 of {name} (the simulator reads r0); use json")
        yield _only_used_slots(part).tobytes()


def decode_pim(content: bytes, *, lenient: bool = False) -> Records:
    """Decodes `.pim`. Slots that an instruction does not use become 0, as in the simulator.

    If `lenient`, bytes after the last record are ignored, as in the simulator, and every `lmv` gets `NO_SIZE_FLAG`.
    Raises `UserError` for another header, a size that does not match the count, or an unknown opcode."""
    if len(content) < _HEADER.size:
        raise UserError(f"not a .pim file: {len(content)} bytes, shorter than its header")
    magic, version, count = _HEADER.unpack_from(content)
    if magic != _MAGIC or version != _VERSION:
        raise UserError(f"not a .pim file of version {_VERSION}: starts with {magic!r}, version {version}")
    expected = _HEADER.size + count * RECORD.itemsize
    if len(content) < expected or (len(content) > expected and not lenient):
        raise UserError(f".pim of {count} instructions should have {expected} bytes, has {len(content)}")
    records = np.frombuffer(content, RECORD, count, _HEADER.size)
    unknown = np.flatnonzero(~_known()[records["opcode"]])
    if len(unknown):
        raise UserError(f"instruction {unknown[0]}: unknown opcode {int(records['opcode'][unknown[0]])}")
    clean = _only_used_slots(records)
    clean["a"][np.isin(clean["opcode"], _WITHOUT_RS2)] = 0
    if lenient:
        clean["flags"][clean["opcode"] == _LMV] = NO_SIZE_FLAG
    return clean


def encode_json(records: Records) -> bytes:
    """Encodes a stream as a JSON array with one instruction per line. `encode_json_chunks` needs less memory."""
    return b"".join(encode_json_chunks(records))


def encode_json_chunks(records: Records) -> Iterator[bytes]:
    """Encodes a stream as JSON, in pieces of a few megabytes."""
    from raptor.target.encoding_kernels import write_json

    _refuse_unknown(records)
    if not len(records):
        yield b"[]\n"
        return
    template = _template()
    words = _words(records)
    out = np.empty(template.widest * min(_CHUNK, len(words)), np.uint8)
    for first in range(0, len(words), _CHUNK):
        size = write_json(words[first : first + _CHUNK], template.text, template.bounds, template.slots, out)
        if first == 0:
            out[0] = ord("[")  # every line starts with the comma after the one before it
        yield out[:size].tobytes()
    yield b"\n]\n"


def decode_json(content: bytes, *, lenient: bool = False) -> Records:
    """Decodes JSON of any writer: keys in any order, any spacing; missing operands are 0.

    If `lenient`, reads everything that the simulator reads, and in the same way: unknown keys are ignored, fractions
    are cut off, integers wrap to 32 bits, registers may be up to 255; an `lmv` without size gets `NO_SIZE_FLAG`.
    Otherwise raises `UserError` for unknown operations and keys, values that are not integers of 32 bits, and registers
    that do not exist; it names the instruction and the field. Other ranges are left to `isa.find_range_faults`."""
    typed = instruction_json.decode_plain(content)
    if typed is None and lenient:
        typed = instruction_json.decode_loose(content)
    try:
        return _read_slowly(content, lenient) if typed is None else _typed_records(typed, lenient)
    except OverflowError:
        return _read_slowly(content, lenient)


def _typed_records(typed: list[instruction_json.TypedInstruction], lenient: bool) -> Records:
    records = instruction_json.to_records(typed)
    if lenient:
        moves = np.flatnonzero(records["opcode"] == _LMV)
        sizes = instruction_json.read_column([typed[i] for i in moves], "second").astype(np.int32)
        records["flags"][moves[sizes == 0]] = NO_SIZE_FLAG
    return records


def _words(records: Records) -> npt.NDArray[np.int32]:
    """Returns the records as rows of five little-endian words; the first holds opcode, rd, rs1 and flags."""
    return np.ascontiguousarray(records).view("<i4").reshape(-1, 5)


@cache
def _known() -> npt.NDArray[np.bool_]:
    """Returns a mask over opcodes: True if the opcode has an instruction."""
    known = np.zeros(256, np.bool_)
    known[list(BY_OPCODE)] = True
    return known


def _refuse_unknown(records: Records) -> None:
    if not _known()[records["opcode"]].all():
        raise InternalError("a stream to be written holds an unknown opcode")


def _only_used_slots(records: Records) -> Records:
    """Returns a copy with 0 in `flags` and in the slots that an instruction does not use."""
    return (_words(records) & _used_bits()[records["opcode"]]).view(RECORD).reshape(-1)


@cache
def _used_bits() -> npt.NDArray[np.int32]:
    """Returns for each opcode the five words of a record, with all bits 1 in the slots that it uses."""
    used = np.zeros(256, RECORD)
    used["opcode"] = 255
    for spec in INSTRUCTIONS:
        for operand in spec.operands:
            used[operand.slot][spec.opcode] = 255 if operand.slot in ("rd", "rs1") else -1
    return _words(used)


# Writing: every instruction is literal text with numbers in between.


@dataclass(frozen=True, slots=True)
class _JsonTemplate:
    """The parts of each instruction in JSON: pairs of a literal text and the slot of the number that follows it.

    `bounds` [opcode, pair, 2]: the literal as a range of `text`. `slots` [opcode, pair]: index into `RECORD_SLOTS`, or
    -1 after the last literal. `widest`: most bytes that an instruction can take."""

    text: Bytes
    bounds: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int8]
    widest: int


@cache
def _template() -> _JsonTemplate:
    """Makes the template by which `encoding_kernels` writes JSON."""
    rows = {spec.opcode: _literals(spec) for spec in INSTRUCTIONS}
    steps = max(map(len, rows.values()))
    bounds = np.zeros((max(rows) + 1, steps, 2), np.int32)
    slots = np.full((max(rows) + 1, steps), -1, np.int8)
    text = b""
    for opcode, row in rows.items():
        for k, (literal, slot) in enumerate(row):
            bounds[opcode, k] = len(text), len(text) + len(literal)
            slots[opcode, k] = slot
            text += literal
    widest = max(sum(len(literal) + _NUMBER_WIDTH for literal, _ in row) for row in rows.values())
    return _JsonTemplate(np.frombuffer(text, np.uint8), bounds, slots, widest)


def _literals(spec: Instruction) -> list[tuple[bytes, int]]:
    """Returns the literals of an instruction in JSON, each with the slot of the number after it, or -1."""
    pieces: list[tuple[bytes, int]] = []
    prefix = f',\n{{"op":"{spec.name}"'
    for outer, group in groupby(_keys(spec.operands), key=lambda item: item[0].rpartition(".")[0]):
        comma = ","
        if outer:
            prefix += f',"{outer}":{{'
            comma = ""
        for key, operand in group:
            pieces.append((f'{prefix}{comma}"{key.rpartition(".")[2]}":'.encode(), RECORD_SLOTS.index(operand.slot)))
            prefix, comma = "", ","
        prefix = "}" if outer else ""
    return [*pieces, (f"{prefix}}}".encode(), -1)]


def _keys(operands: Sequence[Operand]) -> Iterator[tuple[str, Operand]]:
    return ((key, operand) for operand in operands for key in operand.json)


# Reading JSON that is not plain.


def _read_slowly(content: bytes, lenient: bool) -> Records:
    """Reads JSON in Python: for rare spellings such as escaped keys, and for precise error messages."""
    try:
        raw = orjson.loads(content)
    except orjson.JSONDecodeError as e:
        raise UserError(f"not a JSON file: {e}") from e
    if not isinstance(raw, list):
        raise UserError("expected a JSON array of instructions")
    instructions = cast(list[object], raw)
    records = np.zeros(len(instructions), RECORD)
    for pc, instruction in enumerate(instructions):
        try:
            records[pc] = _one_record(instruction, lenient)
        except UserError as e:
            raise UserError(f"instruction {pc}: {e}") from None
    return records


def _one_record(raw: object, lenient: bool) -> tuple[int, ...]:
    """Returns the fields of a record in the order of `RECORD`. Raises `UserError` for an instruction with a mistake."""
    fields = _flat_fields(raw, lenient)
    name = fields.pop("op", None)
    if name is None:
        raise UserError("op is missing")
    spec = BY_NAME.get(name) if isinstance(name, str) else None
    if spec is None:
        raise UserError(f"unknown op {_short(name)}")
    values: dict[str, int] = dict.fromkeys(RECORD_SLOTS, 0)
    flags = 0
    for operand in spec.operands:
        given = {key: fields.pop(key) for key in operand.json if key in fields}
        checked = {key: _checked(value, operand, spec, lenient) for key, value in given.items()}
        if lenient:
            values[operand.slot] = checked.get(operand.json[0], 0)
            flags |= NO_SIZE_FLAG * any(not checked.get(alias) for alias in operand.json[1:])
        else:
            values[operand.slot] = next(iter(checked.values()), 0)
    if fields and not lenient:
        raise UserError(f"{spec.name} has no field {_short(next(iter(fields)))}")
    return (spec.opcode, values["rd"], values["rs1"], flags, *(values[slot] for slot in RECORD_SLOTS[2:]))


def _flat_fields(raw: object, lenient: bool) -> dict[str, Any]:
    """Returns the fields of an instruction; fields of `offset` get the prefix `offset.`."""
    if not isinstance(raw, dict):
        raise UserError(f"expected an object, found {_short(raw)}")
    fields = cast(dict[str, Any], raw)
    if any("." in key for key in fields):
        if not lenient:
            raise UserError(f"no field {_short(next(key for key in fields if '.' in key))}")
        fields = {key: value for key, value in fields.items() if "." not in key}
    if "offset" not in fields:
        return fields
    offset = fields.pop("offset")
    if not isinstance(offset, dict):
        raise UserError(f"offset: expected an object, found {_short(offset)}")
    return fields | {f"offset.{key}": value for key, value in cast(dict[str, Any], offset).items()}


def _checked(value: object, operand: Operand, spec: Instruction, lenient: bool) -> int:
    """Returns the value of an operand as an integer of 32 bits. Raises `UserError` if it is not allowed."""
    where = f"{spec.name}, {operand.name}"
    if lenient and isinstance(value, float) and abs(value) < 2**63:
        value = int(value)
    if not isinstance(value, int) or (isinstance(value, bool) and not lenient):
        raise UserError(f"{where}: expected an integer, found {_short(value)}")
    highest = instruction_json.HIGHEST_REGISTER if lenient else operand.high
    if operand.is_register and not operand.low <= value <= highest:
        raise UserError(f"{where}: no register {value}; expected {operand.low} to {operand.high}")
    if value not in _INT32 and not lenient:
        raise UserError(f"{where}: {value} does not fit 32 bits")
    return (int(value) + 2**31) % 2**32 - 2**31


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
