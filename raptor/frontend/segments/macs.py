"""Multiply-accumulates of ONNX nodes that the chip does not compute, where sizes are known."""

import math
from collections.abc import Mapping

from onnx import NodeProto

from raptor.frontend.nodes import attributes_of
from raptor.frontend.reading import subgraphs
from raptor.frontend.segments.pieces import Types

_GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}


def macs_of(node: NodeProto, types: Types) -> int:
    """Counts the multiply-accumulates of convolutions, products and recurrent layers; 0 for all other nodes.

    Of branches the largest counts, and a loop as if it ran once: what is left of them depends on values.
    """
    inside = [sum(macs_of(n, types.within(graph)) for n in graph.node) for graph in subgraphs(node)]
    if inside:
        return max(inside)
    shapes = [types.shape(name) for name in node.input]
    outputs = [types.shape(name) for name in node.output]
    if len(shapes) < 2 or shapes[0] is None or shapes[1] is None or outputs[0] is None:
        return 0
    first, second, result = shapes[0], shapes[1], outputs[0]
    match node.op_type:
        case "Conv" | "ConvInteger":
            return math.prod(result) * math.prod(second[1:])
        case "QLinearConv" if (weights := shapes[3]) is not None:
            return math.prod(result) * math.prod(weights[1:])
        case "ConvTranspose":
            return math.prod(first) * math.prod(second[1:])
        case "MatMul" | "MatMulInteger":
            return math.prod(result) * first[-1]
        case "QLinearMatMul":
            return math.prod(result) * first[-1]
        case "Gemm":
            transposed = attributes_of(node).get("transA", 0)
            return math.prod(result) * first[0 if transposed else 1]
        case "LSTM" | "GRU" | "RNN" if len(first) == 3 and len(second) == 3:
            directions, rows, size = second
            hidden = rows // _GATES[node.op_type]
            return directions * first[0] * first[1] * rows * (size + hidden)
        case _:
            return 0
