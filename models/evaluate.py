"""Shape and value of one ONNX node: the only place that calls onnxruntime and onnx's shape inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray
from onnx import TensorProto, helper

FloatArray = NDArray[np.float32]
Shape = tuple[int, ...]
Attribute = int | float | Sequence[int]

OPSET = 17
IR_VERSION = 8

_ort = cast(Any, onnxruntime)


def make_node(
    op_type: str, name: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Attribute]
) -> onnx.NodeProto:
    """Return a node with one output and its attributes in the order of their names."""
    node = helper.make_node(op_type, inputs, [output], name)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
    return node


def infer_shape(node: onnx.NodeProto, inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the node's one output for float inputs of these shapes."""
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    types = {
        name: helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
        for name, shape in zip(node.input, inputs, strict=True)
    }
    imports = [helper.make_opsetid("", OPSET)]
    outputs = onnx.shape_inference.infer_node_outputs(schema, node, types, opset_imports=imports)
    return tuple(dim.dim_value for dim in outputs[node.output[0]].tensor_type.shape.dim)


def run(node: onnx.NodeProto, inputs: Sequence[FloatArray]) -> FloatArray:
    """Return the node's one output, from onnxruntime on a model of this node alone (weights are fed, not copied in)."""
    feeds = dict(zip(node.input, inputs, strict=True))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "node", infos, [output])
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
    options = _ort.SessionOptions()
    options.graph_optimization_level = _ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = _ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)[0]
