"""Counts nodes and parameters of a model as it is in the file."""

import math
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.frontend.operator_sets import QUANTISED_OPS
from raptor.frontend.proto.model_checks import FLOAT_TYPES, find_data_positions
from raptor.frontend.proto.nodes import read_attributes

_STATISTICS = (3, 4)
"""Positions of BatchNormalization's inputs that are measured, not trained."""
_BLOCKED = "MatMulNBits"
_BIASES = MappingProxyType({"QLinearConv": (8,), "QGemm": (6,)})
"""Integer operators -> position of their bias."""


def count_operators(proto: ModelProto) -> dict[str, int]:
    """Returns operator -> number of nodes, most frequent first, without constants."""
    counts = Counter(n.op_type for n in proto.graph.node if n.op_type != "Constant")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True)
class WeightBlocks:
    """Layers whose weights of a few `bits` have a scale for each block of `size` inputs. `nodes`: number of layers."""

    bits: int
    size: int
    nodes: int


def count_blocks(proto: ModelProto) -> tuple[WeightBlocks, ...]:
    """Returns the blocks of all MatMulNBits, by bits and size."""
    found = Counter(
        (int(attributes.get("bits", 4)), int(attributes["block_size"]))
        for attributes in (read_attributes(node) for node in proto.graph.node if node.op_type == _BLOCKED)
        if "block_size" in attributes
    )
    return tuple(WeightBlocks(bits, size, count) for (bits, size), count in sorted(found.items()))


def count_parameters(proto: ModelProto) -> int:
    """Counts trained parameters: elements of float constants, of quantised constants, and weights in blocks.

    Single numbers, statistics of batch normalisation, scales and zero points are not counted.
    """
    integers, others, blocked = set[str](), set[str](), 0
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            others.update(node.input[min(_STATISTICS) : max(_STATISTICS) + 1])
        elif node.op_type == _BLOCKED:
            attributes = read_attributes(node)
            blocked += int(attributes.get("K", 0)) * int(attributes.get("N", 0))
            others.update(node.input[2:4])
        elif node.op_type in QUANTISED_OPS:
            data = {*find_data_positions(node), *_BIASES.get(node.op_type, ())}
            integers.update(name for i, name in enumerate(node.input) if i in data)
            others.update(name for i, name in enumerate(node.input) if i not in data)
    return blocked + sum(size for name, size in _constants(proto, integers) if size > 1 and name not in others)


def _constants(proto: ModelProto, integers: Container[str]) -> Iterator[tuple[str, int]]:
    weights = {t.name: t for t in proto.graph.initializer}
    yield from (
        (t.name, math.prod(t.dims)) for t in weights.values() if t.data_type in FLOAT_TYPES or t.name in integers
    )
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute:
            value = node.attribute[0].t
            if value.data_type in FLOAT_TYPES or (value.data_type and node.output[0] in integers):
                yield node.output[0], math.prod(value.dims)
        elif node.op_type == "ConstantOfShape" and node.input[0] in weights and _is_float(node):
            yield node.output[0], int(numpy_helper.to_array(weights[node.input[0]]).prod())


def _is_float(node: NodeProto) -> bool:
    return not node.attribute or node.attribute[0].t.data_type in (TensorProto.UNDEFINED, *FLOAT_TYPES)
