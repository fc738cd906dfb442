"""Quantisation parameters: ONNX integer types, and the scales and zero points of quantised tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from raptor.common.errors import UserError
from raptor.frontend.check import type_name
from raptor.frontend.registry import NeedsConstantError, Refusal
from raptor.target.element import Coding, ElementType, integer

if TYPE_CHECKING:
    from raptor.frontend.importing import ImportContext
    from raptor.frontend.nodes import Array, NodeView
    from raptor.graph.ir import Floats

Shape = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CodeType:
    """An integer type of ONNX. The chip stores its values as signed integers: stored = value - `offset`."""

    name: str
    bits: int
    offset: int = 0

    @property
    def element(self) -> ElementType:
        """Element type on the chip."""
        return integer(self.bits)

    @property
    def low(self) -> int:
        """The smallest value."""
        return self.element.low + self.offset

    @property
    def high(self) -> int:
        """The largest value."""
        return self.element.high + self.offset

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Numpy type of an array of the values."""
        return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(self.name.upper()))

    @property
    def coding(self) -> Coding:
        """Coding of a tensor of this type."""
        return Coding(self.name, self.offset)


def _code_types() -> dict[int, CodeType]:
    found: dict[int, CodeType] = {TensorProto.INT32: CodeType("int32", 32)}
    for bits in (2, 4, 8, 16):
        found[TensorProto.DataType.Value(f"INT{bits}")] = CodeType(f"int{bits}", bits)
        found[TensorProto.DataType.Value(f"UINT{bits}")] = CodeType(f"uint{bits}", bits, 1 << (bits - 1))
    return found


CODES: Mapping[int, CodeType] = MappingProxyType(_code_types())
"""ONNX element type -> representation on the chip."""


def code_type(node: NodeView, elem_type: int) -> CodeType:
    """Returns the representation of an ONNX integer type. Raises `Refusal` for other types."""
    if elem_type not in CODES:
        raise Refusal(f"{type_name(elem_type)} is not supported; integers of 2, 4, 8 and 16 bits are")
    return CODES[elem_type]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Parameters of a quantiser: real = (value - zero_point) * scale. Both arrays broadcast to the tensor's shape."""

    scale: Floats
    zero_point: Ints
    code: CodeType

    @property
    def is_uniform(self) -> bool:
        """True if all elements have the same scale and zero point."""
        return self.scale.size == 1 and self.zero_point.size == 1


@dataclass(frozen=True, slots=True)
class Place:
    """Layout of scale and zero point: shape of their tensor, axis along which they vary, block size (0: no blocks)."""

    shape: Shape
    axis: int = 1
    block: int = 0


def steps(node: NodeView, ctx: ImportContext, scale: str, zero: str | None, place: Place, code: CodeType) -> Steps:
    """Reads scale and zero point, broadcast to the tensor. `code`: type of the values where there is no zero point.

    Raises `UserError` for a scale that is not finite and above 0, and for a zero point of another size than the scale.
    """
    scales = _constant(ctx, scale).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        bad = scales[~(np.isfinite(scales) & (scales > 0))].flat[0]
        raise _fault(node, f"scale '{scale}' is {bad:g}, must be a finite number above 0")
    if zero is None:
        return Steps(_spread(node, scales, place), np.zeros((), np.int64), code)
    zeros = _constant(ctx, zero)
    code = code_type(node, helper.np_dtype_to_tensor_dtype(zeros.dtype))
    if zeros.size != scales.size:
        raise _fault(node, f"{scales.size} scales ('{scale}'), but {zeros.size} zero points ('{zero}')")
    values = zeros.astype(np.int64)
    if (values == values.flat[0]).all():
        values = values.reshape(-1)[:1]
    return Steps(_spread(node, scales, place), _spread(node, values, place), code)


def _constant(ctx: ImportContext, name: str) -> Array:
    value = ctx.constant(name)
    if value is None:
        raise NeedsConstantError(name)
    return np.asarray(value)


