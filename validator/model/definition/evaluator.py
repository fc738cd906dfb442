"""Evaluates a model node by node into its integer tensors, by exact operators, tables and float sections."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from raptor.common.errors import RaptorError, UserError
from validator.model.definition.elementwise import clip_bounds, quantize_target
from validator.model.definition.exact_rounding import QuantizeTarget, quantise_exactly, quantise_floats
from validator.model.definition.exact_values import (
    CODE_BITS,
    Array,
    ConcatReal,
    Doubles,
    ExactReal,
    RoundedCodes,
    Singles,
    Value,
    code_limits,
    is_codes,
    shape_of,
)
from validator.model.definition.float_sections import ELEMENTWISE_OPERATORS, FloatSection, list_codes
from validator.model.definition.nodes import OperatorNode, OperatorResult, make_output_target
from validator.model.definition.operator_table import EXACT_OPERATORS
from validator.model.definition.qlinear import QLINEAR_OPERATORS
from validator.model.float_types import inline_functions
from validator.model.interpreter import Interpreter, NodeGraph
from validator.model.node import ModelNode, constants_of, nodes_of

_TABLE_BITS = 8
_BY_CODE = ("QLinearLeakyRelu", "QLinearSigmoid")
"""Functions of a quantised tensor that onnxruntime computes by a table."""
_FUNCTION_DOUBT = 2.0**-16
"""Bound, in units of the scale, on how onnxruntime's functions of an element depend on its place in a vector."""
_SOFTMAX_DOUBT = 2.0**-10
"""Bound, in units of the scale, on the error of onnxruntime's QLinearSoftmax, which uses fixed point."""
CodeReplacement = Callable[[str, Array], Array]
_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True, slots=True, eq=False)
class DefinitionRun:
    """Tensors of one run. `codes`: integer tensors that depend on inputs, as computed, in the model's order.

    `values`: the arrays that later nodes read: computed ones, or the forced ones in their place.
    """

    codes: Mapping[str, Array]
    values: Mapping[str, Array]
    outputs: Mapping[str, Value]
    kept: Mapping[str, Value]

    def find_value(self, name: str) -> Value | None:
        """Returns an integer tensor, an output, or a kept tensor; None for any other tensor."""
        return next((known[name] for known in (self.codes, self.outputs, self.kept) if name in known), None)


@dataclass(slots=True, eq=False)
class ModelDefinition:
    """An executable definition of a model. `constants`: values that do not depend on inputs.

    Runs fill `inexact_tensors`: float tensors without an exact form; `tables`: the inexact tensors that are functions
    of one quantised tensor; `rounded_from_floats`: integer tensors that are rounded from float sections.
    """

    model: ModelProto
    graph: NodeGraph
    constants: dict[str, Value]
    inexact_tensors: set[str] = field(default_factory=set[str])
    tables: set[str] = field(default_factory=set[str])
    rounded_from_floats: set[str] = field(default_factory=set[str])
    _sections: dict[str, FloatSection] = field(default_factory=dict[str, FloatSection])
    _entries: dict[str, tuple[str, Singles]] = field(default_factory=dict[str, tuple[str, Singles]])

    def run(
        self, inputs: Mapping[str, Array], forced: CodeReplacement | None = None, keep: Collection[str] = ()
    ) -> DefinitionRun:
        """Computes all tensors. `forced` gets each integer tensor and returns the integers that nodes read instead.

        `keep` names further tensors to return.
        """
        ends = [o.name for o in self.model.graph.output]
        run = _Run(self, self.constants, {name: np.asarray(array) for name, array in inputs.items()}, forced)
        run.evaluate(self.graph.nodes, {*ends, *keep})
        kept = {name: run.result(name) for name in keep if self.graph.producer(name) and name not in run.codes}
        return DefinitionRun(run.codes, run.arrays, {name: run.result(name) for name in ends}, kept)

    def name_of(self, tensor: str) -> str:
        """Returns the name of the node that computes a tensor; empty for an input."""
        node = self.graph.producer(tensor)
        return "" if node is None else node.name

    def input_type(self, name: str) -> "np.dtype[Any]":
        """Returns the numpy type of an input of the model."""
        found = next(i for i in self.model.graph.input if i.name == name)
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(found.type.tensor_type.elem_type))

    def find_input_target(self, name: str, shape: Sequence[int]) -> QuantizeTarget | None:
        """Returns how the model quantises an input of this shape, if all its readers do so with constant parameters."""
        readers = [n for n in self.graph.nodes if name in n.proto.input]
        if not readers or any(n.proto.op_type != "QuantizeLinear" for n in readers):
            return None
        node = readers[0]
        operands = [None, *(self.constants.get(other) for other in node.proto.input[1:])]
        return (
            None
            if operands[1] is None
            else quantize_target(OperatorNode.applied(node, operands, [True] * len(operands)), shape)
        )

    def round_tensor(self, name: str, values: Mapping[str, Array]) -> RoundedCodes | None:
        """Computes one integer tensor again from known ones; None if no node rounds it."""
        run = _Run(self, self.constants, {n: a for n, a in values.items() if n != name})
        run.evaluate(self.graph.needed([name], run.arrays)[0], {name})
        return run.rounded.get(name)

    def is_exact_in_runtime(self, known: DefinitionRun) -> bool:
        """Checks whether onnxruntime must find the same integers: its arithmetic is exact before each rounding."""
        found = (self.round_tensor(name, known.values) for name in known.codes)
        return not self.tables and not self.rounded_from_floats and all(r is None or r.is_certain for r in found)

    def find_inner_tensors(self, name: str, values: Mapping[str, Array]) -> set[str]:
        """Returns the tensors between an integer tensor and the integer tensors that it is computed from."""
        nodes, _ = self.graph.needed([name], values.keys() - {name})
        return {output for node in nodes for output in node.writes} - {name}

    def compute_floats(self, name: str, values: Mapping[str, Array]) -> Array:
        """Returns a tensor of a float section as onnxruntime computes it from known tensors."""
        return self._section(name, values).run(values)[0]

    def _section(self, name: str, values: Mapping[str, Array]) -> FloatSection:
        if name not in self._sections:
            nodes, sources = self.graph.needed([name], values.keys() - {name} - self.constants.keys())
            self._sections[name] = FloatSection(self.model, nodes, sources, [name])
        return self._sections[name]

    def find_table(self, name: str, values: Mapping[str, Array]) -> tuple[str, Singles] | None:
        """Returns a float tensor as a table: the name of its source tensor, and a value for each code of the source.

        Returns None if it depends on several tensors, on neighbours, or on more than 8 bits.
        """
        if name not in self._entries:
            section = self._section(name, values)
            if not self._is_function(section, values):
                return None
            source = section.sources[0]
            codes = list_codes(values[source].dtype)
            found = FloatSection(self.model, section.nodes, section.sources, [name]).run({source: codes})[0]
            if found.size != codes.size:
                return None
            self._entries[name] = source, found.reshape(-1)
            self.tables.add(name)
        return self._entries[name]

    def _is_function(self, section: FloatSection, values: Mapping[str, Array]) -> bool:
        if len(section.sources) != 1 or CODE_BITS.get(values[section.sources[0]].dtype.name, 32) > _TABLE_BITS:
            return False
        inside = {name for node in section.nodes for name in node.writes} | set(section.sources)
        read = {name for node in section.nodes for name in node.reads}
        single = all(_size(self.constants.get(name)) == 1 for name in read - inside | inside & self.constants.keys())
        return single and all(node.proto.op_type in ELEMENTWISE_OPERATORS for node in section.nodes)


