"""Sums and products of all elements up to each one, along an axis."""

import math

import numpy as np

from raptor.frontend.building import Builder, constant_ints
from raptor.frontend.importing import ImportContext
from raptor.frontend.moves import c_order
from raptor.frontend.nodes import NodeView
from raptor.frontend.ranges import Range
from raptor.frontend.registry import Refusal, importer
from raptor.graph.ir import ConstantTensor, Tensor
from raptor.target.layout import Image

MOST_SUMMED = 4096
"""Most elements of a cumulative sum, which is a product with a triangular matrix."""


@importer("CumSum", since=11, limits=f"a constant axis of at most {MOST_SUMMED} elements", counts=True)
def import_cum_sum(node: NodeView, ctx: ImportContext) -> None:
    """Sum of all elements up to each one: a product with a triangular matrix of ones."""
    build = Builder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    outer, size, inner = _split(x, _axis(node, ctx, x))
    if size > MOST_SUMMED:
        raise Refusal(f"its axis has {size} elements, at most {MOST_SUMMED} are summed")
    matrix = np.triu(np.ones((size, size), np.float32), node.integer("exclusive", 0))
    if node.integer("reverse", 0):
        matrix = matrix[::-1, ::-1]
    build.finish(build.matrix(build.laid(x, Image((outer, size, inner), 1)), matrix))


@importer("CumProd", since=26, limits="a constant axis", counts=True)
def import_cum_prod(node: NodeView, ctx: ImportContext) -> None:
    """Product of all elements up to each one, by products with elements 1, 2, 4, ... places before."""
    build = Builder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    outer, size, inner = _split(x, _axis(node, ctx, x))
    order = c_order((outer, size, inner)).transpose(1, 0, 2)
    if node.integer("reverse", 0):
        order = order[::-1]
    rows = build.laid(build.arranged(order.reshape(size, -1), x), Image((size, outer * inner), 1))
    exclusive = node.integer("exclusive", 0)
    if exclusive:
        rows = _later(build, rows, 1)
    step = 1
    while step < size:
        rows = build.map("mul", rows, _later(build, rows, step))
        step *= 2
    build.finish(build.arranged(np.argsort(order.reshape(-1)).reshape(x.shape), rows))
    found = ctx.whole(x)
    if found is not None:
        most = max(abs(found.low), abs(found.high)) ** max(size - exclusive, 1)
        ctx.declare_whole(node.output, Range(-most, most))


def _axis(node: NodeView, ctx: ImportContext, x: Tensor) -> int:
    given, rank = constant_ints(node, ctx, 1) or (0,), len(x.shape)
    if len(given) != 1 or not -rank <= given[0] < rank:
        raise Refusal(f"axis {list(given)} of {rank} dimensions")
    return given[0] % rank


def _split(x: Tensor, axis: int) -> tuple[int, int, int]:
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _later(build: Builder, rows: Tensor, step: int) -> Tensor:
    """Moves all rows `step` rows on; the first ones become 1."""
    count, width = rows.image.shape
    one = build.add(ConstantTensor(np.ones((1, 1, 1), np.float32)), Image((1,), 0))
    step = min(step, count)
    ones = np.full((step, width), rows.image.elements)
    moved = build.arranged(np.concatenate([ones, c_order((count, width))[: count - step]]), rows, one)
    return build.laid(moved, rows.image)
