"""Writes an ONNX model as MLIR text of the dialect `onnx`, as onnx-mlir has it, in generic form with its weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto

from raptor.common.mlir.syntax import TensorValue, element_dtype, quote, write_float
from raptor.frontend.onnx_text.onnx_values import ELEMENTS, proto_to_tensor

_FEW = 16
"""Most integers of a constant that are written as a list; other values are resources."""


def write_onnx(onnx_bytes: bytes, name: str) -> str | None:
    """Returns a model as an MLIR module; None if it has what the text cannot say, such as subgraphs and strings."""
    try:
        return "\n".join(_OnnxWriter(ModelProto.FromString(onnx_bytes)).lines(name)) + "\n"
    except ValueError:
        return None


def _list(items: Sequence[str]) -> str:
    return f"({', '.join(items)})"


@dataclass(slots=True)
class _OnnxWriter:
    """Writes a module. values: number of each tensor by name. types: of the tensors. resources: contents by key."""

    model: ModelProto
    values: dict[str, str] = field(default_factory=dict[str, str])
    types: dict[str, str] = field(default_factory=dict[str, str])
    resources: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def lines(self, name: str) -> Iterator[str]:
        graph = self.model.graph
        if self.model.functions or graph.sparse_initializer:
            raise ValueError("functions and sparse constants have no text")
        known = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in known]
        for value in (*_infer(self.model), *graph.value_info, *inputs, *graph.output):
            self.types[value.name] = _type_of(value)
        yield '"builtin.module"() ({'
        takes, makes = ([self.types[value.name] for value in values] for values in (inputs, graph.output))
        names = [", ".join(f"{{onnx.name = {quote(v.name)}}}" for v in values) for values in (inputs, graph.output)]
        attributes = f"arg_attrs = [{names[0]}], function_type = {_list(takes)} -> {_list(makes)}"
        yield f'  "func.func"() <{{{attributes}, res_attrs = [{names[1]}], sym_name = "main_graph"}}> ({{'
        yield f"  ^bb0{_list([f'{self.define(v.name)}: {self.types[v.name]}' for v in inputs])}:"
        for tensor in graph.initializer:
            yield from self.constant(proto_to_tensor(tensor), tensor.name, "")
        for node in graph.node:
            yield from self.node(node)
        yield f'    "onnx.Return"{_list([self.values[v.name] for v in graph.output])} : {_list(makes)} -> ()'
        yield "  }) : () -> ()"
        opsets = (f"{quote(each.domain or 'ai.onnx')} = {each.version} : i64" for each in self.model.opset_import)
        versions = f"onnx.ir_version = {self.model.ir_version} : i64, onnx.opsets = {{{', '.join(opsets)}}}"
        yield f"}}) {{{versions}, sym_name = {quote(name)}}} : () -> ()"
        if self.resources:
            yield "{-# dialect_resources: { builtin: {"
            texts = [f'{key}: "0x08000000{content.hex()}"' for key, content in self.resources.items()]
            yield ",\n".join(texts)
            yield "} } #-}"

    def define(self, name: str) -> str:
        self.values[name] = f"%{len(self.values)}"
        return self.values[name]

    def constant(self, value: TensorValue, name: str, node_name: str) -> Iterator[str]:
        """Yields the line of a constant. node_name: of the ONNX node; empty for an initializer."""
        self.types[name] = f"tensor<{''.join(f'{size}x' for size in value.shape)}{value.element}>"
        of_node = f"onnx_node_name = {quote(node_name)}, " if node_name else ""
        inside = f"{of_node}result_names = [{quote(name)}], value = {self.tensor(value)}"
        yield f'    {self.define(name)} = "onnx.Constant"() {{{inside}}} : () -> {self.types[name]}'

    def tensor(self, value: TensorValue) -> str:
        kind = f"tensor<{''.join(f'{size}x' for size in value.shape)}{value.element}>"
        array = np.frombuffer(value.content, element_dtype(value.element)).reshape(value.shape)
        if not array.size or value.element == "i1" or (array.dtype.kind in "iu" and array.size <= _FEW):
            text = str(array.tolist()).lower() if array.size else ""
            return f"dense<{text}> : {kind}"
        key = f"w{len(self.resources)}"
        self.resources[key] = value.content
        return f"dense_resource<{key}> : {kind}"

    def node(self, node: NodeProto) -> Iterator[str]:
        """Yields the line of a node, and of the absence of an operand before it."""
        attributes = dict[str, str]()
        if node.domain not in ("", "ai.onnx"):
            attributes |= {"domain_name": quote(node.domain), "function_name": quote(node.op_type)}
        name = "onnx.Custom" if attributes else f"onnx.{node.op_type}"
        if node.name:
            attributes["onnx_node_name"] = quote(node.name)
        attributes["result_names"] = f"[{', '.join(map(quote, node.output))}]"
        attributes |= {each.name: self.attribute(each) for each in node.attribute}
        for operand in node.input:
            if not operand and "" not in self.values:
                self.types[""] = "none"
                yield f'    {self.define("")} = "onnx.NoValue"() {{value}} : () -> none'
        operands = [self.values[operand] for operand in node.input]
        takes = [self.types.get(operand, "none") for operand in node.input]
        makes = [self.types.get(result, "none") for result in node.output]
        made = [self.define(result) if result else f"%n{k}_{len(self.values)}" for k, result in enumerate(node.output)]
        inside = ", ".join(f"{key} = {text}" for key, text in attributes.items())
        yield f"    {', '.join(made)} = {quote(name)}{_list(operands)} {{{inside}}} : {_list(takes)} -> {_list(makes)}"

    def attribute(self, attribute: AttributeProto) -> str:
        """Returns an attribute as text. Raises `ValueError` for graphs, types and sparse tensors."""
        value: Any = onnx.helper.get_attribute_value(attribute)
        match attribute.type:
            case AttributeProto.FLOAT:
                return _float(value)
            case AttributeProto.INT:
                return f"{value} : si64"
            case AttributeProto.STRING:
                return quote(value.decode())
            case AttributeProto.TENSOR:
                return self.tensor(proto_to_tensor(value))
            case AttributeProto.INTS:
                return f"array<i64{': ' if value else ''}{', '.join(map(str, value))}>"
            case AttributeProto.FLOATS:
                return f"[{', '.join(map(_float, value))}]"
            case AttributeProto.STRINGS:
                return f"[{', '.join(quote(each.decode()) for each in value)}]"
            case _:
                raise ValueError(f"{attribute.name}: no text for such an attribute")


def _float(value: float) -> str:
    """Returns a float32, also infinite or not a number, as hexadecimal bits."""
    if np.isfinite(value):
        return f"{write_float(value)} : f32"
    return f"0x{int(np.float32(value).view(np.uint32)):08X} : f32"


def _type_of(value: ValueInfoProto) -> str:
    kind = value.type.tensor_type
    if kind.elem_type not in ELEMENTS:
        raise ValueError(f"{value.name}: no type for it")
    if not kind.HasField("shape"):
        return f"tensor<*x{ELEMENTS[kind.elem_type]}>"
    sizes = (f"{size.dim_value}x" if size.HasField("dim_value") else "?x" for size in kind.shape.dim)
    return f"tensor<{''.join(sizes)}{ELEMENTS[kind.elem_type]}>"


def _infer(model: ModelProto) -> Sequence[ValueInfoProto]:
    """Returns the types of results as far as ONNX infers them; the reader does without."""
    outline = ModelProto()
    outline.CopyFrom(model)
    try:
        found: Mapping[str, ValueInfoProto] = {
            value.name: value for value in onnx.shape_inference.infer_shapes(outline, data_prop=True).graph.value_info
        }
    except Exception:  # onnx has several kinds for models that it does not understand
        return ()
    return [value for value in found.values() if value.type.tensor_type.elem_type in ELEMENTS]