@dataclass(slots=True, eq=False)
class _Run(Interpreter[Value]):
    """One evaluation. `arrays`: arrays that nodes read; `reals`: exact numbers; other tensors are in float sections."""

    definition: ModelDefinition
    constants: dict[str, Value]
    arrays: dict[str, Array]
    forced: CodeReplacement | None = None
    reals: dict[str, ExactReal] = field(default_factory=dict[str, ExactReal])
    codes: dict[str, Array] = field(default_factory=dict[str, Array])
    rounded: dict[str, RoundedCodes] = field(default_factory=dict[str, RoundedCodes])
    joined: dict[str, ConcatReal] = field(default_factory=dict[str, ConcatReal])

    def forget(self, name: str) -> None:
        """Drops exact numbers; arrays stay, since float sections may read them."""
        for values in (self.reals, self.rounded, self.joined):
            values.pop(name, None)

    def result(self, name: str) -> Value:
        """Returns a tensor as integers, exact numbers, or float32 numbers."""
        value = self._value(name)
        return self.definition.compute_floats(name, self.arrays) if value is None else value

    def compute(self, node: ModelNode, *, constant: bool) -> None:
        """Computes a node exactly; records it as inexact if that is not possible."""
        fixed, names = [name in self.constants for name in node.proto.input], node.proto.output
        found = self._known_result(node, fixed)
        if found is None and (constant or self._is_integer_node(node)):
            found, names = self._by_onnxruntime(node), node.writes
        if found is None:
            self.definition.inexact_tensors.update(node.writes)
            self._record_concat(node, fixed)
            return
        for name, value in zip(names, found, strict=False):
            self._store(name, value, constant=constant)

    def _record_concat(self, node: ModelNode, fixed: Sequence[bool]) -> None:
        """Records the parts of a Concat that has no constants, and the bounds of a Relu or Clip after it."""
        proto = node.proto
        first_input, output = proto.input[0] if proto.input else "", proto.output[0]
        if proto.op_type == "Concat":
            parts = [self.joined.get(name) or self.reals.get(name) or name for name in proto.input]
            exact = all(not isinstance(p, str) or self._value(p) is None for p in parts)
            if exact and not any(fixed):
                self.joined[output] = ConcatReal(tuple(parts), node.attributes["axis"])
        elif proto.op_type in ("Relu", "Clip") and first_input in self.joined:
            ends = clip_bounds(OperatorNode.applied(node, self._operands(node), fixed))
            if ends is not None:
                self.joined[output] = self.joined[first_input].clamp(*ends)

    def _by_onnxruntime(self, node: ModelNode) -> OperatorResult:
        """Computes a node by onnxruntime from known arrays: constants, arithmetic on shapes, scales of a tensor."""
        nodes, sources = self.definition.graph.needed(node.writes[:1], self.arrays)
        return FloatSection(self.definition.model, nodes, sources, node.writes).run(self.arrays)

    def _is_integer_node(self, node: ModelNode) -> bool:
        """Tells whether all operands are known integers, so that the result needs no float section."""
        values = [self._value(name) for name in node.reads]
        return bool(values) and all(isinstance(v, np.ndarray) and v.dtype.kind != "f" for v in values)

    def _store(self, name: str, value: Value | RoundedCodes, *, constant: bool) -> None:
        if isinstance(value, RoundedCodes):
            self.rounded[name] = value
            value = value.codes
        if constant:
            self.definition.constants[name] = value
        elif isinstance(value, ExactReal):
            self.reals[name] = value
        else:
            if is_codes(value):
                self.codes[name] = value
                value = self.forced(name, value) if self.forced else value
            self.arrays[name] = value

    def _value(self, name: str) -> Value | None:
        for known in (self.definition.constants, self.arrays, self.reals):
            if name in known:
                return known[name]
        return None

    def _operands(self, node: ModelNode) -> list[Value | None]:
        return [self._value(name) if name else None for name in node.proto.input]

    def _known_result(self, node: ModelNode, fixed: Sequence[bool]) -> OperatorResult:
        if node.proto.domain not in _DOMAINS:
            return None
        try:
            return self._result(node, self._operands(node), fixed)
        except RaptorError:
            raise
        except (ValueError, IndexError, TypeError, KeyError, AssertionError, OverflowError) as e:
            raise UserError(f"{node.where}: cannot be computed: {e}") from e

    def _result(self, model_node: ModelNode, operands: list[Value | None], fixed: Sequence[bool]) -> OperatorResult:
        proto, kind = model_node.proto, model_node.proto.op_type
        if kind in QLINEAR_OPERATORS or kind in (*_BY_CODE, "QLinearSoftmax"):
            # A quantised operand can come from a float section, such as the result of DynamicQuantizeLinear.
            for k, name in enumerate(proto.input):
                operands[k] = (
                    self.definition.compute_floats(name, self.arrays) if name and operands[k] is None else operands[k]
                )
        node = OperatorNode.applied(model_node, operands, fixed)
        if kind in _BY_CODE:
            return [self._by_table(node)]
        if kind == "QLinearSoftmax":
            return [self._softmax(node)]
        if kind in QLINEAR_OPERATORS:
            return QLINEAR_OPERATORS[kind](node)
        if kind == "QuantizeLinear" and operands[0] is None:
            return [self._rounded_section(node)]
        if kind == "DynamicQuantizeLinear":
            self.definition.rounded_from_floats.add(proto.output[0])
            return self._by_onnxruntime(node)
        if kind == "Shape":
            return [_shape(node)]
        missing = [n for n, v in zip(proto.input, operands, strict=True) if n and v is None]
        return EXACT_OPERATORS[kind](node) if kind in EXACT_OPERATORS and not missing and _has_codes(node) else None

    def _by_table(self, node: OperatorNode) -> RoundedCodes:
        """Computes a function of a quantised tensor by a table, for which onnxruntime computes all codes."""
        x = node.code_operand(0, "X")
        names = [name for name in node.proto.input if name in self.arrays]
        codes = list_codes(x.dtype)
        section = FloatSection(self.definition.model, [node], names, node.writes)
        entries = section.run({**self.arrays, node.proto.input[0]: codes})[0]
        found = entries[x.astype(np.int64) - code_limits(x.dtype)[0]]
        exact = found.astype(np.float64)
        return RoundedCodes(found, np.zeros((), np.int64), lambda: (exact, np.full((), -0.5)))

    def _softmax(self, node: OperatorNode) -> RoundedCodes:
        """Computes QLinearSoftmax as DequantizeLinear, Softmax, QuantizeLinear; onnxruntime's algorithm differs."""
        x, name = node.code_operand(0, "X"), node.proto.input[0]
        given, output = node.attributes, node.proto.output[0]
        real = onnx.helper.make_node("DequantizeLinear", node.proto.input[:3], [f"{output}.x"])
        function = onnx.helper.make_node("Softmax", [f"{output}.x"], [f"{output}.y"], axis=given.get("axis", -1))
        nodes = nodes_of([real, function], [onnx.helper.make_opsetid("", given["opset"])])
        section = FloatSection(self.definition.model, nodes, [name], [f"{output}.y"])
        floats = section.run({name: x})[0]
        made = make_output_target(node, 3, 4, x.dtype, 0)
        self.definition.rounded_from_floats.add(output)
        exact = floats.astype(np.float64) / made.scale
        codes = quantise_floats(floats, made).astype(made.dtype)
        # onnxruntime multiplies by the integer part of 1 / scale.
        lost = 1 - np.floor(1 / made.scale) * np.float64(made.scale)
        return RoundedCodes(codes, made.zero, lambda: (exact, np.abs(exact * lost) + _SOFTMAX_DOUBT))

    def _rounded_section(self, node: OperatorNode) -> RoundedCodes:
        """Quantises a float tensor, part by part if it is a recorded Concat."""
        name = node.proto.input[0]
        joined = self.joined.get(name)
        if joined is not None and all(isinstance(a, np.ndarray) and a.size == 1 for a in node.operands[1:]):
            return self._rounded_parts(node, joined)
        return self._rounded_floats(node, name)

    def _rounded_parts(self, node: OperatorNode, joined: ConcatReal) -> RoundedCodes:
        made, found = quantize_target(node, ()), list[RoundedCodes]()
        for part in joined.parts:
            match part:
                case ExactReal():
                    found.append(quantise_exactly(part, made))
                case ConcatReal():
                    found.append(self._rounded_parts(node, part))
                case str():
                    found.append(self._rounded_floats(node, part))
        codes = np.concatenate([f.codes for f in found], joined.axis)
        low, high = (quantise_floats(np.float32(bound), made) for bound in (joined.low, joined.high))

        def near() -> tuple[Doubles, Doubles]:
            numbers = [[np.broadcast_to(a, f.codes.shape) for a in f.exact_values()] for f in found]
            exact, doubt = (np.concatenate(each, joined.axis) for each in zip(*numbers, strict=True))
            return np.clip(exact, np.float64(joined.low) / made.scale, np.float64(joined.high) / made.scale), doubt

        clipped = np.minimum(np.maximum(codes.astype(np.int64), low), high)
        return RoundedCodes(clipped.astype(made.dtype), made.zero, near)

    def _rounded_floats(self, node: OperatorNode, name: str) -> RoundedCodes:
        """Quantises a float tensor, by a table if it is a function of one quantised tensor."""
        entries = self.definition.find_table(name, self.arrays)
        if entries is None:
            floats = self.definition.compute_floats(name, self.arrays)
            self.definition.rounded_from_floats.add(node.proto.output[0])
        else:
            source, numbers = entries
            x = self.arrays[source]
            floats = numbers[x.astype(np.int64) - code_limits(x.dtype)[0]]
        made = quantize_target(node, floats.shape)
        exact = floats.astype(np.float64) / made.scale
        codes = quantise_floats(floats.astype(np.float32), made).astype(made.dtype)
        return RoundedCodes(codes, made.zero, lambda: (exact, _function_doubt(exact)))


