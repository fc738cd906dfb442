"""ONNX's convolution in numpy: one matrix product for each row of the kernel."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from onnx import NodeProto

from validator.model.node import Array, attributes_of
from validator.model.windows import make_pool_window


def convolve(node: NodeProto, operands: Sequence[Array | None], sums: npt.DTypeLike | None = None) -> Array:
    """Computes a Conv. `operands`: image [N, C, ...], kernel [M, C / group, ...] and perhaps bias [M], as in ONNX.

    Products within a row of the kernel are added in the precision of the image, and rows in `sums` (None: the same).
    """
    image, kernel, bias = (*operands, None)[:3]
    assert image is not None
    assert kernel is not None
    sizes, rank = kernel.shape[2:], kernel.ndim - 2
    given = attributes_of(node)
    window, after = make_pool_window({**given, "kernel_shape": sizes}, image.shape[2:])
    padded = np.pad(image, [(0, 0), (0, 0), *zip(window.before, after, strict=True)])
    batch, groups, out = len(image), given.get("group", 1), window.out
    total = np.zeros((batch, groups, len(kernel) // groups, math.prod(out)), sums or image.dtype)
    by_group = kernel.reshape(groups, len(kernel) // groups, kernel.shape[1], *sizes)
    reach = (sizes[-1] - 1) * window.dilations[-1] + 1
    for at in itertools.product(*map(range, sizes[:-1])):
        rows = window.tap_slices((*at, 0))[:-1]
        # [N, C, ..., output column, kernel column]
        lines = sliding_window_view(padded[(slice(None), slice(None), *rows)], reach, axis=-1)
        taps = np.moveaxis(lines[..., :: window.strides[-1], :: window.dilations[-1]], -1, 2)
        pixels = taps.reshape(batch, groups, kernel.shape[1] * sizes[-1], -1)
        weights = by_group[(slice(None), slice(None), slice(None), *at)]
        total += weights.reshape(groups, -1, kernel.shape[1] * sizes[-1]) @ pixels
    result = total.reshape(batch, len(kernel), *out)
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)
