"""Translates a canonical ONNX model to a Graph: every node goes through its importer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from raptor.frontend.codes import CODES, Coded, CodeType, Steps, host_coding, quantiser
from raptor.frontend.constants import natural_image, owned
from raptor.frontend.moves import c_order, move
from raptor.frontend.nodes import Array, Constants, NodeView
from raptor.frontend.ranges import OverflowFault, Range, result_of
from raptor.frontend.registry import (
    QUANTISED,
    STANDARD_DOMAINS,
    Importer,
    NeedsConstantError,
    Refusal,
    find_importer,
    find_rule,
    op_reason,
)
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
from raptor.target.element import FLOAT32, MODELLED, ElementType
from raptor.target.layout import Image

if TYPE_CHECKING:
    from raptor.frontend.views import View

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
    def of(cls, proto: ModelProto, reasons: Mapping[str, str]) -> Origin:
        nodes = proto.graph.node
        names = frozenset(n.name for n in nodes if n.name)
        return cls(names, {output: label(n) for n in nodes for output in n.output if output}, reasons)

    def label(self, node: NodeProto) -> str:
        """Returns the name of the original node behind a canonical one, which may be fused from several."""
        return node.name if node.name in self.node_names else self.producers.get(node.output[0], label(node))


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer of the importers about one node of the canonical model.

    `refused`: why the chip does not compute it, None if it does; an empty text means that one of its inputs cannot be
    on the chip. `nodes`: what it became.
    """

    name: str
    refused: str | None
    nodes: tuple[Node, ...]


