"""Moves factors of keys to queries: a product of a scaled cache would scale all its rows in each step."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, helper

from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, replace_nodes

Shapes = dict[str, tuple[int, ...]]


def move_factors(proto: ModelProto, names: UniqueNames, last: Shapes, before: Shapes) -> None:
    """Rewrites q (k s), also with k s transposed, to (q s) k, in place, where k grows and s is one number; and k / s.

    `last`, `before`: shapes at the last position and at the one before; those of new tensors are added.
    """
    makers = {o: node for node in proto.graph.node for o in node.output}
    reads = Counter(name for node in proto.graph.node for name in node.input)
    reads.update(value.name for value in proto.graph.output)
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        if node.op_type == "MatMul" and last[node.input[0]] == before[node.input[0]]:
            maker = makers.get(node.input[1])
            below = node
            while maker is not None and maker.op_type == "Transpose" and reads[maker.output[0]] == 1:
                below, maker = maker, makers.get(maker.input[0])
            factor = maker and (_find_factor(maker, last) if last[maker.output[0]] != before[maker.output[0]] else None)
            if maker is not None and factor and reads[maker.output[0]] == 1:
                nodes.append(_scale(node, maker, factor, names, (last, before)))
                other = next(x for x in maker.input if x != factor)
                below.input[:] = [other if x == maker.output[0] else x for x in below.input]
        nodes.append(node)
    read = {name for node in nodes for name in node.input} | {v.name for v in proto.graph.output}
    replace_nodes(proto.graph, [n for n in nodes if n.op_type not in ("Mul", "Div") or n.output[0] in read])


def _find_factor(maker: NodeProto, last: Shapes) -> str | None:
    """Returns the operand of one number by which a tensor that grows is multiplied or divided."""
    if maker.op_type not in ("Mul", "Div"):
        return None
    candidates = maker.input[1:] if maker.op_type == "Div" else maker.input
    return next((x for x in candidates if x in last and np.prod(last[x]) == 1), None)


def _scale(node: NodeProto, maker: NodeProto, factor: str, names: UniqueNames, shapes: Sequence[Shapes]) -> NodeProto:
    """Returns the node that scales the first operand of a product, and has the product read it."""
    scaled, query = names.unique_tensor(f"{maker.output[0]}.query"), node.input[0]
    for known in shapes:
        known[scaled] = known[query]
    node.input[0] = scaled
    return helper.make_node(maker.op_type, [query, factor], [scaled], name=names.unique_node(scaled))
