"""Operators on quantised integers, as dequantisation, a standard operator, and quantisation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from raptor.common.errors import UserError
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.integers.affine_values import AffineView, broadcast_params
from raptor.frontend.integers.rule_steps import NO_ATTRIBUTES, find_affine_view, import_step, widen_to_type
from raptor.frontend.operator_sets import CONTRIB_DOMAIN
from raptor.frontend.operators.quantised.quantise_linear import dequantise, make_quantised_constant, quantise
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.read_quantiser import ScaleLayout, find_code_type, read_quant_params
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval, OverflowFault, find_narrowest_type
from raptor.frontend.types.quant_params import CODE_TYPES, CodeType, QuantisedConstant, QuantParams
from raptor.graph.ir import Constant, Map
from raptor.target.chip_elements import integer_type

LIMITS = "constant weights, scales and zero points"
_ONE = np.float32(1)


@importer("QLinearConv", since=10, limits=LIMITS)
def import_qlinear_conv(node: NodeView, ctx: ImportContext) -> None:
    """Convolution of quantised integers, rounded to the output scale."""
    inputs = [_real(node, ctx, 0), _real(node, ctx, 3, axis=0)]
    _require_equal_zeros(node, ctx, inputs[1], node.input(5))
    bias = _bias(node, ctx, 8, _input_scale(node, ctx, 1), ctx.quantised_constant(inputs[1]))
    _finish(node, ctx, 6, "Conv", (*inputs, *bias), node.attributes)


def _require_equal_zeros(node: NodeView, ctx: ImportContext, weights: str, zero: str | None) -> None:
    if ctx.quantised_constant(weights) is None:
        raise NeedsConstantError(node.inputs[3])
    values = ctx.constant(zero)
    if values is not None and (values != values.flat[0]).any():
        pair = f"{values.flat[0]} and {values[values != values.flat[0]].flat[0]}"
        raise UserError(f"{node.name} ({node.op_type}): zero points '{zero}' of the weights differ by channel: {pair}")


@importer("QLinearMatMul", since=10, limits="constant scales and zero points")
def import_qlinear_matmul(node: NodeView, ctx: ImportContext) -> None:
    """Matrix product of quantised integers, rounded to the output scale."""
    inputs = (_real(node, ctx, 0, axis=-2), _real(node, ctx, 3, axis=-1))
    _finish(node, ctx, 6, "MatMul", inputs)


@importer("QGemm", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qgemm(node: NodeView, ctx: ImportContext) -> None:
    """alpha * A * B + C of quantised integers, rounded to the output scale if one is given."""
    inputs = [_real(node, ctx, 0), _real(node, ctx, 3, axis=0 if node.integer("transB", 0) else 1)]
    scale = np.float32(_input_scale(node, ctx, 1))
    bias = _bias(node, ctx, 6, scale, ctx.quantised_constant(inputs[1]), np.float32(node.number("alpha", 1)))
    _finish(node, ctx, 7, "Gemm", (*inputs, *bias), node.attributes)


@importer("QLinearAdd", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_add(node: NodeView, ctx: ImportContext) -> None:
    """Sum of quantised integers of different scales, rounded to the output scale."""
    _finish(node, ctx, 6, "Add", (_real(node, ctx, 0), _real(node, ctx, 3)))


@importer("QLinearMul", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_mul(node: NodeView, ctx: ImportContext) -> None:
    """Element-wise product of quantised integers, rounded to the output scale."""
    _finish(node, ctx, 6, "Mul", (_real(node, ctx, 0), _real(node, ctx, 3)))


@importer("QLinearAveragePool", since=1, limits="channels first", domain=CONTRIB_DOMAIN)
def import_qlinear_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean of quantised integers over a window, rounded to the output scale."""
    _finish(node, ctx, 3, "AveragePool", (_real(node, ctx, 0),), _channels_first(node))


