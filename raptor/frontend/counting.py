"""Counts nodes and parameters of a model as it is in the file."""

import math
from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.frontend.check import FLOATS

_STATISTICS = (3, 4)
"""Inputs of BatchNormalization that are measured, not trained."""


def count_operators(proto: ModelProto) -> dict[str, int]:
    """Maps operators to their number of nodes, most frequent first, without constants."""
    counts = Counter(n.op_type for n in proto.graph.node if n.op_type != "Constant")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def count_parameters(proto: ModelProto) -> int:
    """Counts trained numbers: float constants, except single ones and the statistics of batch normalisation."""
    statistics = {
        name
        for node in proto.graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[min(_STATISTICS) : max(_STATISTICS) + 1]
    }
    return sum(size for name, size in _float_constants(proto) if size > 1 and name not in statistics)


def _float_constants(proto: ModelProto) -> Iterator[tuple[str, int]]:
    """Yields name and number of elements of each."""
    weights = {t.name: t for t in proto.graph.initializer}
    yield from ((t.name, math.prod(t.dims)) for t in weights.values() if t.data_type in FLOATS)
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.data_type in FLOATS:
            yield node.output[0], math.prod(node.attribute[0].t.dims)
        elif node.op_type == "ConstantOfShape" and node.input[0] in weights and _is_float(node):
            yield node.output[0], int(numpy_helper.to_array(weights[node.input[0]]).prod())


def _is_float(node: NodeProto) -> bool:
    """Tells whether a ConstantOfShape makes floats; it does by default."""
    return not node.attribute or node.attribute[0].t.data_type in (TensorProto.UNDEFINED, *FLOATS)
