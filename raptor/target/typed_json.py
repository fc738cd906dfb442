"""Types of instructions in JSON text, by which msgspec decodes a stream. They derive from the table in `isa`.

A field is named as the slot of the record that it fills; `offset` holds the two that JSON puts in an inner object.
"""

from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Union, cast

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.target.isa import INSTRUCTIONS, RECORD, Instruction, Operand, Records

OPTIONAL = frozenset({"relu", "offset.offset_select", "offset.offset_value", "offset_value"})
"""Keys that may be left out of a plain instruction: 0 is what they mean then."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not JSON or not of the type asked for."""
HIGHEST_REGISTER = 255
"""The highest register that the simulator's reader lets pass."""

_NESTED = "offset."
_INT32 = msgspec.Meta(ge=-(2**31), le=2**31 - 1)


class Offset(msgspec.Struct, frozen=True, gc=False):
    """The object within an instruction; 0 stands for what it lacks."""

    b: ClassVar[int] = 0
    c: ClassVar[int] = 0


class TypedInstruction(msgspec.Struct, gc=False):
    """An instruction from JSON; 0 stands for slots that its operation does not have."""

    opcode: ClassVar[int]
    rd: ClassVar[int] = 0
    rs1: ClassVar[int] = 0
    a: ClassVar[int] = 0
    b: ClassVar[int] = 0
    c: ClassVar[int] = 0
    d: ClassVar[int] = 0
    second: ClassVar[int] = 0
    offset: ClassVar[Offset] = Offset()


def is_simple(content: bytes) -> bool:
    """Whether text has no escapes and only ASCII: a key then has one spelling, and no byte is left to check."""
    return content.isascii() and b"\\" not in content


def decode_plain(content: bytes) -> list[TypedInstruction] | None:
    """Instructions as RAPTOR writes them, or None for any other text.

    Plain: every key is one of the operation's, every operand but those in `OPTIONAL` is there, and every value is an
    integer in range (32 bits; for registers, those that exist).
    """
    return _decoded(_decoder(plain=True), content)


def decode_loose(content: bytes) -> list[TypedInstruction] | None:
    """Instructions as the simulator reads them, or None for text that it refuses or that is not simple.

    Other keys are ignored, missing ones are 0, numbers may have fractions, registers may be up to `HIGHEST_REGISTER`.
    """
    return _decoded(_decoder(plain=False), content)


def is_plain(instruction: msgspec.Raw) -> bool:
    """Whether one instruction is as `decode_plain` wants it."""
    try:
        _instruction_decoder().decode(instruction)
    except UNREADABLE:
        return False
    return True


def to_records(instructions: list[TypedInstruction]) -> Records:
    """Numbers into the slots of records: fractions are cut off, and 32 bits kept. Raises `OverflowError` beyond 64."""
    records = np.zeros(len(instructions), RECORD)
    for slot in ("opcode", "rd", "rs1", "a", "b", "c", "d"):
        records[slot] = column(instructions, slot)
    for slot in ("b", "c"):
        records[slot] |= column(instructions, f"offset.{slot}").astype(np.int32)
    return records


def column(instructions: list[TypedInstruction], name: str) -> npt.NDArray[np.int64]:
    """One attribute of all instructions; `second` is the second key of an operand that has two."""
    # NOTE: a column at a time takes half as long as a tuple per instruction.
    return np.fromiter(map(attrgetter(name), instructions), np.int64, len(instructions))


def _decoded(decoder: "msgspec.json.Decoder[list[TypedInstruction]]", content: bytes) -> list[TypedInstruction] | None:
    try:
        return decoder.decode(content) if is_simple(content) else None
    except UNREADABLE:
        return None


@cache
def _decoder(*, plain: bool) -> "msgspec.json.Decoder[list[TypedInstruction]]":
    return msgspec.json.Decoder(list[_any_instruction(plain)])


@cache
def _instruction_decoder() -> "msgspec.json.Decoder[TypedInstruction]":
    return msgspec.json.Decoder(_any_instruction(True))


@cache
def _any_instruction(plain: bool) -> Any:
    """A union of one type for each operation, told apart by `op`."""
    return Union[tuple(_instruction_type(spec, plain) for spec in INSTRUCTIONS)]  # noqa: UP007 made at run time


def _instruction_type(spec: Instruction, plain: bool) -> type[TypedInstruction]:
    nested = [o for o in spec.operands if o.json[0].startswith(_NESTED)]
    fields = [_field(o.slot, o.json[0], o, plain) for o in spec.operands if o not in nested]
    fields += [_field("second", key, o, plain, optional=True) for o in spec.operands for key in o.json[1:]]
    if nested or not plain:
        inner = [_field(o.slot, o.json[0], o, plain) for o in nested]
        offset = msgspec.defstruct("Offset", inner, bases=(Offset,), frozen=True, gc=False, forbid_unknown_fields=plain)
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
    may_lack = optional or not plain or key in OPTIONAL
    default: dict[str, Any] = {"default": 0} if may_lack else {}
    return name, _value_type(operand, plain), msgspec.field(name=key.removeprefix(_NESTED), **default)


def _value_type(operand: Operand, plain: bool) -> Any:
    if plain:
        return Annotated[int, msgspec.Meta(ge=operand.low, le=operand.high) if operand.is_register else _INT32]
    if operand.is_register:
        register = msgspec.Meta(ge=operand.low, lt=HIGHEST_REGISTER + 1)
        return Annotated[int, register] | Annotated[float, register] | bool
    return int | float | bool
