"""Compiled loads and stores of vector elements, which find elements that are unwritten or do not fit.

`memories`, `integers`, `fault`: see `integer_kernels`. Functions that may find a fault return its code.
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from validator.engines.machine import EngineStop

_OK, _OVERFLOW, _UNWRITTEN = 0, int(EngineStop.OVERFLOW), int(EngineStop.UNWRITTEN)
_U = np.uint64


@bare_helper
def bytes_of(bits):
    return (bits + np.int64(7)) >> np.int64(3)


@bare_helper
def signed(v, at, size):
    """Returns the signed integer of `size` bytes at a position that may be unaligned."""
    value = np.int64(0)
    for k in range(size):
        value |= np.int64(v[at + _U(k)]) << np.int64(8 * k)
    spare = np.int64(64 - 8 * size)
    return (value << spare) >> spare


@bare_helper
def all_written(written, at, n):
    least = np.uint8(1)
    for i in range(n):
        least = min(least, written[at + i])
    return least == 1


@bare_helper
def load(core, x, bits, start, n, a, memories, integers, fault):
    """Loads a[:n] from the vector at `x`, from element `start` on. Describes the first element that is wrong."""
    size = bytes_of(bits)
    at = x + _U(start * size)
    if not all_written(memories[0][1], at, _U(n * size)):
        return _first_bad(core, x, bits, start, n, memories, fault)
    if size == 1:
        v = integers[1]
        for i in range(_U(n)):
            a[i] = v[at + i]
    elif size == 2 and at & _U(1) == _U(0):
        v2 = integers[2]
        for i in range(_U(n)):
            a[i] = v2[(at >> _U(1)) + i]
    elif size == 4 and at & _U(3) == _U(0):
        v4 = integers[3]
        for i in range(_U(n)):
            a[i] = v4[(at >> _U(2)) + i]
    else:
        for i in range(n):
            a[i] = signed(memories[0][0], at + _U(i * size), size)
    if bits & 7 and not _all_fit(a, n, bits):
        return _first_bad(core, x, bits, start, n, memories, fault)
    return _OK


@bare_helper
def _first_bad(core, x, bits, start, n, memories, fault):
    """Describes the first element that has unwritten bytes, or does not fit."""
    size, code = bytes_of(bits), _UNWRITTEN
    for i in range(start, start + n):
        at = x + _U(i * size)
        value = np.int64(0)
        written = all_written(memories[0][1], at, _U(size))
        if written:
            value = signed(memories[0][0], at, size)
        if not written or (value + (np.int64(1) << (bits - 1))) >> bits != 0:
            fault[3] = i
            if written:
                fault[4], fault[5] = value, bits
                code = _OVERFLOW
            else:
                fault[1], fault[2] = np.int64(at) - memories[1][core], size
            break
    return code


@bare_helper
def _all_fit(a, n, bits):
    half, outside = np.int64(1) << (bits - 1), np.int64(0)
    for i in range(n):
        outside |= (a[i] + half) >> bits
    return outside == 0


@bare_helper
def store(y, bits, start, n, a, memories, integers, fault):  # noqa: C901 one loop for each width
    """Stores a[:n] in the vector at `y`, from element `start` on; or describes the first number that does not fit."""
    if not _all_fit(a, n, bits):
        half = np.int64(1) << (bits - 1)
        for i in range(n):
            if (a[i] + half) >> bits != 0:
                fault[3], fault[4], fault[5] = start + i, a[i], bits
                break
        return _OVERFLOW
    size = bytes_of(bits)
    at = y + _U(start * size)
    if size == 1:
        v = integers[1]
        for i in range(_U(n)):
            v[at + i] = a[i]
    elif size == 2 and at & _U(1) == _U(0):
        v2 = integers[2]
        for i in range(_U(n)):
            v2[(at >> _U(1)) + i] = a[i]
    elif size == 4 and at & _U(3) == _U(0):
        v4 = integers[3]
        for i in range(_U(n)):
            v4[(at >> _U(2)) + i] = a[i]
    else:
        v = memories[0][0]
        for i in range(n):
            for k in range(size):
                v[at + _U(i * size + k)] = (a[i] >> (8 * k)) & 255
    mark(memories[0][1], at, _U(n * size))
    return _OK


@bare_helper
def mark(written, at, n):
    for i in range(n):
        written[at + i] = 1


@bare_helper
def first_bad_of_two(core, x, z, bits, start, n, memories, integers, fault):
    """Describes the first element of either vector that is wrong."""
    a = integers[5]
    for i in range(start, start + n):
        code = load(core, x, bits, i, np.int64(1), a, memories, integers, fault)
        if code == _OK:
            code = load(core, z, bits, i, np.int64(1), a, memories, integers, fault)
        if code != _OK:
            return code
    return _OK


@bare_helper
def store_floats(y, start, n, a, memories, integers):
    v, at = integers[4], (y >> _U(2)) + _U(start)
    for i in range(_U(n)):
        v[at + i] = np.float32(a[i])
    mark(memories[0][1], y + _U(4 * start), _U(4 * n))


@bare_helper
def floats_written(core, x, start, n, memories, fault):
    if all_written(memories[0][1], x + _U(4 * start), _U(4 * n)):
        return _OK
    for i in range(start, start + n):
        at = x + _U(4 * i)
        if not all_written(memories[0][1], at, _U(4)):
            fault[1], fault[2], fault[3] = np.int64(at) - memories[1][core], 4, i
            break
    return _UNWRITTEN


@bare_helper
def steps_written(core, x, step, d, memories, fault):
    for i in range(d):
        at = x + _U(4 * i * step)
        if not all_written(memories[0][1], at, _U(4)):
            fault[1], fault[2], fault[3] = np.int64(at) - memories[1][core], 4, i
            return _UNWRITTEN
    return _OK
