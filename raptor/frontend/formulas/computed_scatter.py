"""Scatter with computed indices: each element is compared with the place that an index gives, and selected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.selection import keep_where, select_where
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Indices, Tensor
from raptor.graph.rearrangement import c_order

MOST_UPDATES = 64
"""Maximum number of updates at computed places; each is selected from all elements."""


@dataclass(frozen=True, slots=True, eq=False)
class ScatterUpdate:
    """An update: an element gets the element `source` of the updates where each index is one of its places.

    `indices`: for each index the number of its element in the tensor of indices, and the places, all of which broadcast
    to the shape of the result. `within`: False for elements that the update cannot reach. `source`: of that shape.
    """

    indices: Sequence[tuple[Indices, Sequence[Indices]]]
    source: Indices
    within: Indices | None = None


def emit_computed_scatter(
    node: NodeView, ctx: ImportContext, ids: Tensor, updates: Iterable[ScatterUpdate], limits: IntegerInterval
) -> None:
    """Emits the first input with updates, input 2, written one after the other. `limits`: of the indices `ids`.

    Raises `NeedsConstantError` for many updates, and integers: only constant indices will do there.

    NOTE: the host rejects an input outside its limits; a computed index outside of them writes nothing.
    """
    build = OperatorBuilder(node, ctx)
    last = node.op_type == "TensorScatter"
    x, new = (build.operand(i) for i in (node.inputs[0], node.inputs[1 if last else 2]))
    whole = "int" in (x.element.kind, ids.element.kind)
    found = list(islice(updates, MOST_UPDATES + 1))
    if whole or len(found) > MOST_UPDATES:
        raise NeedsConstantError(node.inputs[2 if last else 1])
    ctx.restrict_input(ids, limits)
    f = FormulaBuilder(node, ctx, x.shape, x.image)
    result: Value = x
    for update in found:
        chosen = build.lay_out(build.rearrange(np.broadcast_to(update.source, x.shape), new), f.image)
        mark = _mark(build, f, ids, update)
        result = _combine_marked(f, node.string("reduction", "none"), result, mark, chosen)
    f.finish(result)


def _combine_marked(f: FormulaBuilder, reduction: str, x: Value, mark: Value, new: Value) -> Value:
    """Emits x, combined with new elements where the mark is 1. Raises `ImportRefusal` for an unknown reduction."""
    match reduction:
        case "none":
            return select_where(f, mark, new, x)
        case "add":
            return f.add(x, select_where(f, mark, new, f.constant(np.zeros(1, np.float32))))
        case "mul":
            return f.mul(x, select_where(f, mark, new, f.constant(np.ones(1, np.float32))))
        case "max":
            return f.max(x, keep_where(f, new, mark))
        case "min":
            return f.neg(f.max(f.neg(x), keep_where(f, f.neg(new), mark)))
        case _:
            raise ImportRefusal(f"reduction {reduction}")


def _mark(build: OperatorBuilder, f: FormulaBuilder, ids: Tensor, update: ScatterUpdate) -> Value:
    """Emits 1 where an update goes, else 0: 1 - the sum of all squared distances, at least 0."""
    shape = np.broadcast_shapes(*(at.shape for at, _ in update.indices), *(p[0].shape for _, p in update.indices))
    small = FormulaBuilder(f.node, f.ctx, shape, natural_image(shape))
    total: Value | None = None
    for at, places in update.indices:
        index = build.lay_out(build.rearrange(np.broadcast_to(at, shape), ids), small.image)
        distance: Value | None = None
        for place in places:
            away = small.sub(index, small.constant(place.astype(np.float32)))
            distance = away if distance is None else small.mul(distance, away)
        assert distance is not None, "an index has a place"
        square = small.mul(distance, distance)
        total = square if total is None else small.add(total, square)
    assert total is not None, "an update has an index"
    mark = small.relu(small.sub(1, total))
    if update.within is not None:
        mark = small.mul(mark, small.constant(update.within.astype(np.float32)))
    assert isinstance(mark, Tensor), "computed from indices"
    return f.broadcast(mark)


def find_slice_updates(x: Sequence[int], ids: Sequence[int]) -> Iterable[ScatterUpdate]:
    """Returns the updates of ScatterND, indices [..., K]: each replaces a slice of all axes from K on."""
    parts, count = ids[-1], int(np.prod(ids[:-1]))
    sources = c_order((count, *x[parts:]))
    for u in range(count):
        indices = [(_scalar(u * parts + k, len(x)), _from_either_end(n, k, len(x))) for k, n in enumerate(x[:parts])]
        yield ScatterUpdate(indices, sources[u].reshape(*(1,) * parts, *x[parts:]))


def find_element_updates(x: Sequence[int], ids: Sequence[int], axis: int) -> Iterable[ScatterUpdate]:
    """Returns the updates of ScatterElements: one for each place along the axis in the tensor of indices."""
    numbers = c_order(tuple(ids))
    pads = [(0, n - m) for n, m in zip(x, ids, strict=True)]
    pads[axis] = (0, 0)
    within = np.pad(np.ones([1 if d == axis else n for d, n in enumerate(ids)], np.int64), pads)
    for s in range(ids[axis]):
        at = np.pad(numbers.take([s], axis), pads)
        yield ScatterUpdate([(at, _from_either_end(x[axis], axis, len(x)))], at, None if within.all() else within)


def find_cache_updates(x: Sequence[int], count: int, axis: int, *, circular: bool) -> Iterable[ScatterUpdate]:
    """Returns the updates of TensorScatter: element j of each sequence goes to its write index + j."""
    rank, size = len(x), x[axis]
    at = c_order((x[0],)).reshape(-1, *(1,) * (rank - 1))
    numbers = c_order(tuple(count if d == axis else n for d, n in enumerate(x)))
    for j in range(count):
        places = _along(np.arange(size) - j, axis, rank)
        yield ScatterUpdate([(at, [places, places + size] if circular else [places])], numbers.take([j], axis))


def _from_either_end(size: int, axis: int, rank: int) -> Sequence[Indices]:
    """Returns the indices of all places along an axis, from its beginning and from its end."""
    return [_along(np.arange(size) - start, axis, rank) for start in (0, size)]


def _along(values: Indices, axis: int, rank: int) -> Indices:
    return values.reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))


def _scalar(number: int, rank: int) -> Indices:
    return np.full((1,) * rank, number)
