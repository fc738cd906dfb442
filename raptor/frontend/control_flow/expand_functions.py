"""Expands operators without an importer into the function bodies that the ONNX standard defines for them.

The standard defines some operators, such as Attention, by a graph of simpler ones. Some of these bodies depend on the
types of the inputs, which are inferred.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from raptor.frontend.control_flow.eliminate_control_flow import is_control_flow
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, inline_body, rename_reads, replace_nodes
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import describe_node
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, default_attributes, find_function_body, infer_shapes
from raptor.frontend.proto.opset_conversion import opset_version
from raptor.frontend.proto.read_model import subgraphs, walk_graphs
from raptor.frontend.registry import find_importer, is_refused

MOST_LEVELS = 8
"""Maximum nesting depth of function bodies."""

_DOMAINS = (*STANDARD_DOMAINS, "ai.onnx.preview")
"""Domains for which onnx defines functions."""
_WITHOUT_KERNEL = frozenset(("Swish",))
"""Operators that have an importer but no onnxruntime kernel after version 24."""
_COMPUTED = frozenset(("Range",))
"""Operators whose function is a loop, but which onnxruntime folds, as for the masks of Swin."""


def expand_functions(proto: ModelProto) -> Mapping[str, str]:
    """Expands every standard operator that has a function body and no importer, in place.

    Returns results of all new nodes -> label of the node that they replace, which the user knows.
    """
    versions = {"": opset_version(proto)} | {o.domain: o.version for o in proto.opset_import if o.domain in _DOMAINS}
    labels: dict[str, str] = {}
    for _ in range(MOST_LEVELS):
        constants = {t.name for t in proto.graph.initializer}
        candidates = [n for n in proto.graph.node if _lacks_importer(n, versions) and not constants.issuperset(n.input)]
        if not candidates or not _Expansion(proto, versions, labels).run(candidates):
            break
    if labels:
        _drop_domains(proto)
    return labels


def _lacks_importer(node: NodeProto, versions: Mapping[str, int]) -> bool:
    if node.domain not in versions or is_control_flow(node) or node.op_type in _COMPUTED:
        return False
    version = versions[node.domain]
    known = is_refused(node.op_type) or find_importer(node.op_type, version, node.domain) is not None
    return not known or (node.op_type in _WITHOUT_KERNEL and version != 24)


def _drop_domains(proto: ModelProto) -> None:
    """Removes imports of domains that no node uses any more; onnxruntime does not know all of them."""
    used = {n.domain for graph in walk_graphs(proto.graph) for n in graph.node}
    kept = [o for o in proto.opset_import if o.domain in used or o.domain in STANDARD_DOMAINS]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


class _Expansion:
    """One round of expansion. `labels`: labels of all rounds so far."""

    def __init__(self, proto: ModelProto, versions: Mapping[str, int], labels: dict[str, str]) -> None:
        self.graph, self.versions, self.labels = proto.graph, versions, labels
        self.names, self.types = UniqueNames(proto.graph), _types(proto)

    def run(self, candidates: Sequence[NodeProto]) -> bool:
        """Expands the candidates that have a function body. Returns False if there are none."""
        found = {node.output[0]: nodes for node in candidates if (nodes := self._function_of(node))}
        if found:
            replace_nodes(self.graph, [n for node in self.graph.node for n in found.get(node.output[0], [node])])
        return bool(found)

    def _function_of(self, node: NodeProto) -> list[NodeProto]:
        """Returns the nodes that replace a node; empty if it has no function body or a random one."""
        given = [self.types.get(name, TypeProto()) for name in node.input]
        version = self.versions[node.domain]
        function = find_function_body(node, version, given)
        if function is None or any(n.op_type.startswith("Random") for n in function.node):
            return []
        absent = [""] * (len(function.input) - len(node.input))
        inputs = dict(zip(function.input, (*node.input, *absent), strict=False))
        nodes, _ = inline_body(_body(function, node, version), inputs, self.names, node.output)
        shown = self.labels.get(node.output[0]) or describe_node(node)
        self.labels.update((o, shown) for n in nodes for o in n.output)
        return nodes


def _types(proto: ModelProto) -> Mapping[str, TypeProto]:
    try:
        graph = infer_shapes(proto).graph
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        return MappingProxyType({})
    found = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        found[tensor.name] = TypeProto(tensor_type=TypeProto.Tensor(elem_type=tensor.data_type))
    return found


def _body(function: FunctionProto, node: NodeProto, version: int) -> GraphProto:
    """Returns the function body with the node's attributes; its tensors are prefixed by the node's first output."""
    given = {a.name: a for a in (*default_attributes(node, version), *function.attribute_proto, *node.attribute)}
    stem = next(o for o in node.output if o)
    own = {o: f"{stem}.{o}" for n in function.node for o in n.output if o}
    body = GraphProto(node=function.node)
    for inner in body.node:
        _set_attributes(inner, given)
        rename_reads(inner, own)
        inner.output[:] = [own.get(o, o) for o in inner.output]
    body.output.extend(ValueInfoProto(name=own.get(o, o)) for o in function.output[: len(node.output)])
    return body


def _set_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    """Replaces references to function attributes by their values, in subgraphs too; removes absent ones."""
    for attribute in [a for a in node.attribute if a.ref_attr_name]:
        value, name = given.get(attribute.ref_attr_name), attribute.name
        if value is None:
            node.attribute.remove(attribute)
        else:
            attribute.CopyFrom(value)
            attribute.name = name
    for inner in (n for graph in subgraphs(node) for n in graph.node):
        _set_attributes(inner, given)
