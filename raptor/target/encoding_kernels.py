"""Compiled loops of `streams`: JSON text from records and back, driven by tables made there.

Import only where they run (see `jit`). Both walk bytes of unknown origin: every index is checked.
"""

# Kernels are untyped for numba's sake; `streams` passes arrays of the types it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit import helper, kernel

BUCKETS = 256
KEY_OP = 256  # opcodes are below
KEY_OFFSET = 257
FIRST_KEY = 258
ALIAS = -2  # a second key of one operand: not stored, but missing it (or 0) is noted in the flags
_BAD = -1
_EXACT_DIGITS = 15  # decimals of so many digits are different doubles

# JSON's punctuation.
_QUOTE, _COMMA, _MINUS, _POINT, _ZERO, _NINE, _COLON = 34, 44, 45, 46, 48, 57, 58
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = 91, 93, 123, 125


@kernel
def write_json(words: Any, text: Any, bounds: Any, slots: Any, out: Any) -> int:
    """One line of JSON per row of `words`, each starting with a comma and a newline. Returns the bytes written."""
    at = 0
    for i in range(words.shape[0]):
        head = words[i, 0]
        opcode = head & 255
        for k in range(slots.shape[1]):
            for j in range(bounds[opcode, k, 0], bounds[opcode, k, 1]):
                out[at] = text[j]
                at += 1
            slot = slots[opcode, k]
            if slot < 0:
                break
            value = np.int64(words[i, slot - 1]) if slot > 1 else np.int64((head >> (8 + 8 * slot)) & 255)
            at = _write_number(value, out, at)
    return at


@helper
def _write_number(value, out, at):
    if value < 0:
        out[at] = _MINUS
        at += 1
        value = -value
    rest = np.uint32(value)
    digits = 1
    bound = np.uint64(10)
    while rest >= bound:
        digits += 1
        bound *= np.uint64(10)
    for j in range(at + digits - 1, at - 1, -1):
        quotient = rest // np.uint32(10)
        out[j] = _ZERO + (rest - quotient * np.uint32(10))
        rest = np.uint32(quotient)
    return at + digits


@helper
def name_hash(text: Any, first: Any, last: Any) -> int:
    """The bucket where the search for a name starts."""
    value = np.uint32(last - first)
    for i in range(first, last):
        value = np.uint32(value * np.uint32(31) + np.uint32(text[i]))
    return np.int64((value ^ (value >> np.uint32(8))) & np.uint32(BUCKETS - 1))  # pyright: ignore[reportReturnType]


@kernel
def read_json(
    text: Any, names: Any, bounds: Any, buckets: Any, slots: Any, limits: Any, lenient: bool, words: Any
) -> int:
    """Fills rows of `words` from a JSON array of instructions; returns their number.

    `lenient`: keys that an operation does not have are passed over, fractions cut off.
    Returns -1 for anything that is not plainly right: wrong, or written in a way that only the slow reader knows.
    """
    values = np.zeros(limits.shape[0], np.int64)
    at = _skip(text, 0, _OPEN_LIST)
    if at < 0:
        return _BAD
    if _skip(text, at, _CLOSE_LIST) >= 0:
        return 0 if _space(text, _skip(text, at, _CLOSE_LIST)) == text.size else _BAD
    for row in range(words.shape[0]):
        opcode, seen, at = _read_object(text, at, names, bounds, buckets, limits, lenient, values)
        if at < 0 or not _store(opcode, seen, values, slots, lenient, words[row]):
            return _BAD
        after = _skip(text, at, _COMMA)
        if after < 0:
            at = _skip(text, at, _CLOSE_LIST)
            return row + 1 if at >= 0 and _space(text, at) == text.size else _BAD
        at = after
    return _BAD


@helper
def _store(opcode, seen, values, slots, lenient, row):
    """One instruction into its record; false if a key is not one of this operation's."""
    rd_rs1 = np.int64(0)
    for key in range(slots.shape[1] - 1, -1, -1):
        slot = slots[opcode, key]
        if slot == ALIAS and ((seen >> key) & 1 == 0 or values[key] == 0):
            rd_rs1 |= np.int64(1) << 24
        if (seen >> key) & 1:
            if slot < 0:
                if lenient:
                    continue
                return False
            if slot > 1:
                row[slot - 1] = values[key]
            else:
                rd_rs1 |= values[key] << (8 + 8 * slot)
    row[0] = opcode | rd_rs1
    return True


