"""QuantizeLinear and DequantizeLinear: the transitions between real numbers and integers."""

import numpy as np
from onnx import helper

from raptor.frontend.codes import Coded, Steps, quantised
from raptor.frontend.formulas import Formula, Value
from raptor.frontend.import_refusal import Refusal
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import Array, NodeView
from raptor.frontend.operator_sets import CONTRIBUTED
from raptor.frontend.ranges import Range
from raptor.frontend.read_quantiser import code_type, quantiser
from raptor.frontend.registry import importer
from raptor.frontend.views import Affine, Term, integers_as_they_are
from raptor.graph.ir import Bound, Map, Rename, Tensor
from raptor.target.element import integer

LIMITS = "constant scale and zero point; integers of 2, 4, 8 and 16 bits"


@importer("QuantizeLinear", since=10, limits=LIMITS)
def import_quantize(node: NodeView, ctx: ImportContext) -> None:
    """round(x / scale) + zero point, saturated to the integer type."""
    name = node.inputs[0]
    by = quantiser(node, ctx, ctx.shape_of(name))
    value = ctx.constant(name)
    if value is not None:
        ctx.set_constant(node.output, quantised(value, by).astype(by.code.numpy))
    else:
        quantise(node, ctx, name, by, node.output)


@importer("DequantizeLinear", since=10, limits=LIMITS)
def import_dequantize(node: NodeView, ctx: ImportContext) -> None:
    """(x - zero point) * scale."""
    code_type(node, helper.np_dtype_to_tensor_dtype(ctx.kind(node.inputs[0])))
    dequantise(node, ctx, node.inputs[0], quantiser(node, ctx, ctx.shape_of(node.inputs[0])), node.output)


importer("QuantizeLinear", since=1, limits=LIMITS, domain=CONTRIBUTED)(import_quantize)
importer("DequantizeLinear", since=1, limits=LIMITS, domain=CONTRIBUTED)(import_dequantize)


def dequantise(node: NodeView, ctx: ImportContext, name: str, by: Steps, result: str) -> None:
    """Makes `result` the view of an integer tensor, or a quantised constant.

    Raises `Refusal` if the input `name` is not an integer tensor.
    """
    value = ctx.constant(name)
    if value is not None:
        ctx.add_coded(result, coded(node, value, by))
        return
    tensor = ctx.tensor(name)
    if tensor.coding is None or tensor.coding.scale:
        raise Refusal(f"its input '{name}' is not of integers")
    offset = np.asarray(tensor.coding.offset - by.zero_point, np.int64)
    ctx.views[result] = Affine(node, tensor.shape, (Term(tensor, by.scale, offset),))


def coded(node: NodeView, value: Array, by: Steps) -> Coded:
    """Returns a quantised constant, its zero point subtracted."""
    bits = code_type(node, helper.np_dtype_to_tensor_dtype(value.dtype)).bits
    return Coded((value.astype(np.int64) - by.zero_point).astype(np.int32), by.scale, bits)


def quantise(node: NodeView, ctx: ImportContext, name: str, by: Steps, result: str) -> None:
    """Computes the integer tensor `result` from a view or a float tensor."""
    if name in ctx.views and ctx.views[name].quantise(node, ctx, by, result):
        return
    tensor = ctx.tensor(name)
    if tensor.coding is not None and tensor.coding.scale:
        # The host has quantised it.
        ctx.emit(node, (tensor.name,), tensor.image, Rename(), result)
    elif tensor.element.kind == "int":
        integers_as_they_are(node, tensor).quantise(node, ctx, by, result)
    else:
        _quantise_floats(node, ctx, tensor, by, result)


def _quantise_floats(node: NodeView, ctx: ImportContext, x: Tensor, by: Steps, result: str) -> None:
    """Emits clamp(round(x / scale) + zero point); bounds before the addition prevent an overflow."""
    f = Formula(node, ctx, x.shape, x.image)
    value: Value = f.apply("div", ctx.tensor(x.name), f.constant(np.asarray(by.scale, np.float32)))
    zero, element = by.zero_point - by.code.offset, by.code.element
    assert isinstance(value, Tensor)
    if not zero.any():
        ctx.emit(node, (value.name,), x.image, Map("round", (0,)), result, element, Range.of(element))
        return
    wide = integer(2 * max(element.bits, 8))
    low, high = element.low - int(zero.max()), element.high - int(zero.min())
    stem = f"{result}.round"
    rounded = ctx.inner(node, (value.name,), x.shape, x.image, Map("round", (0,)), stem, wide, Range.of(wide))
    stem, found = f"{result}.bound", Range(low, high)
    bounded = ctx.inner(node, (rounded.name,), x.shape, x.image, Bound(low, high), stem, wide, found)
    shifted = f.add(bounded, f.constant(zero.astype(np.int16 if wide.bits == 16 else np.int32)))
    assert isinstance(shifted, Tensor)
    ends = Bound(element.low, element.high)
    ctx.emit(node, (shifted.name,), x.image, ends, result, element, Range.of(element))
