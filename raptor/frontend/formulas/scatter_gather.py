"""Scatter with constant indices, and gather with computed indices."""

import math
from dataclasses import replace

import numpy as np

from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder, number_elements
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.marked_rows import add_rows, find_row_ids, select_places, select_rows
from raptor.frontend.formulas.selection import nan_where_not
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import ConstantTensor, Indices, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

MOST_CHOICES = 1024
"""Maximum number of elements that a computed index selects from; the index is compared with each of them."""


def emit_scatter(node: NodeView, ctx: ImportContext, where: tuple[Array, ...]) -> None:
    """Emits a scatter of the node's updates into its first input: elements are replaced, or combined (`reduction`).

    where: index arrays into the first input, as for numpy. Raises `ImportRefusal` for an unknown reduction or one of
    integers.
    """
    build = OperatorBuilder(node, ctx)
    reduction = node.string("reduction", "none")
    x, updates = (build.operand(node.inputs[i]) for i in (0, 2))
    if reduction == "none":
        wanted, given = number_elements([x, updates])
        wanted[where] = given
        build.finish(build.rearrange(wanted, x, updates))
        return
    if reduction not in ("add", "mul", "max", "min") or x.element.kind == "int":
        raise ImportRefusal(f"reduction {reduction} of {x.element}")
    f = FormulaBuilder(node, ctx, x.shape, x.image)
    total: Value = x
    for places in _rounds(x, updates, where):
        total = _combined(build, f, reduction, total, (x, updates), places)
    f.finish(total)


def _rounds(x: Tensor, updates: Tensor, where: tuple[Array, ...]) -> list[Indices]:
    """Splits the updates into rounds in which each element is updated at most once.

    Each round: an array of the shape of x with the number of the update of each element, or -1.
    """
    target, number = c_order(x.shape), c_order(updates.shape)
    targets = np.broadcast_to(target[where], number.shape).reshape(-1)
    order = np.argsort(targets, kind="stable")
    first = np.searchsorted(targets[order], targets[order])
    turn = np.empty(len(targets), np.int64)
    turn[order] = np.arange(len(targets)) - first
    found = np.full((int(turn.max()) + 1, target.size), -1, np.int64)
    found[turn, targets] = np.arange(len(targets))
    return list(found.reshape(-1, *x.shape))


def _combined(
    build: OperatorBuilder,
    f: FormulaBuilder,
    reduction: str,
    total: Value,
    sources: tuple[Tensor, Tensor],
    places: Indices,
) -> Value:
    """Combines each element with its update of one round, or with the neutral element where there is none."""
    x, updates = sources
    if reduction == "add":
        return f.add(total, build.lay_out(build.rearrange(places, updates), f.image))
    if reduction == "mul":
        one = build.add(ConstantTensor(np.ones((1, 1, 1), np.float32)), Image((1,), 0))
        chosen = np.where(places < 0, updates.image.elements, places)
        return f.mul(total, build.lay_out(build.rearrange(chosen, updates, one), f.image))
    own = np.where(places < 0, c_order(x.shape) + updates.image.elements, places)
    others = build.lay_out(build.rearrange(own, updates, x), f.image)
    return f.max(total, others) if reduction == "max" else f.min(total, others)


def emit_gather_elements(node: NodeView, ctx: ImportContext, axis: int) -> None:
    """Emits GatherElements with computed indices."""
    x, ids = ctx.operand_shape(node.inputs[0]), ctx.tensor(node.inputs[1])
    alike = find_row_ids(OperatorBuilder(node, ctx), ids, x, axis)
    if alike is not None:
        emit_gather(node, ctx, alike, axis)
        return
    sources = c_order(x)[tuple(slice(n) if a != axis else slice(None) for a, n in enumerate(ids.shape))]
    rows = np.expand_dims(np.moveaxis(sources, axis, 0), axis + 1)
    _choose(node, ctx, np.broadcast_to(rows, (x[axis], *ids.shape)), c_order(ids.shape))


