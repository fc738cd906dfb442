"""QuantizeLinear and DequantizeLinear: the transitions between real numbers and integers."""

import numpy as np
from onnx import helper

from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import AffineTerm, AffineView, view_as_integers
from raptor.frontend.operator_sets import CONTRIB_DOMAIN
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.read_quantiser import find_code_type, read_quantiser
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.frontend.types.quant_params import QuantisedConstant, QuantParams, quantise_values
from raptor.graph.ir import Bound, Map, Rename, Tensor
from raptor.target.chip_elements import integer_type

LIMITS = "constant scale and zero point; integers of 2, 4, 8 and 16 bits"


@importer("QuantizeLinear", since=10, limits=LIMITS)
def import_quantize(node: NodeView, ctx: ImportContext) -> None:
    """round(x / scale) + zero point, saturated to the integer type."""
    name = node.inputs[0]
    by = read_quantiser(node, ctx, ctx.operand_shape(name))
    value = ctx.constant(name)
    if value is not None:
        ctx.set_constant(node.output, quantise_values(value, by).astype(by.code.numpy_dtype))
    else:
        quantise(node, ctx, name, by, node.output)


@importer("DequantizeLinear", since=10, limits=LIMITS)
def import_dequantize(node: NodeView, ctx: ImportContext) -> None:
    """(x - zero point) * scale."""
    find_code_type(node, helper.np_dtype_to_tensor_dtype(ctx.numpy_dtype(node.inputs[0])))
    dequantise(node, ctx, node.inputs[0], read_quantiser(node, ctx, ctx.operand_shape(node.inputs[0])), node.output)


importer("QuantizeLinear", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)(import_quantize)
importer("DequantizeLinear", since=1, limits=LIMITS, domain=CONTRIB_DOMAIN)(import_dequantize)


def dequantise(node: NodeView, ctx: ImportContext, name: str, by: QuantParams, result: str) -> None:
    """Makes `result` the view of an integer tensor, or a quantised constant.

    Raises `ImportRefusal` if the input `name` is not an integer tensor.
    """
    value = ctx.constant(name)
    if value is not None:
        ctx.add_quantised(result, make_quantised_constant(node, value, by))
        return
    tensor = ctx.tensor(name)
    if tensor.coding is None or tensor.coding.scale:
        raise ImportRefusal(f"its input '{name}' is not of integers")
    offset = np.asarray(tensor.coding.offset - by.zero_point, np.int64)
    ctx.views[result] = AffineView(node, tensor.shape, (AffineTerm(tensor, by.scale, offset),))


def make_quantised_constant(node: NodeView, value: Array, by: QuantParams) -> QuantisedConstant:
    """Returns a quantised constant, its zero point subtracted. Where a scale is negative, the integers are instead."""
    bits = find_code_type(node, helper.np_dtype_to_tensor_dtype(value.dtype)).bits
    sign = np.sign(by.scale).astype(np.int64)
    return QuantisedConstant(((value.astype(np.int64) - by.zero_point) * sign).astype(np.int32), np.abs(by.scale), bits)


def quantise(node: NodeView, ctx: ImportContext, name: str, by: QuantParams, result: str) -> None:
    """Computes the integer tensor `result` from a view or a float tensor."""
    if name in ctx.views and ctx.views[name].emit_quantised(node, ctx, by, result):
        return
    tensor = ctx.tensor(name)
    if tensor.coding is not None and tensor.coding.scale:
        # The host has quantised it.
        ctx.emit(node, (tensor.name,), tensor.image, Rename(), result)
    elif tensor.element.kind == "int":
        view_as_integers(node, tensor).emit_quantised(node, ctx, by, result)
    else:
        _quantise_floats(node, ctx, tensor, by, result)


def _quantise_floats(node: NodeView, ctx: ImportContext, x: Tensor, by: QuantParams, result: str) -> None:
    """Emits clamp(round(x / scale) + zero point); bounds before the addition prevent an overflow."""
    f = FormulaBuilder(node, ctx, x.shape, x.image)
    value: Value = f.apply("div", ctx.tensor(x.name), f.constant(np.asarray(by.scale, np.float32)))
    zero, element = by.zero_point - by.code.offset, by.code.element
    assert isinstance(value, Tensor)
    if not zero.any():
        ctx.emit(
            node, (value.name,), x.image, Map("round", (0,)), result, element, IntegerInterval.from_element(element)
        )
        return
    wide = integer_type(2 * max(element.bits, 8))
    low, high = element.low - int(zero.max()), element.high - int(zero.min())
    stem = f"{result}.round"
    rounded = ctx.emit_inner(
        node, (value.name,), x.shape, x.image, Map("round", (0,)), stem, wide, IntegerInterval.from_element(wide)
    )
    stem, found = f"{result}.bound", IntegerInterval(low, high)
    bounded = ctx.emit_inner(node, (rounded.name,), x.shape, x.image, Bound(low, high), stem, wide, found)
    shifted = f.add(bounded, f.constant(zero.astype(np.int16 if wide.bits == 16 else np.int32)))
    assert isinstance(shifted, Tensor)
    ends = Bound(element.low, element.high)
    ctx.emit(node, (shifted.name,), x.image, ends, result, element, IntegerInterval.from_element(element))
