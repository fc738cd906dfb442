"""Operators that only rearrange elements; each is applied to an array of element numbers instead of values."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import Shape
from raptor.frontend.formulas import selection
from raptor.frontend.formulas.builder import OperatorBuilder, number_elements, read_axis, read_constant_ints
from raptor.frontend.formulas.computed_scatter import (
    emit_computed_scatter,
    find_cache_updates,
    find_element_updates,
    find_slice_updates,
)
from raptor.frontend.formulas.embedding_lookup import emit_lookup, read_table
from raptor.frontend.formulas.formula import FormulaBuilder
from raptor.frontend.formulas.marked_rows import find_row_ids
from raptor.frontend.formulas.scatter_gather import (
    emit_added_rows,
    emit_gather,
    emit_gather_elements,
    emit_gather_nd,
    emit_scatter,
)
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Indices
from raptor.graph.rearrangement import c_order


@importer("Transpose", since=1)
def import_transpose(node: NodeView, ctx: ImportContext) -> None:
    """Permutation of dimensions; free if the pixels keep their order."""
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    _arrange(node, ctx, wanted.transpose(node.ints("perm") or None))


@importer("Slice", since=1)
def import_slice(node: NodeView, ctx: ImportContext) -> None:
    """Range along some dimensions, given by attributes."""
    _lower_slice(node, ctx, node.ints("starts"), node.ints("ends"), node.ints("axes"), ())


@importer("Slice", since=10, limits="constant ranges")
def import_slice_of_inputs(node: NodeView, ctx: ImportContext) -> None:
    """Range along some dimensions, with positive or negative steps, given by inputs."""
    _lower_slice(node, ctx, *(read_constant_ints(node, ctx, i) or () for i in range(1, 5)))


@importer("Split", since=2, limits="constant sizes", all_outputs=True)
def import_split(node: NodeView, ctx: ImportContext) -> None:
    """Consecutive ranges of one dimension; free if they are whole tiles of channels."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    wanted = c_order(x.shape)
    axis = read_axis(node, len(x.shape), 0)
    for output, (start, stop) in zip(node.outputs, _ranges(node, ctx, x.shape[axis]), strict=True):
        if output in ctx.read_names:
            build.finish(build.rearrange(wanted.take(range(start, stop), axis=axis), x), output)


@importer("Expand", since=8, limits="a constant shape")
def import_expand(node: NodeView, ctx: ImportContext) -> None:
    """Broadcast along dimensions of size 1."""
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    _arrange(node, ctx, np.broadcast_to(wanted, ctx.shape(node.output)))


@importer("Tile", since=6, limits="constant repeats")
def import_tile(node: NodeView, ctx: ImportContext) -> None:
    """Repetition along every dimension."""
    repeats = read_constant_ints(node, ctx, 1) or ()
    _arrange(node, ctx, np.tile(c_order(ctx.tensor(node.inputs[0]).shape), repeats))


@importer("Gather", since=1, limits="both computed: rows x indices at most 2^22")
def import_gather(node: NodeView, ctx: ImportContext) -> None:
    """Slices along one dimension selected by indices; computed indices select rows of a constant table at run time."""
    if not ctx.is_constant(node.inputs[0]) and not ctx.is_constant(node.inputs[1]):
        emit_gather(node, ctx, ctx.tensor(node.inputs[1]), read_axis(node, len(ctx.operand_shape(node.inputs[0])), 0))
        return
    if ctx.is_constant(node.inputs[0]) and not ctx.is_constant(node.inputs[1]):
        table, ids = read_table(node, ctx), ctx.tensor(node.inputs[1])
        build = OperatorBuilder(node, ctx)
        build.finish(emit_lookup(build, table, ids, read_axis(node, table.ndim, 0)))
        return
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    axis = read_axis(node, wanted.ndim, 0)
    _arrange(node, ctx, wanted.take(_indices(node, ctx, 1, wanted.shape[axis]), axis=axis))


@importer("GatherElements", since=11, limits="computed indices: along an axis of at most 1024 elements")
def import_gather_elements(node: NodeView, ctx: ImportContext) -> None:
    """Elements selected by indices along one dimension; with computed indices, the maximum after masking all others."""
    axis = read_axis(node, len(ctx.operand_shape(node.inputs[0])), 0)
    if ctx.constant(node.inputs[1]) is None:
        emit_gather_elements(node, ctx, axis)
        return
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    at = _along(_indices(node, ctx, 1, wanted.shape[axis]), axis)
    _arrange(node, ctx, wanted[at])


@importer("GatherND", since=11)
def import_gather_nd(node: NodeView, ctx: ImportContext) -> None:
    """Slices selected by tuples of indices."""
    if not ctx.is_constant(node.inputs[1]):
        emit_gather_nd(node, ctx, node.integer("batch_dims", 0))
        return
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    given = _constant(node, ctx, 1)
    batch = node.integer("batch_dims", 0)
    outer = [_range_along(d, n, given.ndim - 1) for d, n in enumerate(given.shape[:batch])]
    _arrange(node, ctx, wanted[(*outer, *np.moveaxis(given, -1, 0))])


@importer("ScatterND", since=11, limits="computed indices: at most 64 slices, or added ones of one dimension")
def import_scatter_nd(node: NodeView, ctx: ImportContext) -> None:
    """The input with slices replaced by updates, or combined with them."""
    if not ctx.is_constant(node.inputs[1]):
        x, ids = ctx.operand_shape(node.inputs[0]), ctx.tensor(node.inputs[1])
        if node.string("reduction", "none") == "add" and ids.shape[-1] == 1:
            emit_added_rows(node, ctx, ids, 0)
            return
        sizes = x[: ids.shape[-1]]
        limits = IntegerInterval(-max(sizes), max(sizes) - 1)
        emit_computed_scatter(node, ctx, ids, find_slice_updates(x, ids.shape), limits)
        return
    given = _constant(node, ctx, 1)
    emit_scatter(node, ctx, tuple(np.moveaxis(given, -1, 0)))


@importer("Scatter", since=9, limits="as ScatterElements")
def import_scatter(node: NodeView, ctx: ImportContext) -> None:
    """ScatterElements under its former name."""
    import_scatter_elements(node, ctx)


@importer(
    "ScatterElements",
    since=11,
    counts=True,
    limits="computed indices: at most 64 along the axis, unless slices are added",
)
def import_scatter_elements(node: NodeView, ctx: ImportContext) -> None:
    """The input with elements replaced by updates, or combined with them."""
    shape = ctx.operand_shape(node.inputs[0])
    axis = read_axis(node, len(shape), 0)
    if not ctx.is_constant(node.inputs[1]):
        rows = find_row_ids(OperatorBuilder(node, ctx), ctx.tensor(node.inputs[1]), shape, axis)
        if node.string("reduction", "none") == "add" and rows is not None:
            emit_added_rows(node, ctx, rows, axis)
            return
        ids, limits = ctx.tensor(node.inputs[1]), IntegerInterval(-shape[axis], shape[axis] - 1)
        emit_computed_scatter(node, ctx, ids, find_element_updates(shape, ids.shape, axis), limits)
        return
    emit_scatter(node, ctx, _along(_indices(node, ctx, 1, shape[axis]), axis))


@importer("TensorScatter", since=24, limits="computed places: at most 64 new elements of a sequence")
def import_tensor_scatter(node: NodeView, ctx: ImportContext) -> None:
    """A cache with new elements written from a position on, wrapping around its end if circular."""
    places = node.input(2)
    if places and not ctx.is_constant(places):
        shape = ctx.operand_shape(node.inputs[0])
        axis = read_axis(node, len(shape), -2)
        count, circular = ctx.operand_shape(node.inputs[1])[axis], node.string("mode", "linear") == "circular"
        updates = find_cache_updates(shape, count, axis, circular=circular)
        limits = IntegerInterval(0, shape[axis] - (1 if circular else count))
        emit_computed_scatter(node, ctx, ctx.tensor(places), updates, limits)
        return
    build = OperatorBuilder(node, ctx)
    sources = [build.operand(i) for i in node.inputs[:2]]
    wanted, updates = number_elements(sources)
    axis = read_axis(node, wanted.ndim, -2)
    first = read_constant_ints(node, ctx, 2) or (0,) * len(wanted)
    size, count = wanted.shape[axis], updates.shape[axis]
    if node.string("mode", "linear") == "linear" and max(first) + count > size:
        raise ImportRefusal(f"{count} elements from {max(first)} on, into a cache of {size}")
    for batch, start in enumerate(first):
        places = c_order((count,), start) % size
        np.moveaxis(wanted[batch], axis - 1, 0)[places] = np.moveaxis(updates[batch], axis - 1, 0)
    build.finish(build.rearrange(wanted, *sources))


@importer("MaxUnpool", since=9, limits="constant indices")
def import_max_unpool(node: NodeView, ctx: ImportContext) -> None:
    """Inverse of MaxPool: elements at the positions that they were taken from, 0 elsewhere."""
    given = np.asarray(_constant(node, ctx, 1), np.int64)
    small = node.ints("kernel_shape")
    strides, pads = node.ints("strides", (1,) * len(small)), node.ints("pads", (0,) * 2 * len(small))
    sizes = zip(given.shape[2:], strides, pads[: len(small)], pads[len(small) :], small, strict=True)
    own = [(n - 1) * s - before - behind + k for n, s, before, behind, k in sizes]
    shape = ctx.shape(node.output)
    wanted = np.full(math.prod(shape), -1, np.int64)
    places = np.stack(np.unravel_index(given.reshape(-1), (*given.shape[:2], *own)))
    if (places >= np.array(shape)[:, None]).any():
        raise ImportRefusal("an index lies outside of its result")
    wanted[np.ravel_multi_index(tuple(places), shape)] = np.arange(given.size)
    _arrange(node, ctx, wanted.reshape(shape))


@importer("DepthToSpace", since=1)
def import_depth_to_space(node: NodeView, ctx: ImportContext) -> None:
    """Channels rearranged to blocks of pixels."""
    x = ctx.tensor(node.inputs[0])
    n, c, h, w = _rank_4(x.shape)
    b = node.integer("blocksize", 1)
    if node.string("mode", "DCR") == "DCR":
        wanted = c_order((n, b, b, c // (b * b), h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        wanted = c_order((n, c // (b * b), b, b, h, w)).transpose(0, 1, 4, 2, 5, 3)
    _arrange(node, ctx, wanted.reshape(n, c // (b * b), h * b, w * b), is_image=True)


@importer("SpaceToDepth", since=1)
def import_space_to_depth(node: NodeView, ctx: ImportContext) -> None:
    """Blocks of pixels rearranged to channels."""
    x = ctx.tensor(node.inputs[0])
    n, c, h, w = _rank_4(x.shape)
    b = node.integer("blocksize", 1)
    blocks = c_order((n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if node.string("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    _arrange(node, ctx, blocks.transpose(order).reshape(n, c * b * b, h // b, w // b), is_image=True)


@importer("ReverseSequence", since=10, limits="constant lengths")
def import_reverse_sequence(node: NodeView, ctx: ImportContext) -> None:
    """Sequences with their first elements, up to the given length, in reverse order."""
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    axes = (node.integer("batch_axis", 1), node.integer("time_axis", 0))
    by_batch = np.moveaxis(wanted, axes, (0, 1)).copy()
    for sequence, length in zip(by_batch, read_constant_ints(node, ctx, 1) or (), strict=True):
        sequence[:length] = sequence[:length][::-1].copy()
    _arrange(node, ctx, np.moveaxis(by_batch, (0, 1), axes))


@importer(
    "Where", since=9, counts=True, limits="published instructions pass on what is not a number (NaN) of either operand"
)
def import_where(node: NodeView, ctx: ImportContext) -> None:
    """Element-wise selection between two tensors; with a constant condition, elements are only moved."""
    condition = ctx.constant(node.inputs[0])
    if condition is None or any(_has_nan(ctx.constant(i)) for i in node.inputs[1:3]):
        f = FormulaBuilder.for_node(node, ctx, node.inputs)
        f.finish(selection.select_where_or_nan(f, *(f.operand(i) for i in node.inputs)))
        return
    build = OperatorBuilder(node, ctx)
    sources = [build.operand(i) for i in node.inputs[1:3]]
    build.finish(build.rearrange(np.where(condition, *number_elements(sources)), *sources))


@importer("Trilu", since=14, counts=True, limits="a constant diagonal")
def import_trilu(node: NodeView, ctx: ImportContext) -> None:
    """Upper or lower triangle of matrices, 0 elsewhere."""
    wanted = c_order(ctx.tensor(node.inputs[0]).shape) + 1
    (diagonal,) = read_constant_ints(node, ctx, 1) or (0,)
    triangle = np.triu if node.integer("upper", 1) else np.tril
    _arrange(node, ctx, triangle(wanted, diagonal) - 1)


def _arrange(node: NodeView, ctx: ImportContext, wanted: npt.NDArray[np.integer], *, is_image: bool = False) -> None:
    build = OperatorBuilder(node, ctx)
    build.finish(build.rearrange(wanted, ctx.tensor(node.inputs[0]), is_image=is_image))


def _lower_slice(
    node: NodeView,
    ctx: ImportContext,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> None:
    wanted = c_order(ctx.tensor(node.inputs[0]).shape)
    chosen = [slice(None)] * wanted.ndim
    steps = steps or [1] * len(starts)
    for axis, start, end, step in zip(axes or range(len(starts)), starts, ends, steps, strict=True):
        chosen[axis] = _numpy_slice(start, end, step, wanted.shape[axis])
    _arrange(node, ctx, wanted[tuple(chosen)])


def _numpy_slice(start: int, end: int, step: int, size: int) -> slice:
    """Converts an ONNX slice to numpy.

    With a negative step, ONNX includes the first element for an end before it; numpy would count from the last.
    """
    return slice(start, None if step < 0 and end < -size else end, step)


def _ranges(node: NodeView, ctx: ImportContext, size: int) -> list[tuple[int, int]]:
    sizes = read_constant_ints(node, ctx, 1, "split")
    if sizes is None:
        part = -(-size // len(node.outputs))
        sizes = (part,) * len(node.outputs)
    starts = [0, *np.cumsum(sizes).tolist()]
    return [(min(a, size), min(b, size)) for a, b in pairwise(starts)]


def _constant(node: NodeView, ctx: ImportContext, position: int) -> Array:
    value = ctx.constant(node.inputs[position])
    if value is None:
        raise NeedsConstantError(node.inputs[position])
    return value


def _has_nan(values: Array | None) -> bool:
    return values is not None and values.dtype.kind == "f" and bool(np.isnan(values).any())


def _indices(node: NodeView, ctx: ImportContext, position: int, size: int) -> Indices:
    """Returns constant indices, negative ones counted from the end.

    Raises `ImportRefusal` for an index out of range.
    """
    given = np.asarray(_constant(node, ctx, position), np.int64)
    if given.size and not (-size <= given.min() and given.max() < size):
        raise ImportRefusal(f"indices from {given.min()} to {given.max()} of {size}")
    return np.where(given < 0, given + size, given)


def _along(given: Indices, axis: int) -> tuple[Indices, ...]:
    """Returns index arrays that replace the position along `axis` by `given` and keep the other positions."""
    places = [_range_along(d, n, given.ndim) for d, n in enumerate(given.shape)]
    return (*places[:axis], given, *places[axis + 1 :])


def _range_along(dimension: int, size: int, rank: int) -> Indices:
    return np.arange(size).reshape(*(1,) * dimension, size, *(1,) * (rank - dimension - 1))


def _rank_4(shape: Shape) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ImportRefusal(f"its input has {len(shape)} dimensions, not 4")
    n, c, h, w = shape
    return n, c, h, w
