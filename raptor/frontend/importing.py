"""Translates a canonical ONNX model to a Graph: every node goes through its importer."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from raptor.common.errors import (
    InternalError,
    RaptorError,
    UnsupportedError,
    UnsupportedNode,
    UserError,
)
from raptor.frontend.check import label
from raptor.frontend.constants import natural_image, owned
from raptor.frontend.moves import c_order, move
from raptor.frontend.nodes import Array, Constants, NodeView
from raptor.frontend.registry import STANDARD_DOMAINS, NeedsConstantError, Refusal, find_importer, op_reason
from raptor.graph.ir import (
    ConstantTensor,
    Filter,
    Floats,
    Graph,
    Map,
    Node,
    Operator,
    Pool,
    Rename,
    Tensor,
)
from raptor.target.layout import Image

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Names of the original model, which the user knows."""

    node_names: frozenset[str]
    producers: Mapping[str, str]
    """Tensor -> label of the node that computes it."""
    reasons: Mapping[str, str]
    """First output of a node -> reason why it cannot be lowered, if it is known already."""

    @classmethod
    def of(cls, proto: ModelProto, reasons: Mapping[str, str]) -> "Origin":
        nodes = proto.graph.node
        names = frozenset(n.name for n in nodes if n.name)
        return cls(names, {output: label(n) for n in nodes for output in n.output if output}, reasons)

    def label(self, node: NodeProto) -> str:
        """Returns the name of the original node behind a canonical one, which may be fused from several."""
        return node.name if node.name in self.node_names else self.producers.get(node.output[0], label(node))


class ImportContext:
    """The model as an importer sees it, and the place where it adds its nodes."""

    def __init__(self, shapes: Mapping[str, Shape], constants: Constants, in_model: frozenset[str]) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.used: frozenset[str] = frozenset()
        """Tensors that a node or an output of the model reads."""
        self._laid: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Tensor -> results of `as_image` for it."""
        self._shapes, self._constants, self._in_model = shapes, constants, in_model

    def shape(self, name: str) -> Shape:
        """Returns the ONNX shape of a float32 tensor. Raises `Refusal` if it is not known."""
        if name not in self._shapes:
            raise Refusal(f"the shape of '{name}' depends on values, or it is not float32")
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor computed on the chip, or an input. Raises `Refusal` for a constant."""
        if name in self._constants:
            raise Refusal(f"'{name}' must not be a constant")
        return self.tensors[name]

    def is_known(self, name: str) -> bool:
        """Tells whether a tensor is known: False for outputs of a refused node, unless their shape is known."""
        return name in self.tensors or name in self._constants

    def constant(self, name: str | None) -> Array | None:
        """Returns the value of a constant; None if `name` is computed or absent."""
        return self._constants[name] if name is not None and name in self._constants else None

    def weights(self, name: str) -> Floats:
        """Returns the value of a float32 constant. Raises `Refusal` for computed tensors and other types."""
        value = self.constant(name)
        if value is None:
            raise NeedsConstantError(name)
        if value.dtype != np.float32:
            raise Refusal(f"'{name}' is {value.dtype}, must be float32")
        return value

    def input(self, name: str) -> None:
        """Adds an input of the model. Raises `Refusal` if its shape is not known, or it is not float32."""
        self._define(name, self.shape(name), natural_image(self.shape(name)))

    def output(self, name: str) -> None:
        """Adds a node for an output of the model that is a constant."""
        constant = self.constant(name)
        if constant is None or name in self.tensors:
            return
        if constant.dtype != np.float32:
            raise UserError(f"output '{name}' is a constant of {constant.dtype}, must be float32")
        image = natural_image(constant.shape)
        self.nodes.append(Node(name, "Constant", ConstantTensor(owned(image.to_pixels(constant))), (), name))
        self._define(name, constant.shape, image)

    def lower(self, node: NodeView, inputs: Sequence[str], image: Image, *operators: Operator) -> None:
        """Adds a chain of operators with results of the same image; the last computes the node's output.

        The first reads `inputs`, each of the others the result before it.
        """
        for operator in operators[:-1]:
            inputs = (self.step(node, inputs, image, operator),)
        self.emit(node, inputs, image, operators[-1] if operators else Rename())

    def emit(
        self, node: NodeView, inputs: Sequence[str], image: Image, operator: Operator, output: str | None = None
    ) -> None:
        """Adds the operator that computes the node's output: the first, or the named one."""
        name = output or node.output
        self.nodes.append(Node(node.name, node.op_type, operator, tuple(inputs), name))
        self._define(name, self.shape(name), image)

    def take_back(self, tensor: Tensor) -> tuple[Operator, tuple[str, ...]]:
        """Removes the node that produced `tensor` if it was the last one and nothing reads it. Else makes an alias.

        Returns operator and inputs that compute the tensor under another name.
        """
        if not self.nodes or self.nodes[-1].output != tensor.name or tensor.name in self.used:
            return Rename(), (tensor.name,)
        last = self.nodes.pop()
        del self.tensors[tensor.name]
        return last.operator, last.inputs

    def step(self, node: NodeView, inputs: Sequence[str], image: Image, operator: Operator) -> str:
        """Adds an operator whose result is not in the ONNX model, and returns a new name for it."""
        match operator:
            case Filter():
                stem = f"{node.output}.products"
            case Pool():
                stem = f"{node.output}.pooled"
            case Map(function, _):
                stem = f"{node.output}.{function}"
            case _:
                stem = f"{node.output}.{type(operator).__name__.lower()}"
        return self._add(node, inputs, image, operator, self._unused_name(stem))

    def as_image(self, node: NodeView, tensor: Tensor, image: Image) -> Tensor:
        """Returns the tensor laid out as `image`: itself, an alias, or a copy that is made once.

        `image` must have as many elements, in the same C order.
        """
        if tensor.image == image:
            return tensor
        known = [t for t in self._laid[tensor.name] if self.tensors.get(t.name) == t]
        same = next((t for t in known if t.image == image), None)
        if same is not None:
            return same
        source = next((t for t in (tensor, *known) if t.image.has_layout_of(image)), tensor)
        renamed = source.image.has_layout_of(image)
        operator = Rename() if renamed else move([source.image], c_order(image.shape), image)
        laid = self.inner(node, (source.name,), image.shape, image, operator, stem=f"{tensor.name}.laid")
        self._laid[tensor.name].append(laid)
        return laid

    def inner(
        self, node: NodeView, inputs: Sequence[str], shape: Shape, image: Image, operator: Operator, stem: str
    ) -> Tensor:
        """Adds an operator whose result, of `shape`, is not in the ONNX model; its name begins with `stem`."""
        name = self._unused_name(stem)
        self.nodes.append(Node(node.name, node.op_type, operator, tuple(inputs), name))
        self.tensors[name] = Tensor(name, shape, image, in_model=False)
        return self.tensors[name]

    def _unused_name(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.tensors or name in self._in_model or name in self._shapes:
            count += 1
            name = f"{stem}.{count}"
        return name

    def _add(self, node: NodeView, inputs: Sequence[str], image: Image, operator: Operator, output: str) -> str:
        self.nodes.append(Node(node.name, node.op_type, operator, tuple(inputs), output))
        self._define(output, self.shape(node.output), image)
        return output

    def _define(self, name: str, shape: Shape, image: Image) -> None:
        self.tensors[name] = Tensor(name, shape, image, name in self._in_model)


def import_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> Graph:
    """Returns the Graph of a model. Raises `UnsupportedError` with every node that cannot be lowered."""
    graph, refused = survey_graph(proto, folder, name, origin)
    if refused:
        raise UnsupportedError(refused)
    return graph


def survey_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> tuple[Graph, list[UnsupportedNode]]:
    """Returns the part of the model that can be lowered, and every node that cannot; if none, the graph is complete."""
    graph = proto.graph
    version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 1)
    inputs = [v.name for v in graph.input]
    in_model = frozenset(origin.producers) | frozenset(inputs)
    context = ImportContext(_shapes(graph), Constants(graph.initializer, folder), in_model)
    read = {i for n in graph.node for i in n.input if i}
    context.used = frozenset(read) | frozenset(v.name for v in graph.output)
    for value in inputs:
        with suppress(Refusal):  # an input that is not float32; `survey` reports it
            context.input(value)
    inputs = [value for value in inputs if value in context.tensors]
    refused = _import_nodes(graph, context, origin, version)
    outputs = tuple(dict.fromkeys(v.name for v in graph.output))
    for output in outputs:
        context.output(output)
    return Graph(name, context.tensors, tuple(context.nodes), tuple(inputs), outputs), refused


