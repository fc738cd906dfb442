"""ONNX tensors and their images: natural images, equal layouts, broadcast constants."""

import math

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Floats
from raptor.target.layout import Image

Shape = tuple[int, ...]


def natural_image(shape: Shape) -> Image:
    """How ONNX means a shape: (batch, channels, spatial...); one dimension alone is the channels."""
    return Image(shape or (1,), min(1, max(len(shape) - 1, 0)))


_LINE = 16
"""float32 values of a cache line."""


def owned(values: npt.ArrayLike) -> Floats:
    """A contiguous float32 copy: constants come as views of a file that is about to go."""
    source = np.asarray(values)
    if source.flags.c_contiguous or source.ndim < 2:
        return np.array(source, np.float32, order="C")
    # Weights are transposed here: a line at a time meets each line of the source once, which takes a third of the time.
    out = np.empty(source.shape, np.float32)
    for first in range(0, source.shape[-1], _LINE):
        out[..., first : first + _LINE] = source[..., first : first + _LINE]
    return out


def scalar(value: float) -> Floats:
    """A constant [1, 1, 1]."""
    return np.full((1, 1, 1), value, np.float32)


def per_channel(values: npt.ArrayLike) -> Floats:
    """A constant [1, 1, channels]."""
    return owned(values).reshape(1, 1, -1)


def constant_pixels(array: Floats, shape: Shape, image: Image) -> Floats:
    """`array`, broadcast as numpy does against `shape`, as [rows|1, width|1, channels|1] of the image.

    A dimension over which `array` is broadcast stays 1 as long as `shape` is the image's own; in a tensor that was
    reshaped the dimensions of the image are others, and only a scalar stays small.
    """
    if array.size == 1:
        return scalar(array.item())
    if shape == image.shape:
        aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    else:
        aligned = np.broadcast_to(array, shape).reshape(image.shape)
    moved = np.moveaxis(aligned, image.channel_axis, -1)
    if math.prod(moved.shape[:-2]) > 1:
        moved = np.broadcast_to(moved, (*image.pixel_dims[:-1], *moved.shape[-2:]))
    return owned(moved).reshape(math.prod(moved.shape[:-2]), *((1,) * (2 - moved.ndim)), *moved.shape[-2:])
