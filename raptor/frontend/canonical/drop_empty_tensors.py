"""Removes tensors without elements, which come from function bodies of the ONNX standard."""

import math

from onnx import ModelProto, NodeProto

from raptor.frontend.control_flow.inline_subgraphs import replace_nodes


def drop_empty_tensors(proto: ModelProto) -> None:
    """Removes operands without elements from Concat nodes, and nodes whose results are all empty, in place."""
    empty = _empty_tensors(proto) - {v.name for v in proto.graph.output}
    if empty:
        replace_nodes(proto.graph, [_full(n, empty) for n in proto.graph.node if not empty.issuperset(n.output)])


def _empty_tensors(proto: ModelProto) -> set[str]:
    graph = proto.graph
    found = {t.name for t in graph.initializer if math.prod(t.dims) == 0}
    for value in (*graph.input, *graph.value_info):
        dims = value.type.tensor_type.shape.dim
        if any(d.HasField("dim_value") and d.dim_value == 0 for d in dims):
            found.add(value.name)
    return found


def _full(node: NodeProto, empty: set[str]) -> NodeProto:
    kept = [name for name in node.input if name not in empty]
    if node.op_type != "Concat" or len(kept) in (0, len(node.input)):
        return node
    del node.input[:]
    node.input.extend(kept)
    return node
