"""Import context: what importers know about the model, and the Graph under construction to which they add operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from onnx import OperatorSetIdProto

from raptor.common.errors import UserError
from raptor.frontend.codes import CodeType, Steps, float_layer_fault, host_coding
from raptor.frontend.constants import as_float32, natural_image
from raptor.frontend.demands import ANY, chosen, range_of
from raptor.frontend.import_refusal import Refusal
from raptor.frontend.model_tensors import Kind, ModelTensors, Shape
from raptor.frontend.nodes import Array, Constants, NodeView
from raptor.frontend.ranges import OverflowFault, Range, result_of
from raptor.frontend.whole import (
    EXACT,
    BoundRefusal,
    is_whole_type,
    is_within,
    limits_of,
    meet,
    whole_result,
)
from raptor.graph.constants import owned
from raptor.graph.ir import (
    ConstantTensor,
    Filter,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Rename,
    Tensor,
    needs_extension,
)
from raptor.graph.moves import c_order, move
from raptor.target.element import MODELLED, MOST_WHOLE, Coding, ElementType
from raptor.target.layout import Image


class View(Protocol):
    """A real-valued tensor of `shape`, represented by integers."""

    @property
    def shape(self) -> Shape: ...

    def as_floats(self, node: NodeView, ctx: ImportContext, name: str) -> None:
        """Computes the values in float32, as tensor `name`."""
        ...

    def quantise(self, node: NodeView, ctx: ImportContext, by: Steps, name: str) -> bool:
        """Computes QuantizeLinear of the values as integer tensor `name`; False if that takes float arithmetic."""
        ...

    def bounded(self, node: NodeView, low: float, high: float) -> View:
        """Returns min(max(view, low), high) as the result of `node`."""
        ...

    def coded(self) -> tuple[Tensor, Coding] | None:
        """Returns an integer tensor and the coding by which the host dequantises it; None if no coding can."""
        ...

    @property
    def node(self) -> NodeView:
        """The node whose result the view is."""
        ...


class ImportContext(ModelTensors):
    """The model as an importer sees it, and the Graph under construction."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        constants: Constants,
        in_model: frozenset[str],
        codes: Mapping[str, CodeType],
        floats: ElementType,
        kinds: Mapping[str, Kind],
        most: int = MOST_WHOLE,
    ) -> None:
        """Starts an empty Graph.

        shapes: static ONNX shapes by tensor name. in_model: names of all tensors of the original model. codes: types of
        its quantised integer tensors. floats: element type of its float tensors. kinds: numpy types of all its tensors.
        most: largest absolute value of integer inputs that are held as float32.
        """
        super().__init__(shapes, constants, kinds)
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.views: dict[str, View] = {}
        """Float tensors that quantised integers represent; computed in floats only if `tensor` asks for them."""
        self.used: frozenset[str] = frozenset()
        """Tensors that a node or a model output reads."""
        self.codes, self.floats, self.opsets = codes, floats, tuple[OperatorSetIdProto, ...]()
        self._most = most
        self._extended: set[str] = set()
        """Tensors computed by extended instructions, directly or indirectly."""
        self._assumed: set[str] = set()
        """Tensors whose range is taken from what their readers need, directly or indirectly; other values may occur."""
        self._made: dict[str, Node] = {}
        """Tensor -> node of the Graph that computes it."""
        self._whole: dict[str, Range | None] = {}
        """Tensor held as float32 -> range of its integers; None if it is not known to hold integers only."""
        self.demanded: Mapping[str, Range] = {}
        """Tensor -> range in which its integers must lie for every index computed from them to be valid."""
        self._wide: dict[str, Range] = {}
        """Integer tensors that may exceed the exact integers of float32 -> their range."""
        self._ranges: dict[str, Range] = {}
        self._laid: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Tensor -> copies and aliases that `as_image` made of it."""
        self._in_model = in_model

    def is_cast_of_input(self, node: NodeView) -> bool:
        """Checks whether a node casts a model input. (Computed tensors are not rounded to narrow float types.)"""
        return node.op_type in ("Cast", "CastLike") and node.inputs[0] not in self._made

    def is_extended(self, tensor: Tensor) -> bool:
        """Checks whether extended instructions compute a tensor, directly or indirectly.

        Such a tensor may hold NaN (0 / 0), and its program needs a machine with extended instructions in any case.
        """
        return tensor.name in self._extended

    def whole(self, tensor: Tensor) -> Range | None:
        """Returns the proved range of integers that are held as float32; None for non-integers.

        Also None if an integer computed on the way may exceed what float32 holds exactly.
        """
        found = self._reach(tensor)
        return found if found is not None and is_within(found, EXACT) else None

    def declare_whole(self, name: str, found: Range) -> None:
        """Declares that a tensor holds integers in the range `found`, where its operators do not imply it."""
        self._whole[name] = found

    def declare_unbounded(self, name: str) -> None:
        """Declares that a tensor holds integers without a bound, as a cast from float to int64 makes them.

        If it feeds indices, the valid range of these indices is assumed instead (`is_assumed`).
        """
        found = self.demanded.get(name)
        if found is not None and is_within(found, EXACT):
            self._whole[name] = found
            self._assumed.add(name)
        else:
            self._wide[name] = ANY

    def is_assumed(self, tensor: Tensor) -> bool:
        """Checks whether the range of a tensor is assumed from what its readers need, not proved from its operators."""
        return tensor.name in self._assumed

    def narrowed(self, tensor: Tensor, limits: Range) -> Range | None:
        """Has the host reject values of an integer model input outside `limits`; returns the new `whole(tensor)`.

        The tensor may be a rearrangement of the input; any other tensor keeps its range. The limits must contain 0.
        """
        chain = [tensor.name]
        while (made := self._made.get(chain[-1])) and isinstance(made.operator, Rename | Move):
            chain.append(made.inputs[0])
        source = self.tensors[chain[-1]]
        coding = source.coding
        if made is None and coding is not None and self.is_whole(source.name):
            given = limits_of(self.kind(source.name))
            found = meet(given if coding.low is None or coding.high is None else Range(coding.low, coding.high), limits)
            self.tensors[source.name] = replace(source, coding=replace(coding, low=found.low, high=found.high))
            self._whole |= dict.fromkeys(chain, found)
        return self.whole(tensor)

    def _reach(self, tensor: Tensor) -> Range | None:
        """Returns the integer range of a tensor, or the first range on the way to it that float32 does not hold.

        Iterative, because a recurrent layer of many steps would exceed the recursion limit.
        """
        pending = [tensor.name]
        while pending:
            name = pending.pop()
            if name in self._whole:
                continue
            made = self._made.get(name)
            # The range of a tensor of the model was determined when its node was imported.
            inner = [i for i in made.inputs if not self.tensors[i].in_model] if made is not None else []
            missing = [i for i in inner if i not in self._whole]
            if missing:
                pending += [name, *missing]
            else:
                self._whole[name] = None if made is None else self._reach_of(made)
        return self._whole[tensor.name]

    def _reach_of(self, made: Node) -> Range | None:
        sources = [self.tensors[i] for i in made.inputs]
        ranges = [self._whole.get(source.name) for source in sources]
        beyond = (r for r in ranges if r is not None and not is_within(r, EXACT))
        return next(beyond, None) or whole_result(made.operator, sources, ranges)

    def settle(self, node: NodeView) -> None:
        """Determines the integer ranges of a node's results.

        Raises `BoundRefusal` for integers that float32 may not hold.
        """
        follows = any(self._whole.get(i) is not None for i in node.inputs)
        for name in (o for o in node.outputs if o in self.tensors):
            kind, tensor = self.kind(name), self.tensors[name]
            if tensor.element.kind == "int":
                continue
            if kind == np.bool_:
                self._whole[name] = Range(0, 1)
            elif is_whole_type(kind):
                limits = meet(limits_of(kind), EXACT)
                if name not in self._wide and any(i in self._wide for i in node.inputs):
                    self._settle_wide(node, name, limits)
                found = self._reach(tensor)
                if found is None and name in self._wide:
                    continue
                if found is None or not is_within(found, limits):
                    raise BoundRefusal(found, limits)
            elif follows:
                self._reach(tensor)

    def _settle_wide(self, node: NodeView, name: str, limits: Range) -> None:
        """Determines the range of a result whose elements are selected, unrounded, from integers of any size."""
        ranges = {i: self._whole.get(i) or self._wide.get(i) for i in node.inputs}
        ranges |= {i: range_of(value) for i in node.inputs if (value := self.constant(i)) is not None}
        found = chosen(node, ranges)
        if found is None:
            return
        if is_within(found, limits):
            self._whole[name] = found
        elif not is_within(limits_of(self.kind(name)), EXACT):
            self._wide[name] = found

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor of the Graph that holds a model tensor. Raises `Refusal` for a constant.

        A view is computed in floats on the first call.
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
        """Returns the proved range of an integer tensor of the Graph."""
        return self._ranges.get(tensor.name) or Range.of(tensor.element)

    def declare(self, stem: str, shape: Shape) -> str:
        """Registers a tensor that the ONNX model does not have; returns its name, which begins with `stem`."""
        name = self._unused_name(stem)
        self._shapes[name] = shape
        self.used |= {name}
        return name

    def add_constant(self, stem: str, values: Array) -> str:
        """Adds a constant computed by an importer; returns its name, which begins with `stem`."""
        name = self._unused_name(stem)
        self._constants.add(name, values)
        return name

    def is_known(self, name: str) -> bool:
        """Checks whether a tensor has been imported; False for an output of a refused node whose shape is unknown."""
        return name in self.tensors or name in self.views or self.is_constant(name)

    def input(self, name: str, by: Steps | None = None) -> None:
        """Adds an input of the model to the Graph. Raises `Refusal` if its shape is not static, or it is not numeric.

        `by`: scale and zero point with which the host quantises the input.
        """
        shape = self.shape(name)
        code = self.codes.get(name)
        element = self.floats if code is None else code.element
        coding = self._coding(name) if code is None else code.coding
        if by is not None:
            element, coding = by.code.element, self._of_floats(name, host_coding(by))
        if coding is not None and element.kind == "float" and self.is_whole(name):
            found = meet(limits_of(self.kind(name)), Range(-self._most, self._most))
            found = meet(found, self.demanded.get(name, found))
            self._whole[name] = found
            if self.kind(name) != np.bool_:
                coding = replace(coding, low=found.low, high=found.high)
        self.tensors[name] = Tensor(name, shape, natural_image(shape), name in self._in_model, element, coding)

    def output(self, name: str) -> None:
        """Adds a node for a model output that no node computes: a constant or a view.

        Raises `UserError` if not numeric.
        """
        constant = self.constant(name)
        if name in self.tensors:
            return
        if name in self.views:
            self._output_view(name, self.views[name])
        elif constant is not None:
            if not constant.size or constant.dtype.kind not in "fiubV":
                raise UserError(f"output '{name}' is a constant of {constant.dtype} {constant.shape}: no numbers")
            image = natural_image(constant.shape)
            try:
                values = as_float32(name, constant) if is_whole_type(constant.dtype) else constant.astype(np.float32)
            except Refusal as refusal:
                raise UserError(f"output {refusal}") from None
            operator = ConstantTensor(owned(image.to_pixels(values)))
            self.nodes.append(Node(name, "Constant", operator, (), name))
            self._define(name, constant.shape, image, self.floats, None)

    def _output_view(self, name: str, view: View) -> None:
        """Adds an output that the host dequantises, if its coding allows it; otherwise computes it in floats."""
        found = view.coded()
        if found is None:
            self.tensor(name)
            return
        source, coding = found[0], self._of_floats(name, found[1])
        if coding.axis is not None and source.image.shape != source.shape:
            source = self.as_image(view.node, source, natural_image(source.shape))
        self.emit(view.node, (source.name,), source.image, Rename(), name)
        self.tensors[name] = replace(self.tensors[name], coding=coding)

    def lower(self, node: NodeView, inputs: Sequence[str], image: Image, *operators: Operator) -> None:
        """Adds a chain of operators whose results have the same image; the last one computes the node's output.

        The first operator reads `inputs`, each further one the result of its predecessor.
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
        """Adds the operator that computes an output of the node: `output`, by default the first.

        element, found: element type and range of an integer result that the operator alone does not determine.
        """
        name = output or node.output
        self._append(node, inputs, self.shape(name), image, operator, name, element, found)

    def take_back(self, tensor: Tensor) -> tuple[Operator, tuple[str, ...]]:
        """Returns (operator, inputs) that compute the tensor under another name.

        Removes the node of `tensor` from the Graph if it is the last one and has no readers; otherwise returns an
        alias.
        """
        if not self.nodes or self.nodes[-1].output != tensor.name or tensor.name in self.used:
            return Rename(), (tensor.name,)
        last = self.nodes.pop()
        del self.tensors[tensor.name], self._made[tensor.name]
        return last.operator, last.inputs

    def step(self, node: NodeView, inputs: Sequence[str], image: Image, operator: Operator) -> str:
        """Adds an operator with a new result of the shape of the node's output; returns the result's name."""
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
        """Returns the tensor in the layout `image`: itself, an alias, or a copy, which is made once.

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
        self._made[name] = Node(node.name, node.op_type, operator, tuple(inputs), name)
        if needs_extension(operator) or not self._extended.isdisjoint(inputs):
            self._extended.add(name)
        if not self._assumed.isdisjoint(inputs):
            self._assumed.add(name)
        self.nodes.append(self._made[name])
        self._define(name, shape, image, element, found)

    def _type_of(self, node: NodeView, inputs: Sequence[str], operator: Operator) -> tuple[ElementType, Range | None]:
        """Returns element type and range of a result. Raises `Refusal` for integer sums that may exceed 32 bits."""
        if self.floats == MODELLED:
            return MODELLED, None
        sources = [self.tensors[i] for i in inputs]
        if isinstance(operator, Filter) and operator.weights.dtype.kind == "f":
            raise Refusal(float_layer_fault(node, self._coded, self.views))
        try:
            pairs = [(t, self.range(t) if t.element.kind == "int" else None) for t in sources]
            return result_of(operator, pairs, self.floats)
        except OverflowFault as fault:
            raise Refusal(str(fault)) from None

    def _define(self, name: str, shape: Shape, image: Image, element: ElementType, found: Range | None) -> None:
        in_model, code = name in self._in_model, self.codes.get(name)
        if in_model and (code.element if code else self.floats) != element and element.kind != "int":
            raise Refusal(f"'{name}' is {code.name if code else 'float32'}, computed as {element}")
        coding = code.coding if code and element == code.element else None
        if element.kind == "float":
            coding = self._coding(name)
        self.tensors[name] = Tensor(name, shape, image, in_model, element, coding)
        if found is not None:
            self._ranges[name] = found
