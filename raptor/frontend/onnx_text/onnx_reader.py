"""Reads an ONNX model from MLIR text of the dialect `onnx`, in generic form: its own, and that of onnx-mlir."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from raptor.common.errors import UserError
from raptor.common.mlir.reader import ARGUMENTS, RESOURCES, MlirOp, line_of, read_module, read_text
from raptor.common.mlir.syntax import (
    UNIT,
    MlirError,
    MlirType,
    ResourceHandle,
    TensorValue,
    is_array,
    is_dictionary,
    is_list,
    tensor_shape,
)
from raptor.common.process.gc_policy import pause_gc
from raptor.frontend.onnx_text.onnx_values import NUMBERS, tensor_to_proto

OPSET, IR_VERSION = 22, 10
"""Operator set and version of a model whose text does not say them, as texts of onnx-mlir."""
_OWN = ("onnx_node_name", "result_names", "domain_name", "function_name")


def read_onnx_text(path: Path) -> ModelProto:
    """Reads a model from a file of MLIR. Raises `UserError` with the line of the first wrong place."""
    text = read_text(path, f"{path}")
    try:
        with pause_gc():
            return read_onnx_module(read_module(text), path.stem)
    except MlirError as e:
        raise UserError(f"{path}: line {line_of(text, e.position)}: {e}") from None


def read_onnx_module(module: MlirOp, name: str) -> ModelProto:
    """Returns the model of a module that is parsed. name: of the model. Raises `MlirError` at the first wrong place."""
    functions = [op for op in module.regions[0] if op.name == "func.func"]
    for op in module.regions[0]:
        if op.name not in ("func.func", "onnx.EntryPoint"):
            raise MlirError(op.position, f"{op.name}: expected func.func with operations of the dialect onnx")
    if len(functions) != 1 or len(functions[0].regions) != 1:
        raise MlirError(module.position, f"{len(functions)} functions with a body: expected one")
    reader = _OnnxReader(module.attributes.get(RESOURCES, {}), GraphProto(name=name))
    reader.function(functions[0])
    opsets = module.attributes.get("onnx.opsets", {"ai.onnx": OPSET})
    version = module.attributes.get("onnx.ir_version", IR_VERSION)
    known = is_dictionary(opsets) and all(type(each) is int and 0 < each < 1000 for each in (*opsets.values(), version))
    if not known:
        raise MlirError(module.position, "onnx.opsets or onnx.ir_version: expected versions from 1 to 999")
    ids = [helper.make_opsetid("" if domain == "ai.onnx" else domain, each) for domain, each in opsets.items()]
    for domain in sorted({node.domain for node in reader.graph.node} - {each.domain for each in ids}):
        ids.append(helper.make_opsetid(domain, 1))
    return helper.make_model(reader.graph, opset_imports=ids, ir_version=version)


@dataclass(slots=True)
class _OnnxReader:
    """Fills an ONNX graph.

    resources: contents by key. names: tensor name of each MLIR value, by its name. used: all tensor names so far.
    """

    resources: dict[str, bytes]
    graph: GraphProto
    names: dict[str, str] = field(default_factory=dict[str, str])
    used: set[str] = field(default_factory=set[str])

    def function(self, op: MlirOp) -> None:
        """Reads the function of the model: arguments, nodes, and what it returns."""
        first, *inside = op.regions[0] or (op,)
        if first.name != ARGUMENTS:
            first, inside = None, [*op.regions[0]]
        if not inside or inside[-1].name not in ("onnx.Return", "func.return"):
            raise MlirError(op.position, "func.func: its body does not end with onnx.Return")
        *inside, last = inside
        arguments = zip(first.results, first.result_types, strict=True) if first else ()
        given = self.given_names(op, "arg_attrs")
        for number, (value, type_) in enumerate(arguments):
            self.names[value] = self.unique(given[number] if number < len(given) else f"input{number}")
            self.graph.input.append(self.info(op, self.names[value], type_, f"{self.names[value]}_"))
        given = self.given_names(op, "res_attrs")
        wanted = {value: given[number] for number, value in enumerate(last.operands) if number < len(given)}
        for each in inside:
            self.operation(each, wanted)
        for number, (value, type_) in enumerate(zip(last.operands, last.operand_types, strict=False)):
            name, tensor = given[number] if number < len(given) else None, self.operand(last, value)
            if name not in (None, tensor) or any(output.name == tensor for output in self.graph.output):
                copy = self.unique(name or f"{tensor}_{number}")
                self.graph.node.append(helper.make_node("Identity", [tensor], [copy], name=copy))
                tensor = copy
            self.graph.output.append(self.info(last, tensor, type_))

    def given_names(self, op: MlirOp, key: str) -> list[str]:
        """Returns the names of inputs or outputs, which are attributes of the function."""
        found = op.attributes.get(key, [])
        names = [each.get("onnx.name") if is_dictionary(each) else None for each in found] if is_list(found) else [None]
        if not all(isinstance(name, str) for name in names):
            raise MlirError(op.position, f"func.func: {key} has no onnx.name for each")
        return [f"{name}" for name in names]

    def unique(self, name: str) -> str:
        """Returns a name for a tensor: this one, with a number if it is taken."""
        number, found = 0, name
        while found in self.used:
            number, found = number + 1, f"{name}.{number + 1}"
        self.used.add(found)
        return found

    @staticmethod
    def info(op: MlirOp, name: str, type_: MlirType, prefix: str = "") -> ValueInfoProto:
        """Returns an input or output. With a prefix, sizes that are not known get names, for the option `dims`."""
        shape, element = tensor_shape(type_)
        text = f"{type_}".removeprefix("tensor<").rstrip(">")
        if element not in NUMBERS or not f"{type_}".startswith("tensor<"):
            raise MlirError(op.position, f"{op.name}: {type_} is no tensor of ONNX that RAPTOR reads")
        sizes: list[int | str | None] | None = None if shape is None else [*shape]
        if sizes is None and not text.startswith("*"):
            unknown = [f"{prefix}{k}" if prefix else None for k in range(text.count("x"))]
            sizes = [int(size) if size != "?" else unknown[k] for k, size in enumerate(text.split("x")[:-1])]
        return helper.make_tensor_value_info(name, NUMBERS[element], sizes)

    def operand(self, op: MlirOp, value: str) -> str:
        if value not in self.names:
            raise MlirError(op.position, f"%{value} is used before it is defined")
        return self.names[value]

    def operation(self, op: MlirOp, wanted: dict[str, str]) -> None:
        """Reads an operation. wanted: names of the values that the function returns."""
        if not op.name.startswith("onnx.") or op.name in ("onnx.Return", "onnx.EntryPoint"):
            raise MlirError(op.position, f"{op.name}: expected an operation of the dialect onnx")
        if op.regions:
            raise MlirError(op.position, f"{op.name}: has a region, which RAPTOR does not read")
        operands = [self.operand(op, value) for value in op.operands]
        if op.name == "onnx.NoValue":
            self.names |= dict.fromkeys(op.results, "")
            return
        name, given = op.attributes.get("onnx_node_name", ""), op.attributes.get("result_names", [])
        if not isinstance(name, str) or not is_list(given) or not all(isinstance(each, str) for each in given):
            raise MlirError(op.position, f"{op.name}: onnx_node_name or result_names are no strings")
        results = list[str]()
        for number, value in enumerate(op.results):
            if value in self.names:
                raise MlirError(op.position, f"%{value} is defined twice")
            own = given[number] if number < len(given) else wanted.get(value, f"{name or value}_{number}")
            self.names[value] = self.unique(own) if own else ""
            results.append(self.names[value])
        if op.name == "onnx.Constant" and not name:
            self.graph.initializer.append(self.tensor(op, op.attributes.get("value"), results[0] if results else ""))
            return
        self.graph.node.append(self.node(op, name, operands, results))

    def node(self, op: MlirOp, name: str, operands: list[str], results: list[str]) -> NodeProto:
        kind, domain = op.name.removeprefix("onnx."), None
        if kind == "Custom":
            kind, domain = (op.attributes.get(key) for key in ("function_name", "domain_name"))
            if not isinstance(kind, str) or not isinstance(domain, str):
                raise MlirError(op.position, "onnx.Custom: function_name or domain_name is no string")
        node = helper.make_node(kind, operands, results, name=name or None, domain=domain)
        for key, value in op.attributes.items():
            if key not in _OWN and value is not UNIT:
                node.attribute.append(self.attribute(op, key, value))
        return node

    def attribute(self, op: MlirOp, key: str, value: Any) -> AttributeProto:
        """Returns an attribute of a node. A type, such as `to` of a Cast, is ONNX's number of it."""
        if isinstance(value, TensorValue | ResourceHandle):
            return helper.make_attribute(key, self.tensor(op, value, ""))
        if isinstance(value, MlirType) and value.element in NUMBERS:
            value = NUMBERS[value.element]
        if is_array(value) or (is_list(value) and not value):
            kind = AttributeProto.FLOATS if is_array(value) and value.dtype.kind == "f" else AttributeProto.INTS
            return helper.make_attribute(key, np.asarray(value).tolist(), attr_type=kind)
        kinds: set[type] = set(map(type, value)) if is_list(value) else {type(value)}
        if len(kinds) != 1 or not kinds <= {int, float, str, bool}:
            raise MlirError(op.position, f"{op.name}: {key} is no attribute of ONNX")
        return helper.make_attribute(key, int(value) if isinstance(value, bool) else value)

    def tensor(self, op: MlirOp, value: Any, name: str) -> Any:
        """Returns a constant. Raises `MlirError` for a resource without its values."""
        if isinstance(value, ResourceHandle):
            shape, element = tensor_shape(value.type)
            if value.key not in self.resources or shape is None:
                raise MlirError(op.position, f"{op.name}: the module has no values of the resource {value.key}")
            value = TensorValue(shape, element, self.resources[value.key])
        if not isinstance(value, TensorValue):
            raise MlirError(op.position, f"{op.name}: value is no constant, dense<...> or a resource")
        try:
            return tensor_to_proto(value, name)
        except ValueError as e:
            raise MlirError(op.position, f"{op.name}: {e}") from None
