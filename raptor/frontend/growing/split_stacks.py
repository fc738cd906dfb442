"""Splits caches that hold keys and values in one tensor, [2, batch, heads, rows, d], into a cache for each.

A product reads either keys or values, and the cores that share a cache keep rows of the one and channels of the other.
So each part of such a stack becomes a state of its own, where the model only selects parts and appends to all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, rename_reads, replace_nodes
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.proto.read_model import find_reads
from raptor.graph.decoder_steps import StackedState
from raptor.graph.residency import StatePair

_AXES_INPUT = 13
"""First operator set in which Unsqueeze takes its axes as an input."""


def split_stacks(proto: ModelProto, pairs: Mapping[str, str], names: UniqueNames) -> tuple[StackedState, ...]:
    """Replaces each stacked cache by its parts, in place. Returns the caches that were replaced.

    `pairs`: states, output by input, or `AUTOMATIC`. A cache that the model reads or returns in another way stays as it
    is.
    """
    known = {t.name for t in proto.graph.initializer}
    stacks = [v for v in proto.graph.input if v.name not in known and (pairs == AUTOMATIC or v.name in pairs)]
    found = [_StackSplitter(proto, names, value).split() for value in stacks]
    return tuple(stack for stack in found if stack is not None)


class _StackSplitter:
    """Splits one input. `count`: size of its first axis, 0 if it has no other axes or an open size."""

    def __init__(self, proto: ModelProto, names: UniqueNames, value: ValueInfoProto) -> None:
        self.proto, self.names, self.value = proto, names, value
        dims = value.type.tensor_type.shape.dim
        self.rank, self.count = len(dims), dims[0].dim_value if len(dims) > 1 else 0
        self.weights: dict[str, TensorProto] = {t.name: t for t in proto.graph.initializer}
        self.makers = {o: node for node in proto.graph.node for o in node.output}
        self.version = next(o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS)

    def split(self) -> StackedState | None:
        """Splits the input, if all that the model does with it and with its next value can be done with their parts."""
        name, nodes = self.value.name, [*self.proto.graph.node]
        outputs = {v.name: v for v in self.proto.graph.output}
        returned = [n for n in nodes if n.output and n.output[0] in outputs] if self.count > 1 else []
        append = next((n for n in returned if self._appends_to_all(n)), None)
        joint = append or next((n for n in returned if self._joins_parts(n)), None)
        if joint is None or name in outputs:
            return None
        output = joint.output[0]
        readers = [n for n in nodes if {name, output}.intersection(n.input) and n is not append]
        if any(self._find_selected(n) is None for n in readers):
            return None
        before = [self.names.unique_tensor(f"{name}.{k}") for k in range(self.count)]
        after = [self.names.unique_tensor(f"{output}.{k}") for k in range(self.count)]
        renamed: dict[str, str] = {}
        if append is None:
            renamed |= zip(self._find_stacked(joint) or (), after, strict=True)
        made = {output: self._append_to_parts(append, before, after) if append else []}
        for reader in readers:
            parts = before if reader.input[0] == name else after
            made[reader.output[0]] = self._select(reader, parts, renamed, outputs)
        self._drop_squeezes(nodes, readers, made, renamed)
        replace_nodes(
            self.proto.graph, [new for node in nodes for new in made.get(node.output[0], [node] if node.output else [])]
        )
        for node in self.proto.graph.node:
            rename_reads(node, renamed)
            node.output[:] = [renamed.get(o, o) for o in node.output]
        _replace_value(self.proto.graph.input, self.value, before)
        _replace_value(self.proto.graph.output, outputs[output], after)
        self._drop_unread()
        return StackedState(name, output, tuple(map(StatePair, before, after)))

    def _appends_to_all(self, node: NodeProto) -> bool:
        """Checks whether a node appends rows to all parts of the stack at once."""
        is_append = node.op_type == "Concat" and len(node.input) == 2 and node.input[0] == self.value.name
        return is_append and int(read_attributes(node)["axis"]) % self.rank != 0

    def _joins_parts(self, node: NodeProto) -> bool:
        """Checks whether a node stacks the parts of the input, in their order, each with rows that are appended."""
        for number, name in enumerate(self._find_stacked(node) or ("",)):
            append = self.makers.get(name)
            if append is None or append.op_type != "Concat" or append.input[0] not in self.makers:
                return False
            if self._find_part(append.input[0]) != number:
                return False
        return True

    def _find_part(self, name: str) -> int | None:
        """Returns the number of the part of the input that a tensor is, without the first axis; None if it is none."""
        node, squeezed = self.makers[name], False
        if self._axes(node, "Squeeze") == [0] and node.input[0] in self.makers:
            name, node, squeezed = node.input[0], self.makers[node.input[0]], True
        found = self._find_selected(node) if node.input[:1] == [self.value.name] else None
        return found[list(node.output).index(name)] if found and self._keeps_axis(node) == squeezed else None

    def _find_stacked(self, node: NodeProto | None) -> list[str] | None:
        """Returns the tensors, one for each part, that a Concat of Unsqueezes stacks along a new first axis."""
        if node is None or node.op_type != "Concat" or len(node.input) != self.count:
            return None
        found = [self.makers.get(name) for name in node.input]
        is_new = [n is not None and self._axes(n, "Unsqueeze") == [0] for n in found]
        if int(read_attributes(node)["axis"]) % self.rank or not all(is_new):
            return None
        return [n.input[0] for n in found if n is not None]

    def _axes(self, node: NodeProto, op_type: str) -> list[int] | None:
        """Returns the axes of a node of that type; None for another node, and for axes that are no constants."""
        if node.op_type != op_type:
            return None
        found = read_attributes(node).get("axes") if len(node.input) < 2 else self._constant(node, 1)
        return None if found is None else [int(axis) for axis in np.ravel(found)]

    def _constant(self, node: NodeProto, position: int) -> npt.NDArray[Any] | None:
        name = node.input[position] if position < len(node.input) else ""
        return numpy_helper.to_array(self.weights[name]) if name in self.weights else None

    def _find_selected(self, node: NodeProto) -> list[int] | None:
        """Returns the number of the part that each output of a node is; None if an output is not one part."""
        along = int(read_attributes(node).get("axis", 0)) % self.rank if node.op_type in ("Gather", "Split") else 0
        if along:
            return None
        if node.op_type == "Split":
            return [*range(self.count)] if len(node.output) == self.count else None
        if node.op_type == "Slice":
            return self._find_slice(node)
        chosen = self._constant(node, 1) if node.op_type == "Gather" else None
        if chosen is None or chosen.size != 1 or chosen.ndim > 1:
            return None
        return [int(chosen.item()) % self.count]

    def _find_slice(self, node: NodeProto) -> list[int] | None:
        bounds = [self._constant(node, k) for k in range(1, len(node.input))]
        if len(bounds) < 3 or any(b is None or b.size != 1 for b in bounds):
            return None
        start, end, axis, *step = (int(b.item()) for b in bounds if b is not None)
        numbers = range(self.count)[slice(start, end, *step)]
        return [*numbers] if axis % self.rank == 0 and len(numbers) == 1 else None

    def _keeps_axis(self, node: NodeProto) -> bool:
        """Checks whether a part that a node selects still has the first axis, with size 1."""
        chosen = self._constant(node, 1)
        return node.op_type != "Gather" or (chosen is not None and chosen.ndim == 1)

    def _select(
        self, node: NodeProto, parts: Sequence[str], renamed: dict[str, str], outputs: Mapping[str, ValueInfoProto]
    ) -> list[NodeProto]:
        """Returns nodes that make what a node selects from the parts; what is a part is only `renamed`."""
        found: list[NodeProto] = []
        for number, name in zip(self._find_selected(node) or (), node.output, strict=True):
            if self._keeps_axis(node):
                axes: dict[str, Any] = {"axes": [0]} if self.version < _AXES_INPUT else {}
                given = [parts[number], *([] if axes else [self._number(np.array([0], np.int64))])]
                found.append(helper.make_node("Unsqueeze", given, [name], name=name, **axes))
            elif name in outputs:
                found.append(helper.make_node("Identity", [parts[number]], [name], name=name))
            else:
                renamed[name] = parts[number]
        return found

    def _drop_unread(self) -> None:
        """Removes Unsqueezes that only made stacks."""
        graph = self.proto.graph
        read = {name for node in graph.node for name in find_reads(node)} | {v.name for v in graph.output}
        replace_nodes(graph, [n for n in graph.node if n.op_type != "Unsqueeze" or n.output[0] in read])

    def _drop_squeezes(
        self,
        nodes: Sequence[NodeProto],
        readers: Sequence[NodeProto],
        made: dict[str, list[NodeProto]],
        renamed: dict[str, str],
    ) -> None:
        """Lets what reads a selected part without its first axis read the part itself."""
        wide = {new.output[0]: new.input[0] for n in readers for new in made[n.output[0]] if new.op_type == "Unsqueeze"}
        outputs = {v.name for v in self.proto.graph.output}
        for node in nodes:
            is_part = node.input and node.input[0] in wide and self._axes(node, "Squeeze") == [0]
            if is_part and node.output[0] not in outputs:
                renamed[node.output[0]], made[node.output[0]] = wide[node.input[0]], []

    def _append_to_parts(self, append: NodeProto, before: Sequence[str], after: Sequence[str]) -> list[NodeProto]:
        """Returns nodes that append to each part what `append` appends to the stack."""
        axis, new, found = int(read_attributes(append)["axis"]) % self.rank, append.input[1], list[NodeProto]()
        stacked = self._find_stacked(self.makers.get(new))
        for k, (old, name) in enumerate(zip(before, after, strict=True)):
            if stacked is None:
                row = self.names.unique_tensor(f"{new}.{k}")
                found.append(helper.make_node("Gather", [new, self._number(np.int64(k))], [row], name=row, axis=0))
            else:
                row = stacked[k]
            found.append(helper.make_node("Concat", [old, row], [name], name=name, axis=axis - 1))
        return found

    def _number(self, value: npt.ArrayLike) -> str:
        name = self.names.unique_tensor(f"{self.value.name}.number")
        self.proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _replace_value(values: Any, stack: ValueInfoProto, parts: Sequence[str]) -> None:
    """Replaces an input or output of a graph by values without its first axis."""
    kept: list[ValueInfoProto] = []
    for value in values:
        for name in parts if value.name == stack.name else (value.name,):
            copy = ValueInfoProto()
            copy.CopyFrom(value)
            copy.name = name
            if value.name == stack.name and value.type.tensor_type.HasField("shape"):
                del copy.type.tensor_type.shape.dim[0]
            kept.append(copy)
    del values[:]
    values.extend(kept)
