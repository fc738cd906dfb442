"""What is wrong with a model before anything is made of it."""

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from raptor.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.frontend.graph import Constant, ConstantTensor, Filter, Floats, Graph, Map, Operator, Stencil
from raptor.frontend.libraries import InvalidModel, check_standard
from raptor.frontend.reading import Source
from raptor.frontend.registry import is_supported_op, op_reason

MOST_ELEMENTS = 2**28
"""Of one tensor: 1 GiB as float32. A few bytes of a model can ask for any number."""
FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT})


def check_model(source: Source) -> None:
    """The rules of the ONNX standard. An operator the standard does not know is reported as unsupported."""
    try:
        check_standard(_small(source.proto).SerializeToString())
    except InvalidModel as error:
        raise_if_unsupported(source.proto)
        raise UserError(f"not a valid ONNX model: {first_line(error)}") from None


def _small(proto: ModelProto) -> ModelProto:
    """The model with one number in place of each weight that is elsewhere: no rule asks more of weights."""
    small = ModelProto()
    small.CopyFrom(proto)
    for tensor in small.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            for field in ("data_location", "external_data", "dims"):
                tensor.ClearField(field)
            tensor.raw_data = bytes(4)
    return small


def raise_if_unsupported(proto: ModelProto) -> None:
    """Raises `UnsupportedError` with all nodes whose operator has no lowering.

    Nodes that depend on weights and shapes only are left out: the canonicaliser computes them.
    """
    fixed = {t.name for t in proto.graph.initializer}
    unsupported: list[UnsupportedNode] = []
    for node in proto.graph.node:
        if node.op_type in ("Shape", "Size") or all(i in fixed for i in node.input if i):
            fixed.update(node.output)
        elif not is_supported_op(node.domain, node.op_type):
            unsupported.append(UnsupportedNode(label(node), node.op_type, op_reason(node.domain, node.op_type)))
    if unsupported:
        raise UnsupportedError(unsupported)


def check_types(proto: ModelProto) -> None:
    """Inputs and weights are floats of 16, 32 or 64 bits; integers are welcome as shapes, axes and indices."""
    weights = {t.name for t in proto.graph.initializer}
    for value in proto.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name not in weights and kind not in FLOATS - {TensorProto.BFLOAT16}:
            raise UserError(f"input '{value.name}' is {_type_name(kind)}, must be float32")
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            raise UserError(f"weights '{tensor.name}' are bfloat16, must be float32")


def check_sizes(proto: ModelProto) -> None:
    """No tensor of the model, whose shapes are inferred, is larger than anything that can be compiled."""
    graph = proto.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        count = math.prod(d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value"))
        if count > MOST_ELEMENTS:
            limit = f"the most that can be compiled is {MOST_ELEMENTS}"
            raise UserError(f"tensor '{value.name}' has {count} elements; {limit}")


def check_weights(source: Source) -> None:
    """Weights are finite, except that a Clip may have an infinite bound."""
    users = _users(source.proto)
    for tensor in _float_tensors(source.proto):
        try:
            values = source.values(tensor)
        except (ValueError, TypeError):
            raise UserError(f"weights '{tensor.name}': the data does not fill {tuple(tensor.dims)}") from None
        bad = np.isnan(values) if users[tensor.name] == {"Clip"} else ~np.isfinite(values)
        if bad.any():
            raise UserError(f"weights '{tensor.name}': {int(bad.sum())} of {values.size} values are not finite")


def check_finite(graph: Graph) -> None:
    """No constant made of the weights is beyond float32: products of large ones may be."""
    for node in graph.nodes:
        if not all(np.isfinite(values).all() for values in _constants(node.operator)):
            raise UserError(f"{node.name} ({node.op_type}): its weights give numbers beyond the range of float32")


def _constants(operator: Operator) -> Iterator[Floats]:
    match operator:
        case Filter() | Stencil():
            yield operator.weights
        case Map():
            yield from (o.pixels for o in operator.operands if isinstance(o, Constant))
        case ConstantTensor(pixels):
            yield pixels
        case _:
            return


def label(node: NodeProto) -> str:
    """The name of a node, or what tells it from the others if it has none."""
    return node.name or f"{node.op_type} -> {node.output[0] if node.output else ''}"


def first_line(error: Exception) -> str:
    """The part of a library's message that says what is wrong."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _float_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """The float32 constants, named by the tensor they define."""
    yield from (t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT)
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.data_type == TensorProto.FLOAT:
            tensor = TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            yield tensor


def _users(proto: ModelProto) -> defaultdict[str, set[str]]:
    """Tensor -> operators that read it."""
    users: defaultdict[str, set[str]] = defaultdict(set)
    for node in proto.graph.node:
        for name in node.input:
            users[name].add(node.op_type)
    return users


def _type_name(elem_type: int) -> str:
    if elem_type == TensorProto.UNDEFINED:
        return "not a tensor"
    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(elem_type).lower() if elem_type in known else f"of unknown type {elem_type}"
