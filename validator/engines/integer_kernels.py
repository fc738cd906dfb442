"""Compiled matrix and vector instructions on integers, with the meaning that `integer_semantics` defines.

Vectors are computed in chunks, in 64 bits: operands are loaded to `a` and `b`, results are made in `a`, checked and
stored. If a check fails, the chunk is done again element by element, to find the fault that the definition finds.

`integers`: widths of each core; local memory as int8, int16, int32 and float32; `a`, `b`; the input of a product, its
sums in 32 bits and in 64. `crossbars`: their tables and the space for their products, or None for exact products.
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import OPCODE
from raptor.target.opcode_tables import IN_INPUTS, IN_PARAMETERS, NO_ACCESS, ONE, PARAMETER_BYTES, TABLE, RuleColumn
from validator.crossbar.crossbar_kernels import multiply_vector
from validator.engines.address_kernels import check_overlap, locate_local
from validator.engines.element_kernels import (
    all_written,
    bytes_of,
    first_bad_of_two,
    floats_written,
    load,
    mark,
    signed,
    steps_written,
    store,
    store_floats,
)
from validator.engines.float_kernels import apply_binary, apply_unary
from validator.engines.integer_semantics import FLOAT_BITS, MAX_SHIFT, SIGN_BITS, TABLE_BITS
from validator.engines.machine import EngineStop

CHUNK = 512
"""Elements that are computed together: few enough to stay in the first-level cache."""

_OK, _NO_MEANING, _LOCAL = 0, int(EngineStop.NO_MEANING), int(EngineStop.LOCAL_RANGE)
_OVERFLOW, _UNWRITTEN, _SHIFT = int(EngineStop.OVERFLOW), int(EngineStop.UNWRITTEN), int(EngineStop.SHIFT)
_UNALIGNED, _NAN = int(EngineStop.UNALIGNED), int(EngineStop.NOT_A_NUMBER)
_U = np.uint64
_HIGHEST, _LOWEST = np.int64(2**63 - 1), np.int64(-(2**63))

_VVADD, _VVSUB, _VVMUL, _VVDMUL, _VVMAX = (OPCODE[n] for n in ("vvadd", "vvsub", "vvmul", "vvdmul", "vvmax"))
_VVSLL, _VVSRA, _VRELU, _VMV, _VRSU, _VRSL = (OPCODE[n] for n in ("vvsll", "vvsra", "vrelu", "vmv", "vrsu", "vrsl"))
_VLUT, _VREQUANT, _VFLOAT, _VROUND, _VAVG = (OPCODE[n] for n in ("vlut", "vrequant", "vfloat", "vround", "vavg"))


@bare_helper
def integer_product(core, target, source, relu, group, memories, weights, integers, crossbars, fault):
    rows, cols, first_group = weights[2], weights[3], weights[4]
    widths, x32, t32, t64 = integers[0], integers[7], integers[8], integers[9]
    bits, target_bits = widths[core, 0], widths[core, 1]
    if bits == 0 or widths[core, 2]:
        return _NO_MEANING
    g = first_group[core] + group
    code, x = locate_local(core, source, rows[g] * bytes_of(bits), memories, fault)
    if code != _OK:
        return code
    code, y = locate_local(core, target, cols[g] * bytes_of(target_bits), memories, fault)
    if code != _OK:
        return code
    a, largest = integers[5], np.int64(0)
    for start in range(0, rows[g], CHUNK):
        n = min(np.int64(CHUNK), rows[g] - start)
        code = load(core, x, bits, start, n, a, memories, integers, fault)
        if code != _OK:
            return code
        for i in range(n):
            x32[start + i] = a[i]
            largest = max(largest, abs(a[i]))
    code = _multiply(g, x32, largest, bits, target_bits, weights, t32, t64, crossbars, fault)
    if code != _OK:
        return code
    if relu:
        for j in range(cols[g]):
            t64[j] = max(t64[j], np.int64(0))
    return store(y, target_bits, np.int64(0), cols[g], t64, memories, integers, fault)


@bare_helper
def _multiply(g, x, largest, bits, target_bits, weights, narrow, wide, crossbars, fault):
    """Computes wide = x times the matrix of group `g`. `narrow`: space in 32 bits, for sums that fit there."""
    values, offset, rows, cols, _ = weights
    n, m, o = _U(rows[g]), _U(cols[g]), _U(offset[g])
    if crossbars is None:
        if largest * _largest_weight(values) * rows[g] < 2147483648:
            _product(x, n, values, o, m, narrow)
            for j in range(m):
                wide[j] = narrow[j]
        else:
            _product(x, n, values, o, m, wide)
        return _OK
    return _on_crossbars(g, x, bits, target_bits, m, wide, crossbars, fault)


@bare_helper
def _on_crossbars(g, x, bits, target_bits, cols, found, crossbars, fault):
    """Computes a product with slices, converters and noise. Results beyond the width of the sums saturate."""
    wrong = multiply_vector(g, x, bits, crossbars[0], crossbars[1], found)
    if wrong >= 0:
        fault[3], fault[4], fault[5] = wrong, x[wrong], SIGN_BITS
        return _OVERFLOW
    half = np.int64(1) << (target_bits - 1)
    for j in range(cols):
        found[j] = min(max(found[j], -half), half - 1)
    return _OK


@bare_helper
def _largest_weight(values):
    return np.int64(1) << (8 * values.itemsize - 1)


@bare_helper
def _product(x, n, w, o, m, t):
    """Computes t = x[:n] @ w[o :]. A row has `m` weights; eight rows are added in one pass."""
    for j in range(m):
        t[j] = 0
    k = _U(0)
    while k + _U(8) <= n:
        x0, x1, x2, x3 = x[k], x[k + _U(1)], x[k + _U(2)], x[k + _U(3)]
        x4, x5, x6, x7 = x[k + _U(4)], x[k + _U(5)], x[k + _U(6)], x[k + _U(7)]
        o1 = o + m
        o2 = o1 + m
        o3 = o2 + m
        o4 = o3 + m
        o5 = o4 + m
        o6 = o5 + m
        o7 = o6 + m
        for j in range(m):
            half = x0 * w[o + j] + x1 * w[o1 + j] + x2 * w[o2 + j] + x3 * w[o3 + j]
            t[j] += half + x4 * w[o4 + j] + x5 * w[o5 + j] + x6 * w[o6 + j] + x7 * w[o7 + j]
        o = o7 + m
        k += _U(8)
    while k < n:
        for j in range(m):
            t[j] += x[k] * w[o + j]
        o += m
        k += _U(1)


@bare_helper
def integer_vector(  # noqa: C901 the order of the checks is that of the definition
    core, op, rule, rd, rs1, rs2, b, c, d, memories, integers, fault
):
    """Executes a vector instruction. `rule`: its row in `rules`. `rd`, `rs1`, `rs2`: values of the registers."""
    bits, out, floats = integers[0][core, 0], integers[0][core, 1], integers[0][core, 2]
    if bits == 0 or not _has_meaning(op, bits, out, floats):
        return _NO_MEANING
    size, target_bits = bytes_of(bits), bits if rule[RuleColumn.WIDTH_RD] == IN_INPUTS else out
    target_size = bytes_of(target_bits)
    single, strided = rule[RuleColumn.COUNT_RD] == ONE, rule[RuleColumn.STRIDED] == 1
    result = (np.int64(1) if single else d) * target_size
    moved = c * target_size if b & 1 and not single and not strided else np.int64(0)
    code, y = locate_local(core, rd + moved, result, memories, fault)
    if code != _OK:
        return code
    if strided and rs2 < 0:
        fault[1], fault[2] = rs1, rs2
        return _LOCAL
    span = ((d - 1) * rs2 + 1 if strided else d) * size
    code, x = locate_local(core, rs1 + (c * size if b & 2 else 0), span, memories, fault)
    in_place = target_size <= size
    if code == _OK and not single:
        code = check_overlap(y, _U(result), x, _U(span), in_place and not strided, memories, core, fault)
    if code != _OK:
        return code
    if op == _VMV:
        _gather(y, x, size, rs2, d, memories[0])
        return _OK
    z = _U(0)
    if rule[RuleColumn.COUNT_RS2] != NO_ACCESS:
        unit = _unit(rule, size, out)
        span = (np.int64(1) << bits if rule[RuleColumn.COUNT_RS2] == TABLE else d) * unit
        code, z = locate_local(core, rs2 + (c * unit if b & 4 else 0), span, memories, fault)
        if code == _OK and not single:
            beside = in_place and rule[RuleColumn.WIDTH_RS2] == IN_INPUTS
            code = check_overlap(y, _U(result), z, _U(span), beside, memories, core, fault)
        if code != _OK:
            return code
    if floats and op != _VFLOAT and op != _VROUND:
        return _floats(core, op, rule, y, x, z, rs2, d, single, memories, integers, fault)
    if op == _VVDMUL:
        return _dot(core, y, x, z, bits, out, d, memories, integers, fault)
    code = _aligned(core, op, y, x, result, d * size, memories, fault)
    if code != _OK:
        return code
    return _chunks(core, op, y, x, z, bits, target_bits, rs2, d, memories, integers, fault)


@bare_helper
def _chunks(core, op, y, x, z, bits, target_bits, bound, d, memories, integers, fault):
    """Computes a vector chunk by chunk; a chunk with a fault is repeated element by element."""
    one = np.int64(1)
    for start in range(0, d, CHUNK):
        n = min(np.int64(CHUNK), d - start)
        code = _chunk(core, op, y, x, z, bits, target_bits, bound, start, n, memories, integers, fault)
        if code != _OK:
            fault[1:] = 0
            for i in range(start, start + n):
                code = _chunk(core, op, y, x, z, bits, target_bits, bound, i, one, memories, integers, fault)
                if code != _OK:
                    return code
    return _OK


@bare_helper
def _has_meaning(op, bits, out, floats):
    """Checks whether an instruction is defined at these widths. `check` refuses those that are not."""
    if not floats:
        if op == _VLUT:
            return bits <= TABLE_BITS
        known = op in (_VVADD, _VVSUB, _VVMUL, _VVDMUL, _VVMAX, _VVSLL, _VVSRA)
        return known or op in (_VRELU, _VMV, _VRSU, _VRSL, _VREQUANT)
    if op == _VFLOAT:
        return out == FLOAT_BITS
    if op == _VROUND:
        return bits == FLOAT_BITS
    if op == _VMV:
        return True
    return bits == FLOAT_BITS and out == FLOAT_BITS and op not in (_VVSLL, _VVSRA, _VLUT, _VREQUANT)


@bare_helper
def _unit(rule, size, out):
    """Returns the bytes of an element of the operand in rs2."""
    if rule[RuleColumn.WIDTH_RS2] == IN_PARAMETERS:
        return np.int64(PARAMETER_BYTES)
    return size if rule[RuleColumn.WIDTH_RS2] == IN_INPUTS else bytes_of(out)


@bare_helper
def _aligned(core, op, y, x, result, span, memories, fault):
    """Returns a fault code if the float32 numbers of a conversion are not at a multiple of 4 bytes."""
    if op == _VFLOAT and y % _U(4) != _U(0):
        return _unaligned(core, y, result, memories, fault)
    if op == _VROUND and x % _U(4) != _U(0):
        return _unaligned(core, x, span, memories, fault)
    return _OK


@bare_helper
def _unaligned(core, at, size, memories, fault):
    fault[1], fault[2], fault[5] = np.int64(at) - memories[1][core], size, FLOAT_BITS
    return _UNALIGNED


@bare_helper
def _gather(y, x, size, stride, n, planes):
    """Moves `n` elements that are `stride` apart, in all planes."""
    for k in range(len(planes)):
        v = planes[k]
        for i in range(n):
            to, of = y + _U(i * size), x + _U(i * stride * size)
            for byte in range(_U(size)):
                v[to + byte] = v[of + byte]


@bare_helper
def _chunk(core, op, y, x, z, bits, target_bits, bound, start, n, memories, integers, fault):
    """Computes elements `start` to `start + n`. Stores nothing if it returns a fault."""
    a, b = integers[5], integers[6]
    if op == _VROUND:
        code = _round(core, x, target_bits, start, n, memories, integers, fault)
    else:
        code = load(core, x, bits, start, n, a, memories, integers, fault)
    if code != _OK:
        return code
    if op == _VLUT:
        code = _look_up(core, z, bits, target_bits, start, n, memories, integers, fault)
    elif op == _VREQUANT:
        code = _requantise(core, z, start, n, memories, integers, fault)
    elif op == _VRELU or op == _VRSU or op == _VRSL:  # noqa: SIM109 numba makes a loop of `in`
        _bound(a, op, np.int64(0) if op == _VRELU else bound, n)
    elif op != _VFLOAT and op != _VROUND:
        code = load(core, z, bits, start, n, b, memories, integers, fault)
        if code == _OK:
            code = _combine(op, a, b, start, n, fault)
    if code != _OK:
        return code
    if op == _VFLOAT:
        store_floats(y, start, n, a, memories, integers)
        return _OK
    return store(y, target_bits, start, n, a, memories, integers, fault)


@bare_helper
def _combine(op, a, b, start, n, fault):  # noqa: C901 one loop for each function
    """Computes a = a op b."""
    if op == _VVADD:
        for i in range(n):
            a[i] += b[i]
    elif op == _VVSUB:
        for i in range(n):
            a[i] -= b[i]
    elif op == _VVMUL:
        for i in range(n):
            a[i] *= b[i]
    elif op == _VVMAX:
        for i in range(n):
            a[i] = max(a[i], b[i])
    else:
        wrong = np.int64(0)
        for i in range(n):
            wrong |= b[i] & ~np.int64(MAX_SHIFT)
        if wrong:
            fault[3], fault[4], fault[5] = start, b[0], MAX_SHIFT
            return _SHIFT
        for i in range(n):
            a[i] = a[i] << b[i] if op == _VVSLL else a[i] >> b[i]
    return _OK


@bare_helper
def _bound(a, op, bound, n):
    if op == _VRSU:
        for i in range(n):
            a[i] = min(a[i], bound)
    else:
        for i in range(n):
            a[i] = max(a[i], bound)


@bare_helper
def _look_up(core, table, bits, target_bits, start, n, memories, integers, fault):
    """Computes a = table[a + 2^(bits - 1)]."""
    a, b, half, size = integers[5], integers[6], np.int64(1) << (bits - 1), bytes_of(target_bits)
    for i in range(n):
        code = load(
            core, table + _U((a[i] + half) * size), target_bits, np.int64(0), np.int64(1), b, memories, integers, fault
        )
        if code != _OK:
            fault[3] = start + i
            return code
        a[i] = b[0]
    return _OK


@bare_helper
def _requantise(core, at, start, n, memories, integers, fault):
    """Computes a = clamp(round((a + bias) * m / 2^s) + z, lo, hi), ties to even, from the records at `at`."""
    a, v = integers[5], memories[0][0]
    first = at + _U(start * PARAMETER_BYTES)
    if not all_written(memories[0][1], first, _U(n * PARAMETER_BYTES)):
        fault[1], fault[2], fault[3] = np.int64(first) - memories[1][core], PARAMETER_BYTES, start
        return _UNWRITTEN
    if first % _U(4) == _U(0):
        return _requantise_aligned(a, integers[2], integers[3], first, start, n, fault)
    for i in range(n):
        p = first + _U(i * PARAMETER_BYTES)
        shift = signed(v, p + _U(8), 2)
        if shift < 0:
            fault[3], fault[4], fault[5] = start + i, shift, 0
            return _SHIFT
        y = _divide(a[i] + signed(v, p, 4), signed(v, p + _U(4), 4), shift) + signed(v, p + _U(10), 2)
        a[i] = min(max(y, signed(v, p + _U(12), 2)), signed(v, p + _U(14), 2))
    return _OK


@bare_helper
def _requantise_aligned(a, v16, v32, first, start, n, fault):
    for i in range(n):
        p = (first >> _U(2)) + _U(4 * i)
        q = (first >> _U(1)) + _U(8 * i)
        shift = np.int64(v16[q + _U(4)])
        if shift < 0:
            fault[3], fault[4], fault[5] = start + i, shift, 0
            return _SHIFT
        y = _divide(a[i] + v32[p], np.int64(v32[p + _U(1)]), shift) + v16[q + _U(5)]
        a[i] = min(max(y, np.int64(v16[q + _U(6)])), np.int64(v16[q + _U(7)]))
    return _OK


@bare_helper
def _divide(x, m, shift):
    """Returns x * m / 2^shift, rounded to the nearest, ties to even.

    |x * m| may be 2^63, so the product is unsigned. The quotient is cut to 2^62: the clamp that follows has 16 bits.
    """
    negative = (x < 0) != (m < 0)
    product = _U(abs(x)) * _U(abs(m))
    if shift == 0:
        q = product
    elif shift >= 64:
        return np.int64(0)
    else:
        s = _U(shift)
        q, rest, half = product >> s, product & ((_U(1) << s) - _U(1)), _U(1) << (s - _U(1))
        if rest > half or (rest == half and (q & _U(1)) == _U(1)):
            q += _U(1)
    result = np.int64(min(q, _U(4611686018427387904)))
    return -result if negative else result


@bare_helper
def _dot(core, y, x, z, bits, out, d, memories, integers, fault):
    """Computes a dot product. The sum has two halves of 32 bits and more, because it may take more than 64."""
    a, b = integers[5], integers[6]
    low, high = np.int64(0), np.int64(0)
    for start in range(0, d, CHUNK):
        n = min(np.int64(CHUNK), d - start)
        code = load(core, x, bits, start, n, a, memories, integers, fault)
        other = load(core, z, bits, start, n, b, memories, integers, fault) if code == _OK else _OK
        if code != _OK or other != _OK:
            return first_bad_of_two(core, x, z, bits, start, n, memories, integers, fault)
        for i in range(n):
            product = a[i] * b[i]
            low += product & np.int64(4294967295)
            high += product >> np.int64(32)
    high += low >> np.int64(32)
    if high >= 2147483648:
        a[0] = _HIGHEST
    elif high < -2147483648:
        a[0] = _LOWEST
    else:
        a[0] = (high << np.int64(32)) | (low & np.int64(4294967295))
    return store(y, out, np.int64(0), np.int64(1), a, memories, integers, fault)


@bare_helper
def _round(core, x, target_bits, start, n, memories, integers, fault):
    """Loads float32 numbers to `a`, rounded to the nearest integer, ties to even, and saturated."""
    a, v, at = integers[5], integers[4], (x >> _U(2)) + _U(start)
    code = floats_written(core, x, start, n, memories, fault)
    if code != _OK:
        return code
    high = np.float64((np.int64(1) << (target_bits - 1)) - 1)
    for i in range(n):
        value = np.float64(v[at + _U(i)])
        if value != value:
            fault[3] = start + i
            return _NAN
        a[i] = np.int64(np.rint(min(max(value, -high - 1), high)))
    return _OK


@bare_helper
def _floats(core, op, rule, y, x, z, register, d, single, memories, integers, fault):
    """Executes an instruction on float32 numbers, which must be at multiples of 4 bytes."""
    v, result = integers[4], np.int64(1) if single else d
    two = rule[RuleColumn.COUNT_RS2] != NO_ACCESS
    step = register if op == _VAVG else np.int64(1)
    if y & _U(3) != _U(0):
        return _unaligned(core, y, 4 * result, memories, fault)
    if x & _U(3) != _U(0):
        return _unaligned(core, x, 4 * ((d - 1) * step + 1), memories, fault)
    if two and z & _U(3) != _U(0):
        return _unaligned(core, z, 4 * d, memories, fault)
    code = (
        floats_written(core, x, np.int64(0), d, memories, fault)
        if step == 1
        else steps_written(core, x, step, d, memories, fault)
    )
    if code == _OK and two:
        code = floats_written(core, z, np.int64(0), d, memories, fault)
    if code != _OK:
        return code
    to, of = y >> _U(2), x >> _U(2)
    code = apply_binary(op, v, to, of, z >> _U(2), _U(d)) if two else apply_unary(op, v, to, of, register, _U(d))
    for i in range(_U(result)):
        if v[to + i] != v[to + i]:
            v[to + i] = np.nan  # one NaN, whichever the computer makes
    mark(memories[0][1], y, _U(4 * result))
    return code