def _function_doubt(exact: Doubles) -> Doubles:
    return _FUNCTION_DOUBT + np.abs(exact) * 2.0**-20


def _shape(node: OperatorNode) -> Array:
    value = node.operand(0)
    if value is None:
        raise UserError(f"{node.where}: the shape of a float section is not known")
    shape, given = shape_of(value), node.attributes
    return np.array(shape[given.get("start", 0) : given.get("end", len(shape))], np.int64)


def _has_codes(node: OperatorNode) -> bool:
    """Checks whether the node reads or makes quantised tensors or exact numbers."""
    values = node.operands[:1] if node.proto.op_type != "Concat" else node.operands
    known = any(isinstance(v, ExactReal) or is_codes(v) for v in (*values, *node.operands))
    return known or node.proto.op_type in ("DequantizeLinear", "QuantizeLinear")


def _size(value: Value | None) -> int:
    return 0 if value is None else math.prod(shape_of(value))


def load_definition(model: ModelProto, fixed: Mapping[str, Array] = MappingProxyType({})) -> ModelDefinition:
    """Returns the definition of a model whose inputs in `fixed` are constants. The first run computes all constants."""
    model = _with_constants(inline_functions(model), fixed)
    constants: dict[str, Value] = {**constants_of(model.graph.node, model.graph.initializer)}
    return ModelDefinition(model, NodeGraph(nodes_of(model.graph.node, model.opset_import)), constants)


def _with_constants(model: ModelProto, fixed: Mapping[str, Array]) -> ModelProto:
    if not fixed:
        return model
    model = ModelProto.FromString(model.SerializeToString())
    kept = [value for value in model.graph.input if value.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in fixed.items())
    return model
