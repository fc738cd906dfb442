"""Shape inference and evaluation of one ONNX node: the only callers of onnxruntime and of onnx's shape inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Shape = tuple[int, ...]
Attribute = int | float | str | Sequence[int]

OPSET = 17
IR_VERSION = 8

_ort = cast(Any, onnxruntime)


def make_node(
    op_type: str, name: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Attribute]
) -> onnx.NodeProto:
    """Returns a node with one output, and its attributes in alphabetical order."""
    node = helper.make_node(op_type, inputs, [output], name)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
    return node


def infer_shape(
    node: onnx.NodeProto, inputs: Sequence[Shape], constants: Mapping[str, FloatArray | IntArray] | None = None
) -> Shape:
    """Returns the shape of the node's only output for inputs of these shapes.

    `constants`: inputs whose values determine the shape; they have their own type, all other inputs are float.
    """
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    known = constants or {}
    types = {
        name: helper.make_tensor_type_proto(_element_type(known.get(name)), shape)
        for name, shape in zip(node.input, inputs, strict=True)
        if name
    }
    imports = [helper.make_opsetid("", OPSET)]
    data = {name: numpy_helper.from_array(array, name) for name, array in known.items()}
    outputs = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    return tuple(dim.dim_value for dim in outputs[node.output[0]].tensor_type.shape.dim)


def run_node(node: onnx.NodeProto, inputs: Sequence[FloatArray | IntArray], *, opset: int = OPSET) -> FloatArray:
    """Returns the node's only output, computed by onnxruntime on a model of this node, whose weights are inputs."""
    feeds = dict(zip(filter(None, node.input), inputs, strict=True))
    infos = [helper.make_tensor_value_info(name, _element_type(array), array.shape) for name, array in feeds.items()]
    output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "node", infos, [output])
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", opset)])
    options = _ort.SessionOptions()
    options.graph_optimization_level = _ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = _ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def _element_type(array: FloatArray | IntArray | None) -> int:
    return TensorProto.INT64 if array is not None and array.dtype == np.int64 else TensorProto.FLOAT
