"""Converts an ONNX model to another type of floats: constants, attributes and graphs inside of nodes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

_FLOATS = frozenset((TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE))
_TYPES = frozenset(("dtype", "output_datatype", "output_dtype", "to"))
"""Attributes that name the type of a result."""


def floats_as(array: npt.NDArray[Any], dtype: type[np.floating]) -> npt.NDArray[Any]:
    """Returns an array with floats converted to `dtype`; other arrays are returned unchanged."""
    return array.astype(dtype) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _tensor(proto: TensorProto, dtype: type[np.floating]) -> TensorProto:
    """Returns the tensor with its floats converted to `dtype`; other tensors are returned unchanged."""
    if proto.data_type not in _FLOATS:
        return proto
    return numpy_helper.from_array(numpy_helper.to_array(proto).astype(dtype), proto.name)


def node_in(proto: NodeProto, dtype: type[np.floating]) -> NodeProto:
    """Returns a copy of the node that computes in `dtype`."""
    copy = NodeProto.FromString(proto.SerializeToString())
    del copy.attribute[:]
    copy.attribute.extend(_attribute(a, dtype, constant=proto.op_type == "Constant") for a in proto.attribute)
    if proto.op_type == "ConstantOfShape" and not proto.attribute:
        copy.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, dtype))))
    return copy


def model_in(proto: onnx.ModelProto, dtype: type[np.floating]) -> onnx.ModelProto:
    """Returns a copy of the model that computes in `dtype`, with inputs and outputs of that type."""
    copy = onnx.ModelProto.FromString(inline_functions(proto).SerializeToString())
    copy.graph.CopyFrom(_graph(copy.graph, dtype))
    return copy


def has_other_floats(proto: onnx.ModelProto) -> bool:
    """Checks whether a model has floats of other types than float32."""
    kinds = {t.data_type for t in proto.graph.initializer}
    kinds |= {v.type.tensor_type.elem_type for v in (*proto.graph.input, *proto.graph.output)}
    kinds |= {a.i for n in proto.graph.node for a in n.attribute if a.name in _TYPES}
    kinds |= {a.t.data_type for n in proto.graph.node for a in n.attribute if a.HasField("t")}
    return bool(kinds & (_FLOATS - {TensorProto.FLOAT}))


def _attribute(proto: AttributeProto, dtype: type[np.floating], *, constant: bool) -> AttributeProto:
    if constant and proto.name in ("value_float", "value_floats"):  # these attributes are float32
        values = np.asarray(proto.f if proto.name == "value_float" else list(proto.floats), dtype)
        return helper.make_attribute("value", numpy_helper.from_array(values))
    copy = AttributeProto.FromString(proto.SerializeToString())
    if proto.type == AttributeProto.TENSOR:
        copy.t.CopyFrom(_tensor(proto.t, dtype))
    elif proto.type == AttributeProto.GRAPH:
        copy.g.CopyFrom(_graph(proto.g, dtype))
    elif proto.name in _TYPES and proto.type == AttributeProto.INT and proto.i in _FLOATS:
        copy.i = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return copy


def _graph(proto: GraphProto, dtype: type[np.floating]) -> GraphProto:
    copy = GraphProto.FromString(proto.SerializeToString())
    for field, new in (("node", node_in), ("initializer", _tensor)):
        del getattr(copy, field)[:]
        getattr(copy, field).extend(new(item, dtype) for item in getattr(proto, field))
    del copy.value_info[:]
    for value in (*copy.input, *copy.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return copy


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with calls of its own functions replaced by their nodes."""
    if not model.functions:
        return model
    import onnx.inliner

    return onnx.inliner.inline_local_functions(model)
