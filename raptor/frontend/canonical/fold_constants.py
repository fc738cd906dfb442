"""Constant folding of nodes that onnxruntime's optimiser does not fold.

It leaves nodes whose result shapes depend on values (NonZero, Compress), nodes of sequences, and every node of a model
for which it lacks a kernel, such as shifts of signed integers.
"""

import math
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.frontend.control_flow.inline_subgraphs import replace_nodes
from raptor.frontend.inputs.declared_shapes import static_dims
from raptor.frontend.operator_sets import RANDOM_OPS, STANDARD_DOMAINS
from raptor.frontend.proto.nodes import ModelConstants
from raptor.frontend.proto.onnx_wrappers import run_node
from raptor.frontend.proto.read_model import find_reads, subgraphs

_NO_KERNEL = ("Could not find an implementation", "Type Error: Type 'tensor(", "is not a registered function/op")
"""Parts of onnxruntime's messages about missing kernels."""
MOST_BYTES = 2**28
"""Maximum total size in bytes of the results of one folding."""
_BORDERS = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""Operators that are not folded even on constants: importers need the integers and their scale separately."""
_BOUNDED = frozenset(
    (
        *("Compress", "NonMaxSuppression", "NonZero", "Unique", "ConcatFromSequence", "SequenceAt", "SequenceEmpty"),
        *("SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
    )
)
"""Operators whose results are not much larger than their operands, even where no shape is known."""


def lacks_kernel(error: Exception) -> bool:
    """Checks whether an onnxruntime exception reports a missing kernel."""
    return any(words in str(error) for words in _NO_KERNEL)


def fold_constants(proto: ModelProto, folder: Path) -> bool:
    """Replaces nodes that depend on constants and shapes only by their results, in place; drops unread nodes.

    Returns False if there are none. proto: has inferred shapes. folder: holds its larger weights.
    """
    found, nodes = _Folding(proto, folder), list(proto.graph.node)
    replaced = [found.replaces(node) for node in nodes]
    kept: list[NodeProto] = []
    needed = {v.name for v in proto.graph.output}
    for node, gone in zip(reversed(nodes), reversed(replaced), strict=True):
        read = any(o in needed for o in node.output)
        # A sequence cannot be a constant.
        if (read and not gone) or any(o in needed and found.is_sequence(o) for o in node.output):
            kept.append(node)
            needed.update(find_reads(node))
    replace_nodes(proto.graph, kept[::-1])
    proto.graph.initializer.extend(found.results(needed))
    return len(kept) < len(nodes)


def can_fold(graph: GraphProto) -> bool:
    """Checks whether a node may depend on constants or shapes only, other than quantisers and dequantisers."""
    fixed = {t.name for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Softmax":
            return True
        if _is_computable(node) and all(i in fixed for i in find_reads(node)):
            if node.op_type not in _BORDERS:
                return True
            fixed.update(node.output)
    return False


def write_external_data(proto: ModelProto, folder: Path, in_memory: Mapping[str, bytes | bytearray]) -> None:
    """Writes in-memory external data to files of the same names in `folder`."""
    tensors = [t for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    for name in {e.value for t in tensors for e in t.external_data if e.key == "location"}:
        (folder / name).write_bytes(in_memory[name])


class _Folding:
    """State of one folding. Dequantised weights are computed only if another folded node reads them."""

    def __init__(self, proto: ModelProto, folder: Path) -> None:
        graph = proto.graph
        self._opsets = proto.opset_import
        self._constants = ModelConstants(graph.initializer, folder)
        self._sizes = {v.name: static_dims(v) for v in (*graph.input, *graph.value_info, *graph.output)}
        self._known: dict[str, Any] = {}
        """Tensor or sequence -> value, of the nodes that are folded."""
        self._waiting: dict[str, NodeProto] = {}
        """Tensor -> node that is kept, and could be computed from constants."""
        self._left = MOST_BYTES

    def replaces(self, node: NodeProto) -> bool:
        """Checks whether a node can be removed because its results are now known."""
        if node.op_type in ("Shape", "Size") and node.domain in STANDARD_DOMAINS and node.input:
            return self._measure(node)
        if node.op_type == "Softmax" and node.domain in STANDARD_DOMAINS and self._has_one_share(node):
            self._known[node.output[0]] = np.ones(self._sizes[node.output[0]] or (), np.float32)
            return True
        if not _is_computable(node) or not all(map(self._is_fixed, find_reads(node))):
            return False
        quantised = node.op_type in _BORDERS or any(i in self._waiting for i in find_reads(node))
        if quantised and all(self._sizes.get(o) is not None for o in node.output if o):
            self._waiting.update((o, node) for o in node.output if o)
            return False
        return self._compute(node, self._known)

    def _has_one_share(self, node: NodeProto) -> bool:
        """Checks whether a softmax is over one element, as in an attention to one token: the share of it is 1."""
        dims = self._sizes.get(node.output[0])
        if dims is None:
            return False
        version = next(each.version for each in self._opsets if each.domain in STANDARD_DOMAINS)
        axis = next((each.i for each in node.attribute if each.name == "axis"), -1 if version >= 13 else 1)
        spanned = dims[axis % max(len(dims), 1) :]
        return math.prod(spanned[:1] if version >= 13 else spanned) == 1

    def is_sequence(self, name: str) -> bool:
        return isinstance(self._known.get(name), list)

    def results(self, needed: Set[str]) -> Iterator[TensorProto]:
        """Yields the needed results as constants; sequences are left out."""
        for name, value in self._known.items():
            if name in needed and not isinstance(value, list):
                yield numpy_helper.from_array(np.asarray(value), name)

    def _is_fixed(self, name: str) -> bool:
        return name in self._constants or name in self._known or name in self._waiting

    def _measure(self, node: NodeProto) -> bool:
        dims = self._sizes.get(node.input[0])
        if node.input[0] in self._constants:
            dims = self._constants.shape(node.input[0])
        if dims is None:
            return False
        return self._finish(node, {node.input[0]: np.broadcast_to(np.float32(0), dims)}, self._known)

    def _compute(self, node: NodeProto, into: dict[str, Any]) -> bool:
        limited = all((dims := self._sizes.get(o)) is None or 8 * math.prod(dims) <= self._left for o in node.output)
        known = all(self._sizes.get(o) is not None for o in node.output if o) or node.op_type in _BOUNDED
        if not (limited and known):
            return False
        operands = {name: self._value(name) for name in find_reads(node)}
        return not any(v is None for v in operands.values()) and self._finish(node, operands, into)

    def _value(self, name: str) -> Any:
        if name in self._waiting and name not in self._known:
            values: dict[str, Any] = {}
            self._compute(self._waiting[name], values)
            return values.get(name)
        return self._known[name] if name in self._known else self._constants[name]

    def _finish(self, node: NodeProto, operands: Mapping[str, Any], into: dict[str, Any]) -> bool:
        found = run_node(node, operands, self._opsets)
        names = [o for o in node.output if o]
        if found is None or len(found) != len(names):
            return False
        self._left -= sum(_bytes(value) for value in found)
        into.update(zip(names, found, strict=True))
        return self._left >= 0


def _is_computable(node: NodeProto) -> bool:
    return node.op_type not in RANDOM_OPS and not any(True for _ in subgraphs(node)) and any(node.input)


def _bytes(value: Any) -> int:
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    return sum(int(np.asarray(v).nbytes) for v in values)
