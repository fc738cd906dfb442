"""Resize along one axis: the input elements that each output element is interpolated from, and their weights.

Coordinates are float32 as in onnxruntime, because the last bit decides where a coordinate lies midway between elements.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.frontend.import_refusal import ImportRefusal
from raptor.graph.ir import Floats, Indices

Coordinates = npt.NDArray[np.float32 | np.float64]
Mask = npt.NDArray[np.bool_]
INTEGER_TOLERANCE = 1e-4
"""Distance within which a length counts as an integer: it is a size times a scale that was rounded to float32."""
TIE_TOLERANCE = 1e-6
"""Distance within which a coordinate counts as midway between two elements."""


@dataclass(frozen=True, slots=True)
class AxisTaps:
    """Positions that each output element reads, and weights, [outputs, taps].

    outside: [outputs], elements to extrapolate.
    """

    positions: Indices
    weights: Floats
    outside: Mask


@dataclass(frozen=True, slots=True)
class ResizeAxis:
    """One axis of a Resize. `by_sizes`: the new size is given, not computed from the scale."""

    size: int
    new_size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)
    by_sizes: bool = False

    @property
    def length(self) -> float:
        """Length of the resized axis, maybe fractional if it is given by a scale."""
        exact = float(np.float32(self.scale)) * self.size
        return self.new_size if self.by_sizes or abs(exact - self.new_size) < INTEGER_TOLERANCE else exact

    def aligns_to_fraction(self, method: "ResizeMethod") -> bool:
        """Checks whether corners are aligned to a fractional length, as in ONNX's own test suite.

        NOTE: onnxruntime rounds the length first, as torch does.
        """
        return method.coordinates == "align_corners" and self.length != self.new_size


@dataclass(frozen=True, slots=True)
class ResizeMethod:
    """Attributes of a Resize, named as in ONNX."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    channels_last: bool = False
    """True if the resized axes are the second and third of four."""

    @property
    def keeps_equal_sizes(self) -> bool:
        """True if onnxruntime resizes axis by axis and skips axes of unchanged size, whatever their scale."""
        return self.antialias or (self.mode == "cubic" and self.channels_last)


def compute_taps(axis: ResizeAxis, method: ResizeMethod) -> AxisTaps:
    """Returns the taps of one axis. Raises `ImportRefusal` for an unknown mode."""
    fraction = axis.aligns_to_fraction(method)
    if axis.scale == 1 or (method.keeps_equal_sizes and axis.size == axis.new_size and not fraction):
        # onnxruntime does not change such an axis, even with a region of interest.
        return _kept(axis.size)
    at = _coordinates(axis, method.coordinates)
    outside = np.zeros(len(at), np.bool_)
    if method.coordinates == "tf_crop_and_resize":
        outside = (at < 0) | (at > axis.size - 1)
    if method.mode == "nearest":
        nearest = _rounded(at, method.nearest, axis).clip(0, axis.size - 1)
        if method.coordinates == "half_pixel_symmetric":
            _require_certain(at, nearest, method.nearest, axis)
        return AxisTaps(nearest[:, None], np.ones((len(at), 1), np.float32), outside)
    positions, weights = _interpolated(at, axis, method)
    return AxisTaps(positions.clip(0, axis.size - 1), weights.astype(np.float32), outside)


def _kept(size: int) -> AxisTaps:
    return AxisTaps(np.arange(size)[:, None], np.ones((size, 1), np.float32), np.zeros(size, np.bool_))


def _coordinates(axis: ResizeAxis, mode: str) -> Coordinates:
    """Returns the coordinate of each output element on the input axis."""
    new, size, new_size, scale = np.arange(axis.new_size, dtype=np.float32), axis.size, axis.new_size, axis.scale
    one = np.float32(1)
    half, factor = np.float32(0.5), np.float32(scale)
    match mode:
        case "asymmetric":
            return new / factor
        case "half_pixel":
            return (new + half) / factor - half
        case "pytorch_half_pixel":
            return (new + half) / factor - half if new_size > 1 else 0 * new
        case "tf_half_pixel_for_nn":
            return (new + half) / factor
        case "align_corners":
            if axis.length != new_size:
                # In float64, as ONNX's test suite computes it.
                return new.astype(np.float64) * (size - 1) / (axis.length - 1)
            return new * np.float32(size - 1) / np.float32(new_size - 1) if new_size > 1 else 0 * new
        case "half_pixel_symmetric":
            adjustment = np.float32(new_size) / (factor * np.float32(size))
            return np.float32(size) / 2 * (one - adjustment) + (new + half) / factor - half
        case "tf_crop_and_resize":
            first, last = (np.float32(r) for r in axis.roi)
            if new_size == 1:
                return half * (first + last) * np.float32(size - 1) + 0 * new
            return first * np.float32(size - 1) + new * (last - first) * np.float32(size - 1) / np.float32(new_size - 1)
        case _:
            raise ImportRefusal(f"coordinate_transformation_mode {mode} is unknown")


def _rounded(at: Coordinates, mode: str, axis: ResizeAxis) -> Indices:
    # In float64: the largest float32 below a half, plus a half, is 1.
    exact = at.astype(np.float64)
    half_way = np.abs(exact - np.floor(exact) - 0.5) < TIE_TOLERANCE
    nearest = np.floor(exact + 0.5)
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.where(half_way, np.floor(at), nearest),
        "round_prefer_ceil": np.where(half_way, np.ceil(at), nearest),
        # Before version 11.
        "simple": np.ceil(at) if axis.scale < 1 else np.floor(at),
    }
    if mode not in rounded:
        raise ImportRefusal(f"nearest_mode {mode} is unknown")
    return rounded[mode].astype(np.int64)


def _require_certain(at: Coordinates, nearest: Indices, mode: str, axis: ResizeAxis) -> None:
    """Raises `ImportRefusal` where rounding decides the nearest element, as onnxruntime's order of steps is unknown.

    With a power of two as scale, nothing is rounded.
    """
    if math.frexp(axis.scale)[0] == 0.5:
        return
    margin = np.float32(1e-6 * max(axis.size, 4))
    for moved in (at - margin, at + margin):
        if (_rounded(moved, mode, axis).clip(0, axis.size - 1) != nearest).any():
            raise ImportRefusal(
                "half_pixel_symmetric: a coordinate lies on the edge of rounding to the nearest element"
            )


def _interpolated(at: Coordinates, axis: ResizeAxis, method: ResizeMethod) -> tuple[Indices, npt.NDArray[np.float64]]:
    """Returns positions, maybe outside the axis, and weights within the reach of the kernel."""
    if method.mode not in ("linear", "cubic"):
        raise ImportRefusal(f"mode {method.mode} is unknown")
    kernel, radius = (_triangle, 1) if method.mode == "linear" else (_cubic(method.cubic_a), 2)
    # When shrinking, the kernel spans all elements that a new one replaces.
    stretch = min(axis.scale, 1.0) if method.antialias else 1.0
    reach = int(np.ceil(radius / stretch))
    positions = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel((positions - at[:, None].astype(np.float64)) * stretch)
    if method.exclude_outside and (method.mode == "cubic" or method.antialias):
        weights = np.where((positions >= 0) & (positions < axis.size), weights, 0)
    if method.exclude_outside or method.antialias:
        total = weights.sum(axis=1, keepdims=True)
        # No input in reach: the element lies outside and is extrapolated.
        weights = weights / np.where(total == 0, 1, total)
    return positions, weights


def _triangle(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
    def kernel(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel
