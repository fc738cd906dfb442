"""Quantisers of QONNX as data: their integer codes, scales, thresholds and rounding modes; quantised constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from raptor.common.errors import UserError
from raptor.frontend.proto.model_checks import describe_node
from raptor.frontend.proto.nodes import read_attributes

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

QONNX_DOMAINS = frozenset(("onnx.brevitas", "qonnx.custom_op.general", "finn.custom_op.general"))
"""Domains under which tools write QONNX operators."""
QUANTISERS = frozenset(("Quant", "IntQuant", "BipolarQuant", "MultiThreshold"))
MOST_BITS = 16
_HALVES = 2
BIPOLAR_ROUNDING = "BIPOLAR"
"""Rounding mode of a signed 1-bit `Quant`, which acts as `BipolarQuant`."""


def _away(size: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Makes a rounding function odd: negative numbers are rounded as the negatives of positive ones."""
    return lambda x: np.asarray(np.copysign(size(np.abs(x)), x))


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    BIPOLAR_ROUNDING: lambda x: np.where(x >= 0, 1, -1),
    **dict.fromkeys(("ROUND", "HALF_EVEN"), np.rint),
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    **dict.fromkeys(("ROUND_TO_ZERO", "DOWN"), np.trunc),
    "UP": _away(np.ceil),
    "HALF_UP": _away(lambda x: np.floor(x + 0.5)),
    "HALF_DOWN": _away(lambda x: np.ceil(x - 0.5)),
}
"""QONNX's rounding modes. UP and HALF_UP round away from zero, as in Python's `decimal`."""


@dataclass(frozen=True, slots=True)
class QonnxCodeType:
    """An ONNX integer type: its number, smallest and largest value."""

    elem_type: int
    low: int
    high: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Numpy type of an array of the values."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.elem_type))


def _kind(bits: int, *, signed: bool) -> QonnxCodeType:
    low, sign = (-(1 << bits - 1), "") if signed else (0, "U")
    return QonnxCodeType(TensorProto.DataType.Value(f"{sign}INT{bits}"), low, low + (1 << bits) - 1)


_KINDS = (*(_kind(bits, signed=signed) for bits in (2, 4, 8, 16) for signed in (True, False)), _kind(32, signed=True))


def find_narrowest_kind(low: int, high: int) -> QonnxCodeType | None:
    """Returns the type with the fewest bits that holds `low` to `high`; None if 32 bits are too few."""
    return next((kind for kind in _KINDS if kind.low <= low and high <= kind.high), None)


