"""Converts sparse weights to dense ones."""

import math

import numpy as np
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.proto.model_checks import MOST_ELEMENTS
from raptor.frontend.proto.read_model import walk_graphs


def densify_weights(proto: ModelProto) -> None:
    """Replaces sparse initializers and Constants by dense ones, in place. Raises `UserError` for too many elements."""
    for graph in walk_graphs(proto.graph):
        graph.initializer.extend(_dense(sparse, sparse.values.name) for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
        for node in graph.node:
            _write_out_constant(node)


def _write_out_constant(node: NodeProto) -> None:
    for attribute in node.attribute if node.op_type == "Constant" else ():
        if attribute.HasField("sparse_tensor"):
            attribute.t.CopyFrom(_dense(attribute.sparse_tensor, node.output[0]))
            attribute.ClearField("sparse_tensor")
            attribute.name, attribute.type = "value", attribute.TENSOR


def _dense(sparse: SparseTensorProto, name: str) -> TensorProto:
    dims = tuple(sparse.dims)
    if math.prod(dims) > MOST_ELEMENTS:
        limit = f"the most that can be compiled is {MOST_ELEMENTS}"
        raise UserError(f"sparse weights '{name}' have {math.prod(dims)} elements; {limit}")
    try:
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        dense = np.zeros(dims, values.dtype)
        places = indices if indices.ndim < 2 else np.ravel_multi_index(tuple(indices.T), dims)
        dense.reshape(-1)[places] = values
    except (ValueError, TypeError, IndexError):
        raise UserError(f"sparse weights '{name}': values and indices do not go together in {dims}") from None
    return numpy_helper.from_array(dense, name)