def emit_added_rows(node: NodeView, ctx: ImportContext, ids: Tensor, axis: int) -> None:
    """Emits the node's first input with the slices of the last one added where computed indices `ids` say."""
    build = OperatorBuilder(node, ctx)
    x, updates = (build.operand(node.inputs[i]) for i in (0, 2))
    count = math.prod(ids.shape)
    updates = replace(updates, shape=(*x.shape[:axis], count, *x.shape[axis + 1 :]))
    f = FormulaBuilder(node, ctx, x.shape, x.image)
    found = add_rows(build, x.shape[axis], ids, updates, axis)
    constant = ctx.constant(node.inputs[0])
    if constant is not None and not constant.any():
        build.finish(found)
    else:
        f.finish(f.add(x, f.broadcast(found)))


def emit_gather(node: NodeView, ctx: ImportContext, ids: Tensor, axis: int) -> None:
    """Emits the slices of the node's first input along an axis that computed indices `ids` select."""
    build = OperatorBuilder(node, ctx)
    x = build.operand(node.inputs[0])
    _finish_selection(build, x, select_rows(build, x, ids, axis))


def emit_gather_nd(node: NodeView, ctx: ImportContext, batch: int) -> None:
    """Emits the slices of the node's first input that tuples of computed indices select behind `batch` shared axes."""
    ids = ctx.tensor(node.inputs[1])
    if ids.shape[-1] == 1 and not batch:
        emit_gather(node, ctx, replace(ids, shape=ids.shape[:-1]), 0)
        return
    build = OperatorBuilder(node, ctx)
    x = build.operand(node.inputs[0])
    _finish_selection(build, x, select_places(build, x, ids, batch))


def _finish_selection(build: OperatorBuilder, x: Tensor, selected: Tensor) -> None:
    """Makes selected elements of x the result of the node, with the range of integers that x has."""
    build.finish(selected)
    whole = build.ctx.integer_range(x)
    if whole is not None:
        build.ctx.declare_range(build.node.output, whole)


def _choose(node: NodeView, ctx: ImportContext, rows: Indices, at: Indices) -> None:
    """Emits for each element of the result the candidate that its computed index selects.

    rows: numbers of the candidates, along the first dimension. at: number of the index of each element of the result.

    NOTE: an index out of range gives NaN, never another element.
    """
    build = OperatorBuilder(node, ctx)
    x, ids, size = build.operand(node.inputs[0]), ctx.tensor(node.inputs[1]), len(rows)
    if size > MOST_CHOICES:
        raise ImportRefusal(f"computed indices of {size} elements; at most {MOST_CHOICES}")
    if "int" in (x.element.kind, ids.element.kind):
        raise ImportRefusal("computed indices of what is computed, in a program of integers")
    reach = ctx.restrict_input(ids, IntegerInterval(-size, size - 1))
    # A line for each candidate, a pixel for each element of the result, so that cores can share the pixels. They are in
    # the order in which their indices are stored: each line copies these in one piece.
    stored = np.argsort(ids.image.to_pixels(c_order(ids.shape)).reshape(-1))
    order = np.argsort(stored[at.reshape(-1)], kind="stable")
    lines = 1, size, at.size
    f = FormulaBuilder(node, ctx, lines, Image(lines, 0))
    index = build.lay_out(build.rearrange(np.broadcast_to(at.reshape(-1)[order], lines), ids), f.image)
    numbers = np.arange(size, dtype=np.float32).reshape(size, 1)
    distance = f.sub(index, f.constant(numbers))
    if reach is None or reach.low < 0:
        # A negative index counts from the end: the product of both distances is 0 where either is.
        distance = f.mul(distance, f.sub(index, f.constant(numbers - size)))
    mark = f.relu(f.sub(1, f.mul(distance, distance)))
    wanted = f.apply("mask", build.lay_out(build.rearrange(rows.reshape(lines)[..., order], x), f.image), mark)
    found = _largest(build, wanted)
    if reach is None or ctx.has_assumed_range(ids) or reach.low < -size or reach.high >= size:
        marked = _largest(build, mark)
        found = _tensor(nan_where_not(FormulaBuilder(node, ctx, found.shape, found.image), found, marked))
    _finish_selection(build, x, build.rearrange(np.argsort(order).reshape(at.shape), found))


def _largest(build: OperatorBuilder, value: Value) -> Tensor:
    return reductions.emit_reduction(build, reductions.lay_out_reduction(build, _tensor(value), (1,)), "max")


def _tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor), "computed from a tensor"
    return value