class ImportContext:
    """The model as an importer sees it, and the place where it adds its nodes."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        constants: Constants,
        in_model: frozenset[str],
        codes: Mapping[str, CodeType],
        floats: ElementType,
    ) -> None:
        """Takes the types of the integer tensors of the model, and the type of the floats."""
        self.nodes: list[Node] = []
        self.answers: list[Answer] = []
        """One for each node of the canonical model."""
        self.tensors: dict[str, Tensor] = {}
        self.views: dict[str, View] = {}
        """Float tensors of the model that integers stand for; they are not computed unless `tensor` asks."""
        self.used: frozenset[str] = frozenset()
        """Tensors that a node or an output of the model reads."""
        self.codes, self.floats = codes, floats
        self._coded: dict[str, Coded] = {}
        self._ranges: dict[str, Range] = {}
        self._laid: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Tensor -> results of `as_image` for it."""
        self._shapes, self._constants, self._in_model = dict(shapes), constants, in_model

    def shape(self, name: str) -> Shape:
        """Returns the ONNX shape of a float32 or integer tensor. Raises `Refusal` if it is not known."""
        if name not in self._shapes:
            raise Refusal(f"the shape of '{name}' depends on values, or it is not float32")
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor computed on the chip, or an input. Raises `Refusal` for a constant.

        A view is computed in floats, once.
        """
        if self.is_constant(name):
            raise Refusal(f"'{name}' must not be a constant")
        if name not in self.tensors and name in self.views:
            view = self.views[name]
            view.as_floats(view.node, self, name)
        return self.tensors[name]

    def shape_of(self, name: str) -> Shape:
        """Returns the shape of a tensor, view or constant."""
        if name in self.views:
            return self.views[name].shape
        value = self.constant(name)
        return self.tensors[name].shape if value is None else value.shape

    def range(self, tensor: Tensor) -> Range:
        """Returns the proved range of a tensor of integers."""
        return self._ranges.get(tensor.name) or Range.of(tensor.element)

    def declare(self, stem: str, shape: Shape) -> str:
        """Returns a name that begins with `stem` for a tensor of this shape that the ONNX model does not have."""
        name = self._unused_name(stem)
        self._shapes[name] = shape
        self.used |= {name}
        return name

    def add_constant(self, stem: str, values: Array) -> str:
        """Adds a constant that was computed here, and returns its name."""
        name = self._unused_name(stem)
        self._constants.add(name, values)
        return name

    def set_constant(self, name: str, values: Array) -> None:
        """Makes a tensor of the model a constant that was computed here."""
        self._constants.add(name, values)

    def add_coded(self, name: str, value: Coded) -> None:
        """Adds a constant of integers that stand for real numbers."""
        self._coded[name] = value

    def coded(self, name: str | None) -> Coded | None:
        """Returns a constant of integers that stand for real numbers; None for everything else."""
        return None if name is None else self._coded.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self._constants or name in self._coded

    def is_known(self, name: str) -> bool:
        """Tells whether a tensor is known: False for outputs of a refused node, unless their shape is known."""
        return name in self.tensors or name in self.views or self.is_constant(name)

    def constant(self, name: str | None) -> Array | None:
        """Returns the value of a constant; None if `name` is computed or absent."""
        if name in self._coded:
            return self._coded[name].real
        return self._constants[name] if name is not None and name in self._constants else None

    def weights(self, name: str) -> Floats:
        """Returns the value of a float32 constant, or of one that was computed here.

        Raises `Refusal` for computed tensors and other types.
        """
        value = self.constant(name)
        if value is None:
            raise NeedsConstantError(name)
        if value.dtype != np.float32 and not self._constants.is_computed(name):
            raise Refusal(f"'{name}' is {value.dtype}, must be float32")
        return value

    def input(self, name: str, by: Steps | None = None) -> None:
        """Adds an input of the model. Raises `Refusal` if its shape is not known, or it is not float32 nor an integer.

        `by`: scale and zero point by which the host turns it into integers.
        """
        shape = self.shape(name)
        code = self.codes.get(name)
        element = self.floats if code is None else code.element
        coding = None if code is None else code.coding
        if by is not None:
            element, coding = by.code.element, host_coding(by)
        self.tensors[name] = Tensor(name, shape, natural_image(shape), name in self._in_model, element, coding)

    def output(self, name: str) -> None:
        """Adds a node for an output of the model that is a constant or a view."""
        constant = self.constant(name)
        if name in self.tensors:
            return
        if name in self.views:
            self._output_view(name, self.views[name])
        elif constant is not None:
            if constant.dtype != np.float32:
                raise UserError(f"output '{name}' is a constant of {constant.dtype}, must be float32")
            image = natural_image(constant.shape)
            operator = ConstantTensor(owned(image.to_pixels(constant)))
            self.nodes.append(Node(name, "Constant", operator, (), name))
            self._define(name, constant.shape, image, self.floats, None)

    def _output_view(self, name: str, view: View) -> None:
        """Adds the output: integers that the host turns into real numbers, if it can, else floats."""
        found = view.coded()
        if found is None:
            self.tensor(name)
            return
        source, coding = found
        self.emit(view.node, (source.name,), source.image, Rename(), name)
        self.tensors[name] = replace(self.tensors[name], coding=coding)

    def lower(self, node: NodeView, inputs: Sequence[str], image: Image, *operators: Operator) -> None:
        """Adds a chain of operators with results of the same image; the last computes the node's output.

        The first reads `inputs`, each of the others the result before it.
        """
        for operator in operators[:-1]:
            inputs = (self.step(node, inputs, image, operator),)
        self.emit(node, inputs, image, operators[-1] if operators else Rename())

    def emit(
        self,
        node: NodeView,
        inputs: Sequence[str],
        image: Image,
        operator: Operator,
        output: str | None = None,
        element: ElementType | None = None,
        found: Range | None = None,
    ) -> None:
        """Adds the operator that computes the node's output: the first, or the named one.

        element, found: type and range of the integers, where the operator alone does not tell them.
        """
        name = output or node.output
        self._append(node, inputs, self.shape(name), image, operator, name, element, found)

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
        name = self._unused_name(stem)
        self._append(node, inputs, self.shape(node.output), image, operator, name)
        return name

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
        self,
        node: NodeView,
        inputs: Sequence[str],
        shape: Shape,
        image: Image,
        operator: Operator,
        stem: str,
        element: ElementType | None = None,
        found: Range | None = None,
    ) -> Tensor:
        """Adds an operator whose result, of `shape`, is not in the ONNX model; its name begins with `stem`."""
        name = self._unused_name(stem)
        self._append(node, inputs, shape, image, operator, name, element, found)
        return self.tensors[name]

    def _unused_name(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.tensors or name in self._in_model or name in self._shapes or self.is_known(name):
            count += 1
            name = f"{stem}.{count}"
        return name

    def _append(
        self,
        node: NodeView,
        inputs: Sequence[str],
        shape: Shape,
        image: Image,
        operator: Operator,
        name: str,
        element: ElementType | None = None,
        found: Range | None = None,
    ) -> None:
        if element is None:
            element, found = self._type_of(node, inputs, operator)
        self.nodes.append(Node(node.name, node.op_type, operator, tuple(inputs), name))
        self._define(name, shape, image, element, found)

    def _type_of(self, node: NodeView, inputs: Sequence[str], operator: Operator) -> tuple[ElementType, Range | None]:
        """Returns type and range of a result. Raises `UserError` for sums that 32 bits do not hold."""
        if self.floats == MODELLED:
            return MODELLED, None
        sources = [self.tensors[i] for i in inputs]
        if isinstance(operator, Filter) and operator.weights.dtype.kind == "f":
            raise Refusal("its weights are floats, but the model is of integers: quantise them too")
        try:
            pairs = [(t, self.range(t) if t.element.kind == "int" else None) for t in sources]
            return result_of(operator, pairs, self.floats)
        except OverflowFault as fault:
            raise UserError(f"{node.name} ({node.op_type}): {fault}") from None

    def _define(self, name: str, shape: Shape, image: Image, element: ElementType, found: Range | None) -> None:
        in_model, code = name in self._in_model, self.codes.get(name)
        if in_model and (code.element if code else self.floats) != element and element.kind != "int":
            raise Refusal(f"'{name}' is {code.name if code else 'float32'}, computed as {element}")
        coding = code.coding if code and element == code.element else None
        self.tensors[name] = Tensor(name, shape, image, in_model, element, coding)
        if found is not None:
            self._ranges[name] = found


def import_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> Graph:
    """Returns the Graph of a model. Raises `UnsupportedError` with every node that cannot be lowered."""
    graph, refused = survey_graph(proto, folder, name, origin)
    if refused:
        raise UnsupportedError(refused)
    return graph


def survey_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> tuple[Graph, list[UnsupportedNode]]:
    """Returns the part of the model that can be lowered, and every node that cannot; if none, the graph is complete."""
    context, inputs, refused = _imported(proto, folder, origin)
    outputs = tuple(dict.fromkeys(v.name for v in proto.graph.output))
    for output in outputs:
        context.output(output)
    return Graph(name, context.tensors, tuple(context.nodes), tuple(inputs), outputs, _float_nodes(context)), refused


def ask_nodes(proto: ModelProto, folder: Path, origin: Origin) -> tuple[Graph, tuple[Answer, ...]]:
    """Asks the importers about every node of a canonical model, as if outputs of refused nodes were inputs of the chip.

    Returns what the others became, without the outputs of the model, and the answers in the order of the nodes.
    """
    context, inputs, _ = _imported(proto, folder, origin)
    graph = Graph(proto.graph.name, context.tensors, tuple(context.nodes), tuple(inputs), ())
    return graph, tuple(context.answers)


def _imported(
    proto: ModelProto, folder: Path, origin: Origin
) -> tuple[ImportContext, list[str], list[UnsupportedNode]]:
    """Imports inputs and nodes. Returns the context, the inputs that can be fed, and the nodes that are refused."""
    graph = proto.graph
    version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 1)
    inputs = [v.name for v in graph.input]
    in_model = frozenset(origin.producers) | frozenset(inputs)
    constants = Constants(graph.initializer, folder)
    floats = FLOAT32 if _has_integers(graph, constants) else MODELLED
    codes = {} if floats == MODELLED else _codes(graph)
    context = ImportContext(_shapes(graph, codes), constants, in_model, codes, floats)
    read = {i for n in graph.node for i in n.input if i}
    context.used = frozenset(read) | frozenset(v.name for v in graph.output)
    by_host = _quantised_by_host(graph, context, version)
    for value in inputs:
        with suppress(Refusal):  # an input that cannot be fed; `survey` reports it
            context.input(value, by_host.get(value))
    inputs = [value for value in inputs if value in context.tensors]
    return context, inputs, _import_nodes(graph, context, origin, version)


def _import_nodes(graph: GraphProto, context: ImportContext, origin: Origin, version: int) -> list[UnsupportedNode]:
    """Imports all nodes. Returns those that cannot be lowered."""
    refused: list[UnsupportedNode] = []
    for proto in graph.node:
        node, first = NodeView.of(proto, origin.label(proto), version), len(context.nodes)
        reason = None
        try:
            _import_node(node, proto.domain, context, origin.reasons.get(node.outputs[0] if node.outputs else ""))
        except Refusal as refusal:
            reason = str(refusal)
            if reason:
                refused.append(UnsupportedNode(node.name, node.op_type, reason, _needs(node, refusal)))
            _assume_outputs(node, context)
        context.answers.append(Answer(node.name, reason, tuple(context.nodes[first:])))
    return refused


def _needs(node: NodeView, refusal: Refusal) -> tuple[str, ...]:
    """Returns the input the importer asked for; else all but the first, which is the data of nearly every operator."""
    return (refusal.name,) if isinstance(refusal, NeedsConstantError) else tuple(i for i in node.inputs[1:] if i)


def _import_node(node: NodeView, domain: str, context: ImportContext, reason: str | None) -> None:
    """Imports one node. Raises `Refusal`, without a text if the reason of an earlier node is enough.

    `reason`: why the node cannot be lowered, if that is known already.
    """
    found = find_importer(node.op_type, node.version, domain)
    if found is None:
        raise Refusal(reason or op_reason(domain, node.op_type))
    if not all(context.is_known(i) for i in node.inputs if i):
        raise Refusal
    unneeded = [o for o in node.outputs[1:] if o in context.used]
    if unneeded and not found.all_outputs:
        raise Refusal(f"its output '{unneeded[0]}' is used, only the first output is supported")
    try:
        apply(node, context, found)
    except (Refusal, RaptorError, MemoryError, OSError):
        raise
    except Exception as error:  # a bug of an importer: it names the node, and keeps the cause
        raise InternalError(f"import of {node.name} ({node.op_type}) failed: {error!r}") from error


def apply(node: NodeView, context: ImportContext, found: Importer) -> None:
    """Adds a node: in integers if its inputs stand for some and a rule says how, else by its importer."""
    if any(i in context.views for i in node.inputs):
        rule = find_rule(node.op_type)
        if rule is not None and rule(node, context):
            return
    integers = [i for i in node.inputs if i in context.tensors and context.tensors[i].element.kind == "int"]
    if integers and not found.integers and not all(i in context.views for i in integers):
        raise Refusal(f"its input '{integers[0]}' is of integers; only moves, pools and quantised operators take them")
    found.function(node, context)


def _has_integers(graph: GraphProto, constants: Constants) -> bool:
    """Tells whether the model computes with integers. Constants that stand for real numbers do not count."""
    computed = {v.name for v in graph.input if v.name not in constants}
    for node in graph.node:
        if not computed.isdisjoint(node.input):
            if node.op_type in QUANTISED:
                return True
            computed.update(node.output)
    return False


def _quantised_by_host(graph: GraphProto, context: ImportContext, version: int) -> dict[str, Steps]:
    """Returns the float inputs that only one way of quantising reads: the host does it, and the chip gets integers."""
    readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {v.name for v in graph.output}
    found: dict[str, Steps] = {}
    for name in (v.name for v in graph.input if v.name not in outputs and v.name not in context.codes):
        if all(n.op_type == "QuantizeLinear" for n in readers[name]) and readers[name]:
            # Scales in blocks are a matter for the chip. Scales that are not constant: the importer says so.
            with suppress(Refusal):
                views = [NodeView.of(n, label(n), version) for n in readers[name]]
                all_steps = [quantiser(v, context, context.shape(name)) for v in views]
                if all(_are_equal(s, all_steps[0]) for s in all_steps):
                    host_coding(all_steps[0])
                    found[name] = all_steps[0]
    return found


def _are_equal(a: Steps, b: Steps) -> bool:
    return a.code == b.code and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def _float_nodes(context: ImportContext) -> tuple[str, ...]:
    """Returns the nodes of the model that are computed in floats, if others are computed in integers."""
    if context.floats == MODELLED:
        return ()
    floats = (n.name for n in context.nodes if context.tensors[n.output].element.kind == "float")
    return tuple(dict.fromkeys(floats))


def _assume_outputs(node: NodeView, context: ImportContext) -> None:
    """Defines the outputs of a refused node as far as shapes are known, so that the nodes after it are checked, too."""
    for output in node.outputs:
        with suppress(Refusal):
            context.input(output)


def _shapes(graph: GraphProto, codes: Container[str]) -> dict[str, Shape]:
    """Returns the shapes of all float32 tensors, and those in `codes`, that are static and not empty."""
    values = (*graph.input, *graph.value_info, *graph.output)
    data = [v for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT or v.name in codes]
    shapes = {v.name: _static_shape(v) for v in data}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _codes(graph: GraphProto) -> dict[str, CodeType]:
    """Returns the types of all tensors of integers."""
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = {v.name: v.type.tensor_type.elem_type for v in values}
    return {name: CODES[kind] for name, kind in kinds.items() if kind in CODES}


def _static_shape(value: ValueInfoProto) -> Shape | None:
    dims = value.type.tensor_type.shape.dim
    known = value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    shape = tuple(d.dim_value for d in dims)
    return shape if known and math.prod(shape) > 0 else None
