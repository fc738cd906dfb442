"""msgspec types of instructions in JSON, with which streams are decoded. They derive from the table in `isa`.

A field has the name of the record slot that it fills; `offset` holds the two fields of the inner object.
"""

from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Union, cast

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.common.files.json_decoding import json_decoder
from raptor.target.isa import INSTRUCTIONS, RECORD, Instruction, Operand, Records

OPTIONAL_KEYS = frozenset({"relu", "offset.offset_select", "offset.offset_value", "offset_value"})
"""Keys that a plain instruction may omit; their value is then 0."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for text that is not JSON, or not of the given type."""
HIGHEST_REGISTER = 255
"""Highest register that the simulator's reader accepts."""

_NESTED = "offset."
_INT32 = msgspec.Meta(ge=-(2**31), le=2**31 - 1)


class OffsetFields(msgspec.Struct, frozen=True, gc=False):
    """The inner object of an instruction; missing fields are 0."""

    b: ClassVar[int] = 0
    c: ClassVar[int] = 0


class TypedInstruction(msgspec.Struct, gc=False):
    """An instruction from JSON; slots that its operation does not have are 0."""

    opcode: ClassVar[int]
    rd: ClassVar[int] = 0
    rs1: ClassVar[int] = 0
    a: ClassVar[int] = 0
    b: ClassVar[int] = 0
    c: ClassVar[int] = 0
    d: ClassVar[int] = 0
    second: ClassVar[int] = 0
    offset: ClassVar[OffsetFields] = OffsetFields()


def is_plain_ascii(content: bytes) -> bool:
    """True if the text is ASCII without escapes, so that each key has only one spelling and all bytes are valid."""
    return content.isascii() and b"\\" not in content


def decode_plain(content: bytes) -> list[TypedInstruction] | None:
    """Reads instructions as RAPTOR writes them; None for any other text.

    Plain means: every key belongs to the operation, every operand is there except those in `OPTIONAL_KEYS`, and every
    value is an integer in its range (32 bits; a register must exist)."""
    return _decoded(content, plain=True)


def decode_loose(content: bytes) -> list[TypedInstruction] | None:
    """Reads instructions as the simulator does; None for text that it refuses or that is not simple.

    Other keys are ignored, missing ones are 0, numbers may have fractions, registers may be up to `HIGHEST_REGISTER`.
    """
    return _decoded(content, plain=False)


def is_plain(instruction: msgspec.Raw) -> bool:
    """True if `decode_plain` accepts this instruction."""
    try:
        _instruction_decoder().decode(instruction)
    except DECODE_ERRORS:
        return False
    return True


def to_records(instructions: list[TypedInstruction]) -> Records:
    """Makes records. Fractions are cut off, and 32 bits are kept. Raises `OverflowError` above 64 bits."""
    records = np.zeros(len(instructions), RECORD)
    for slot in ("opcode", "rd", "rs1", "a", "b", "c", "d"):
        records[slot] = read_column(instructions, slot)
    for slot in ("b", "c"):
        records[slot] |= read_column(instructions, f"offset.{slot}").astype(np.int32)
    return records


def read_column(instructions: list[TypedInstruction], name: str) -> npt.NDArray[np.int64]:
    """Returns one attribute of all instructions; `second` is the second key of an operand that has two."""
    # NOTE: a column at a time takes half as long as a tuple per instruction.
    return np.fromiter(map(attrgetter(name), instructions), np.int64, len(instructions))


def _decoded(content: bytes, *, plain: bool) -> list[TypedInstruction] | None:
    try:
        return _decoder(plain=plain).decode(content) if is_plain_ascii(content) else None
    except DECODE_ERRORS:
        return None


@cache
def _decoder(*, plain: bool) -> "msgspec.json.Decoder[list[TypedInstruction]]":
    return json_decoder(list[_any_instruction(plain=plain)])


@cache
def _instruction_decoder() -> "msgspec.json.Decoder[TypedInstruction]":
    return json_decoder(_any_instruction(plain=True))


@cache
def _any_instruction(*, plain: bool) -> Any:
    """Returns the union of the types of all operations, tagged by `op`."""
    return Union[tuple(_instruction_type(spec, plain) for spec in INSTRUCTIONS)]  # noqa: UP007 made at run time


def _instruction_type(spec: Instruction, plain: bool) -> type[TypedInstruction]:
    """Makes the type of one instruction; if `plain`, it accepts only what RAPTOR writes."""
    nested = [o for o in spec.operands if o.json[0].startswith(_NESTED)]
    fields = [_field(o.slot, o.json[0], o, plain) for o in spec.operands if o not in nested]
    fields += [_field("second", key, o, plain, optional=True) for o in spec.operands for key in o.json[1:]]
    if nested or not plain:
        inner = [_field(o.slot, o.json[0], o, plain) for o in nested]
        offset = msgspec.defstruct(
            "Offset", inner, bases=(OffsetFields,), frozen=True, gc=False, forbid_unknown_fields=plain
        )
        fields.append(("offset", offset, offset()))
    made = msgspec.defstruct(
        spec.name,
        [*fields],
        bases=(TypedInstruction,),
        namespace={"opcode": spec.opcode},
        tag=spec.name,
        tag_field="op",
        forbid_unknown_fields=plain,
        kw_only=True,
        gc=False,
    )
    return cast(type[TypedInstruction], made)


def _field(name: str, key: str, operand: Operand, plain: bool, *, optional: bool = False) -> tuple[str, Any, Any]:
    may_lack = optional or not plain or key in OPTIONAL_KEYS
    default: dict[str, Any] = {"default": 0} if may_lack else {}
    return name, _value_type(operand, plain), msgspec.field(name=key.removeprefix(_NESTED), **default)


def _value_type(operand: Operand, plain: bool) -> Any:
    """Returns the type of a value: an integer in range if `plain`, else all numbers that the simulator reads."""
    if plain:
        return Annotated[int, msgspec.Meta(ge=operand.low, le=operand.high) if operand.is_register else _INT32]
    if operand.is_register:
        register = msgspec.Meta(ge=operand.low, lt=HIGHEST_REGISTER + 1)
        return Annotated[int, register] | Annotated[float, register] | bool
    return int | float | bool
