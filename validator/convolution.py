"""ONNX's convolution in numpy: one matrix product for each row of the kernel."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from onnx import NodeProto

from validator.attributes import attributes_of

Array = npt.NDArray[Any]


def convolve(node: NodeProto, operands: Sequence[Array | None], sums: npt.DTypeLike | None = None) -> Array:
    """Computes a Conv. `operands`: image [N, C, ...], kernel [M, C / group, ...] and perhaps bias [M], as in ONNX.

    Products within a row of the kernel are added in the precision of the image, and rows in `sums` (None: the same).
    """
    image, kernel, bias = (*operands, None)[:3]
    assert image is not None
    assert kernel is not None
    given: dict[str, Any] = attributes_of(node)
    sizes, rank = kernel.shape[2:], kernel.ndim - 2
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    pads = _pads(given, image.shape[2:], reach, strides)
    padded = np.pad(image, [(0, 0), (0, 0), *pads])
    out = [(p - r) // s + 1 for p, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
    batch, groups = len(image), given.get("group", 1)
    total = np.zeros((batch, groups, len(kernel) // groups, math.prod(out)), sums or image.dtype)
    by_group = kernel.reshape(groups, len(kernel) // groups, kernel.shape[1], *sizes)
    for at in itertools.product(*map(range, sizes[:-1])):
        starts = [k * d for k, d in zip(at, dilations, strict=False)]
        window = tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(starts, out, strides, strict=False))
        # [N, C, ..., output column, kernel column]
        lines = sliding_window_view(padded[(slice(None), slice(None), *window)], reach[-1], axis=-1)
        taps = np.moveaxis(lines[..., :: strides[-1], :: dilations[-1]], -1, 2)
        pixels = taps.reshape(batch, groups, kernel.shape[1] * sizes[-1], -1)
        rows = by_group[(slice(None), slice(None), slice(None), *at)]
        total += rows.reshape(groups, -1, kernel.shape[1] * sizes[-1]) @ pixels
    result = total.reshape(batch, len(kernel), *out)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _pads(
    given: dict[str, Any], image: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns the padding before and after each dimension."""
    how, rank = given.get("auto_pad", b"NOTSET").decode(), len(reach)
    if how == "VALID":
        return [(0, 0)] * rank
    if how == "NOTSET":
        pads = given.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(image, reach, strides, strict=True)]
    return [((t + 1) // 2, t // 2) if how == "SAME_LOWER" else (t // 2, (t + 1) // 2) for t in totals]
