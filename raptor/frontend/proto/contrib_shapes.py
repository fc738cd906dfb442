"""Shape inference for onnxruntime's operators: standard operators with the same result shapes stand in for them.

Covers the operators of onnxruntime's quantiser (`com.microsoft`), and `Normalizer` and `Scaler` of `ai.onnx.ml`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from onnx import ModelProto, NodeProto, TensorProto, helper

from raptor.frontend.operator_sets import CONTRIB_DOMAIN
from raptor.frontend.proto.nodes import read_attributes

_ALIKE: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {
        "QLinearAdd": ("Add", (0, 3)),
        "QLinearMul": ("Mul", (0, 3)),
        "QLinearAveragePool": ("AveragePool", (0,)),
        "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
        "QLinearSigmoid": ("Identity", (0,)),
        "QLinearLeakyRelu": ("Identity", (0,)),
        "QLinearSoftmax": ("Identity", (0,)),
        "QGemm": ("Gemm", (0, 3)),
        "QuantizeLinear": ("QuantizeLinear", (0, 1, 2)),
        "DequantizeLinear": ("DequantizeLinear", (0, 1, 2)),
    }
)
"""Operator -> standard operator with the same result shape, and the inputs that this one takes."""
_LEARNING = "ai.onnx.ml"
_TO_FLOATS = frozenset(("Normalizer", "Scaler"))
"""Operators that convert each number to a float."""
_KEPT = frozenset(
    ("auto_pad", "axis", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides", "transA", "transB")
)
_Y_SCALE = 7
"""Position of QGemm's output scale; without it the result is float."""


def has_contrib_operators(proto: ModelProto) -> bool:
    """Checks whether a model has operators of these domains."""
    return any(node.domain in (CONTRIB_DOMAIN, _LEARNING) for node in proto.graph.node)


def replace_by_standard(proto: ModelProto) -> ModelProto:
    """Returns a copy with stand-ins, of equal result shapes but other values."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    nodes = [n for node in copy.graph.node for n in _standing_in(node)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _standing_in(node: NodeProto) -> Iterator[NodeProto]:
    if node.domain == _LEARNING and node.op_type in _TO_FLOATS:
        yield helper.make_node("Cast", list(node.input), list(node.output), to=TensorProto.FLOAT)
        return
    if node.domain != CONTRIB_DOMAIN:
        yield node
        return
    attributes = {name: value for name, value in read_attributes(node).items() if name in _KEPT}
    if node.op_type == "QLinearConcat":
        yield helper.make_node("Concat", list(node.input[2::3]), list(node.output), **attributes)
    elif node.op_type in _ALIKE:
        op_type, positions = _ALIKE[node.op_type]
        inputs = [node.input[p] for p in positions if p < len(node.input)]
        kept = {} if op_type == "Identity" else attributes
        is_float = node.op_type == "QGemm" and not any(node.input[_Y_SCALE:])
        output = f"{node.output[0]}.integers" if is_float else node.output[0]
        yield helper.make_node(op_type, inputs, [output], **kept)
        if is_float:
            yield helper.make_node("Cast", [output], list(node.output), to=TensorProto.FLOAT)
    else:
        yield node
