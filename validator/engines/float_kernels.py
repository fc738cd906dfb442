"""Compiled float32 functions of products and vectors, in the order of operations of `float_semantics`.

Positions are unsigned (`engine_kernels`).
"""

# Kernels are untyped for numba's sake; `engine` passes the arrays that `machine` declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import math

import numpy as np

from raptor.common.jit.decorators import bare_helper
from raptor.target.isa import OPCODE
from validator.engines.machine import EngineStop

_OK, _NO_MEANING = 0, int(EngineStop.NO_MEANING)
_U = np.uint64
_VVADD, _VVSUB, _VVMUL, _VVDMUL, _VVMAX = (OPCODE[n] for n in ("vvadd", "vvsub", "vvmul", "vvdmul", "vvmax"))
_VAVG, _VRELU, _VTANH, _VSIGM, _VSOFTMAX = (OPCODE[n] for n in ("vavg", "vrelu", "vtanh", "vsigm", "vsoftmax"))
_VMV, _VRSU, _VRSL, _VEXP, _VLOG = (OPCODE[n] for n in ("vmv", "vrsu", "vrsl", "vexp", "vlog"))
_VSQRT, _VERF, _VVDIV = (OPCODE[n] for n in ("vsqrt", "verf", "vvdiv"))
_VVMASK = OPCODE["vvmask"]


@bare_helper
def float_product(v, x, n, w, o, m, t):
    """Computes t = v[x : x + n] @ w[o :]. A row has `m` weights; rows are added in order, eight in one pass.

    A cell with weight 0 conducts nothing, even if the input of its row is infinite. (NaN is memory that nobody wrote.)
    """
    for j in range(m):
        t[j] = 0
    end = x + n
    while x + _U(8) <= end:
        x0, x1, x2, x3 = v[x], v[x + _U(1)], v[x + _U(2)], v[x + _U(3)]
        x4, x5, x6, x7 = v[x + _U(4)], v[x + _U(5)], v[x + _U(6)], v[x + _U(7)]
        o1 = o + m
        o2 = o1 + m
        o3 = o2 + m
        o4 = o3 + m
        o5 = o4 + m
        o6 = o5 + m
        o7 = o6 + m
        for j in range(m):
            half = (((t[j] + x0 * w[o + j]) + x1 * w[o1 + j]) + x2 * w[o2 + j]) + x3 * w[o3 + j]
            t[j] = (((half + x4 * w[o4 + j]) + x5 * w[o5 + j]) + x6 * w[o6 + j]) + x7 * w[o7 + j]
        o = o7 + m
        x += _U(8)
    while x < end:
        for j in range(m):
            t[j] += v[x] * w[o + j]
        o += m
        x += _U(1)
    for j in range(m):
        if t[j] != t[j]:  # NaN; rare, so the loops above need not look for zeros
            _product_without_infinity(v, end - n, n, w, o - n * m, m, t)
            break


@bare_helper
def _product_without_infinity(v, x, n, w, o, m, t):
    """Computes `product` with infinity times 0 counted as 0."""
    for j in range(m):
        t[j] = 0
    for i in range(n):
        value = v[x + i]
        for j in range(m):
            weight = w[o + i * m + j]
            if weight != 0 or not math.isinf(value):
                t[j] += value * weight


@bare_helper
def apply_binary(op, v, y, p, q, n):  # noqa: C901 one branch for each loop that is worth its own vector code
    """Computes an instruction of two vectors, at `p` and `q`, with `n` elements; the result goes to `y`."""
    if op == _VVADD and y == p:
        for i in range(n):
            v[y + i] += v[q + i]
    elif op == _VVADD:
        for i in range(n):
            v[y + i] = v[p + i] + v[q + i]
    elif op == _VVSUB:
        for i in range(n):
            v[y + i] = v[p + i] - v[q + i]
    elif op == _VVMUL and y == p:
        for i in range(n):
            v[y + i] *= v[q + i]
    elif op == _VVMUL:
        for i in range(n):
            v[y + i] = v[p + i] * v[q + i]
    elif op == _VVMAX and y == p:
        for i in range(n):
            v[y + i] = v[y + i] if (v[y + i] >= v[q + i]) | (v[y + i] != v[y + i]) else v[q + i]
    elif op == _VVMAX:
        for i in range(n):
            v[y + i] = v[p + i] if (v[p + i] >= v[q + i]) | (v[p + i] != v[p + i]) else v[q + i]
    elif op == _VVDIV:
        for i in range(n):
            v[y + i] = v[p + i] / v[q + i]
    elif op == _VVMASK:
        for i in range(n):
            v[y + i] = v[p + i] if v[q + i] > 0 else -np.float32(np.inf)
    elif op == _VVDMUL:
        total = 0.0
        for i in range(n):
            total += np.float64(v[p + i]) * np.float64(v[q + i])
        v[y] = total
    else:
        return _NO_MEANING
    return _OK


@bare_helper
def apply_unary(op, v, y, x, register, n):  # noqa: C901 one branch for each function
    """Computes an instruction of one vector, at `x`. `register`: value of rs2, which is a stride or a bound."""
    if op == _VRELU:
        rectify(v, y, v, x, n)
    elif op == _VAVG:
        v[y] = _mean(v, x, _U(register), n)
    elif op == _VMV:
        _gather(v, y, x, _U(register), n)
    elif op == _VRSU:
        _bound(v, y, x, np.float32(register), True, n)
    elif op == _VRSL:
        _bound(v, y, x, np.float32(register), False, n)
    elif op == _VTANH:
        for i in range(n):
            v[y + i] = math.tanh(np.float64(v[x + i]))
    elif op == _VSIGM:
        for i in range(n):
            u = np.float64(v[x + i])
            v[y + i] = 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))
    elif op == _VSOFTMAX:
        _softmax(v, y, x, n)
    elif op == _VEXP:
        for i in range(n):
            v[y + i] = math.exp(np.float64(v[x + i]))
    elif op == _VLOG:
        for i in range(n):
            v[y + i] = math.log(np.float64(v[x + i]))
    elif op == _VSQRT:
        for i in range(n):
            v[y + i] = math.sqrt(np.float64(v[x + i]))
    elif op == _VERF:
        for i in range(n):
            v[y + i] = math.erf(np.float64(v[x + i]))
    else:
        return _NO_MEANING
    return _OK


@bare_helper
def rectify(v, y, u, x, n):
    for i in range(n):
        v[y + i] = np.float32(0) if u[x + i] < 0 else u[x + i]


@bare_helper
def _bound(v, y, x, bound, upper, n):
    for i in range(n):
        within = v[x + i] <= bound if upper else v[x + i] >= bound
        v[y + i] = v[x + i] if within or v[x + i] != v[x + i] else bound


@bare_helper
def _mean(v, x, stride, n):
    total = 0.0
    for i in range(n):
        total += np.float64(v[x + i * stride])
    return total / np.float64(n)


@bare_helper
def _gather(v, y, x, stride, n):
    for i in range(n):
        v[y + i] = v[x + i * stride]


@bare_helper
def _softmax(v, y, x, n):
    largest = v[x]
    for i in range(n):
        largest = v[x + i] if v[x + i] > largest or v[x + i] != v[x + i] else largest
    total = 0.0
    for i in range(n):
        total += math.exp(np.float64(v[x + i]) - np.float64(largest))
    for i in range(n):  # the powers are computed again: a bare kernel has no place to keep them
        v[y + i] = math.exp(np.float64(v[x + i]) - np.float64(largest)) / total