def _spread(node: NodeView, values: Array, place: Place) -> Array:
    """Expands one number per tensor, channel or block so that it broadcasts to the tensor."""
    if values.size == 1:
        return values.reshape(())
    rank = len(place.shape)
    axis = place.axis + rank if place.axis < 0 else place.axis
    if not 0 <= axis < rank:
        raise Refusal(f"axis {place.axis} of {rank} dimensions")
    if place.block:
        return values.repeat(place.block, axis=axis).take(range(place.shape[axis]), axis=axis)
    if values.ndim != 1 or values.size != place.shape[axis]:
        raise _fault(node, f"{values.size} scales or zero points for {place.shape[axis]} channels (axis {axis})")
    return values.reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))


def _fault(node: NodeView, text: str) -> UserError:
    return UserError(f"{node.name} ({node.op_type}): {text}")


def quantiser(node: NodeView, ctx: ImportContext, shape: Shape) -> Steps:
    """Returns the parameters of a QuantizeLinear or DequantizeLinear node for a tensor of `shape`.

    Raises `Refusal` for QuantizeLinear to more than 16 bits, and `UserError` for bad scales or zero points.
    """
    given = node.integer("output_dtype", 0)
    code = code_type(node, given) if given and node.op_type == "QuantizeLinear" else CODES[TensorProto.UINT8]
    place = Place(shape, node.integer("axis", 1), node.integer("block_size", 0))
    by = steps(node, ctx, node.inputs[1], node.input(2), place, code)
    if by.code.bits > 16 and node.op_type == "QuantizeLinear":
        raise Refusal(f"quantises to {by.code.name}; integers of at most 16 bits are supported")
    if by.code.bits > 16 and by.zero_point.any():
        raise _fault(node, f"zero point '{node.input(2)}' is not 0, as it must be for {by.code.name}")
    return by


def host_coding(by: Steps) -> Coding:
    """Returns the coding with which the host quantises or dequantises. Raises `Refusal` for scales in blocks."""
    scale, zero = np.broadcast_arrays(by.scale, by.zero_point - by.code.offset)
    wide = [a for a, n in enumerate(scale.shape) if n > 1]
    if len(wide) > 1:
        raise Refusal("scales in blocks")
    axis = wide[0] if wide else None
    return Coding("float32", 0, tuple(map(float, scale.ravel())), tuple(map(int, zero.ravel())), axis)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A constant of quantised integers: real = `values` * scale; the zero point is already subtracted.

    bits: bits of its ONNX type.
    """

    values: npt.NDArray[np.int32]
    scale: Floats
    bits: int

    @property
    def real(self) -> Floats:
        """The dequantised values, in float32 as DequantizeLinear computes them."""
        return self.values.astype(np.float32) * self.scale


def quantised(values: npt.ArrayLike, by: Steps) -> Ints:
    """Returns the integers of QuantizeLinear: float32 division, ties to even, saturated; NaN becomes the lowest."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(np.asarray(values, np.float32) / by.scale).astype(np.float64) + by.zero_point
    return np.asarray(np.fmin(np.fmax(rounded, by.code.low), by.code.high), np.int64)


_OUTPUT_CHANNELS: Mapping[str, int] = MappingProxyType({"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1})
"""Operator -> axis of its weights along which quantisation scales may vary."""


def float_layer_fault(node: NodeView, coded: Mapping[str, Coded], views: Container[str]) -> str:
    """Returns the reason why a layer of an integer model is not computed in integers.

    `views`: names of quantised tensors.
    """
    codes = next((i for i in node.inputs[:2] if i in coded), None)
    if codes is None:
        return "its weights are floats, and the model is of integers: quantise them, too"
    data = next((i for i in node.inputs[:2] if i in views), None)
    if data is None:
        which = "its weights are integers, but its input is not"
        return f"{which}, and the model is of integers: quantise the input, too"
    axis = _OUTPUT_CHANNELS.get(node.op_type, 0)
    scales = coded[codes].scale.shape
    if any(size > 1 for d, size in enumerate(scales) if d != axis):
        wanted = f"one for each output channel (axis {axis})"
        return f"its weights '{codes}' have scales {scales} along what is added up; they must be one, or {wanted}"
    return f"its input '{data}' is quantised by more than one scale; it must be by one"
