"""ArgMax, ArgMin, TopK, Hardmax and OneHot."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas import boolean_formulas, reductions, selection, step_functions
from raptor.frontend.formulas.builder import OperatorBuilder, number_elements, read_axis, read_constant_ints
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.reductions import ReductionLayout
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Floats, Tensor

MOST_RESULTS = 32
"""Maximum K of TopK; each element is a search of its own."""


@dataclass(frozen=True, slots=True)
class AxisMaximum:
    """Result of a search along an axis. mark: 1 at the element found, else 0; value, position: of the element found."""

    mark: Tensor
    value: Tensor
    position: Tensor


@dataclass(frozen=True, slots=True)
class MaximumSearch:
    """State of a search for the largest elements along an axis.

    all: all elements. left: elements not found yet, -infinity in place of the others. ranks: priority from 1 on among
    equal elements, 0 for found ones. size: elements along the axis. last: True if the last of equal elements is wanted.
    ends: all elements in the form for comparison; None if they are compared by a difference.
    """

    build: OperatorBuilder
    formula: FormulaBuilder
    all_elements: ReductionLayout
    remaining: ReductionLayout
    ranks: Value
    size: float
    last: bool
    ends: boolean_formulas.ComparisonEnds | None


@importer("ArgMax", since=1, counts=True)
def import_arg_max(node: NodeView, ctx: ImportContext) -> None:
    """Position of the maximum along an axis: the first of equal elements, or the last with select_last_index."""
    _lower_position(node, ctx, negative=False)


@importer("ArgMin", since=1, counts=True)
def import_arg_min(node: NodeView, ctx: ImportContext) -> None:
    """Position of the minimum along an axis, as the position of the maximum of -x."""
    _lower_position(node, ctx, negative=True)


@importer("Hardmax", since=13)
def import_hardmax(node: NodeView, ctx: ImportContext) -> None:
    """1 at the first maximum along an axis, else 0."""
    build, seen, axis = _seen(node, ctx, -1, negative=False)
    build.finish(_find(_search(build, seen, _ramp(ctx, node, axis))).mark)


@importer("TopK", since=10, limits=f"a constant K of at most {MOST_RESULTS}", all_outputs=True, counts=True)
def import_top_k(node: NodeView, ctx: ImportContext) -> None:
    """The K largest or smallest elements along an axis, and their positions, by one search per element."""
    (count,) = read_constant_ints(node, ctx, 1) or (0,)
    if not 0 < count <= MOST_RESULTS:
        raise ImportRefusal(f"K is {count}, must be from 1 to {MOST_RESULTS}")
    negative = not node.integer("largest", 1)
    build, seen, axis = _seen(node, ctx, -1, negative=negative)
    search = _search(build, seen, _ramp(ctx, node, axis))
    found = [_find(search)]
    while len(found) < count:
        search = _without(search, found[-1].mark)
        found.append(_find(search))
    values = [build.map("mul", f.value, -1.0) if negative else f.value for f in found]
    x = ctx.tensor(node.inputs[0])
    part = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    results = ((values, ctx.integer_range(x)), ([f.position for f in found], IntegerInterval(0, x.shape[axis] - 1)))
    for output, (parts, reach) in zip(node.outputs, results, strict=False):
        if output in ctx.read_names:
            build.finish(_stacked(build, parts, part, axis), output)
            if reach is not None:
                ctx.declare_range(output, reach)


@importer("OneHot", since=9, limits="constant depth and values", counts=True)
def import_one_hot(node: NodeView, ctx: ImportContext) -> None:
    """Vectors with one value at the index and another elsewhere; only the latter for an index out of range."""
    off, on = (float(v) for v in _constant(node, ctx, 2).ravel())
    depth = int(_constant(node, ctx, 1).item())
    x, shape = ctx.tensor(node.inputs[0]), ctx.shape(node.output)
    axis = read_axis(node, len(shape), -1)
    build = OperatorBuilder(node, ctx)
    (positions,) = number_elements([x])
    spread = build.rearrange(np.broadcast_to(np.expand_dims(positions, axis), shape), x)
    f = FormulaBuilder(node, ctx, shape, natural_image(shape))
    ids = step_functions.truncate(f, build.lay_out(spread, f.image))
    numbers = f.constant(_along(axis, np.arange(depth), len(shape)))
    # An index below 0 counts from the end.
    marks = [f.relu(f.sub(1, f.abs(f.sub(ids, f.sub(numbers, first))))) for first in (0, depth)]
    mark = f.add(*marks)
    f.finish(selection.select_where(f, mark, *(f.constant(np.array(v, np.float32)) for v in (on, off))))
    if float(off).is_integer() and float(on).is_integer():
        ctx.declare_range(node.output, IntegerInterval(int(min(off, on)), int(max(off, on))))


def _lower_position(node: NodeView, ctx: ImportContext, *, negative: bool) -> None:
    build, seen, axis = _seen(node, ctx, 0, negative=negative)
    last = bool(node.integer("select_last_index", 0))
    ramp = _ramp(ctx, node, axis)
    build.finish(_find(_search(build, seen, ramp, last=last)).position)
    ctx.declare_range(node.output, IntegerInterval(0, ramp.shape[axis] - 1))


def _seen(
    node: NodeView, ctx: ImportContext, default: int, *, negative: bool
) -> tuple[OperatorBuilder, ReductionLayout, int]:
    build, x = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    axis = read_axis(node, len(x.shape), default)
    seen = reductions.lay_out_reduction(build, x, (axis,))
    return build, ReductionLayout(build.map("mul", seen.tensor, -1.0), seen.reduced) if negative else seen, axis


def _ramp(ctx: ImportContext, node: NodeView, axis: int) -> Floats:
    """Returns the position along the axis, 0, 1, 2, ..., of each element of the input."""
    shape = ctx.tensor(node.inputs[0]).shape
    if shape[axis] > step_functions.MOST_EXACT:
        raise ImportRefusal(f"its axis has {shape[axis]} elements, at most {step_functions.MOST_EXACT} can be counted")
    return np.asarray(np.broadcast_to(_along(axis, np.arange(shape[axis]), len(shape)), shape))


def _along(axis: int, numbers: np.ndarray, rank: int) -> Floats:
    return numbers.astype(np.float32).reshape(-1, *(1,) * (rank - axis - 1))


def _search(build: OperatorBuilder, seen: ReductionLayout, ramp: Floats, *, last: bool = False) -> MaximumSearch:
    f = FormulaBuilder(build.node, build.ctx, seen.image.shape, seen.image)
    size = float(ramp.max()) + 1
    ranks = f.constant(np.asarray((ramp + 1 if last else size - ramp).reshape(seen.image.shape)))
    has_difference = build.ctx.integer_range(seen.tensor) is not None or build.ctx.may_be_nan(seen.tensor)
    return MaximumSearch(
        build,
        f,
        seen,
        seen,
        ranks,
        size,
        last,
        None if has_difference else boolean_formulas.make_lower_ends(f, seen.tensor),
    )


def _find(search: MaximumSearch) -> AxisMaximum:
    """Finds the maximum: marks the elements equal to it by their rank, and takes the highest rank."""
    build, f, seen = search.build, search.formula, search.remaining
    largest = reductions.emit_reduction(build, seen, "max")
    rank = f.mul(_equals(search, largest), search.ranks)
    highest = reductions.emit_reduction(build, ReductionLayout(_tensor(rank), seen.reduced), "max")
    mark = f.relu(f.sub(1, f.sub(reductions.broadcast_to_image(build, highest, seen.image), rank)))
    position = build.map("sub", highest, 1.0) if search.last else build.map("sub", search.size, highest)
    return AxisMaximum(_tensor(mark), largest, position)


def _equals(search: MaximumSearch, largest: Tensor) -> Value:
    """Emits 1 where an element is at least the maximum of the elements left, else 0; found elements get either."""
    build, f, image = search.build, search.formula, search.all_elements.image
    if search.ends is not None:
        top = boolean_formulas.make_upper_ends(
            FormulaBuilder(build.node, build.ctx, largest.image.shape, largest.image), largest
        )
        spread = boolean_formulas.ComparisonEnds(
            *(reductions.broadcast_to_image(build, _tensor(end), image) for end in top)
        )
        return f.sub(1, boolean_formulas.is_above_end(f, spread, search.ends))
    missing = f.sub(reductions.broadcast_to_image(build, largest, image), search.all_elements.tensor)
    if build.ctx.may_be_nan(search.all_elements.tensor):
        return f.sub(1, boolean_formulas.is_positive_number(f, missing))
    return boolean_formulas.is_zero_or_less(f, missing)


def _without(search: MaximumSearch, mark: Tensor) -> MaximumSearch:
    """Removes the marked element from the search: it gets rank 0 and value -infinity."""
    f, others = search.formula, search.formula.sub(1, mark)
    left = ReductionLayout(_tensor(selection.keep_where(f, search.remaining.tensor, others)), search.remaining.reduced)
    return replace(search, remaining=left, ranks=f.mul(search.ranks, others))


def _tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor), "computed from a tensor"
    return value


def _stacked(build: OperatorBuilder, parts: Sequence[Tensor], shape: Sequence[int], axis: int) -> Tensor:
    places = [p.reshape(shape) for p in number_elements(list(parts))]
    return build.rearrange(np.concatenate(places, axis=axis), *parts)


def _constant(node: NodeView, ctx: ImportContext, position: int) -> np.ndarray:
    value = ctx.constant(node.inputs[position])
    if value is None:
        raise NeedsConstantError(node.inputs[position])
    return value
