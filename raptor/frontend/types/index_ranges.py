"""Range analysis of unbounded integers: bounds from selection operators (forward) and from indexed tables (backward).

A float cast to int32 or int64 has no bound of its own. Used as an index, it must lie within the indexed table: the
model has no result for other values.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto

from raptor.frontend.inputs.declared_shapes import static_dims
from raptor.frontend.operator_sets import MOVE_OPS
from raptor.frontend.proto.nodes import Array, ModelConstants, NodeView, read_attributes
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, infer_shapes
from raptor.frontend.types.float32_integers import intersect_ranges
from raptor.frontend.types.integer_ranges import IntegerInterval

Shape = tuple[int, ...]
UNBOUNDED = IntegerInterval(-(2**63), 2**63 - 1)
"""Range of unbounded integers (int64)."""
_LENGTHS = 6
"""Position of the Attention input that holds the number of valid keys and values of each sequence."""
_LARGEST_CONSTANT = 2**16
_INDEXED = frozenset(("Gather", "GatherElements"))
_SAME = frozenset(
    ("Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
"""Operators that move, repeat or convert elements: each result element is an operand element."""
_MAKES_OTHERS = frozenset(
    (
        *("GlobalMaxPool", "MaxPool", "MaxUnpool", "Resize", "Scatter", "ScatterElements", "ScatterND"),
        *("TensorScatter", "Upsample"),
    )
)


def find_cache_lengths(proto: ModelProto) -> dict[str, int]:
    """Returns inputs that are sequence lengths of a cache -> length of the cache.

    The function body that the standard gives Attention does not imply this bound.
    """
    found = [n for n in proto.graph.node if n.op_type == "Attention" and len(n.input) > _LENGTHS and n.input[_LENGTHS]]
    if not found:
        return {}
    try:
        graph = infer_shapes(proto).graph
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        graph = proto.graph
    shapes = {v.name: static_dims(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    keys = {n.input[_LENGTHS]: shapes.get(n.input[1]) for n in found}
    return {name: dims[-2] for name, dims in keys.items() if dims is not None and len(dims) > 1}


def compute_demanded_ranges(
    graph: GraphProto, shapes: Mapping[str, Shape], constants: ModelConstants
) -> dict[str, IntegerInterval]:
    """Returns the range of each tensor within which all indices computed from it are valid; backward analysis."""
    found: dict[str, IntegerInterval] = {}
    for node in reversed(graph.node):
        for name, limits in _demands(node, found, shapes, constants):
            known = found.get(name, limits)
            shared = intersect_ranges(known, limits)
            found[name] = shared if shared.low <= shared.high else known
    return found


def _demands(
    node: NodeProto, found: Mapping[str, IntegerInterval], shapes: Mapping[str, Shape], constants: ModelConstants
) -> Iterator[tuple[str, IntegerInterval]]:
    if node.op_type in _INDEXED:
        data = node.input[0]
        shape = constants.shape(data) if data in constants else shapes.get(data, ())
        axis = read_attributes(node).get("axis", 0)
        if -len(shape) <= axis < len(shape):
            yield node.input[1], IntegerInterval(-shape[axis], shape[axis] - 1)
    limits = [found[o] for o in node.output if o in found]
    if not limits or len(limits) < len(node.output):
        return
    hull = IntegerInterval(min(r.low for r in limits), max(r.high for r in limits))
    if node.op_type in _SAME or node.op_type == "Split":
        yield from ((name, hull) for name in (node.input if node.op_type == "Concat" else node.input[:1]))
    elif node.op_type in ("Add", "Sub", "Mul", "Div") and len(node.input) == 2:
        known = [_range_of(constants, name) for name in node.input]
        for side in (0, 1):
            other = known[1 - side]
            source = None if other is None else _source(node.op_type, side, hull, other)
            if source is not None:
                yield node.input[side], source


def _range_of(constants: ModelConstants, name: str) -> IntegerInterval | None:
    if name not in constants or np.prod(constants.shape(name), dtype=float) > _LARGEST_CONSTANT:
        return None
    return compute_constant_range(constants[name])


def _source(op_type: str, side: int, result: IntegerInterval, other: IntegerInterval) -> IntegerInterval | None:
    """Returns the range of an operand for which results lie in `result`, with the other operand in `other`, or None."""
    most, least = max(-result.low, result.high), min(abs(other.low), abs(other.high))
    match op_type:
        case "Add":
            return IntegerInterval(result.low - other.high, result.high - other.low)
        case "Sub" if side == 0:
            return IntegerInterval(result.low + other.low, result.high + other.high)
        case "Sub":
            return IntegerInterval(other.low - result.high, other.high - result.low)
        case "Mul" if other.low > 0 or other.high < 0:
            return IntegerInterval(-(most // least), most // least)
        case "Div" if side == 0 and (other.low > 0 or other.high < 0):
            reach = (most + 1) * max(abs(other.low), abs(other.high))
            return IntegerInterval(-reach, reach)
        case _:
            return None


def compute_selection_range(node: NodeView, ranges: Mapping[str, IntegerInterval | None]) -> IntegerInterval | None:
    """Returns the range of a result whose elements are operand elements or bounds; None for other operators.

    ranges: ranges of the integer operands, `UNBOUNDED` included.
    """
    names: Sequence[str] = ()
    if node.op_type == "Concat":
        names = node.inputs
    elif node.op_type == "Where":
        names = node.inputs[1:]
    elif node.op_type in MOVE_OPS - _MAKES_OTHERS:
        names = (node.inputs[0], node.input(2) or "") if node.op_type == "Pad" else node.inputs[:1]
    elif node.op_type in ("Clip", "Max", "Min", "Relu"):
        return _bounded(node, [ranges.get(i) if i else UNBOUNDED for i in node.inputs])
    found = [ranges.get(i) for i in names if i]
    known = [r for r in found if r is not None]
    if not known or len(known) < len(found):
        return None
    hull = IntegerInterval(min(r.low for r in known), max(r.high for r in known))
    return hull.with_zero() if node.op_type in ("Pad", "Trilu") else hull


def _bounded(node: NodeView, found: Sequence[IntegerInterval | None]) -> IntegerInterval | None:
    known = [r for r in found if r is not None]
    if len(known) < len(found):
        return None
    lows, highs = [r.low for r in known], [r.high for r in known]
    match node.op_type:
        case "Max":
            return IntegerInterval(max(lows), max(highs))
        case "Min":
            return IntegerInterval(min(lows), min(highs))
        case "Relu":
            return IntegerInterval(max(lows[0], 0), max(highs[0], 0))
        case _:
            x, low, high = (*known, UNBOUNDED, UNBOUNDED)[:3]
            low = IntegerInterval(UNBOUNDED.low, UNBOUNDED.low) if low == UNBOUNDED else low
            above = IntegerInterval(max(x.low, low.low), max(x.high, low.high))
            return IntegerInterval(
                min(above.low, high.low if high != UNBOUNDED else UNBOUNDED.high), min(above.high, high.high)
            )


def compute_constant_range(value: Array) -> IntegerInterval | None:
    """Returns the range of an integer constant; None for any other constant."""
    return IntegerInterval(int(value.min()), int(value.max())) if value.size and value.dtype.kind in "iub" else None