@dataclass(frozen=True, slots=True, eq=False)
class CodedConstant:
    """A quantised constant: real = values * scale. The scale broadcasts to the values."""

    values: Ints
    scale: Singles

    @property
    def dequantised(self) -> Singles:
        """The dequantised values, in float32 as DequantizeLinear computes them."""
        return np.asarray(self.values.astype(np.float32) * self.scale, np.float32)

    def find_scale_axis(self) -> int | None:
        """Returns the axis along which scales differ; None for a single scale. Raises `ValueError` for several axes."""
        full = np.broadcast_to(self.scale, self.values.shape)
        differing = [a for a in range(full.ndim) if (full != full.take([0], axis=a)).any()]
        if len(differing) > 1:
            raise ValueError("scales differ along several axes")
        return differing[0] if differing else None

    def scale_vector(self) -> Singles:
        """Returns the scales along `axis` as a vector, or the single scale as a scalar."""
        axis, full = self.find_scale_axis(), np.broadcast_to(self.scale, self.values.shape)
        if axis is None:
            return np.asarray(full.flat[0])
        return np.moveaxis(full, axis, 0).reshape(full.shape[axis], -1)[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdLevels:
    """A quantiser: code = first + step * (number of thresholds that x reaches); real result = code * scale.

    thresholds: [channels or 1, count]. strict: [count], True where x must exceed the threshold. axis: axis of the
    channels.
    """

    thresholds: Doubles
    strict: npt.NDArray[np.bool_]
    first: int
    step: int
    scale: np.float32
    axis: int = 1

    @property
    def last(self) -> int:
        """Largest code."""
        return self.first + self.step * self.thresholds.shape[1]


def node_error(node: NodeProto, text: str) -> UserError:
    """Returns a `UserError` that names the node."""
    return UserError(f"{describe_node(node)} ({node.op_type}): {text}")


@dataclass(frozen=True, slots=True, eq=False)
class QuantGrid:
    """A `Quant` node: codes from `low` to `high`, real = (code - zero) * scale."""

    low: int
    high: int
    zero: int
    scale: Singles
    rounding: str

    def quantise(self, x: Array) -> CodedConstant:
        """Quantises a constant."""
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.asarray(x, np.float32) / self.scale + np.float32(self.zero)
        codes = _ROUNDINGS[self.rounding](np.clip(steps, self.low, self.high))
        return CodedConstant(codes.astype(np.int64) - self.zero, np.asarray(self.scale, np.float32))

    @property
    def is_even(self) -> bool:
        """True if ties are rounded to even codes, as in QuantizeLinear."""
        return _ROUNDINGS[self.rounding] is np.rint

    def to_levels(self) -> ThresholdLevels:
        """Returns the quantiser as thresholds midway between codes; ties go to even codes. Needs one scale."""
        if self.rounding == BIPOLAR_ROUNDING:
            return bipolar_levels(np.float32(self.scale.item()))
        codes = np.arange(self.low + 1, self.high + 1)
        borders = (codes - 0.5 - self.zero) * np.float64(self.scale.item())
        return ThresholdLevels(borders[None], codes % 2 == 1, self.low - self.zero, 1, np.float32(self.scale.item()))


def read_grid(node: NodeProto, constants: Mapping[str, Array]) -> QuantGrid:
    """Reads a `Quant` node. Raises `UserError` for parameters that are not constant, not integers, or out of range."""
    scale, zero, bits = (
        _parameter(node, constants, k, name) for k, name in enumerate(("scale", "zero point", "width"), 1)
    )
    given = read_attributes(node)
    scales = np.asarray(scale, np.float32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise node_error(node, f"its scale is {scales.min()}, must be a finite number above 0")
    width, point = _whole(node, bits, "width"), _whole(node, zero, "zero point")
    if not 1 <= width <= 32:
        raise node_error(node, f"its width is {width} bits; widths from 1 to 32 are supported")
    signed, narrow = bool(given.get("signed", 1)), bool(given.get("narrow", 0))
    if signed and width == 1 and point == 0:
        return QuantGrid(-1, 1, 0, scales, BIPOLAR_ROUNDING)
    if width == 1 and (signed or narrow):
        raise node_error(node, f"its width is 1 bit, with zero point {point}{', narrow' * narrow}: that has no meaning")
    low = -(1 << (width - 1)) + narrow if signed else 0
    high = (1 << (width - 1)) - 1 if signed else (1 << width) - 1 - narrow
    rounding = str(given.get("rounding_mode", b"ROUND").decode()).upper()
    if rounding not in _ROUNDINGS:
        raise node_error(node, f"its rounding mode '{rounding}' is not one of {', '.join(_ROUNDINGS)}")
    return QuantGrid(low, high, point, scales, rounding)


def _parameter(node: NodeProto, constants: Mapping[str, Array], position: int, name: str) -> Array:
    value = constants.get(node.input[position]) if position < len(node.input) else None
    if value is None or not value.size:
        raise node_error(node, f"its {name} must be a constant")
    return value


def _whole(node: NodeProto, value: Array, name: str) -> int:
    if value.size != 1 and (value != value.flat[0]).any():
        raise node_error(node, f"its {name} differs by channel: {value.min()} to {value.max()}")
    number = float(value.flat[0])
    if not number.is_integer():
        raise node_error(node, f"its {name} is {number:g}, must be a whole number")
    return int(number)


def read_bipolar_scale(node: NodeProto, constants: Mapping[str, Array]) -> Singles:
    """Returns the scale of a `BipolarQuant` node."""
    return np.asarray(_parameter(node, constants, 1, "scale"), np.float32)


def bipolar_levels(scale: np.float32) -> ThresholdLevels:
    """Returns the thresholds of `BipolarQuant`: scale where x >= 0, else -scale."""
    return ThresholdLevels(np.zeros((1, 1)), np.zeros(1, np.bool_), -1, 2, scale)


def sign_levels() -> ThresholdLevels:
    """Returns the thresholds of `SignActivation`: -1, 0 and 1."""
    return ThresholdLevels(np.zeros((1, 2)), np.array([False, True]), -1, 1, np.float32(1))


def read_multithreshold(node: NodeProto, constants: Mapping[str, Array], rank: int | None) -> ThresholdLevels:
    """Reads a `MultiThreshold` node. `rank`: rank of its input, which determines the channel axis; None if unknown.

    Raises `UserError` for thresholds that are not a finite constant matrix, and for an offset that codes cannot
    express.
    """
    borders, given = _parameter(node, constants, 1, "thresholds"), read_attributes(node)
    if borders.ndim != 2 or not np.isfinite(borders).all():
        raise node_error(
            node, f"its thresholds have the shape {list(borders.shape)} or are infinite; expected [channels, steps]"
        )
    scale, bias = (np.float32(given.get(name, default)) for name, default in (("out_scale", 1), ("out_bias", 0)))
    halves = _HALVES * bias / scale if scale > 0 else np.float32(np.nan)
    if not float(halves).is_integer():
        raise node_error(node, f"out_bias {bias:g} is not a multiple of half of out_scale {scale:g}")
    odd = int(halves) % _HALVES
    step = _HALVES if odd else 1
    first = int(halves) if odd else int(halves) // _HALVES
    if find_narrowest_kind(first, first + step * borders.shape[1]) is None or borders.shape[1] >= 1 << MOST_BITS:
        raise node_error(node, f"it has {borders.shape[1]} thresholds, too many")
    layout = str(given.get("data_layout", b"").decode())
    axis = layout.index("C") if "C" in layout else 1
    if not layout and rank == 3:
        axis = 2
    unit = np.float32(float(scale) / step)
    every: Doubles = borders.astype(np.float64)
    inclusive = np.zeros(int(every.shape[1]), np.bool_)
    return ThresholdLevels(every, inclusive, first, step, unit, axis)
