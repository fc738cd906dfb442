"""Casts between floats, integers and truth values. All floats are float32 on the chip."""

from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
from onnx import TensorProto

from raptor.frontend.formulas import boolean_formulas, step_functions
from raptor.frontend.formulas.formula import FormulaBuilder
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import view_as_integers
from raptor.frontend.operators.reshape import emit_rename
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.float32_integers import find_type_limits, is_small_float, is_within
from raptor.graph.ir import Constant, Tensor

_LEAST_BYTE = 127
_SMALL = find_type_limits(np.dtype(np.int16))
_WIDE_BYTES = 4
"""Bytes of the smallest integer types that float32 does not hold completely."""


@importer(
    "Cast",
    since=1,
    counts=True,
    limits="what was a float and is an integer of 32 or 64 bits has no bound for arithmetic",
)
def import_cast(node: NodeView, ctx: ImportContext) -> None:
    """Conversion to another type: integers wrap around, floats are rounded towards 0."""
    constant = ctx.constant(node.inputs[0])
    if constant is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            ctx.set_constant(node.output, constant.astype(ctx.numpy_dtype(node.output)))
        return
    x = ctx.tensor(node.inputs[0])
    if x.element.kind == "int":
        if node.integer("to", TensorProto.FLOAT) != TensorProto.FLOAT:
            raise ImportRefusal("integers of a quantised model to other types than float32")
        ctx.views[node.output] = view_as_integers(node, x)
    elif ctx.numpy_dtype(node.output) == np.bool_:
        _lower_truth(node, ctx)
    elif ctx.is_integer_type(node.output):
        _lower_integers(node, ctx)
    elif ctx.numpy_dtype(node.output).name == "float8_e8m0fnu":
        raise ImportRefusal("floats to float8e8m0, which are rounded up")
    elif is_small_float(ctx.numpy_dtype(node.output)) and node.integer("saturate", 1):
        _lower_saturated(node, ctx)
    else:
        emit_rename(node, ctx)


@importer("CastLike", since=15, counts=True)
def import_cast_like(node: NodeView, ctx: ImportContext) -> None:
    """Conversion to the type of another tensor."""
    import_cast(node, ctx)


def _lower_truth(node: NodeView, ctx: ImportContext) -> None:
    if ctx.numpy_dtype(node.inputs[0]) == np.bool_:
        emit_rename(node, ctx)
        return
    f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    f.finish(boolean_formulas.is_nonzero(f, f.operand(node.inputs[0])))


def _lower_integers(node: NodeView, ctx: ImportContext) -> None:
    kind = ctx.numpy_dtype(node.output)
    f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    x = f.operand(node.inputs[0])
    known = None if isinstance(x, Constant) else ctx.integer_range(x)
    if ctx.is_integer_type(node.inputs[0]) or (known is not None and is_within(known, find_type_limits(kind))):
        f.finish(x)
        return
    if find_type_limits(kind).high < _LEAST_BYTE:
        # Values that do not fit a type of less than 8 bits lose their high bits.
        bounded = step_functions.truncate(f, f.min(f.max(x, _SMALL.low), _SMALL.high))
        assert isinstance(bounded, Tensor)
        ctx.declare_range(bounded.name, _SMALL)
        f.finish(bounded)
        return
    f.finish(step_functions.truncate(f, x))
    # For a number that the type does not hold, ONNX defines no result.
    if kind.itemsize < _WIDE_BYTES:
        ctx.declare_range(node.output, find_type_limits(kind))
    else:
        ctx.declare_unbounded(node.output)


def _lower_saturated(node: NodeView, ctx: ImportContext) -> None:
    """Clamps floats to the range of a narrow output type, to which the host rounds them."""
    finfo = cast(Callable[[Any], Any], ml_dtypes.finfo)
    most = float(finfo(ctx.numpy_dtype(node.output)).max)
    f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    f.finish(f.min(f.max(f.operand(node.inputs[0]), -most), most))
