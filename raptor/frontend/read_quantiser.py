"""Reads scales and zero points of quantisation operators, broadcast to the tensor that they apply to."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from raptor.common.errors import UserError
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.model_checks import type_name
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.types.quant_params import CODE_TYPES, CodeType, QuantParams, Shape


def find_code_type(node: NodeView, elem_type: int) -> CodeType:
    """Returns the representation of an ONNX integer type. Raises `ImportRefusal` for other types."""
    if elem_type not in CODE_TYPES:
        raise ImportRefusal(f"{type_name(elem_type)} is not supported; integers of 2, 4, 8 and 16 bits are")
    return CODE_TYPES[elem_type]


@dataclass(frozen=True, slots=True)
class ScaleLayout:
    """The tensor that scale and zero point apply to: its shape, the axis along which they vary, the block size."""

    shape: Shape
    axis: int = 1
    block: int = 0


def read_quant_params(
    node: NodeView,
    ctx: ImportContext,
    scale: str,
    zero: str | None,
    place: ScaleLayout,
    code: CodeType,
    *,
    signed: bool = False,
) -> QuantParams:
    """Reads scale and zero point, broadcast to the tensor. `code`: type of the values where there is no zero point.

    Raises `UserError` for a scale that is not finite and above 0 (if `signed`: other than 0), and for a zero point of
    another size than the scale.
    """
    scales = _constant(ctx, scale).astype(np.float32)
    right = np.isfinite(scales) & ((scales != 0) if signed else (scales > 0))
    if not right.all():
        bounds = "other than 0" if signed else "above 0"
        raise _fault(node, f"scale '{scale}' is {scales[~right].flat[0]:g}, must be a finite number {bounds}")
    if zero is None:
        return QuantParams(_spread(node, scales, place), np.zeros((), np.int64), code)
    zeros = _constant(ctx, zero)
    code = find_code_type(node, helper.np_dtype_to_tensor_dtype(zeros.dtype))
    if zeros.size != scales.size:
        raise _fault(node, f"{scales.size} scales ('{scale}'), but {zeros.size} zero points ('{zero}')")
    values = zeros.astype(np.int64)
    if (values == values.flat[0]).all():
        values = values.reshape(-1)[:1]
    return QuantParams(_spread(node, scales, place), _spread(node, values, place), code)


def _constant(ctx: ImportContext, name: str) -> Array:
    value = ctx.constant(name)
    if value is None:
        raise NeedsConstantError(name)
    return np.asarray(value)


def _spread(node: NodeView, values: Array, place: ScaleLayout) -> Array:
    """Expands one number per tensor, channel or block so that it broadcasts to the tensor."""
    if values.size == 1:
        return values.reshape(())
    rank = len(place.shape)
    axis = place.axis + rank if place.axis < 0 else place.axis
    if not 0 <= axis < rank:
        raise ImportRefusal(f"axis {place.axis} of {rank} dimensions")
    if place.block:
        return values.repeat(place.block, axis=axis).take(range(place.shape[axis]), axis=axis)
    if values.ndim != 1 or values.size != place.shape[axis]:
        raise _fault(node, f"{values.size} scales or zero points for {place.shape[axis]} channels (axis {axis})")
    return values.reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))


def _fault(node: NodeView, text: str) -> UserError:
    return UserError(f"{node.name} ({node.op_type}): {text}")


def read_quantiser(node: NodeView, ctx: ImportContext, shape: Shape) -> QuantParams:
    """Returns the parameters of a QuantizeLinear or DequantizeLinear node for a tensor of `shape`.

    Scales of constants may be negative, as those of blocks of 4 bits whose largest weight is positive. Raises
    `ImportRefusal` for QuantizeLinear to more than 16 bits, and `UserError` for bad scales or zero points.
    """
    given = node.integer("output_dtype", 0)
    code = find_code_type(node, given) if given and node.op_type == "QuantizeLinear" else CODE_TYPES[TensorProto.UINT8]
    place = ScaleLayout(shape, node.integer("axis", 1), node.integer("block_size", 0))
    signed = node.op_type == "DequantizeLinear" and ctx.is_constant(node.inputs[0])
    by = read_quant_params(node, ctx, node.inputs[1], node.input(2), place, code, signed=signed)
    if by.code.bits > 16 and node.op_type == "QuantizeLinear":
        raise ImportRefusal(f"quantises to {by.code.name}; integers of at most 16 bits are supported")
    if by.code.bits > 16 and by.zero_point.any():
        raise _fault(node, f"zero point '{node.input(2)}' is not 0, as it must be for {by.code.name}")
    return by
