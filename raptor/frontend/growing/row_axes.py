"""Follows the rows of caches of fixed size through a model, whose shapes do not tell which axis has a value for each.

The axis of a tensor follows from those of the operands. What the position determines, and constants, have such an axis
where they meet one, as masks do.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from onnx import NodeProto

from raptor.common.errors import UserError
from raptor.frontend.growing.growth_rules import BY_LAST_AXIS, ELEMENTWISE
from raptor.frontend.growing.tensor_knowledge import Knowledge
from raptor.frontend.proto.nodes import read_attributes

Shape = tuple[int, ...]
_SAME_AXIS = frozenset(("Dropout", "Identity", "Slice", "Softmax", "Split", "Tile", *BY_LAST_AXIS))


def find_row_axes(
    nodes: Sequence[NodeProto],
    shapes: Mapping[str, Shape],
    known: Mapping[str, Knowledge],
    caches: Mapping[str, int],
    parameters: Mapping[str, Sequence[int]],
) -> dict[str, int]:
    """Returns the axis of each tensor that has a value for each row of a cache.

    `nodes`: those that compute with data, in order. `shapes`: of all tensors. `caches`: the axes of the caches.
    `parameters`: places of the inputs that are no operands, by operator, such as the shape of a Reshape. Raises
    `UserError` where the axis is lost, or where an input of the model meets it.
    """
    follower = _RowFollower(shapes, known, dict(caches), parameters)
    for node in nodes:
        if follower.axes.keys() & set(node.input) and not follower.axes.keys() & set(node.output):
            follower.follow(node)
    return follower.axes


class _RowFollower:
    """Follows rows node by node. `axes`: found so far."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        known: Mapping[str, Knowledge],
        axes: dict[str, int],
        parameters: Mapping[str, Sequence[int]],
    ) -> None:
        self.shapes, self.known, self.axes, self.parameters = shapes, known, axes, parameters

    def follow(self, node: NodeProto) -> None:
        """Finds the axis of what a node makes."""
        kind = node.op_type
        if kind in ELEMENTWISE or kind == "Expand":
            self._broadcast(node)
        elif kind == "MatMul":
            self._multiply(node)
        else:
            axis = self._moved(node, self.axes.get(node.input[0]))
            self.axes |= {} if axis is None else dict.fromkeys((o for o in node.output if o), axis)

    def _operands(self, node: NodeProto) -> list[str]:
        own = self.parameters.get(node.op_type, ())
        return [name for k, name in enumerate(node.input) if name and k not in own]

    def _broadcast(self, node: NodeProto) -> None:
        name, rank = node.output[0], len(self.shapes[node.output[0]])
        operands = self._operands(node)
        places = {rank - len(self.shapes[n]) + self.axes[n] for n in operands if n in self.axes}
        if len(places) != 1:
            self._refuse(node, "its operands have the rows of a cache along different axes")
        (place,) = places
        for operand in operands:
            axis = place - rank + len(self.shapes[operand])
            if operand not in self.axes and axis >= 0 and self.shapes[operand][axis] > 1:
                self._meet(node, operand, axis)
        self.axes[name] = place

    def _meet(self, node: NodeProto, name: str, axis: int) -> None:
        """Gives a tensor an axis with a value for each row. Of data, only what is made of caches has one."""
        if name not in self.axes and self.known.get(name, "constant") == "data":
            self._refuse(node, f"{name} has a value for each row of a cache, which the position does not determine")
        if self.axes.setdefault(name, axis) != axis:
            self._refuse(node, f"{name} has the rows of a cache along different axes")

    def _multiply(self, node: NodeProto) -> None:
        (a, b), made = node.input, node.output[0]
        ranks, rank = (len(self.shapes[a]), len(self.shapes[b])), len(self.shapes[made])
        inner = (ranks[0] - 1, max(ranks[1] - 2, 0))
        if self.axes.get(a) == inner[0] or self.axes.get(b) == inner[1]:
            self._meet(node, a, inner[0])
            self._meet(node, b, inner[1])
            return
        found: set[int] = set()
        for name, own in zip((a, b), ranks, strict=True):
            if name in self.axes:
                found.add(rank - own + self.axes[name])
        if len(found) != 1 or min(*ranks, rank) < 2:
            self._refuse(node, "both operands have the rows of a cache")
        self.axes[made] = found.pop()

    def _moved(self, node: NodeProto, axis: int | None) -> int | None:
        """Returns where the rows of the first operand are in a result; None if the node sums or reduces them."""
        kind = node.op_type
        if axis is None or any(n in self.axes for n in node.input[1:] if kind != "Concat"):
            self._refuse(node, "it reads the rows of a cache")
        rank = len(self.shapes[node.input[0]])
        match kind:
            case "Transpose":
                return [int(d) for d in read_attributes(node).get("perm", range(rank)[::-1])].index(axis)
            case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze":
                return self._regrouped(node, axis)
            case "Concat":
                return self._joined(node, int(read_attributes(node)["axis"]) % rank)
            case "Gather":
                return self._gathered(node, axis)
            case _ if kind.startswith("Reduce"):
                return self._reduced(node, axis)
            case _ if kind in _SAME_AXIS:
                return self._same(node, axis)
            case _:
                self._refuse(node, "it reads the rows of a cache")

    def _same(self, node: NodeProto, axis: int) -> int:
        """Returns the axis, if all rows stay there."""
        if any(self.shapes[o][axis] != self.shapes[node.input[0]][axis] for o in node.output if o):
            self._refuse(node, "it picks or repeats the rows of a cache")
        return axis

    def _gathered(self, node: NodeProto, axis: int) -> int:
        """Returns the axis after the one that is gathered has become those of the indices."""
        x, ids = self.shapes[node.input[0]], self.shapes[node.input[1]]
        along = int(read_attributes(node).get("axis", 0)) % len(x)
        if along == axis:
            self._refuse(node, "it picks the rows of a cache by their place")
        return axis if axis < along else axis + len(ids) - 1

    def _regrouped(self, node: NodeProto, axis: int) -> int:
        """Returns the axis of the rows after a reshape: the one of equal size with equally many elements before it."""
        x, y = self.shapes[node.input[0]], self.shapes[node.output[0]]
        before = np.prod(x[:axis], dtype=np.int64)
        found = [b for b, n in enumerate(y) if n == x[axis] and np.prod(y[:b], dtype=np.int64) == before]
        if not found:
            self._refuse(node, "it merges the rows of a cache with another axis")
        return found[-1]

    def _joined(self, node: NodeProto, along: int) -> int:
        found = {self.axes.get(name) for name in node.input}
        axis = next(a for a in found if a is not None)
        if along == axis:
            self._refuse(node, "it joins the rows of a cache with others")
        for name in node.input:
            if name not in self.axes:
                self._meet(node, name, axis)
        return axis

    def _reduced(self, node: NodeProto, axis: int) -> int | None:
        x, y = self.shapes[node.input[0]], self.shapes[node.output[0]]
        if len(x) == len(y):
            return None if y[axis] != x[axis] else axis
        self._refuse(node, "it drops axes of what has the rows of a cache")

    def _refuse(self, node: NodeProto, fault: str) -> NoReturn:
        """Raises `UserError` for a node."""
        raise UserError(f"{node.name or node.output[0]} ({node.op_type}): {fault}")
