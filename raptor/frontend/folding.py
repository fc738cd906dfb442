"""The canonical form of a model that onnxruntime has no kernels for, such as shifts of signed integers.

Nodes of constants are computed by the reference implementation of the onnx package; nothing is fused.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from raptor.frontend.bodies import set_nodes
from raptor.frontend.libraries import defined, infer_shapes
from raptor.frontend.reading import INLINE_BYTES, subgraphs

NO_KERNEL = ("Could not find an implementation", "Type Error: Type 'tensor(", "is not a registered function/op")
"""Parts of the messages of onnxruntime about operators that it does not have for a type."""


def fold(proto: ModelProto) -> ModelProto:
    """Returns a copy in which small constants and shapes are computed."""
    folded = infer_shapes(proto)
    graph = folded.graph
    shapes = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    small = {t.name: t for t in graph.initializer if t.data_location != TensorProto.EXTERNAL}
    kept: list[NodeProto] = []
    for node in graph.node:
        results = _results(node, small, shapes, folded)
        small |= {t.name: t for t in results}
        graph.initializer.extend(results)
        if not results:
            kept.append(node)
    set_nodes(graph, kept)
    return folded


def fold_sizes(proto: ModelProto) -> None:
    """Replaces every Size of a known shape by its number, in place: onnxruntime does not. An output stays computed."""
    graph = proto.graph
    shaped = [v for v in (*graph.input, *graph.value_info) if v.type.tensor_type.HasField("shape")]
    counts = {v.name: math.prod(d.dim_value for d in v.type.tensor_type.shape.dim) for v in shaped}
    counts |= {t.name: math.prod(t.dims) for t in graph.initializer}
    outputs, kept = {v.name for v in graph.output}, list[NodeProto]()
    for node in graph.node:
        # Open dimensions are 0.
        count = counts.get(node.input[0], 0) if node.op_type == "Size" and node.output[0] not in outputs else 0
        if count:
            graph.initializer.append(numpy_helper.from_array(np.array(count, np.int64), node.output[0]))
        else:
            kept.append(node)
    set_nodes(graph, kept)


def write_data(proto: ModelProto, folder: Path, in_memory: Mapping[str, bytes | bytearray]) -> None:
    """Writes the data that tensors refer to by the names of `in_memory` to files beside the model."""
    tensors = [t for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    for name in {e.value for t in tensors for e in t.external_data if e.key == "location"}:
        (folder / name).write_bytes(in_memory[name])


def _results(
    node: NodeProto, small: Mapping[str, TensorProto], shapes: Mapping[str, ValueInfoProto], proto: ModelProto
) -> list[TensorProto]:
    """Returns the results of a node that depends on constants and shapes only; none for another one."""
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        dims = shapes[node.input[0]].type.tensor_type.shape.dim
        if not all(d.HasField("dim_value") for d in dims):
            return []
        stand_in = numpy_helper.from_array(np.broadcast_to(np.float32(0), [d.dim_value for d in dims]), node.input[0])
        return _evaluated(node, [stand_in], proto)
    if not all(i in small for i in node.input if i) or any(True for _ in subgraphs(node)):
        return []
    return _evaluated(node, [small[i] for i in node.input if i], proto)


def _evaluated(node: NodeProto, operands: list[TensorProto], proto: ModelProto) -> list[TensorProto]:
    found = defined(node, operands, proto.opset_import)
    if sum(a.nbytes for a in found) > INLINE_BYTES * INLINE_BYTES:
        return []
    return [numpy_helper.from_array(a, name) for a, name in zip(found, filter(None, node.output), strict=True)]
