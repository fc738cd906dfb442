"""Converts float16, bfloat16 and float64 models to float32."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.operator_sets import QUANTISED_OPS

CONVERTED_TYPES: Mapping[int, str] = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}
"""ONNX types that are converted -> name in messages."""
TOLERANCE_ADVICE: Mapping[int, str] = {
    TensorProto.FLOAT16: "onnxruntime rounds to float16, so validate with a tolerance of 0.01",
    TensorProto.BFLOAT16: "onnxruntime rounds to bfloat16, so validate with a tolerance of 0.05",
    TensorProto.DOUBLE: "validate with the tolerance of a float32 model",
}
"""ONNX type -> advice on the tolerance for `validate`."""
_TYPE_ATTRIBUTES = frozenset(
    ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")
)
"""All attributes of ONNX operators whose value is an element type."""


def convert_to_float32(proto: ModelProto) -> tuple[str, ...]:
    """Converts all float16, bfloat16 and float64 tensors of the model to float32, in place. Returns notes for the user.

    Raises `UserError` for a weight beyond the range of float32.
    """
    found = _convert_graph(proto.graph)
    for function in proto.functions:
        found |= _convert_nodes(function.node)
    # A quantised model has no tolerance: it is compared with a float32 computation.
    quantised = any(node.op_type in QUANTISED_OPS for node in proto.graph.node)
    advice = {t: "" if quantised else f"; {TOLERANCE_ADVICE[t]}" for t in found}
    return tuple(f"{CONVERTED_TYPES[t]} tensors are computed in float32{advice[t]}" for t in sorted(found))


def _convert_graph(graph: GraphProto) -> set[int]:
    found = _convert_nodes(graph.node)
    for value in (*graph.input, *graph.output, *graph.value_info):
        found |= _convert_type(value.type)
    for tensor in graph.initializer:
        found |= _convert_tensor(tensor)
    return found


def _convert_nodes(nodes: Iterable[NodeProto]) -> set[int]:
    found: set[int] = set()
    for attribute in (a for node in nodes for a in node.attribute):
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in CONVERTED_TYPES:
            found.add(attribute.i)
            attribute.i = TensorProto.FLOAT
        found |= _convert_type(attribute.tp)
        for tensor in _tensors(attribute):
            found |= _convert_tensor(tensor)
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            found |= _convert_graph(graph)
    return found


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    yield from attribute.tensors
    if attribute.HasField("t"):
        yield attribute.t


def _convert_type(kind: TypeProto) -> set[int]:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return _convert_type(kind.sequence_type.elem_type)
        case "optional_type":
            return _convert_type(kind.optional_type.elem_type)
        case _:
            found = kind.tensor_type.elem_type
    if found not in CONVERTED_TYPES:
        return set()
    kind.tensor_type.elem_type = TensorProto.FLOAT
    return {found}


def _convert_tensor(tensor: TensorProto) -> set[int]:
    kind = tensor.data_type
    if kind not in CONVERTED_TYPES:
        return set()
    try:
        values = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        raise UserError(f"weights '{tensor.name}': the data does not fill {tuple(tensor.dims)}") from None
    with np.errstate(over="ignore"):
        converted = values.astype(np.float32)
    lost = int((np.isfinite(values) & ~np.isfinite(converted)).sum())
    if lost:
        raise UserError(f"weights '{tensor.name}': {lost} of {values.size} values are beyond the range of float32")
    tensor.CopyFrom(numpy_helper.from_array(converted, tensor.name))
    return {kind}
