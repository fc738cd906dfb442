"""Import context: what importers know about the model, and the Graph under construction to which they add operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from onnx import OperatorSetIdProto

from raptor.common.errors import UserError
from raptor.frontend.constant_pixels import natural_image, to_exact_float32
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.model_tensors import Kind, ModelTensors, Shape
from raptor.frontend.proto.nodes import Array, ModelConstants, NodeView
from raptor.frontend.types.float32_integers import (
    EXACT_RANGE,
    BoundRefusal,
    find_type_limits,
    infer_integer_range,
    intersect_ranges,
    is_integer_type,
    is_within,
)
from raptor.frontend.types.index_ranges import UNBOUNDED, compute_constant_range, compute_selection_range
from raptor.frontend.types.integer_ranges import IntegerInterval, OverflowFault, infer_result_type
from raptor.frontend.types.quant_params import CodeType, QuantParams, explain_float_layer, make_host_coding
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import (
    ConstantTensor,
    Filter,
    Indices,
    Map,
    Node,
    Operator,
    Pool,
    Rename,
    Tensor,
    needs_extended_isa,
)
from raptor.graph.rearrangement import c_order, find_moves, make_move, trace_moves
from raptor.target.chip_elements import MODELLED_FLOAT, MOST_EXACT_INTEGER, ElementCoding, ElementType
from raptor.target.tensor_layout import Image


class DequantisedView(Protocol):
    """A real-valued tensor of `shape`, represented by integers."""

    @property
    def shape(self) -> Shape: ...

    def emit_floats(self, node: NodeView, ctx: ImportContext, name: str) -> None:
        """Computes the values in float32, as tensor `name`."""
        ...

    def emit_quantised(self, node: NodeView, ctx: ImportContext, by: QuantParams, name: str) -> bool:
        """Computes QuantizeLinear of the values as integer tensor `name`; False if that takes float arithmetic."""
        ...

    def clamp(self, node: NodeView, low: float, high: float) -> DequantisedView:
        """Returns min(max(view, low), high) as the result of `node`."""
        ...

    def host_coding(self) -> tuple[Tensor, ElementCoding] | None:
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
        constants: ModelConstants,
        in_model: frozenset[str],
        codes: Mapping[str, CodeType],
        floats: ElementType,
        kinds: Mapping[str, Kind],
        most: int = MOST_EXACT_INTEGER,
    ) -> None:
        """Starts an empty Graph.

        shapes: static ONNX shapes by tensor name. in_model: names of all tensors of the original model. codes: types of
        its quantised integer tensors. floats: element type of its float tensors. kinds: numpy types of all its tensors.
        most: largest absolute value of integer inputs that are held as float32.
        """
        super().__init__(shapes, constants, kinds)
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.views: dict[str, DequantisedView] = {}
        """Float tensors that quantised integers represent; computed in floats only if `tensor` asks for them."""
        self.read_names: frozenset[str] = frozenset()
        """Tensors that a node or a model output reads."""
        self.code_types, self.floats, self.opsets = codes, floats, tuple[OperatorSetIdProto, ...]()
        self._most = most
        self._nan: set[str] = set()
        """Tensors that may hold NaN: made by extended instructions, or declared, directly or indirectly."""
        self._assumed: set[str] = set()
        """Tensors whose range is taken from what their readers need, directly or indirectly; other values may occur."""
        self._made: dict[str, Node] = {}
        """Tensor -> node of the Graph that computes it."""
        self._whole: dict[str, IntegerInterval | None] = {}
        """Tensor held as float32 -> range of its integers; None if it is not known to hold integers only."""
        self.demanded_ranges: Mapping[str, IntegerInterval] = {}
        """Tensor -> range in which its integers must lie for every index computed from them to be valid."""
        self._wide: dict[str, IntegerInterval] = {}
        """Integer tensors that may exceed the exact integers of float32 -> their range."""
        self._ranges: dict[str, IntegerInterval] = {}
        self._bounds: dict[str, tuple[float, float]] = {}
        """Float tensor -> least and largest value that an operator such as Clip leaves."""
        self._laid: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Tensor -> copies and aliases that `lay_out` made of it."""
        self._in_model = in_model

    def is_cast_of_input(self, node: NodeView) -> bool:
        """Checks whether a node casts a model input. (Computed tensors are not rounded to narrow float types.)"""
        return node.op_type in ("Cast", "CastLike") and node.inputs[0] not in self._made

    def may_be_nan(self, tensor: Tensor) -> bool:
        """Checks whether a tensor may hold NaN: extended instructions compute it (0 / 0), or the model asks for NaN.

        Published instructions do not tell NaN from numbers, so what selects or compares needs extended ones.
        """
        return tensor.name in self._nan

    def declare_nan(self, name: str) -> None:
        """Declares that a tensor, and so what is computed from it, may hold NaN."""
        self._nan.add(name)

    def integer_range(self, tensor: Tensor) -> IntegerInterval | None:
        """Returns the proved range of integers that are held as float32; None for non-integers.

        Also None if an integer computed on the way may exceed what float32 holds exactly.
        """
        found = self._reach(tensor)
        return found if found is not None and is_within(found, EXACT_RANGE) else None

    def declare_range(self, name: str, found: IntegerInterval) -> None:
        """Declares that a tensor holds integers in the range `found`, where its operators do not imply it."""
        self._whole[name] = found

    def declare_bounds(self, name: str, low: float, high: float) -> None:
        """Declares that an operator bounds the values of a float tensor."""
        self._bounds[name] = low, high

    def float_bounds(self, tensor: Tensor) -> tuple[float, float] | None:
        """Returns the least and the largest value of a float tensor, as far as they were declared."""
        return self._bounds.get(tensor.name)

    def declare_unbounded(self, name: str) -> None:
        """Declares that a tensor holds integers without a bound, as a cast from float to int64 makes them.

        If it feeds indices, the valid range of these indices is assumed instead (`has_assumed_range`).
        """
        found = self.demanded_ranges.get(name)
        if found is not None and is_within(found, EXACT_RANGE):
            self._whole[name] = found
            self._assumed.add(name)
        else:
            self._wide[name] = UNBOUNDED

    def has_assumed_range(self, tensor: Tensor) -> bool:
        """Checks whether the range of a tensor is assumed from what its readers need, not proved from its operators."""
        return tensor.name in self._assumed

    def restrict_input(self, tensor: Tensor, limits: IntegerInterval) -> IntegerInterval | None:
        """Has the host reject values of an integer model input outside `limits`; returns the new `whole(tensor)`.

        The tensor may be a rearrangement of the input; any other tensor keeps its range. The limits must contain 0.
        """
        chain = [tensor.name, *(made.inputs[0] for made in find_moves(tensor.name, self._made))]
        source = self.tensors[chain[-1]]
        coding = source.coding
        if source.name not in self._made and coding is not None and self.is_integer_type(source.name):
            given = find_type_limits(self.numpy_dtype(source.name))
            found = intersect_ranges(
                given if coding.low is None or coding.high is None else IntegerInterval(coding.low, coding.high), limits
            )
            self.tensors[source.name] = replace(source, coding=replace(coding, low=found.low, high=found.high))
            self._whole |= dict.fromkeys(chain, found)
        return self.integer_range(tensor)

    def trace(self, tensor: Tensor) -> Indices:
        """Returns for each element, pixel by pixel, which of the tensor it was rearranged from it is; -1 for zero."""
        return trace_moves(find_moves(tensor.name, self._made), tensor.image.elements)

    def _reach(self, tensor: Tensor) -> IntegerInterval | None:
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

    def _reach_of(self, made: Node) -> IntegerInterval | None:
        sources = [self.tensors[i] for i in made.inputs]
        ranges = [self._whole.get(source.name) for source in sources]
        beyond = (r for r in ranges if r is not None and not is_within(r, EXACT_RANGE))
        return next(beyond, None) or infer_integer_range(made.operator, sources, ranges)

    def determine_ranges(self, node: NodeView) -> None:
        """Determines the integer ranges of a node's results.

        Raises `BoundRefusal` for integers that float32 may not hold.
        """
        follows = any(self._whole.get(i) is not None for i in node.inputs)
        for name in (o for o in node.outputs if o in self.tensors):
            kind, tensor = self.numpy_dtype(name), self.tensors[name]
            if tensor.element.kind == "int":
                continue
            if kind == np.bool_:
                self._whole[name] = IntegerInterval(0, 1)
            elif is_integer_type(kind):
                limits = intersect_ranges(find_type_limits(kind), EXACT_RANGE)
                if name not in self._wide and any(i in self._wide for i in node.inputs):
                    self._settle_wide(node, name, limits)
                found = self._reach(tensor)
                if found is None and name in self._wide:
                    continue
                if found is None or not is_within(found, limits):
                    raise BoundRefusal(found, limits)
            elif follows:
                self._reach(tensor)

    def _settle_wide(self, node: NodeView, name: str, limits: IntegerInterval) -> None:
        """Determines the range of a result whose elements are selected, unrounded, from integers of any size."""
        ranges = {i: self._whole.get(i) or self._wide.get(i) for i in node.inputs}
        ranges |= {i: compute_constant_range(value) for i in node.inputs if (value := self.constant(i)) is not None}
        found = compute_selection_range(node, ranges)
        if found is None:
            return
        if is_within(found, limits):
            self._whole[name] = found
        elif not is_within(find_type_limits(self.numpy_dtype(name)), EXACT_RANGE):
            self._wide[name] = found

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor of the Graph that holds a model tensor. Raises `ImportRefusal` for a constant.

        A view is computed in floats on the first call.
        """
        if self.is_constant(name):
            raise ImportRefusal(f"'{name}' must not be a constant")
        if name not in self.tensors and name in self.views:
            view = self.views[name]
            view.emit_floats(view.node, self, name)
        return self.tensors[name]

    def operand_shape(self, name: str) -> Shape:
        """Returns the shape of a tensor, view or constant."""
        if name in self.views:
            return self.views[name].shape
        value = self.constant(name)
        return self.tensors[name].shape if value is None else value.shape

    def code_range(self, tensor: Tensor) -> IntegerInterval:
        """Returns the proved range of an integer tensor of the Graph."""
        return self._ranges.get(tensor.name) or IntegerInterval.from_element(tensor.element)

    def register_tensor(self, stem: str, shape: Shape) -> str:
        """Registers a tensor that the ONNX model does not have; returns its name, which begins with `stem`."""
        name = self._unused_name(stem)
        self._shapes[name] = shape
        self.read_names |= {name}
        return name

    def add_constant(self, stem: str, values: Array) -> str:
        """Adds a constant computed by an importer; returns its name, which begins with `stem`."""
        name = self._unused_name(stem)
        self._constants.add(name, values)
        return name

    def is_imported(self, name: str) -> bool:
        """Checks whether a tensor has been imported; False for an output of a refused node whose shape is unknown."""
        return name in self.tensors or name in self.views or self.is_constant(name)

    def add_input(self, name: str, by: QuantParams | None = None) -> None:
        """Adds an input of the model to the Graph.

        Raises `ImportRefusal` if its shape is not static, or it is not numeric.

        `by`: scale and zero point with which the host quantises the input.
        """
        shape = self.shape(name)
        code = self.code_types.get(name)
        element = self.floats if code is None else code.element
        coding = self._coding(name) if code is None else code.coding
        if by is not None:
            element, coding = by.code.element, self._of_floats(name, make_host_coding(by))
        if coding is not None and element.kind == "float" and self.is_integer_type(name):
            found = intersect_ranges(find_type_limits(self.numpy_dtype(name)), IntegerInterval(-self._most, self._most))
            found = intersect_ranges(found, self.demanded_ranges.get(name, found))
            self._whole[name] = found
            if self.numpy_dtype(name) != np.bool_:
                coding = replace(coding, low=found.low, high=found.high)
        self.tensors[name] = Tensor(name, shape, natural_image(shape), name in self._in_model, element, coding)

    def add_output(self, name: str) -> None:
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
                values = (
                    to_exact_float32(name, constant) if is_integer_type(constant.dtype) else constant.astype(np.float32)
                )
            except ImportRefusal as refusal:
                raise UserError(f"output {refusal}") from None
            operator = ConstantTensor(copy_contiguous(image.to_pixels(values)))
            self.nodes.append(Node(name, "Constant", operator, (), name))
            self._define(name, constant.shape, image, self.floats, None)

    def _output_view(self, name: str, view: DequantisedView) -> None:
        """Adds an output that the host dequantises, if its coding allows it; otherwise computes it in floats."""
        found = view.host_coding()
        if found is None:
            self.tensor(name)
            return
        source, coding = found[0], self._of_floats(name, found[1])
        if coding.axis is not None and source.image.shape != source.shape:
            source = self.lay_out(view.node, source, natural_image(source.shape))
        self.emit(view.node, (source.name,), source.image, Rename(), name)
        self.tensors[name] = replace(self.tensors[name], coding=coding)

    def emit_chain(self, node: NodeView, inputs: Sequence[str], image: Image, *operators: Operator) -> None:
        """Adds a chain of operators whose results have the same image; the last one computes the node's output.

        The first operator reads `inputs`, each further one the result of its predecessor.
        """
        for operator in operators[:-1]:
            inputs = (self.emit_step(node, inputs, image, operator),)
        self.emit(node, inputs, image, operators[-1] if operators else Rename())

    def emit(
        self,
        node: NodeView,
        inputs: Sequence[str],
        image: Image,
        operator: Operator,
        output: str | None = None,
        element: ElementType | None = None,
        found: IntegerInterval | None = None,
    ) -> None:
        """Adds the operator that computes an output of the node: `output`, by default the first.

        element, found: element type and range of an integer result that the operator alone does not determine.
        """
        name = output or node.output
        self._append(node, inputs, self.shape(name), image, operator, name, element, found)

    def pop_operator(self, tensor: Tensor) -> tuple[Operator, tuple[str, ...]]:
        """Returns (operator, inputs) that compute the tensor under another name.

        Removes the node of `tensor` from the Graph if it is the last one and has no readers; otherwise returns an
        alias.
        """
        if not self.nodes or self.nodes[-1].output != tensor.name or tensor.name in self.read_names:
            return Rename(), (tensor.name,)
        last = self.nodes.pop()
        del self.tensors[tensor.name], self._made[tensor.name]
        return last.operator, last.inputs

    def emit_step(self, node: NodeView, inputs: Sequence[str], image: Image, operator: Operator) -> str:
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

    def lay_out(self, node: NodeView, tensor: Tensor, image: Image) -> Tensor:
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
        operator = Rename() if renamed else make_move([source.image], c_order(image.shape), image)
        laid = self.emit_inner(node, (source.name,), image.shape, image, operator, stem=f"{tensor.name}.laid")
        self._laid[tensor.name].append(laid)
        return laid

    def emit_inner(
        self,
        node: NodeView,
        inputs: Sequence[str],
        shape: Shape,
        image: Image,
        operator: Operator,
        stem: str,
        element: ElementType | None = None,
        found: IntegerInterval | None = None,
    ) -> Tensor:
        """Adds an operator whose result, of `shape`, is not in the ONNX model; its name begins with `stem`."""
        name = self._unused_name(stem)
        self._append(node, inputs, shape, image, operator, name, element, found)
        return self.tensors[name]

    def _unused_name(self, stem: str) -> str:
        name, count = stem, 1
        while name in self.tensors or name in self._in_model or name in self._shapes or self.is_imported(name):
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
        found: IntegerInterval | None = None,
    ) -> None:
        if element is None:
            element, found = self._type_of(node, inputs, operator)
        self._made[name] = Node(node.name, node.op_type, operator, tuple(inputs), name)
        if needs_extended_isa(operator) or not self._nan.isdisjoint(inputs):
            self._nan.add(name)
        if not self._assumed.isdisjoint(inputs):
            self._assumed.add(name)
        self.nodes.append(self._made[name])
        self._define(name, shape, image, element, found)

    def _type_of(
        self, node: NodeView, inputs: Sequence[str], operator: Operator
    ) -> tuple[ElementType, IntegerInterval | None]:
        """Returns element type and range of a result.

        Raises `ImportRefusal` for integer sums that may exceed 32 bits.
        """
        if self.floats == MODELLED_FLOAT:
            return MODELLED_FLOAT, None
        sources = [self.tensors[i] for i in inputs]
        if isinstance(operator, Filter) and operator.weights.dtype.kind == "f":
            raise ImportRefusal(explain_float_layer(node, self._coded, self.views))
        try:
            pairs = [(t, self.code_range(t) if t.element.kind == "int" else None) for t in sources]
            return infer_result_type(operator, pairs, self.floats)
        except OverflowFault as fault:
            raise ImportRefusal(str(fault)) from None

    def _define(
        self, name: str, shape: Shape, image: Image, element: ElementType, found: IntegerInterval | None
    ) -> None:
        in_model, code = name in self._in_model, self.code_types.get(name)
        if in_model and (code.element if code else self.floats) != element and element.kind != "int":
            raise ImportRefusal(f"'{name}' is {code.name if code else 'float32'}, computed as {element}")
        coding = code.coding if code and element == code.element else None
        if element.kind == "float":
            coding = self._coding(name)
        self.tensors[name] = Tensor(name, shape, image, in_model, element, coding)
        if found is not None:
            self._ranges[name] = found
