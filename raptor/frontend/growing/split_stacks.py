"""Splits caches that hold keys and values in one tensor, [2, batch, heads, rows, d], into a cache for each.

A product reads either keys or values, and the cores that share a cache keep rows of the one and channels of the other.
So each part of such a stack becomes a state of its own, where the model only selects parts of it, and appends to all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, rename_reads, replace_nodes
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.nodes import read_attributes
from raptor.graph.decoder_steps import StackedState
from raptor.graph.residency import StatePair

_END = 2**31 - 1


def split_stacks(proto: ModelProto, names: UniqueNames) -> tuple[StackedState, ...]:
    """Replaces each stacked cache by its parts, in place. Returns the caches that were replaced.

    A cache that the model reads or returns in another way stays as it is.
    """
    weights = {t.name for t in proto.graph.initializer}
    found = [_Splitter(proto, names, v).split() for v in [*proto.graph.input] if v.name not in weights]
    return tuple(stack for stack in found if stack is not None)


@dataclass(slots=True, eq=False)
class _Splitter:
    """Splits one input. `count`: size of its first axis; `parts`: the tensors that take its place."""

    proto: ModelProto
    names: UniqueNames
    value: ValueInfoProto
    count: int = field(init=False)
    weights: Mapping[str, TensorProto] = field(init=False)
    made: list[NodeProto] = field(default_factory=list[NodeProto])

    def __post_init__(self) -> None:
        dims = self.value.type.tensor_type.shape.dim
        self.count = dims[0].dim_value if len(dims) > 1 else 0
        self.weights = {t.name: t for t in self.proto.graph.initializer}

    def split(self) -> StackedState | None:
        """Splits the input if its count is known, and all that is done with it can be done with its parts."""
        name, nodes = self.value.name, [*self.proto.graph.node]
        outputs = {v.name: v for v in self.proto.graph.output}
        if self.count < 2 or name in outputs:
            return None
        append = next((n for n in nodes if self._appends(n, name) and n.output[0] in outputs), None)
        joint = self._find_joint(nodes, outputs) if append is None else append
        if joint is None:
            return None
        stacks = {name, joint.output[0]}
        readers = [n for n in nodes if stacks.intersection(n.input) and n is not append]
        if any(self._selected(n) is None for n in readers):
            return None
        output = joint.output[0]
        before = [self.names.unique_tensor(f"{name}.{k}") for k in range(self.count)]
        after = [self.names.unique_tensor(f"{output}.{k}") for k in range(self.count)]
        if append is None:
            self._name_parts(nodes, joint, after)
        else:
            self._append_parts(append, before, after)
        for reader in readers:
            self._select(reader, before if reader.input[0] == name else after)
        self._replace(nodes, [joint, *readers], outputs[output], before, after)
        return StackedState(name, output, tuple(map(StatePair, before, after)))

    def _appends(self, node: NodeProto, name: str) -> bool:
        """Checks whether a node appends to all parts of a stack at once."""
        is_join = node.op_type == "Concat" and len(node.input) == 2 and node.input[0] == name
        return is_join and int(read_attributes(node)["axis"]) % len(self.value.type.tensor_type.shape.dim) != 0

    def _find_joint(self, nodes: Sequence[NodeProto], outputs: Mapping[str, ValueInfoProto]) -> NodeProto | None:
        """Returns the node that makes an output of tensors to which the parts of the input, in order, are appended."""
        first: dict[str, int] = {}
        for node in nodes:
            numbers = self._selected(node) if node.input and node.input[0] == self.value.name else None
            if numbers and node.op_type == "Gather" and not self._keeps_axis(node):
                first[node.output[0]] = numbers[0]
        appended = {n.output[0]: first[n.input[0]] for n in nodes if n.op_type == "Concat" and n.input[0] in first}
        for node in nodes:
            parts = self._stacked(nodes, node) if node.output and node.output[0] in outputs else None
            if parts and [appended.get(part) for part in parts] == [*range(self.count)]:
                return node
        return None

    def _stacked(self, nodes: Sequence[NodeProto], node: NodeProto) -> list[str] | None:
        """Returns the tensors, as many as parts, that a Concat of Unsqueezes stacks along a new first axis."""
        if node.op_type != "Concat" or len(node.input) != self.count:
            return None
        makers = {o: n for n in nodes for o in n.output}
        found = [makers.get(name) for name in node.input]
        rank = len(self.value.type.tensor_type.shape.dim)
        if int(read_attributes(node)["axis"]) % rank or any(n is None or self._axes(n) != [0] for n in found):
            return None
        return [n.input[0] for n in found if n is not None]

    def _axes(self, node: NodeProto) -> list[int] | None:
        """Returns the axes of an Unsqueeze; None for another node, and for axes that are no constants."""
        if node.op_type != "Unsqueeze" or node.domain not in STANDARD_DOMAINS:
            return None
        if len(node.input) < 2:
            return [int(a) for a in read_attributes(node)["axes"]]
        found = self._constant(node, 1)
        return None if found is None else [int(a) for a in found.ravel()]

    def _constant(self, node: NodeProto, position: int) -> "np.ndarray | None":
        name = node.input[position] if position < len(node.input) else ""
        return numpy_helper.to_array(self.weights[name]) if name in self.weights else None

    def _selected(self, node: NodeProto) -> list[int] | None:
        """Returns the numbers of the parts that each output of a node is; None if they are not one part each."""
        if node.op_type == "Gather" and int(read_attributes(node).get("axis", 0)) == 0:
            chosen = self._constant(node, 1)
            if chosen is None or chosen.size != 1 or chosen.ndim > 1 or not -self.count <= chosen.item() < self.count:
                return None
            return [int(chosen.item()) % self.count]
        if node.op_type == "Split" and int(read_attributes(node).get("axis", 0)) == 0:
            return [*range(self.count)] if len(node.output) == self.count else None
        return self._sliced(node) if node.op_type == "Slice" else None

    def _sliced(self, node: NodeProto) -> list[int] | None:
        bounds = [self._constant(node, k) for k in range(1, len(node.input))]
        if len(bounds) < 3 or any(b is None or b.size != 1 for b in bounds):
            return None
        start, end, axis, *step = (int(b.item()) for b in bounds if b is not None)
        numbers = range(self.count)[slice(start, None if end >= _END else end, *step)]
        return [*numbers] if axis == 0 and len(numbers) == 1 else None

    def _keeps_axis(self, node: NodeProto) -> bool:
        """Checks whether a selected part still has the first axis, with size 1."""
        chosen = self._constant(node, 1)
        return node.op_type != "Gather" or (chosen is not None and chosen.ndim == 1)

    def _select(self, node: NodeProto, parts: Sequence[str]) -> None:
        """Makes the outputs of a selection of parts from the parts themselves."""
        for number, name in zip(self._selected(node) or (), node.output, strict=True):
            if self._keeps_axis(node):
                self._unsqueeze(parts[number], name)
            else:
                self._add("Identity", [parts[number]], name)

    def _append_parts(self, append: NodeProto, before: Sequence[str], after: Sequence[str]) -> None:
        """Appends to each part what is appended to the stack."""
        axis = int(read_attributes(append)["axis"]) % len(self.value.type.tensor_type.shape.dim)
        makers = {o: n for n in self.proto.graph.node for o in n.output}
        stacked = self._stacked([*self.proto.graph.node], makers[append.input[1]]) if append.input[1] in makers else None
        for k, (old, new) in enumerate(zip(before, after, strict=True)):
            if stacked:
                row = stacked[k]
            else:
                row = self.names.unique_tensor(f"{append.input[1]}.{k}")
                self._add("Gather", [append.input[1], self._number(np.int64(k))], row, axis=0)
            self._add("Concat", [old, row], new, axis=axis - 1)

    def _name_parts(self, nodes: Sequence[NodeProto], joint: NodeProto, after: Sequence[str]) -> None:
        """Gives the tensors that a node stacks the names of the parts of the output."""
        renamed = dict(zip(self._stacked(nodes, joint) or (), after, strict=True))
        for node in (*nodes, *self.made):
            rename_reads(node, renamed)
            node.output[:] = [renamed.get(name, name) for name in node.output]

    def _replace(
        self,
        nodes: Sequence[NodeProto],
        gone: Sequence[NodeProto],
        output: ValueInfoProto,
        before: Sequence[str],
        after: Sequence[str],
    ) -> None:
        """Puts the new nodes where they may stand, and the parts in the places of the stacks."""
        graph = self.proto.graph
        kept = [n for n in nodes if not any(n is g for g in gone)]
        replace_nodes(graph, _in_order([*self.made, *kept]))
        for values, value, parts in ((graph.input, self.value, before), (graph.output, output, after)):
            dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in value.type.tensor_type.shape.dim]
            kind = value.type.tensor_type.elem_type
            shape = dims[1:] if value.type.tensor_type.HasField("shape") else None
            own = [v if v.name != value.name else None for v in values]
            found = [w for v in own for w in ([v] if v else _values(parts, kind, shape))]
            del values[:]
            values.extend(found)

    def _unsqueeze(self, part: str, output: str) -> None:
        version = next(o.version for o in self.proto.opset_import if o.domain in STANDARD_DOMAINS)
        if version < 13:
            self._add("Unsqueeze", [part], output, axes=[0])
        else:
            self._add("Unsqueeze", [part, self._number(np.array([0], np.int64))], output)

    def _number(self, value: "np.ndarray | np.int64") -> str:
        name = self.names.unique_tensor(f"{self.value.name}.number")
        self.proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, op_type: str, inputs: Sequence[str], output: str, **more: int | list[int]) -> None:
        self.made.append(helper.make_node(op_type, list(inputs), [output], name=output, **more))