@helper
def _read_object(text, at, names, bounds, buckets, limits, lenient, values):  # noqa: C901 one loop over the keys of two levels
    """Opcode, set of keys seen and the position after the object; that is negative if the object is odd."""
    opcode, seen, nested, offsets = np.int64(-1), np.int64(0), False, 0
    at = _skip(text, at, _OPEN)
    while at >= 0:
        name = at
        index, at = _read_name(text, at, names, bounds, buckets, nested)
        at = _skip(text, at, _COLON)
        if index == KEY_OP and opcode < 0:
            opcode, at = _read_name(text, _space(text, at), names, bounds, buckets, False)
            if opcode >= KEY_OP:
                return opcode, seen, _BAD
        elif index == KEY_OFFSET and offsets == 0:
            at = _skip(text, at, _OPEN)
            nested = True
            offsets += 1
            continue
        elif index >= FIRST_KEY:
            key = index - FIRST_KEY
            values[key], at = _read_number(text, _space(text, at), lenient)
            if (seen >> key) & 1 or values[key] < limits[key, 0] or values[key] > limits[key, 1]:
                return opcode, seen, _BAD
            seen |= np.int64(1) << key
        elif lenient and index != KEY_OP and index != KEY_OFFSET:
            at = _skip_unknown(text, name, at)
        else:
            return opcode, seen, _BAD
        if nested:
            after = _skip(text, at, _CLOSE)
            if after >= 0:
                nested, at = False, after
        after = _skip(text, at, _COMMA)
        if after < 0:
            return opcode, seen, _skip(text, at, _CLOSE) if opcode >= 0 and not nested else _BAD
        at = after
    return opcode, seen, _BAD


@helper
def _skip_unknown(text, at, after):
    """The position after an unknown key at `at` and its plain value; `after` if the key was known but is not used."""
    if after < 0:
        after = _skip(text, _skip_string(text, at), _COLON)
    at = _space(text, after)
    if at < 0 or at >= text.size:
        return np.int64(_BAD)
    if text[at] == _QUOTE:
        return _skip_string(text, at)
    _, at = _read_number(text, at, True)
    return at


@helper
def _skip_string(text, at):
    """The position after a string of plain characters, or -1."""
    at = _skip(text, at, _QUOTE)
    if at < 0:
        return np.int64(_BAD)
    while at < text.size and 32 <= text[at] < 128 and text[at] != _QUOTE and text[at] != 92:
        at += 1
    return np.int64(at + 1) if at < text.size and text[at] == _QUOTE else np.int64(_BAD)


@helper
def _space(text, at):
    """The next position that is not white space; a negative position stays so."""
    if at < 0:
        return at
    while at < text.size and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
        at += 1
    return at


@helper
def _skip(text, at, character):
    """The position after white space and `character`, or -1 if something else comes."""
    at = _space(text, at)
    if at < 0 or at >= text.size or text[at] != character:
        return _BAD
    return at + 1


@helper
def _read_name(text, at, names, bounds, buckets, nested):
    """A quoted name's index and the position after it; the index is -1 if the name is not known at this level."""
    first = _skip(text, at, _QUOTE)
    if first < 0:
        return np.int64(-1), np.int64(_BAD)
    last = first
    while last < text.size and text[last] != _QUOTE:
        last += 1
    bucket = name_hash(text, first, last)
    while last < text.size and buckets[bucket] >= 0:
        index = np.int64(buckets[bucket])
        begin = np.int64(bounds[index, 0])
        same = bounds[index, 1] - begin == last - first and bounds[index, 2] == nested
        for j in range(last - first):
            if not same:
                break
            same = names[begin + j] == text[first + j]
        if same:
            return index, np.int64(last + 1)
        bucket = (bucket + 1) & (BUCKETS - 1)
    return np.int64(-1), np.int64(_BAD)


@helper
def _skip_fraction(text, at, certain):
    """The position after digits; -1 if there are none, or if those before `certain` are all 9 and more follow.

    With 15 digits of which one is not 9, the double nearest to a decimal lies on the same side of the next integer.
    """
    first, nines = at, True
    while at < text.size and text[at] >= _ZERO and text[at] <= _NINE:
        nines = nines and (text[at] == _NINE or at > certain)
        at += 1
    return np.int64(_BAD) if at == first or (nines and at > certain + 1) else np.int64(at)


@helper
def _read_number(text, at, fractions):
    """An integer of at most ten digits as JSON writes it, and the position after it (negative if it is not one).

    `fractions`: digits after a point are cut off, if it is certain that the nearest double loses no more.
    """
    if at < 0 or at >= text.size:
        return np.int64(0), np.int64(_BAD)
    negative = text[at] == _MINUS
    first = at + 1 if negative else at
    at = first
    value = np.int64(0)
    while at < text.size and at < first + 10 and text[at] >= _ZERO and text[at] <= _NINE:
        value = value * 10 + (np.int64(text[at]) - _ZERO)
        at += 1
    if at == first or (text[first] == _ZERO and at > first + 1):
        return np.int64(0), np.int64(_BAD)
    if fractions and at < text.size and text[at] == _POINT:
        at = _skip_fraction(text, at + 1, first + _EXACT_DIGITS)
    return -value if negative else value, np.int64(at)
