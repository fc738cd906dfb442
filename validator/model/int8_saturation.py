"""Products of 8-bit integers that saturate in onnxruntime on some machines, and models that avoid them.

On x86 without VNNI, onnxruntime multiplies unsigned by signed bytes in pairs whose sum saturates at 16 bits ("S8S8 vs
U8S8", onnxruntime's page on quantisation). Its session option against that needs optimisations, which the validator
turns off. Unsigned by unsigned bytes are exact everywhere, and 128 added to weight and zero point changes no value.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from validator.model.operator_scan import contains_name

_OPERANDS = {
    "ConvInteger": (0, 2, 1, 3),
    "MatMulInteger": (0, 2, 1, 3),
    "QLinearConv": (0, 2, 3, 5),
    "QLinearMatMul": (0, 2, 3, 5),
    "QGemm": (0, 2, 3, 5),
}
"""Positions of both operands among the inputs of a product, each followed by the position of its zero point."""
_MARKS = b"Integer", b"QLinear", b"QGemm"
"""Parts of these operators' names, which a file with such a product contains."""
_MOST_BYTES = 2**31 - 1
"""Largest serialised model that onnxruntime accepts, in bytes."""


def make_saturation_probe() -> tuple[bytes, dict[str, npt.NDArray[Any]], npt.NDArray[np.int32]]:
    """Returns a model with a product that saturates if any does, with its inputs and its exact result."""
    rows, inner, columns = 16, 64, 16
    a = helper.make_tensor_value_info("a", TensorProto.UINT8, (rows, inner))
    b = helper.make_tensor_value_info("b", TensorProto.INT8, (inner, columns))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (rows, columns))
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "probe", [a, b], [y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    feeds = {"a": np.full((rows, inner), 255, np.uint8), "b": np.full((inner, columns), 127, np.int8)}
    return model.SerializeToString(), feeds, np.full((rows, columns), 255 * 127 * inner, np.int32)


def avoid_saturation(model: str | bytes) -> str | bytes:
    """Returns a model (a file name or content), rewritten by `with_unsigned_weights` if it needs that.

    A file that is too large to be serialised stays unchanged.
    """
    if not _may_multiply_bytes(model):
        return model
    # onnx checks that external data lie in the model's folder.
    loaded = ModelProto.FromString(model) if isinstance(model, bytes) else _read(model)
    return with_unsigned_weights(loaded).SerializeToString() if loaded.ByteSize() <= _MOST_BYTES else model


def _read(file: str) -> ModelProto:
    return onnx.load(file)  # pyright: ignore[reportUnknownMemberType]  # onnx leaves its parameter's type open


def _may_multiply_bytes(model: str | bytes) -> bool:
    """Checks whether the bytes of a model name a product of integers."""
    if isinstance(model, bytes):
        return any(mark in model for mark in _MARKS)
    return contains_name(Path(model), _MARKS)


def with_unsigned_weights(model: ModelProto) -> ModelProto:
    """Returns the model with unsigned bytes wherever it multiplies unsigned by signed ones; the values are the same.

    Conversions are inserted before the products, so tensors keep their names. Without such products, returns `model`.
    """
    copied = ModelProto.FromString(model.SerializeToString())
    change = _Change(_types(model), _unused(copied.graph))
    for graph in _graphs(copied.graph):
        change.graph(graph)
    if not change.made:
        return model
    copied.graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), change.offset))
    return copied


class _Change:
    """Rewriter of a model, given element types by tensor, and a prefix that no tensor name has."""

    def __init__(self, types: Mapping[str, int], prefix: str) -> None:
        self._types = types
        self._prefix = prefix
        self.offset = f"{prefix}128"
        self.made = 0

    def graph(self, graph: GraphProto) -> None:
        """Inserts conversions before the products of one graph."""
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type in _OPERANDS and self._is_mixed(node):
                nodes += self._converted(node)
            nodes.append(node)
        if len(nodes) > len(graph.node):
            kept = GraphProto(node=nodes)
            graph.ClearField("node")
            graph.node.MergeFrom(kept.node)

    def _is_mixed(self, node: NodeProto) -> bool:
        a, a_zero, b, b_zero = (node.input[i] if i < len(node.input) else "" for i in _OPERANDS[node.op_type])
        # A zero point has the operand's type; ONNX infers none for results of onnxruntime's own operators.
        kinds = [self._types.get(value) or self._types.get(zero) for value, zero in ((a, a_zero), (b, b_zero))]
        return kinds == [TensorProto.UINT8, TensorProto.INT8]

    def _converted(self, node: NodeProto) -> list[NodeProto]:
        """Gives a product a converted operand and zero point. A missing zero point becomes 128."""
        _, _, operand, zero = _OPERANDS[node.op_type]
        node.input.extend([""] * (zero + 1 - len(node.input)))
        found: list[NodeProto] = []
        for place in (operand, zero):
            name = f"{self._prefix}{self.made}"
            self.made += 1
            wide = self.offset
            if node.input[place]:
                wide = f"{name}_sum"
                found.append(helper.make_node("Cast", [node.input[place]], [f"{name}_wide"], to=TensorProto.INT32))
                found.append(helper.make_node("Add", [f"{name}_wide", self.offset], [wide]))
            found.append(helper.make_node("Cast", [wide], [name], to=TensorProto.UINT8))
            node.input[place] = name
        return found


def _graphs(graph: GraphProto) -> list[GraphProto]:
    """Returns a graph and all graphs inside of its nodes."""
    inner = [g for node in graph.node for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return [graph, *(found for g in inner for found in _graphs(g))]


def _types(model: ModelProto) -> dict[str, int]:
    """Returns element types of tensors, as far as ONNX infers them."""
    found: dict[str, int] = {}
    for graph in _graphs(onnx.shape_inference.infer_shapes(model).graph):
        values = (*graph.input, *graph.value_info, *graph.output)
        found |= {value.name: value.type.tensor_type.elem_type for value in values}
        found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return found


def _unused(graph: GraphProto) -> str:
    names = {name for g in _graphs(graph) for node in g.node for name in (*node.input, *node.output)}
    prefix = "unsigned_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix
