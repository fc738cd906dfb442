"""Bounds on inputs that a model uses as indices: the sizes of its tables, propagated backwards through the model."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper, shape_inference

from raptor.common.errors import UserError
from validator.model.float_types import inline_functions
from validator.model.node import Array
from validator.model.operator_scan import contains_name

Shape = Sequence[int | None]
_MOST_ELEMENTS = 2**20
"""Most elements of a constant whose values are read."""


class IndexBounds(NamedTuple):
    """Smallest and largest value, both included."""

    low: int
    high: int

    def intersect(self, other: "IndexBounds") -> "IndexBounds":
        """Returns the intersection; if it is empty, only the smaller of the two lower ends."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return (
            IndexBounds(low, high) if low <= high else IndexBounds(min(self.low, other.low), min(self.low, other.low))
        )


_MARKS = (b"Gather", b"Scatter", b"OneHot", b"EmbedLayerNormalization", b"ReverseSequence")
NO_BOUNDS: Mapping[str, IndexBounds] = MappingProxyType({})


def may_read_indices(path: Path) -> bool:
    """Checks whether the bytes of a file name an operator that reads indices."""
    return contains_name(path, _MARKS)


def find_index_bounds(model: ModelProto) -> dict[str, IndexBounds]:
    """Returns bounds of the inputs from which a model computes indices, so that every index is in its table.

    Inputs without a table are left out. Bounds are hints: they are not propagated through unknown operators.
    """
    return _BoundsSearch.from_graph(inline_functions(model).graph, model).run()


def find_runnable_bounds(
    bounds: Mapping[str, IndexBounds], names: Collection[str], attempt: Callable[[Mapping[str, IndexBounds]], object]
) -> Mapping[str, IndexBounds]:
    """Returns bounds of random inputs within which a model runs without an error.

    `names`: integer inputs. If `bounds` do not suffice, these inputs are 0 or 1, and then all 0, which most ids,
    lengths and flags may be. `attempt` runs the model. Raises the error of the first attempt if none succeeds.
    """
    first: UserError | None = None
    for high in (None, 1, 0):
        tried = bounds if high is None else {**bounds, **dict.fromkeys(names, IndexBounds(0, high))}
        try:
            attempt(tried)
        except UserError as error:
            first = first or error
        else:
            return tried
    assert first is not None, "the loop has attempts"
    raise first


