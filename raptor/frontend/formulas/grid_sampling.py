"""GridSample with a constant grid: the input pixels that each output pixel is interpolated from, and their weights.

Coordinates are float32, as in onnxruntime. Names are ONNX's.
"""

from dataclasses import dataclass

import numpy as np

from raptor.frontend.constant_pixels import Shape
from raptor.frontend.import_refusal import ImportRefusal
from raptor.graph.ir import Floats, Indices

_CUBIC = -0.75
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Mode names before version 20 -> since then."""


@dataclass(frozen=True, slots=True)
class GridSampling:
    """Attributes of GridSample."""

    mode: str
    padding: str
    align_corners: bool


def compute_grid_taps(grid: Floats, dims: Shape, how: GridSampling) -> tuple[Indices, Floats]:
    """Returns input pixels of an image of `dims`, -1 outside, and their weights; [output pixels, taps] both.

    grid: [output pixels, dimensions], the last dimension of the image first.
    """
    pixels, weights = np.zeros((len(grid), 1), np.int64), np.ones((len(grid), 1), np.float32)
    for axis, size in enumerate(dims):
        at, weight = _along(grid[:, len(dims) - 1 - axis].astype(np.float32), size, how)
        old, new = pixels[:, :, None], at[:, None, :]
        pixels = np.where((old >= 0) & (new >= 0), old * size + new, -1).reshape(len(grid), -1)
        weights = (weights[:, :, None] * weight[:, None, :]).reshape(len(grid), -1)
    return pixels, np.where(pixels < 0, np.float32(0), weights).astype(np.float32)


def _along(grid: Floats, size: int, how: GridSampling) -> tuple[Indices, Floats]:
    """Returns positions along one dimension, -1 outside, and weights; [output pixels, taps] both."""
    one, two = np.float32(1), np.float32(2)
    length = np.float32(size)
    x = (grid + one) / two * (length - one) if how.align_corners else ((grid + one) * length - one) / two
    if not np.isfinite(x).all():
        raise ImportRefusal("its grid is not finite")
    low, high = (0.0, size - 1.0) if how.align_corners else (-0.5, size - 0.5)
    mode = _MODES.get(how.mode, how.mode)
    # NOTE: onnxruntime and torch clamp only the positions of a cubic, ONNX's reference the coordinate, too.
    if mode != "cubic" or how.padding != "border":
        x = _padded(np.rint(x) if mode == "nearest" else x, low, high, size, how.padding)
    first, weights = _taps(x, mode)
    at = np.asarray(first[:, None] + np.arange(weights.shape[1]), np.int64)
    if how.padding == "border":
        at = np.clip(at, 0, size - 1)
    elif how.padding == "reflection":
        at = _reflected(at.astype(np.float32), low, high).astype(np.int64)
    return np.where((at >= 0) & (at < size), at, -1), weights


def _padded(x: Floats, low: float, high: float, size: int, padding: str) -> Floats:
    outside = (x < low) | (x > high)
    if padding == "border":
        return np.where(outside, np.clip(x, 0, size - 1), x)
    return np.where(outside, _reflected(x, low, high), x) if padding == "reflection" else x


def _reflected(x: Floats, low: float, high: float) -> Floats:
    """Mirrors coordinates at the borders until they lie inside."""
    width = high - low
    if width == 0:
        return np.full_like(x, low)
    away = np.where(x < low, low - x, x - high)
    turns = np.floor(away / width)
    rest = away - turns * width
    from_low = (turns % 2 == 0) == (x < low)
    return np.where((x >= low) & (x <= high), x, np.where(from_low, low + rest, high - rest)).astype(x.dtype)


def _taps(x: Floats, mode: str) -> tuple[Indices, Floats]:
    """Returns the first position that each coordinate reads, and the weights of that and the following positions."""
    floor = np.floor(x)
    first, part = floor.astype(np.int64), (x - floor).astype(np.float32)
    if mode == "nearest":
        return first, np.ones((len(x), 1), np.float32)
    if mode == "linear":
        return first, np.stack([1 - part, part], axis=1)
    if mode == "cubic":
        return first - 1, np.stack([_far(part + 1), _near(part), _near(1 - part), _far(2 - part)], axis=1)
    raise ImportRefusal(f"mode {mode} is unknown")


def _near(x: Floats) -> Floats:
    """Cubic weight at a distance of at most 1."""
    return np.asarray(((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1, np.float32)


def _far(x: Floats) -> Floats:
    """Cubic weight at a distance from 1 to 2."""
    return np.asarray(((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC, np.float32)