@importer("QLinearGlobalAveragePool", since=1, limits="channels first", domain=CONTRIB_DOMAIN)
def import_qlinear_global_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean of quantised integers over the image, rounded to the output scale."""
    _finish(node, ctx, 3, "GlobalAveragePool", (_real(node, ctx, 0),), _channels_first(node))


def _channels_first(node: NodeView) -> Mapping[str, Any]:
    if node.integer("channels_last", 0):
        raise ImportRefusal("channels_last is 1, must be 0")
    return {k: v for k, v in node.attributes.items() if k != "channels_last"}


@importer("QLinearConcat", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_concat(node: NodeView, ctx: ImportContext) -> None:
    """Concatenation of quantised integers of different scales, rounded to one scale."""
    inputs = tuple(_real(node, ctx, p) for p in range(2, len(node.inputs), 3))
    _finish(node, ctx, 0, "Concat", inputs, node.attributes)


@importer("QLinearSigmoid", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_sigmoid(node: NodeView, ctx: ImportContext) -> None:
    """1 / (1 + exp(-x)) of quantised integers, by a lookup table."""
    _finish(node, ctx, 3, "Sigmoid", (_real(node, ctx, 0),))


@importer("QLinearLeakyRelu", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_leaky_relu(node: NodeView, ctx: ImportContext) -> None:
    """x if x > 0 else alpha x, of quantised integers, by a lookup table."""
    _finish(node, ctx, 3, "LeakyRelu", (_real(node, ctx, 0),), node.attributes)


@importer("QLinearSoftmax", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)
def import_qlinear_softmax(node: NodeView, ctx: ImportContext) -> None:
    """exp(x) / sum(exp(x)) over one axis, computed in floats and quantised."""
    attributes = {"axis": node.integer("axis", -1)}
    _finish(node, ctx, 3, "Softmax", (_real(node, ctx, 0),), attributes, node.integer("opset", 13))


@importer("ConvInteger", since=10, limits="constant weights and zero points")
def import_conv_integer(node: NodeView, ctx: ImportContext) -> None:
    """Convolution of integers with 32-bit results."""
    _finish_integers(node, ctx, "Conv", node.attributes)


@importer("MatMulInteger", since=10, limits="constant zero points")
def import_matmul_integer(node: NodeView, ctx: ImportContext) -> None:
    """Matrix product of integers with 32-bit results."""
    _finish_integers(node, ctx, "MatMul")


def _real(node: NodeView, ctx: ImportContext, position: int, axis: int = 1) -> str:
    """Dequantises the input, scale and zero point at `position`; returns the name of the dequantised tensor."""
    name, shape = node.inputs[position], ctx.operand_shape(node.inputs[position])
    scale = node.inputs[position + 1]
    by = read_quant_params(
        node, ctx, scale, node.input(position + 2), ScaleLayout(shape, axis), _type_of(node, ctx, name)
    )
    _require_same_type(node, ctx, name, by)
    result = ctx.register_tensor(f"{node.output}.{name}", shape)
    dequantise(node, ctx, name, by, result)
    return result


def _type_of(node: NodeView, ctx: ImportContext, name: str) -> CodeType:
    value = ctx.constant(name)
    if value is not None:
        return find_code_type(node, helper.np_dtype_to_tensor_dtype(value.dtype))
    coding = ctx.tensor(name).coding
    if coding is None or coding.scale:
        raise ImportRefusal(f"its input '{name}' is not of integers")
    return CODE_TYPES[TensorProto.DataType.Value(coding.dtype.upper())]


def _require_same_type(node: NodeView, ctx: ImportContext, name: str, by: QuantParams) -> None:
    found = _type_of(node, ctx, name)
    if found != by.code:
        raise UserError(f"{node.name} ({node.op_type}): '{name}' is {found.name}, its zero point {by.code.name}")


def _input_scale(node: NodeView, ctx: ImportContext, position: int) -> np.float32:
    value = ctx.constant(node.inputs[position])
    if value is None or value.size != 1:
        raise ImportRefusal(f"'{node.inputs[position]}' must be one constant")
    return np.float32(value.item())


def _bias(
    node: NodeView,
    ctx: ImportContext,
    position: int,
    scale: np.float32,
    weights: QuantisedConstant | None,
    alpha: np.float32 = _ONE,
) -> tuple[str, ...]:
    """Returns the name of the dequantised bias, whose scale is the scale of the products; empty if absent."""
    name = node.input(position)
    if name is None:
        return ()
    value = ctx.constant(name)
    if value is None or weights is None:
        raise NeedsConstantError(name if value is None else node.inputs[3])
    product = np.asarray(np.float32(scale * alpha) * weights.scale.ravel(), np.float32)
    by = QuantParams(
        product if product.size > 1 else product.reshape(()), np.zeros((), np.int64), CODE_TYPES[TensorProto.INT32]
    )
    result = ctx.register_tensor(f"{node.output}.{name}", value.shape)
    ctx.add_quantised(result, make_quantised_constant(node, value, by))
    return (result,)


def _finish(
    node: NodeView,
    ctx: ImportContext,
    position: int,
    op_type: str,
    inputs: tuple[str, ...],
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
    version: int = 0,
) -> None:
    """Applies a standard operator to dequantised inputs; quantises by scale and zero point at `position`."""
    shape = ctx.shape(node.output)
    scale = node.input(position)
    if scale is None:  # QGemm with a result in floats
        done = import_step(node, ctx, op_type, inputs, shape, attributes, version)
        ctx.views[node.output] = require_affine_view(ctx, done)
        return
    done = import_step(node, ctx, op_type, inputs, shape, attributes, version)
    by = read_quant_params(
        node, ctx, scale, node.input(position + 1), ScaleLayout(shape), CODE_TYPES[TensorProto.UINT8]
    )
    quantise(node, ctx, done, by, node.output)


def require_affine_view(ctx: ImportContext, name: str) -> AffineView:
    """Returns the affine view of an intermediate result. Raises `ImportRefusal` if it has none."""
    view = find_affine_view(ctx, name)
    if view is None:
        raise ImportRefusal("it cannot be computed in integers")
    return view


def _finish_integers(
    node: NodeView, ctx: ImportContext, op_type: str, attributes: Mapping[str, Any] = NO_ATTRIBUTES
) -> None:
    """Computes sums of integers without requantisation, in 32 bits."""
    if op_type == "Conv" and ctx.constant(node.inputs[1]) is None:
        raise NeedsConstantError(node.inputs[1])
    names = [_plain(node, ctx, position) for position in (0, 1)]
    done = import_step(node, ctx, op_type, tuple(names), ctx.shape(node.output), attributes)
    view = find_affine_view(ctx, done)
    if view is None:
        raise ImportRefusal("it cannot be computed in integers: its weights must be constant")
    (term,) = view.terms
    low, high = ctx.code_range(term.tensor)
    found = IntegerInterval(low + int(term.offset.min(initial=0)), high + int(term.offset.max(initial=0)))
    try:
        find_narrowest_type(found)
    except OverflowFault as fault:
        raise UserError(f"{node.name} ({node.op_type}): {fault}") from None
    wide = widen_to_type(node, ctx, term.tensor, integer_type(32))
    pixels = broadcast_params(term.offset.astype(np.int32), view.shape, wide.image)
    operator = Map("add", (0, Constant(pixels)))
    ctx.emit(node, (wide.name,), wide.image, operator, node.output, integer_type(32), found)


def _plain(node: NodeView, ctx: ImportContext, position: int) -> str:
    """Subtracts the zero point of the input at `position`; returns the name of the result."""
    name, zero = node.inputs[position], node.input(position + 2)
    shape = ctx.operand_shape(name)
    axis = (0 if node.op_type == "ConvInteger" else -1) if position else -2
    zeros = ctx.constant(zero)
    if zero is not None and zeros is None:
        raise NeedsConstantError(zero)
    ones = np.ones(1 if zeros is None else zeros.shape, np.float32)
    scale = ctx.add_constant(f"{node.output}.one", ones)
    by = read_quant_params(node, ctx, scale, zero, ScaleLayout(shape, axis), _type_of(node, ctx, name))
    _require_same_type(node, ctx, name, by)
    by = replace(by, scale=np.ones((), np.float32))
    result = ctx.register_tensor(f"{node.output}.{name}", shape)
    dequantise(node, ctx, name, by, result)
    return result
