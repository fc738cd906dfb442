"""Finds faults in JSON text that decoded records do not show: unknown or missing keys, fractions, wrapped numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.target.instruction_json import DECODE_ERRORS, OPTIONAL_KEYS, decode_plain, is_plain
from raptor.target.isa import BY_NAME, INSTRUCTIONS

Masks = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

UNKNOWN_KEY, FRACTION, WRAPPED, OFFSET_VALUE = 1, 2, 4, 8
"""Bits of `TextFaults.odd`."""
_INT32 = range(-(2**31), 2**31)
_DEPTH = 2
"""Depth to which keys are checked: the simulator reads the keys of an instruction and of its `offset`."""


@dataclass(frozen=True, slots=True, eq=False)
class TextFaults:
    """Faults in the text of one stream.

    `missing`: for each instruction a mask of the missing keys. `odd`: for each instruction bits such as `FRACTION`.
    `unknown`: the first unknown key, or ''.
    """

    missing: Masks
    odd: Bytes
    unknown: str


def find_text_faults(content: bytes) -> TextFaults | None:
    """Finds faults in the text of one stream. None if there are none, or if it is not a list of JSON objects."""
    if decode_plain(content) is not None:
        return None
    try:
        rows = msgspec.json.decode(content, type=list[msgspec.Raw])
        odd = {
            row: msgspec.json.decode(text, type=dict[str, object])
            for row, text in enumerate(rows)
            if not is_plain(text)
        }
    except DECODE_ERRORS:
        return None
    missing, oddities, unknown = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8), ""
    for row, instruction in odd.items():
        missing[row], oddities[row], first = _faults(instruction)
        unknown = unknown or first
    return TextFaults(missing, oddities, unknown[:40])


def missing_key_names(missing: int) -> list[str]:
    """Returns the names of the keys in a mask."""
    return [key for key, bit in _key_bits().items() if missing >> bit & 1]


def _faults(instruction: dict[str, object]) -> tuple[int, int, str]:
    """Returns the mask of missing keys, the bits of `odd` and the first unknown key of one instruction."""
    bits = _key_bits()
    seen, odd, unknown = 0, 0, ""
    for key, value in _members(instruction, _DEPTH):
        if key in bits:
            seen |= 1 << bits[key]
            odd |= _number_faults(key, value)
        else:
            odd |= UNKNOWN_KEY
            unknown = unknown or key
    name = instruction.get("op")
    needed = _needed().get(name, 0) if isinstance(name, str) else 0
    return needed & ~seen, odd, unknown


def _members(value: object, depth: int) -> Iterator[tuple[str, object]]:
    """Yields keys and values in the order of the text, including inner objects down to `depth`."""
    if isinstance(value, dict) and depth:
        for key, inner in cast(dict[str, object], value).items():
            yield key, inner
            yield from _members(inner, depth - 1)
    elif isinstance(value, list):
        for inner in cast(list[object], value):
            yield from _members(inner, depth)


def _number_faults(key: str, value: object) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0
    whole = int(value)
    return (
        FRACTION * isinstance(value, float)
        | WRAPPED * (whole not in _INT32)
        | OFFSET_VALUE * (key == "offset_value" and whole != 0)
    )


@cache
def _key_bits() -> dict[str, int]:
    keys = ["op", "offset", *(key.rpartition(".")[2] for s in INSTRUCTIONS for o in s.operands for key in o.json)]
    return {key: bit for bit, key in enumerate(dict.fromkeys(keys))}


@cache
def _needed() -> dict[str, int]:
    """Returns for each mnemonic the mask of the keys that an instruction should have."""
    bits = _key_bits()
    return {
        name: sum(1 << bits[o.json[0]] for o in spec.operands if o.json[0] not in OPTIONAL_KEYS)
        for name, spec in BY_NAME.items()
    }
