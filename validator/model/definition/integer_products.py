"""Exact sums of products of integers: by matrix products in float32 below 2^24, and in float64 below 2^53."""

import itertools
from typing import Any

import numpy as np
from onnx import NodeProto

from raptor.common.errors import UserError
from validator.model.convolution import convolve
from validator.model.definition.exact_values import Doubles, Ints, largest
from validator.model.windows import PoolWindow

EXACT_FLOAT64 = 2**53
"""Integers below this number are exact in float64."""
EXACT_FLOAT32 = 2**24


def _fewest_bits(x: Ints, sums: Ints) -> type[np.float32 | np.float64]:
    """Returns a type that is exact for all sums. `sums`: for each result, the sum of the absolute weights."""
    return np.float32 if largest(x) * int(sums.max(initial=0)) < EXACT_FLOAT32 else np.float64


def _doubles(count: int, *operands: Ints) -> list[Doubles]:
    """Returns operands as float64. Raises `UserError` if a sum of `count` products may not be exact in it."""
    first, second = map(largest, operands)
    if count * first * second >= EXACT_FLOAT64:
        raise UserError(f"a sum of {count} products of {first} and {second} does not fit 53 bits")
    return [a.astype(np.float64) for a in operands]


def matmul(a: Ints, b: Ints) -> Ints:
    """Returns the exact matrix product of integers, with the broadcasting of numpy's matmul."""
    bits = _fewest_bits(a, np.abs(b).sum(axis=-2 if b.ndim > 1 else 0))
    factors = (f.astype(bits, copy=False) for f in _doubles(a.shape[-1], a, b))
    return np.asarray(np.matmul(*factors)).astype(np.int64)


def conv(node: NodeProto, x: Ints, w: Ints) -> Ints:
    """Returns the convolution [N, M, ...] of an image [N, C, ...] with a kernel [M, C / group, ...]."""
    by_row = np.abs(w).sum(axis=(1, -1))
    factors = [f.astype(_fewest_bits(x, by_row), copy=False) for f in _doubles(w[0].size, x, w)]
    whole = by_row.reshape(len(w), -1).sum(axis=1)
    return convolve(node, factors, _fewest_bits(x, whole)).astype(np.int64)


def conv_transpose(window: PoolWindow, group: int, x: Ints, w: Ints) -> Ints:
    """Returns the transposed convolution [N, M, ...] of x [N, C, ...] with w [C, M / group, ...].

    `window`: the window of the corresponding forward convolution, whose input has the shape of this result.
    """
    image, kernel = _doubles(w.shape[0] * w[0, 0].size, x, w)
    batch, inner, outer = len(x), w.shape[0] // group, w.shape[1]
    total = np.zeros((batch, group * outer, *window.padded_lengths), np.float64)
    by_group = kernel.reshape(group, inner, outer, *w.shape[2:])
    pixels = image.reshape(batch, group, inner, -1)
    for at in itertools.product(*map(range, w.shape[2:])):
        taps = np.swapaxes(by_group[(..., *at)], 1, 2) @ pixels
        total[(slice(None), slice(None), *window.tap_slices(at))] += taps.reshape(batch, -1, *x.shape[2:])
    return total[(slice(None), slice(None), *window.image_slices)].astype(np.int64)


def reduce_windows(window: PoolWindow, x: Ints, how: Any, outside: int) -> Ints:
    """Reduces each window of x [N, C, ...] by the ufunc `how`; elements in the padding are `outside`."""
    filled = np.full((*x.shape[:2], *window.padded_lengths), outside, np.int64)
    filled[(slice(None), slice(None), *window.image_slices)] = x
    taps = itertools.product(*map(range, window.kernel))
    parts = (filled[(slice(None), slice(None), *window.tap_slices(at))] for at in taps)
    total: Ints = next(parts).copy()
    for part in parts:
        how(total, part, out=total)
    return total
