"""Rows that computed indices select or add up, by marks: 1 where the index of a row is a number, else 0.

A mark is computed once for all elements of a row, by several instructions. A row that is selected is the maximum of all
rows, where those without the mark are -infinity, and so exact. Rows are added up by a product with the marks, as an
attention multiplies its shares with values.

Infinite elements are brought to 2^127 before that product, as 0 times infinity is NaN, and made infinite behind it.
NOTE: so are finite elements of 2^127 or more. The sum of both infinities is no NaN. NaN in an element of one row
reaches that element of all rows.
"""

import math
from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import Shape
from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.contraction import Contraction, TensorFactor
from raptor.frontend.formulas.embedding_lookup import count_from_start
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.selection import HUGE, is_finite, nan_where_not
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Indices, Map, Numbers, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

MOST_MARKS = 2**22
"""Maximum number of marks of one node: of its indices times the rows of its tensor."""
MOST_COPIES = 2**26
"""Maximum number of elements of all rows, once for each index."""


def select_rows(build: OperatorBuilder, x: Tensor, ids: Tensor, axis: int) -> Tensor:
    """Emits the slices of x along an axis that computed indices of any shape select, as ONNX's Gather does.

    Each index is a pixel. Its channels are all elements of x, slice after slice: those that are not marked become
    -infinity, and the maximum over the slices is the one that is wanted. An index that may be out of range gives NaN,
    never another slice. Raises `ImportRefusal` for integers.
    """
    size, count = x.shape[axis], math.prod(ids.shape)
    _check_marks(x, ids, size)
    reach = build.ctx.restrict_input(ids, IntegerInterval(-size, size - 1))
    _check_copies(x, count)
    f = FormulaBuilder(build.node, build.ctx, (count, size), Image((count, size), 1))
    index = f.broadcast(replace(count_from_start(build, ids, size, reach), shape=(count, 1)))
    marks = _marks(f, index, np.arange(size, dtype=np.float32)[None])
    slices = np.moveaxis(c_order(x.shape), axis, 0)
    found = _select_marked(build, x, slices.reshape(size, -1), marks, _is_within(build, ids, reach, size))
    wanted = np.moveaxis(c_order((count, *slices.shape[1:])), 0, axis)
    return build.rearrange(wanted.reshape(*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), found)


