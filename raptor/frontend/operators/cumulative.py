"""Sums and products of all elements up to each one, along an axis."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from raptor.frontend.building import Builder, constant_ints
from raptor.frontend.importing import ImportContext
from raptor.frontend.moves import c_order
from raptor.frontend.nodes import NodeView
from raptor.frontend.ranges import Range
from raptor.frontend.registry import Refusal, importer
from raptor.graph.ir import ConstantTensor, Tensor
from raptor.target.layout import Image


@importer("CumSum", since=11, limits="a constant axis", counts=True)
def import_cum_sum(node: NodeView, ctx: ImportContext) -> None:
    """Sum of all elements up to each one, by sums with elements 1, 2, 4, ... places before."""
    _lower(node, ctx, "add", None, lambda count, low, high: Range(count * low, count * high).or_zero())


@importer("CumProd", since=26, limits="a constant axis", counts=True)
def import_cum_prod(node: NodeView, ctx: ImportContext) -> None:
    """Product of all elements up to each one, by products with elements 1, 2, 4, ... places before."""

    def reach(count: int, low: int, high: int) -> Range:
        most = max(abs(low), abs(high)) ** max(count, 1)
        return Range(-most, most)

    _lower(node, ctx, "mul", 1.0, reach)


def _lower(
    node: NodeView,
    ctx: ImportContext,
    function: Literal["add", "mul"],
    neutral: float | None,
    reach: Callable[[int, int, int], Range],
) -> None:
    """Combines in parallel (Hillis and Steele, 1986): an infinite element reaches those behind it only.

    neutral: the number that changes nothing; None for zero, which moves fill in.
    reach: the range of whole results, of how many elements within which bounds.
    """
    build = Builder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    outer, size, inner = _split(x, _axis(node, ctx, x))
    order = c_order((outer, size, inner)).transpose(1, 0, 2)
    if node.integer("reverse", 0):
        order = order[::-1]
    rows = build.laid(build.arranged(order.reshape(size, -1), x), Image((size, outer * inner), 1))
    exclusive = node.integer("exclusive", 0)
    if exclusive:
        rows = _later(build, rows, 1, neutral)
    step = 1
    while step < size:
        rows = build.map(function, rows, _later(build, rows, step, neutral))
        step *= 2
    build.finish(build.arranged(np.argsort(order.reshape(-1)).reshape(x.shape), rows))
    found = ctx.whole(x)
    if found is not None:
        ctx.declare_whole(node.output, reach(size - exclusive, found.low, found.high))


def _axis(node: NodeView, ctx: ImportContext, x: Tensor) -> int:
    given, rank = constant_ints(node, ctx, 1) or (0,), len(x.shape)
    if len(given) != 1 or not -rank <= given[0] < rank:
        raise Refusal(f"axis {list(given)} of {rank} dimensions")
    return given[0] % rank


def _split(x: Tensor, axis: int) -> tuple[int, int, int]:
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _later(build: Builder, rows: Tensor, step: int, neutral: float | None) -> Tensor:
    """Moves all rows `step` rows on; the first ones become the neutral number."""
    count, width = rows.image.shape
    step = min(step, count)
    first = np.full((step, width), -1 if neutral is None else rows.image.elements)
    wanted = np.concatenate([first, c_order((count, width))[: count - step]])
    if neutral is None:
        return build.laid(build.arranged(wanted, rows), rows.image)
    one = build.add(ConstantTensor(np.full((1, 1, 1), neutral, np.float32)), Image((1,), 0))
    return build.laid(build.arranged(wanted, rows, one), rows.image)
