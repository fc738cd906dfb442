"""Reductions over any axes."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.formulas.reductions import ReductionLayout
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

AXES_LIMIT = "constant axes"
LARGEST_FLOAT = float(np.finfo(np.float32).max)


@importer("ReduceSum", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_sum(node: NodeView, ctx: ImportContext) -> None:
    """Sum over axes: a pool over pixels (thesis, 4.2), a product with ones over channels."""
    _lower(node, ctx, lambda build, seen: reductions.emit_reduction(build, seen, "sum"))


@importer("ReduceMean", since=1, limits=AXES_LIMIT)
def import_reduce_mean(node: NodeView, ctx: ImportContext) -> None:
    """Mean over axes: the sum times a constant."""
    _lower(node, ctx, lambda build, seen: reductions.emit_reduction(build, seen, "sum", 1 / seen.reduced_count))


@importer("ReduceMax", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_max(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over axes."""
    _lower(node, ctx, lambda build, seen: reductions.emit_reduction(build, seen, "max"))


@importer("ReduceMin", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_min(node: NodeView, ctx: ImportContext) -> None:
    """Minimum over axes: -max(-x)."""
    _lower(
        node,
        ctx,
        lambda build, seen: _negated(build, reductions.emit_reduction(build, _mapped(build, seen, _negated), "max")),
    )


@importer("ReduceL1", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_l1(node: NodeView, ctx: ImportContext) -> None:
    """Sum of |x| over axes."""
    _lower(
        node,
        ctx,
        lambda build, seen: reductions.emit_reduction(build, _mapped(build, seen, OperatorBuilder.absolute), "sum"),
    )


@importer("ReduceSumSquare", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_sum_square(node: NodeView, ctx: ImportContext) -> None:
    """Sum of x * x over axes."""
    _lower(node, ctx, lambda build, seen: reductions.emit_reduction(build, _mapped(build, seen, _squared), "sum"))


@importer("ReduceL2", since=1, limits=AXES_LIMIT)
def import_reduce_l2(node: NodeView, ctx: ImportContext) -> None:
    """sqrt(sum of x * x over axes)."""
    _lower(
        node,
        ctx,
        lambda build, seen: build.map("sqrt", reductions.emit_reduction(build, _mapped(build, seen, _squared), "sum")),
    )


@importer("ReduceLogSum", since=1, limits=AXES_LIMIT)
def import_reduce_log_sum(node: NodeView, ctx: ImportContext) -> None:
    """log(sum over axes)."""
    _lower(node, ctx, lambda build, seen: build.map("log", reductions.emit_reduction(build, seen, "sum")))


@importer("ReduceLogSumExp", since=1, limits=AXES_LIMIT)
def import_reduce_log_sum_exp(node: NodeView, ctx: ImportContext) -> None:
    """m + log(sum of exp(x - m) over axes), where m is the maximum, so that nothing overflows."""
    _lower(node, ctx, _log_sum_exp, grouped=False)


@importer("ReduceProd", since=1, limits=AXES_LIMIT, counts=True)
def import_reduce_prod(node: NodeView, ctx: ImportContext) -> None:
    """Product over axes, by repeatedly multiplying one half with the other."""
    _lower(node, ctx, _product, grouped=False)


def _lower(
    node: NodeView,
    ctx: ImportContext,
    reduction: Callable[[OperatorBuilder, ReductionLayout], Tensor],
    *,
    grouped: bool = True,
) -> None:
    """Lowers a reduction. `grouped`: as for `lay_out_reduction`."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    build.finish(
        reduction(build, reductions.lay_out_reduction(build, x, _axes(node, ctx, len(x.shape)), grouped=grouped))
    )


def _axes(node: NodeView, ctx: ImportContext, rank: int) -> tuple[int, ...]:
    """Returns the reduced axes; without any given, all of them, or none with `noop_with_empty_axes`."""
    given = read_constant_ints(node, ctx, 1, "axes")
    if not given:
        return () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not -rank <= a < rank for a in given):
        raise ImportRefusal(f"axes {list(given)} of {rank} dimensions")
    return tuple(a % rank for a in given)


def _mapped(
    build: OperatorBuilder, seen: ReductionLayout, function: Callable[[OperatorBuilder, Tensor], Tensor]
) -> ReductionLayout:
    return replace(seen, tensor=function(build, seen.tensor))


def _negated(build: OperatorBuilder, x: Tensor) -> Tensor:
    return build.map("sub", 0.0, x)


def _squared(build: OperatorBuilder, x: Tensor) -> Tensor:
    return build.map("mul", x, x)


def _log_sum_exp(build: OperatorBuilder, seen: ReductionLayout) -> Tensor:
    image = seen.image
    # inf - inf is NaN, so the maximum is clamped to finite numbers.
    above = build.map("max", reductions.emit_reduction(build, seen, "max"), -LARGEST_FLOAT)
    largest = build.map("mul", build.map("max", build.map("mul", above, -1.0), -LARGEST_FLOAT), -1.0)
    spread = reductions.broadcast_to_image(build, largest, image)
    raised = build.map("exp", build.map("sub", seen.tensor, spread))
    total = reductions.emit_reduction(build, ReductionLayout(raised, seen.reduced), "sum")
    return build.map("add", build.map("log", total), build.lay_out(largest, total.image))


def _product(build: OperatorBuilder, seen: ReductionLayout) -> Tensor:
    """Multiplies one half of the pixels by the other until one is left. Pixels are the factors of each channel."""
    shape, chosen = seen.image.shape, seen.reduced
    order = sorted(range(len(shape)), key=lambda d: not chosen[d])
    kept = math.prod(shape) // seen.reduced_count
    wanted = c_order(shape).transpose(order).reshape(seen.reduced_count, kept)
    x = build.lay_out(build.rearrange(wanted, seen.tensor), Image(wanted.shape, 1))
    single: list[Tensor] = []
    while x.image.pixels > 1:
        half, odd = divmod(x.image.pixels, 2)
        if odd:
            single.append(_rows(build, x, 2 * half, 1))
        x = build.map("mul", _rows(build, x, 0, half), _rows(build, x, half, half))
    return functools.reduce(functools.partial(build.map, "mul"), single, x)


def _rows(build: OperatorBuilder, x: Tensor, first: int, count: int) -> Tensor:
    rows = c_order(x.image.shape)[first : first + count]
    return build.lay_out(build.rearrange(rows, x), Image(rows.shape, 1))
