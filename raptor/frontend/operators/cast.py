"""Casts between floats, integers and truth values. All floats are float32 on the chip."""

from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
from onnx import TensorProto

from raptor.frontend import steps, truth
from raptor.frontend.formulas import Formula
from raptor.frontend.import_refusal import Refusal
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.shape import lower_rename
from raptor.frontend.registry import importer
from raptor.frontend.views import integers_as_they_are
from raptor.frontend.whole import is_small_float, limits_of
from raptor.graph.ir import Tensor

_LEAST_BYTE = 127
_SMALL = limits_of(np.dtype(np.int16))
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
            ctx.set_constant(node.output, constant.astype(ctx.kind(node.output)))
        return
    x = ctx.tensor(node.inputs[0])
    if x.element.kind == "int":
        if node.integer("to", TensorProto.FLOAT) != TensorProto.FLOAT:
            raise Refusal("integers of a quantised model to other types than float32")
        ctx.views[node.output] = integers_as_they_are(node, x)
    elif ctx.kind(node.output) == np.bool_:
        _lower_truth(node, ctx)
    elif ctx.is_whole(node.output):
        _lower_integers(node, ctx)
    elif ctx.kind(node.output).name == "float8_e8m0fnu":
        raise Refusal("floats to float8e8m0, which are rounded up")
    elif is_small_float(ctx.kind(node.output)) and node.integer("saturate", 1):
        _lower_saturated(node, ctx)
    else:
        lower_rename(node, ctx)


@importer("CastLike", since=15, counts=True)
def import_cast_like(node: NodeView, ctx: ImportContext) -> None:
    """Conversion to the type of another tensor."""
    import_cast(node, ctx)


def _lower_truth(node: NodeView, ctx: ImportContext) -> None:
    if ctx.kind(node.inputs[0]) == np.bool_:
        lower_rename(node, ctx)
        return
    f = Formula.of(node, ctx, node.inputs[:1])
    f.finish(truth.is_nonzero(f, f.operand(node.inputs[0])))


def _lower_integers(node: NodeView, ctx: ImportContext) -> None:
    kind = ctx.kind(node.output)
    f = Formula.of(node, ctx, node.inputs[:1])
    x = f.operand(node.inputs[0])
    if ctx.is_whole(node.inputs[0]):
        f.finish(x)
        return
    if limits_of(kind).high < _LEAST_BYTE:
        # Values that do not fit a type of less than 8 bits lose their high bits.
        bounded = steps.truncate(f, f.min(f.max(x, _SMALL.low), _SMALL.high))
        assert isinstance(bounded, Tensor)
        ctx.declare_whole(bounded.name, _SMALL)
        f.finish(bounded)
        return
    f.finish(steps.truncate(f, x))
    # For a number that the type does not hold, ONNX defines no result.
    if kind.itemsize < _WIDE_BYTES:
        ctx.declare_whole(node.output, limits_of(kind))
    else:
        ctx.declare_unbounded(node.output)


def _lower_saturated(node: NodeView, ctx: ImportContext) -> None:
    """Clamps floats to the range of a narrow output type, to which the host rounds them."""
    finfo = cast(Callable[[Any], Any], ml_dtypes.finfo)
    most = float(finfo(ctx.kind(node.output)).max)
    f = Formula.of(node, ctx, node.inputs[:1])
    f.finish(f.min(f.max(f.operand(node.inputs[0]), -most), most))
