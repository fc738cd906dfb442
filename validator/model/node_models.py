"""Models of a few nodes, which onnxruntime or onnx's reference implementation computes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from validator.model.node import Array, Opsets


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Iterable[str],
    opsets: Opsets,
    constants: Sequence[TensorProto] = (),
    ir_version: int = 10,
) -> ModelProto:
    """Returns a model of these nodes; its outputs have no declared types."""
    results = [ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "nodes", inputs, results, constants)
    return helper.make_model(graph, opset_imports=list(opsets), ir_version=ir_version)


def by_reference(model: ModelProto | NodeProto) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Returns a function that computes a model, or a node, by onnx's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    evaluator: Any = ReferenceEvaluator(model)
    return lambda values: [np.asarray(a) for a in evaluator.run(None, dict(values))]
