"""Random numbers that are functions of what they are for, so that no order of execution matters.

A key is mixed from the seed of the chip, a purpose, an array group and further numbers; the n-th number of a key is made
from the key and n (SplitMix64, Steele et al. 2014). Normal numbers are the inverse of the normal distribution (Acklam's
approximation, relative error 1.2e-9).
"""

# Kernels are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit import bare_helper, bare_kernel

PROGRAMMING, DRIFT, STUCK, READING = 1, 2, 3, 4
"""Purposes."""
_U = np.uint64
_GOLDEN = _U(0x9E3779B97F4A7C15)
_M1, _M2 = _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)
_SHIFTS = _U(30), _U(27), _U(31), _U(11)
_TAIL = 0.02425
"""Probability of a tail, where another approximation holds."""


@bare_helper
def mixed(key, number):
    """Returns a key that depends on a key and a number."""
    z = key + (_U(number) + _U(1)) * _GOLDEN
    z = (z ^ (z >> _SHIFTS[0])) * _M1
    z = (z ^ (z >> _SHIFTS[1])) * _M2
    return z ^ (z >> _SHIFTS[2])


@bare_helper
def uniform(key, number):
    """Returns a number between 0 and 1, both excluded."""
    return (np.float64(mixed(key, number) >> _SHIFTS[3]) + 0.5) * 1.1102230246251565e-16


@bare_helper
def normal(key, number):
    """Returns a number of the standard normal distribution."""
    p = uniform(key, number)
    q = min(p, 1.0 - p)
    if q < _TAIL:
        r = np.sqrt(-2.0 * np.log(q))
        x = ((((-7.784894002430293e-03 * r - 3.223964580411365e-01) * r - 2.400758277161838) * r - 2.549732539343734) * r
             + 4.374664141464968) * r + 2.938163982698783  # fmt: skip
        x /= (((7.784695709041462e-03 * r + 3.224671290700398e-01) * r + 2.445134137142996) * r
              + 3.754408661907416) * r + 1.0  # fmt: skip
        return x if p < 0.5 else -x
    q = p - 0.5
    r = q * q
    x = ((((-3.969683028665376e01 * r + 2.209460984245205e02) * r - 2.759285104469687e02) * r + 1.383577518672690e02) * r
         - 3.066479806614716e01) * r + 2.506628277459239  # fmt: skip
    y = ((((-5.447609879822406e01 * r + 1.615858368580409e02) * r - 1.556989798598866e02) * r + 6.680131188771972e01) * r
         - 1.328068155288572e01) * r + 1.0  # fmt: skip
    return x * q / y


@bare_kernel
def _fill(key: Any, found: Any, is_normal: bool) -> None:
    for i in range(found.size):
        found[i] = normal(key, i) if is_normal else uniform(key, i)


@bare_kernel
def _key(seed: Any, numbers: Any) -> Any:
    key = seed
    for number in numbers:
        key = mixed(key, number)
    return key


def key_of(seed: int, *numbers: int) -> np.uint64:
    """Returns the key of a seed and of numbers that are not negative."""
    return key_after(_U(seed), *numbers)


def key_after(key: np.uint64, *numbers: int) -> np.uint64:
    """Returns the key that further numbers make of a key."""
    return _U(_key(key, np.array(numbers, np.uint64)))


def normals(key: np.uint64, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Returns the first normal numbers of a key."""
    found = np.empty(count)
    _fill(key, found, True)
    return found


def uniforms(key: np.uint64, count: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Returns the first numbers between 0 and 1 of a key."""
    found = np.empty(count)
    _fill(key, found, False)
    return found
