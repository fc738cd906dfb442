"""Follows the axis along which a decoder's tensors grow, from the caches to where a sum or a softmax ends it.

At position P of a capacity C, a cache has C rows, and the first C - 1 - P hold nothing of this sequence. The same holds
for everything computed from it, row by row. Only what a Concat puts before all rows stands before them (`lead`).
A softmax over such rows needs a mask; after it they are exactly 0, so that a sum over all rows is the sum over those
that exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.proto.nodes import read_attributes

Shape = tuple[int, ...]
ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater"),
        *("GreaterOrEqual", "IsNaN", "IsInf", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow"),
        *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
    )
)
_MOVES = frozenset(
    (
        *("Concat", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze"),
    )
)
BY_LAST_AXIS = frozenset(("LayerNormalization", "RMSNormalization"))
_KEEP_ZEROS = frozenset(
    ("Cast", "Dropout", "Expand", "Identity", "Neg", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
_END = 2**31 - 1


@dataclass(slots=True, eq=False)
class Growth:
    """Shapes at the last position and at the one before; `masked`: the softmaxes that need a mask, with its axis.

    `lead`: number of elements before the rows, along the axis that grows, where there are any. `complete`: the model
    has all rows at all positions, as those of a cache of fixed size, so that its own masks hide those it must not see.
    """

    proto: ModelProto
    last: Mapping[str, Shape]
    before: Mapping[str, Shape]
    zeros: set[str]
    """Tensors whose rows that do not exist are 0; constants that are 0 everywhere are among them."""
    masked: dict[str, int] = field(default_factory=dict[str, int])
    lead: dict[str, int] = field(default_factory=dict[str, int])
    complete: bool = False

    def axis(self, name: str) -> int | None:
        """Returns the axis along which a tensor grows; None if it does not. Raises `UserError` if several axes grow."""
        if name not in self.last or name not in self.before:
            return None
        pair = self.last[name], self.before[name]
        grown = [d for d, (a, b) in enumerate(zip(*pair, strict=False)) if a != b]
        if not grown and len(pair[0]) == len(pair[1]):
            return None
        if len(grown) != 1 or pair[0][grown[0]] - pair[1][grown[0]] != 1:
            raise UserError(f"tensor {name}: it grows from {list(pair[1])} to {list(pair[0])}, not by a row")
        return grown[0]

    def follow(self, nodes: Sequence[NodeProto]) -> None:
        """Checks all nodes that compute with caches. Raises `UserError` for one that mixes rows in another way."""
        for node in nodes:
            leads = {self.lead.get(name, 0) for name in node.input if self.axis(name) is not None}
            if len(leads) == 1:
                self.lead |= dict.fromkeys(node.output, *leads)
            read = [name for name in node.input if self.axis(name) is not None]
            made = [name for name in node.output if name and self.axis(name) is not None]
            if (read or made) and (fault := self._fault(node, read)):
                label = node.name or node.output[0]
                raise UserError(f"{label} ({node.op_type}): {fault}, which a cache of fixed capacity does not allow")

    def _fault(self, node: NodeProto, read: Sequence[str]) -> str | None:
        kind = node.op_type
        if kind in ELEMENTWISE:
            return self._elementwise(node, read)
        if kind in _MOVES:
            return self._move(node, read)
        if kind == "MatMul":
            return self._product(node)
        if kind == "Softmax":
            return self._softmax(node)
        if kind.startswith("Reduce"):
            return self._reduction(node, read)
        if kind in BY_LAST_AXIS:
            rank = len(self.last[node.input[0]])
            first = int(read_attributes(node).get("axis", -1)) % rank
            return "it works along the axis that grows" if (self.axis(node.input[0]) or 0) >= first else None
        return "it reads tensors that grow"

    def _elementwise(self, node: NodeProto, read: Sequence[str]) -> str | None:
        name, rank = node.output[0], len(self.last[node.output[0]])
        axis = self.axis(name)
        places = {rank - len(self.last[n]) + (self.axis(n) or 0) for n in read}
        if places != {axis} or len({self.lead.get(n, 0) for n in read}) != 1:
            return "its operands grow along different axes"
        if node.op_type in _KEEP_ZEROS or (node.op_type == "Mul" and self.zeros.intersection(node.input)):
            self._keep_zeros(node)
        operands = node.input[1:] if node.op_type == "Where" else node.input
        if node.op_type in ("Where", "Add", "Sub") and self.zeros.issuperset(operands):
            self.zeros.add(name)
        return None

    def _keep_zeros(self, node: NodeProto) -> None:
        if self.zeros.intersection(node.input):
            self.zeros.add(node.output[0])

    def _move(self, node: NodeProto, read: Sequence[str]) -> str | None:
        kind = node.op_type
        axes = [self.axis(name) for name in node.output if name]
        if read and None in axes:
            return "it picks rows by their place"
        if kind in ("Slice", "Gather", "Split"):
            fault = self._selection(node)
        elif kind == "Concat":
            along = int(read_attributes(node)["axis"]) % len(self.last[node.output[0]])
            fault = None
            if axes[0] == along:
                ends = node.input[-1] in read and len(read) == 1
                fault = None if ends else "it puts something behind the last row"
                self.lead[node.output[0]] += sum(self.last[n][along] for n in node.input[:-1])
        elif kind in ("Reshape", "Flatten") and read:
            fault = self._reshape(node)
        else:
            fault = None
        if fault is None and kind in _KEEP_ZEROS:
            self._keep_zeros(node)
        return fault

    def _reshape(self, node: NodeProto) -> str | None:
        (x, y), (a, b) = self._shapes(node), (self.axis(node.input[0]), self.axis(node.output[0]))
        assert a is not None, "its operand grows"
        assert b is not None, "its result grows"
        same = np.prod(x[:a], dtype=np.int64) == np.prod(y[:b], dtype=np.int64) and x[a] == y[b]
        return None if same else "it merges the axis that grows with others"

    def _shapes(self, node: NodeProto) -> tuple[Shape, Shape]:
        return self.last[node.input[0]], self.last[node.output[0]]

    def _selection(self, node: NodeProto) -> str | None:
        """Only what stands before the rows may be left out."""
        x, y = self._shapes(node)
        axis, there = self.axis(node.input[0]), self.axis(node.output[0])
        if axis is None:
            return None if node.op_type == "Gather" else "its result alone grows"
        if node.op_type == "Gather":
            along = int(read_attributes(node).get("axis", 0)) % len(x)
            return "it picks rows by their place" if along == axis else None
        if node.op_type == "Split":
            along = int(read_attributes(node).get("axis", 0)) % len(x)
            return "it cuts the axis that grows" if along == axis else None
        assert there is not None, "checked by the caller"
        if x[axis] == y[there] or self._drops_first(node, axis):
            return None
        return "it picks rows by their place"

    def _drops_first(self, node: NodeProto, axis: int) -> bool:
        fixed = {t.name: t for t in self.proto.graph.initializer}
        names = [n for n in node.input[1:] if n]
        if any(n not in fixed for n in names) or len(names) < 3:
            return False
        starts, ends, axes, *steps = (numpy_helper.to_array(fixed[n]).tolist() for n in names)
        rank = len(self.last[node.input[0]])
        there = [k for k, a in enumerate(axes) if a % rank == axis]
        if not all(ends[k] >= _END and (not steps or steps[0][k] == 1) for k in there):
            return False
        dropped, lead = sum(starts[k] for k in there), self.lead.get(node.input[0], 0)
        self.lead[node.output[0]] = lead - dropped
        return 0 <= dropped <= lead

    def _product(self, node: NodeProto) -> str | None:
        a, b = node.input
        inner = self.axis(a) == len(self.last[a]) - 1
        if inner and self.axis(b) == len(self.last[b]) - 2:
            return None if self.complete or {a, b} & self.zeros else "it adds rows that nothing has masked"
        both = self.axis(a) is not None and self.axis(b) is not None
        return "both operands grow" if both or inner else None

    def _softmax(self, node: NodeProto) -> str | None:
        name, rank = node.input[0], len(self.last[node.input[0]])
        along = int(read_attributes(node).get("axis", -1)) % rank
        if self.axis(name) == along and not self.complete:
            self.masked[node.output[0]] = along
            self.zeros.add(node.output[0])
        return None

    def _reduction(self, node: NodeProto, read: Sequence[str]) -> str | None:
        if self.complete or not read or self.axis(node.output[0]) is not None:
            return None
        return None if node.op_type == "ReduceSum" and read[0] in self.zeros else "it reduces the axis that grows"