@dataclass(slots=True, eq=False)
class _BoundsSearch:
    """Bounds found so far, keyed by tensor. `inferred`: shapes of all tensors, inferred when one is needed."""

    model: ModelProto
    inputs: Sequence[str]
    nodes: Sequence[NodeProto]
    constants: Mapping[str, Array]
    weights: Mapping[str, Shape]
    found: dict[str, IndexBounds] = field(default_factory=dict[str, IndexBounds])
    inferred: Mapping[str, Shape] | None = None

    @classmethod
    def from_graph(cls, graph: GraphProto, model: ModelProto) -> "_BoundsSearch":
        nodes = [*_all_nodes(graph)]
        weights = {t.name: tuple(t.dims) for t in graph.initializer}
        inputs = [v.name for v in graph.input if v.name not in weights]
        return cls(model, inputs, nodes, _constants(graph, nodes), weights)

    def run(self) -> dict[str, IndexBounds]:
        for node in reversed(self.nodes):
            for name, bounds in self.demands(node):
                self.want(name, bounds)
            wanted = self.found.get(node.output[0]) if node.output else None
            if wanted is not None:
                for name, bounds in self.backwards(node, wanted):
                    self.want(name, bounds)
        return {name: self.found[name] for name in self.inputs if name in self.found}

    def want(self, name: str, bounds: IndexBounds) -> None:
        if name and name not in self.constants:
            self.found[name] = self.found[name].intersect(bounds) if name in self.found else bounds

    def shape(self, name: str) -> Shape:
        if name in self.weights:
            return self.weights[name]
        if self.inferred is None:
            self.inferred = _infer_shapes(self.model)
        return self.inferred.get(name, ())

    def size(self, name: str, axis: int) -> int | None:
        shape = self.shape(name)
        return shape[axis] if -len(shape) <= axis < len(shape) else None

    def demands(self, node: NodeProto) -> Iterator[tuple[str, IndexBounds]]:
        """Yields the bounds of the indices, lengths and classes that a node reads."""
        inputs = node.input
        match node.op_type:
            case "OneHot":
                depth = self.range(inputs[1])
                if depth is not None:
                    yield inputs[0], IndexBounds(0, max(depth.high - 1, 0))
            case "EmbedLayerNormalization":
                for ids, table in ((0, 2), (1, 4)):
                    rows = self.size(inputs[table], 0) if table < len(inputs) else None
                    if rows:
                        yield inputs[ids], IndexBounds(0, rows - 1)
            case "ReverseSequence":
                yield inputs[1], IndexBounds(1, self.size(inputs[0], _attribute(node, "time_axis")) or 1)
            case "RNN" | "GRU" | "LSTM" if len(inputs) > 4:
                yield inputs[4], IndexBounds(1, self.size(inputs[0], 0) or 1)
            case _:
                size = self.indexed(node)
                if size:
                    yield inputs[1], IndexBounds(0, size - 1)

    def indexed(self, node: NodeProto) -> int | None:
        """Returns how many values the index input of a node may have; None for other nodes, or if it is not known."""
        table, ids = node.input[:2] if len(node.input) > 1 else ("", "")
        match node.op_type:
            case "Gather" | "GatherElements" | "ScatterElements" | "Scatter":
                return self.size(table, _attribute(node, "axis"))
            case "GatherBlockQuantized":
                return self.size(table, _attribute(node, "gather_axis"))
            case "GatherND" | "ScatterND":
                first, count = _attribute(node, "batch_dims"), self.size(ids, -1) or 1
                sizes = (self.size(table, first + k) for k in range(count))
                return min((size for size in sizes if size is not None), default=None)
            case _:
                return None

    def backwards(self, node: NodeProto, wanted: IndexBounds) -> Iterator[tuple[str, IndexBounds]]:
        """Yields the bounds of operands that keep the first result of a node within `wanted`."""
        if node.op_type in _VALUE_OPERANDS:
            yield from ((name, wanted) for name in _VALUE_OPERANDS[node.op_type](node.input))
        elif node.op_type == "If":
            bodies = (a.g for a in node.attribute if a.HasField("g"))
            yield from ((body.output[0].name, wanted) for body in bodies if body.output)
        elif node.op_type == "CumSum":
            yield node.input[0], IndexBounds(0, max(wanted.high // (self.longest(node.input[0]) or 1), 0))
        elif node.op_type == "Neg":
            yield node.input[0], IndexBounds(-wanted.high, -wanted.low)
        elif node.op_type in ("Add", "Sub", "Mul", "Div", "Mod") and len(node.input) == 2:
            yield from self.arithmetic(node, wanted)

    def longest(self, name: str) -> int | None:
        return max((size for size in self.shape(name) if size is not None), default=None)

    def arithmetic(self, node: NodeProto, wanted: IndexBounds) -> Iterator[tuple[str, IndexBounds]]:
        a, b = node.input
        left, right = self.range(a), self.range(b)
        if left is None and right is None:
            yield from zip((a, b), _split_bounds(node.op_type, wanted), strict=True)
        elif right is not None:
            yield a, _inverse(node.op_type, wanted, right)
        elif left is not None and node.op_type in ("Add", "Mul"):
            yield b, _inverse(node.op_type, wanted, left)
        elif left is not None and node.op_type == "Sub":
            yield b, IndexBounds(left.high - wanted.high, left.low - wanted.low)

    def range(self, name: str) -> IndexBounds | None:
        values = self.constants.get(name)
        if values is None or not values.size or not np.isfinite(values).all():
            return None
        return IndexBounds(math.floor(values.min()), math.ceil(values.max()))


def _attribute(node: NodeProto, name: str) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), 0)