def _import_nodes(graph: GraphProto, context: ImportContext, origin: Origin, version: int) -> list[UnsupportedNode]:
    """Imports all nodes. Returns those that cannot be lowered."""
    refused: list[UnsupportedNode] = []
    for proto in graph.node:
        node = NodeView.of(proto, origin.label(proto), version)
        try:
            _import_node(node, proto.domain, context, origin.reasons.get(node.outputs[0] if node.outputs else ""))
        except Refusal as refusal:
            if str(refusal):
                refused.append(UnsupportedNode(node.name, node.op_type, str(refusal), _needs(node, refusal)))
            _assume_outputs(node, context)
    return refused


def _needs(node: NodeView, refusal: Refusal) -> tuple[str, ...]:
    """Returns the input the importer asked for; else all but the first, which is the data of nearly every operator."""
    return (refusal.name,) if isinstance(refusal, NeedsConstantError) else tuple(i for i in node.inputs[1:] if i)


def _import_node(node: NodeView, domain: str, context: ImportContext, reason: str | None) -> None:
    """Imports one node. Raises `Refusal`, without a text if the reason of an earlier node is enough.

    `reason`: why the node cannot be lowered, if that is known already.
    """
    found = find_importer(node.op_type, node.version) if domain in STANDARD_DOMAINS else None
    if found is None:
        raise Refusal(reason or op_reason(domain, node.op_type))
    if not all(context.is_known(i) for i in node.inputs if i):
        raise Refusal
    unneeded = [o for o in node.outputs[1:] if o in context.used]
    if unneeded and not found.all_outputs:
        raise Refusal(f"its output '{unneeded[0]}' is used, only the first output is supported")
    try:
        found.function(node, context)
    except (Refusal, RaptorError, MemoryError, OSError):
        raise
    except Exception as error:  # a bug of an importer: it names the node, and keeps the cause
        raise InternalError(f"import of {node.name} ({node.op_type}) failed: {error!r}") from error


def _assume_outputs(node: NodeView, context: ImportContext) -> None:
    """Defines the outputs of a refused node as far as shapes are known, so that the nodes after it are checked, too."""
    for output in node.outputs:
        with suppress(Refusal):
            context.input(output)


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    """Returns the shapes of all float32 tensors that are static and not empty."""
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = {v.name: _static_shape(v) for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _static_shape(value: ValueInfoProto) -> Shape | None:
    dims = value.type.tensor_type.shape.dim
    known = value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    shape = tuple(d.dim_value for d in dims)
    return shape if known and math.prod(shape) > 0 else None
