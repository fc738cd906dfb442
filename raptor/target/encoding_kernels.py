"""Compiled loop of `encoding`: writes records as JSON text, from tables of literals that `encoding` makes.

Import it only where it runs (see `jit`).
"""

# Kernels are untyped for numba's sake; `encoding` passes arrays of the types it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit.decorators import helper, interpret_first, kernel

_MINUS, _ZERO = 45, 48


@kernel
@interpret_first(us=lambda args: 8 * len(args[0]), until_us=4e5, by_element=True)
def write_json(words: Any, text: Any, bounds: Any, slots: Any, out: Any) -> int:
    """Writes a line of JSON for each row of `words`; each starts with `,` and a newline. Returns the byte count."""
    at: Any = np.int64(0)  # a plain 0 would have a type of its own, for which the helper would be compiled once more
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