def _inverse(op_type: str, wanted: IndexBounds, known: IndexBounds) -> IndexBounds:
    """Returns the bounds of x that keep `x op known` within `wanted` for all known values."""
    match op_type:
        case "Add":
            return IndexBounds(wanted.low - known.low, wanted.high - known.high)
        case "Sub":
            return IndexBounds(wanted.low + known.high, wanted.high + known.low)
        case "Mul" if known.low > 0:
            return IndexBounds(-(-wanted.low // known.low), wanted.high // known.high)
        case "Div" if known.low > 0:
            return IndexBounds(wanted.low * known.low, wanted.high * known.low)
        case "Mod" if known.low > 0 and known.high - 1 <= wanted.high:
            return IndexBounds(0, 4 * known.high)
        case _:
            return wanted


def _split_bounds(op_type: str, wanted: IndexBounds) -> tuple[IndexBounds, IndexBounds]:
    """Splits the wanted bounds between two operands that are both computed."""
    middle, root = (wanted.low + wanted.high) // 2, math.isqrt(max(wanted.high, 0))
    match op_type:
        case "Add":
            return IndexBounds(wanted.low, middle), IndexBounds(0, wanted.high - middle)
        case "Sub":
            return IndexBounds(middle, wanted.high), IndexBounds(0, middle - wanted.low)
        case "Mul":
            return IndexBounds(0, root), IndexBounds(0, root)
        case _:
            return wanted, IndexBounds(1, max(wanted.high, 1))


_OF_FIRST = (
    *("Abs", "Cast", "CastLike", "Ceil", "Clip", "DepthToSpace", "Expand", "Flatten", "Floor", "Gather"),
    *("GatherElements", "GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence"),
    *("Round", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze"),
)
_VALUE_OPERANDS: Mapping[str, Callable[[Sequence[str]], Sequence[str]]] = MappingProxyType(
    {
        **dict.fromkeys(_OF_FIRST, lambda names: names[:1]),
        **dict.fromkeys(("Concat", "Max", "Min", "Mean"), lambda names: names),
        "Where": lambda names: names[1:],
        "ScatterElements": lambda names: [*names[:1], *names[2:]],
        "ScatterND": lambda names: [*names[:1], *names[2:]],
    }
)
"""Operands whose elements an operator returns, or between whose elements its results lie."""


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yields all nodes in order; the nodes of a subgraph come before the node that contains it."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)
        yield node


def _constants(graph: GraphProto, nodes: Sequence[NodeProto]) -> dict[str, Array]:
    """Returns small constants, keyed by name, with an empty array for each large one."""
    found: dict[str, Array] = {}
    for tensor in graph.initializer:
        small = math.prod(tensor.dims) <= _MOST_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL
        found[tensor.name] = (
            numpy_helper.to_array(tensor) if small and tensor.data_type != TensorProto.STRING else np.empty(0)
        )
    for node in nodes:
        values = {a.name: a for a in node.attribute}
        if node.op_type == "Constant":
            if "value" in values:
                found[node.output[0]] = numpy_helper.to_array(values["value"].t)
            elif "value_int" in values or "value_ints" in values:
                found[node.output[0]] = np.array(
                    [*values["value_ints"].ints] if "value_ints" in values else values["value_int"].i
                )
        elif node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _infer_shapes(model: ModelProto) -> dict[str, Shape]:
    """Returns inferred shapes, with None for open sizes; only declared shapes if onnx cannot infer any."""
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # exceptions of onnx have no common base, and bounds are hints
        graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {
        v.name: [d.dim_value if d.HasField("dim_value") else None for d in v.type.tensor_type.shape.dim] for v in values
    }