def select_places(build: OperatorBuilder, x: Tensor, ids: Tensor, batch: int) -> Tensor:
    """Emits the slices of x that computed indices [..., K] select by their first K axes, as ONNX's GatherND does.

    batch: number of axes that x and the indices share, before those K. A place of x is marked where all its indices
    are equal, so that an index out of range gives NaN. Raises `ImportRefusal` for integers.
    """
    depth, count = batch + ids.shape[-1], math.prod(ids.shape[:-1])
    sizes, shared = x.shape[:depth], math.prod(ids.shape[:batch])
    places, indexed = math.prod(sizes), sizes[batch:]
    _check_marks(x, ids, places)
    reach = build.ctx.restrict_input(ids, IntegerInterval(-max(indexed), max(indexed) - 1))
    _check_copies(x, count)
    f = _columns(build, count, places)
    of_place, numbers = np.indices(sizes).reshape(depth, 1, -1), c_order(ids.shape).reshape(count, -1)
    batches = np.repeat(c_order((shared,)), count // shared)[:, None]
    missing: Value = f.constant((batches != np.arange(places) // math.prod(indexed)).astype(np.float32))
    for k, size in enumerate(indexed):
        index = count_from_start(build, build.rearrange(numbers[:, k], ids), size, reach)
        place = f.constant(of_place[batch + k].astype(np.float32))
        distance = f.sub(f.broadcast(replace(index, shape=(count, 1))), place)
        missing = f.add(f.mul(distance, distance), missing)
    marks = _tensor(f.relu(f.sub(1, missing)))
    sure = all(_is_within(build, ids, reach, size) for size in indexed)
    found = _select_marked(build, x, c_order(x.shape).reshape(places, -1), marks, sure)
    wanted = c_order((count, math.prod(x.shape[depth:])))
    return build.rearrange(wanted.reshape(*ids.shape[:-1], *x.shape[depth:]), found)


def _check_copies(x: Tensor, count: int) -> None:
    """Raises `ImportRefusal` if a copy of all of x for each of `count` indices is too much."""
    elements = math.prod(x.shape)
    if elements * count > MOST_COPIES:
        raise ImportRefusal(f"{count} computed indices of {elements} elements; their product is at most 2^26")


def _is_within(build: OperatorBuilder, ids: Tensor, reach: IntegerInterval | None, size: int) -> bool:
    """Checks whether no index of `size` rows can be out of range."""
    return reach is not None and not build.ctx.has_assumed_range(ids) and -size <= reach.low and reach.high < size


def _select_marked(build: OperatorBuilder, x: Tensor, slices: Indices, marks: Tensor, sure: bool) -> Tensor:
    """Emits for each index the slice of x that is marked [indices, elements].

    slices: elements of x of each [slices, elements]. marks: [indices, slices]. sure: each index has a mark.
    """
    (count, size), others = marks.shape, slices.shape[1]
    g = _columns(build, count, size * others)
    mark = build.lay_out(build.rearrange(np.repeat(c_order((count, size)), others, axis=1), marks), g.image)
    every = build.lay_out(build.rearrange(slices.reshape(1, -1), x), Image((1, size * others), 1))
    # The marks are the first operand, with whose pixels the work is shared.
    found = _largest_slice(build, build.add(Map("mask", (1, 0)), g.image, mark, every), size)
    if sure:
        return found
    marked = reductions.emit_reduction(build, reductions.lay_out_reduction(build, marks, (1,)), "sum")
    h = _columns(build, count, others)
    return _tensor(nan_where_not(h, found, h.broadcast(replace(marked, shape=(count, 1)))))


def _columns(build: OperatorBuilder, count: int, channels: int) -> FormulaBuilder:
    """Returns a builder of functions of a pixel for each index."""
    return FormulaBuilder(build.node, build.ctx, (count, channels), Image((count, channels), 1))


def _largest_slice(build: OperatorBuilder, x: Tensor, size: int) -> Tensor:
    """Emits the maximum over the `size` parts of the channels of each pixel, by halves, which may overlap."""
    count, channels = x.shape
    others = channels // size
    while size > 1:
        half = -(-size // 2)
        g, numbers = _columns(build, count, half * others), c_order((count, size * others))
        sides = numbers[:, : half * others], numbers[:, -half * others :]
        x = _tensor(g.max(*(build.lay_out(build.rearrange(side, x), g.image) for side in sides)))
        size = half
    return x


def add_rows(build: OperatorBuilder, size: int, ids: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Emits sums of slices of `updates` along an axis: result slice n is the sum of those whose index is n.

    ids: as many elements as `updates` has slices along the axis; an index out of range adds nothing. Raises
    `ImportRefusal` for integers.
    """
    count = updates.shape[axis]
    _check_marks(updates, ids, size)
    reach = build.ctx.restrict_input(ids, IntegerInterval(-size, size - 1))
    numbers = count_from_start(build, ids, size, reach)
    f = FormulaBuilder(build.node, build.ctx, (size, count), Image((size, count), 1))
    # A copy for each row, not one that each row's function reads, so that cores can share the rows.
    index = build.lay_out(build.rearrange(np.broadcast_to(c_order((1, count)), f.shape), numbers), f.image)
    marks = _marks(f, index, np.arange(size, dtype=np.float32)[:, None])
    return _multiply(build, updates, axis, marks)


def find_row_ids(build: OperatorBuilder, ids: Tensor, x: Shape, axis: int) -> Tensor | None:
    """Returns an index for each slice along an axis of a tensor of shape `x`, if `ids` repeats it for all its elements.

    None for indices that rearrangements made of several, and of another shape.
    """
    if any(n != m for d, (n, m) in enumerate(zip(x, ids.shape, strict=True)) if d != axis):
        return None
    numbers = build.ctx.trace(ids)
    place = np.arange(ids.shape[axis]).reshape(-1, *(1,) * (len(ids.shape) - axis - 1))
    along = ids.image.to_pixels(np.broadcast_to(place, ids.shape)).reshape(-1)
    if len(np.unique(np.stack([along, numbers]), axis=1).T) > ids.shape[axis]:
        return None
    first = np.moveaxis(c_order(ids.shape), axis, 0).reshape(ids.shape[axis], -1)[:, 0]
    return build.rearrange(first, ids)


def _check_marks(x: Tensor, ids: Tensor, size: int) -> None:
    """Raises `ImportRefusal` for integers, and if a mark of each index for each of `size` rows of x is too much."""
    if "int" in (x.element.kind, ids.element.kind):
        raise ImportRefusal("computed indices of what is computed, in a program of integers")
    if size * math.prod(ids.shape) > MOST_MARKS:
        raise ImportRefusal(f"{math.prod(ids.shape)} computed indices of {size} rows; their product is at most 2^22")


def _marks(f: FormulaBuilder, index: Value, numbers: Numbers) -> Tensor:
    """Emits 1 where an index is a number, else 0."""
    distance = f.sub(index, f.constant(numbers))
    return _tensor(f.relu(f.sub(1, f.mul(distance, distance))))


def _multiply(build: OperatorBuilder, x: Tensor, axis: int, marks: Tensor) -> Tensor:
    """Emits the product of marks [rows, size of the axis] with the slices of x along the axis."""
    dims = [f"dim{d}" for d in range(len(x.shape))]
    out = ["rows" if d == axis else name for d, name in enumerate(dims)]
    c = Contraction(build.node, build.ctx, dict(zip(dims, x.shape, strict=True)) | {"rows": marks.shape[0]})
    f = FormulaBuilder(build.node, build.ctx, x.shape, x.image)
    finite = is_finite(f, x)
    bounded = x if finite else _tensor(f.max(f.min(x, HUGE), -HUGE))
    mark = TensorFactor(c.drop_unit_dims(("rows", dims[axis])), marks)
    slices = TensorFactor(c.drop_unit_dims(dims), bounded)
    product = c.multiply(mark, slices, c.drop_unit_dims(out)).value
    assert isinstance(product, Tensor), "both factors are computed"
    g = FormulaBuilder(build.node, build.ctx, c.dims(out), product.image)
    product = replace(product, shape=g.shape)
    return product if finite else _tensor(g.mul(g.mul(product, 2), 0.5))


def _tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor), "computed from a tensor"
    return value
