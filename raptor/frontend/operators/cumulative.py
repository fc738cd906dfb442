"""Cumulative sums and products along an axis."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import ConstantTensor, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

MOST_SUMMED = 4096
"""Maximum number of elements that a product with a triangular matrix sums."""


@importer("CumSum", since=11, limits="a constant axis", counts=True)
def import_cum_sum(node: NodeView, ctx: ImportContext) -> None:
    """Cumulative sum: additions of elements 1, 2, 4, ... places apart; for integers a triangular matrix product."""
    build, x = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    outer, size, inner = _split(x, _axis(node, ctx, x))
    if ctx.integer_range(x) is None or size > MOST_SUMMED or not build.has_crossbars(x):
        _lower(node, ctx, "add", None, lambda count, low, high: IntegerInterval(count * low, count * high).with_zero())
        return
    # A weight of 0 times an infinite element would be NaN; integers are finite.
    matrix = np.triu(np.ones((size, size), np.float32), node.integer("exclusive", 0))
    if node.integer("reverse", 0):
        matrix = matrix[::-1, ::-1]
    build.finish(build.multiply_by_matrix(build.lay_out(x, Image((outer, size, inner), 1)), matrix))


@importer("CumProd", since=26, limits="a constant axis", counts=True)
def import_cum_prod(node: NodeView, ctx: ImportContext) -> None:
    """Cumulative product: multiplications of elements 1, 2, 4, ... places apart."""

    def reach(count: int, low: int, high: int) -> IntegerInterval:
        most = max(abs(low), abs(high)) ** max(count, 1)
        return IntegerInterval(-most, most)

    _lower(node, ctx, "mul", 1.0, reach)


def _lower(
    node: NodeView,
    ctx: ImportContext,
    function: Literal["add", "mul"],
    neutral: float | None,
    reach: Callable[[int, int, int], IntegerInterval],
) -> None:
    """Parallel prefix computation (Hillis and Steele, 1986); an infinite element only reaches later ones.

    neutral: neutral element; None for zero, with which moves fill. reach: (number of elements, lowest, highest element)
    -> range of integer results.
    """
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    outer, size, inner = _split(x, _axis(node, ctx, x))
    total = build.lay_out(x, Image((outer, size, inner), 2))
    exclusive, back = node.integer("exclusive", 0), bool(node.integer("reverse", 0))
    if exclusive:
        total = _later(build, total, 1, neutral, back=back)
    step = 1
    while step < size:
        total = build.map(function, total, _later(build, total, step, neutral, back=back))
        step *= 2
    build.finish(total)
    found = ctx.integer_range(x)
    if found is not None:
        ctx.declare_range(node.output, reach(size - exclusive, found.low, found.high))


def _axis(node: NodeView, ctx: ImportContext, x: Tensor) -> int:
    given, rank = read_constant_ints(node, ctx, 1) or (0,), len(x.shape)
    if len(given) != 1 or not -rank <= given[0] < rank:
        raise ImportRefusal(f"axis {list(given)} of {rank} dimensions")
    return given[0] % rank


def _split(x: Tensor, axis: int) -> tuple[int, int, int]:
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _later(build: OperatorBuilder, x: Tensor, step: int, neutral: float | None, *, back: bool) -> Tensor:
    """Shifts elements by `step` along the second dimension, forwards or `back`; fills with the neutral element."""
    outer, size, inner = x.image.shape
    step = min(step, size)
    first = np.full((outer, step, inner), -1 if neutral is None else x.image.elements)
    kept = c_order(x.image.shape)[:, step:] if back else c_order(x.image.shape)[:, : size - step]
    wanted = np.concatenate([kept, first] if back else [first, kept], axis=1)
    if neutral is None:
        return build.lay_out(build.rearrange(wanted, x), x.image)
    filling = build.add(ConstantTensor(np.full((1, 1, 1), neutral, np.float32)), Image((1,), 0))
    return build.lay_out(build.rearrange(wanted, x, filling), x.image)
