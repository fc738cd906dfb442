"""Counter-based random numbers: functions of their purpose, so that the order of execution does not matter.

A key is mixed from the seed of the chip, a purpose, an array group and further numbers; the n-th number of a key is
computed from the key and n (SplitMix64, Steele et al. 2014). Normal numbers come from the inverse of the distribution
function (Acklam's approximation, relative error 1.2e-9).
"""

# Kernels are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel

PROGRAMMING, DRIFT, STUCK, READING, DEFECTS = 1, 2, 3, 4, 5
"""Purposes of keys."""
_U = np.uint64
_GOLDEN = _U(0x9E3779B97F4A7C15)
_M1, _M2 = _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)
_SHIFTS = _U(30), _U(27), _U(31), _U(11)
_TAIL = 0.02425
"""Probability of a tail, in which another approximation is used."""
_A = -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.3577518672690, -30.66479806614716, 2.506628277459239
_B = -54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572
_C = (
    *(-7.784894002430293e-3, -0.3223964580411365, -2.400758277161838),
    *(-2.549732539343734, 4.374664141464968, 2.938163982698783),
)
_D = 7.784695709041462e-3, 0.3224671290700398, 2.445134137142996, 3.754408661907416


@bare_helper
def mix_key(key, number):
    """Returns a new key, mixed from a key and a number."""
    z = key + (_U(number) + _U(1)) * _GOLDEN
    z = (z ^ (z >> _SHIFTS[0])) * _M1
    z = (z ^ (z >> _SHIFTS[1])) * _M2
    return z ^ (z >> _SHIFTS[2])


@bare_helper
def draw_uniform(key, number):
    """Returns the `number`-th uniform random number of a key, strictly between 0 and 1."""
    return (np.float64(mix_key(key, number) >> _SHIFTS[3]) + 0.5) * 1.1102230246251565e-16


@bare_helper
def draw_normal(key, number):
    """Returns the `number`-th standard normal random number of a key."""
    p = draw_uniform(key, number)
    q = min(p, 1.0 - p)
    if q < _TAIL:
        r = np.sqrt(-2.0 * np.log(q))
        x = (((_C[0] * r + _C[1]) * r + _C[2]) * r + _C[3]) * r + _C[4]
        x = (x * r + _C[5]) / ((((_D[0] * r + _D[1]) * r + _D[2]) * r + _D[3]) * r + 1.0)
        return x if p < 0.5 else -x
    q = p - 0.5
    r = q * q
    x = (((_A[0] * r + _A[1]) * r + _A[2]) * r + _A[3]) * r + _A[4]
    y = (((_B[0] * r + _B[1]) * r + _B[2]) * r + _B[3]) * r + _B[4]
    return (x * r + _A[5]) * q / (y * r + 1.0)


@bare_kernel
def _fill(key: Any, found: Any, is_normal: bool) -> None:
    for i in range(found.size):
        found[i] = draw_normal(key, i) if is_normal else draw_uniform(key, i)


@bare_kernel
def _key(seed: Any, numbers: Any) -> Any:
    key = seed
    for number in numbers:
        key = mix_key(key, number)
    return key


def make_key(seed: int, *numbers: int) -> np.uint64:
    """Returns the key of a seed and non-negative numbers."""
    return extend_key(_U(seed), *numbers)


def extend_key(key: np.uint64, *numbers: int) -> np.uint64:
    """Returns a new key, mixed from a key and further numbers."""
    return _U(_key(key, np.array(numbers, np.uint64)))


def draw_normals(key: np.uint64, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Returns the first `count` standard normal numbers of a key."""
    found = np.empty(count)
    _fill(key, found, True)
    return found


def draw_uniforms(key: np.uint64, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Returns the first `count` uniform numbers of a key, strictly between 0 and 1."""
    found = np.empty(count)
    _fill(key, found, False)
    return found
