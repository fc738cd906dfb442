"""Images of ONNX shapes, and constants as pixels: copying, broadcasting, conversion to float32."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.frontend.import_refusal import ImportRefusal
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import Floats, Numbers
from raptor.target.tensor_layout import Image

Shape = tuple[int, ...]


def natural_image(shape: Shape) -> Image:
    """Returns the image of a shape in ONNX: (batch, channels, spatial...); a vector is one pixel of channels."""
    return Image(shape or (1,), min(1, max(len(shape) - 1, 0)))


def make_scalar_pixels(value: float) -> Floats:
    """Returns a constant [1, 1, 1]."""
    return np.full((1, 1, 1), value, np.float32)


def broadcast_constant(array: Numbers, shape: Shape, image: Image) -> Numbers:
    """Broadcasts `array` to `shape` as numpy does; returns [rows or 1, width or 1, channels or 1] of the image.

    A broadcast dimension stays 1 as long as `shape` is the image's own shape. In a reshaped tensor the dimensions of
    the image differ, and only a scalar stays small.
    """
    if array.size == 1:
        return copy_contiguous(array).reshape(1, 1, 1)
    if shape == image.shape:
        aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    else:
        aligned = np.broadcast_to(array, shape).reshape(image.shape)
    moved = np.moveaxis(aligned, image.channel_axis, -1)
    if math.prod(moved.shape[:-2]) > 1:
        moved = np.broadcast_to(moved, (*image.pixel_dims[:-1], *moved.shape[-2:]))
    return copy_contiguous(moved).reshape(math.prod(moved.shape[:-2]), *((1,) * (2 - moved.ndim)), *moved.shape[-2:])


def to_exact_float32(name: str, values: npt.NDArray[Any]) -> Floats:
    """Returns integers as float32. Raises `ImportRefusal` for integers that float32 does not hold exactly."""
    floats = values.astype(np.float32)
    lost = floats.astype(np.float64).astype(object) != values.astype(object)
    if lost.any():
        raise ImportRefusal(f"'{name}' holds {values[lost].flat[0]}, which float32 does not")
    return floats
