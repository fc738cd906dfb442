"""Evaluates a model node by node into its integer tensors, by exact operators, tables and float sections."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from raptor.common.errors import RaptorError, UserError
from validator.definition import sections
from validator.definition.elementwise import bounds, wanted
from validator.definition.nodes import Node, Result, target, where
from validator.definition.operators import EXACT
from validator.definition.qlinear import QLINEAR
from validator.definition.rounding import Target, quantise, quantised
from validator.definition.sections import ELEMENTWISE, Section, all_codes
from validator.definition.values import (
    BITS,
    Array,
    Doubles,
    Joined,
    Real,
    Rounded,
    Singles,
    Value,
    is_codes,
    limits,
)
from validator.widen import inlined

_TABLE_BITS = 8
_BY_CODE = ("QLinearLeakyRelu", "QLinearSigmoid")
"""Functions of a quantised tensor that onnxruntime computes by a table."""
_FUNCTION_DOUBT = 2.0**-16
"""Bound, in units of the scale, on how onnxruntime's functions of an element depend on its place in a vector."""
_SOFTMAX_DOUBT = 2.0**-10
"""Bound, in units of the scale, on the error of onnxruntime's QLinearSoftmax, which uses fixed point."""
Force = Callable[[str, Array], Array]
_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Tensors of one run. `codes`: integer tensors that depend on inputs, as computed, in the model's order.

    `values`: the arrays that later nodes read: computed ones, or the forced ones in their place.
    """

    codes: Mapping[str, Array]
    values: Mapping[str, Array]
    outputs: Mapping[str, Value]
    kept: Mapping[str, Value]

    def value(self, name: str) -> Value | None:
        """Returns an integer tensor, an output, or a kept tensor; None for any other tensor."""
        return next((known[name] for known in (self.codes, self.outputs, self.kept) if name in known), None)


@dataclass(slots=True, eq=False)
class Definition:
    """An executable definition of a model. `constants`: values that do not depend on inputs.

    Runs fill `inexact`: float tensors without an exact form; `tables`: the inexact tensors that are functions of one
    quantised tensor; `by_floats`: integer tensors that are rounded from float sections.
    """

    model: ModelProto
    producers: Mapping[str, NodeProto]
    order: Mapping[str, int]
    constants: dict[str, Value]
    inexact: set[str] = field(default_factory=set[str])
    tables: set[str] = field(default_factory=set[str])
    by_floats: set[str] = field(default_factory=set[str])
    _sections: dict[str, Section] = field(default_factory=dict[str, Section])
    _entries: dict[str, tuple[str, Singles]] = field(default_factory=dict[str, tuple[str, Singles]])

    def run(self, inputs: Mapping[str, Array], forced: Force | None = None, keep: Collection[str] = ()) -> Known:
        """Computes all tensors. `forced` gets each integer tensor and returns the integers that nodes read instead.

        `keep` names further tensors to return.
        """
        ends = [o.name for o in self.model.graph.output]
        run = _Run(self, {name: np.asarray(array) for name, array in inputs.items()}, {*ends, *keep}, forced)
        run.compute(self.model.graph.node)
        kept = {name: run.result(name) for name in keep if name in self.producers and name not in run.codes}
        return Known(run.codes, run.arrays, {name: run.result(name) for name in ends}, kept)

    def input_type(self, name: str) -> "np.dtype[Any]":
        """Returns the numpy type of an input of the model."""
        found = next(i for i in self.model.graph.input if i.name == name)
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(found.type.tensor_type.elem_type))

    def steps_of(self, name: str, shape: Sequence[int]) -> Target | None:
        """Returns scale, zero point and type of an input if all its readers quantise it with constants; else None."""
        readers = [n for n in self.model.graph.node if name in n.input]
        if not readers or any(n.op_type != "QuantizeLinear" for n in readers):
            return None
        node = readers[0]
        operands = [None, *(self.constants.get(other) for other in node.input[1:])]
        if operands[1] is None:
            return None
        return wanted(Node(node, operands, [True] * len(operands), self.model.opset_import), shape)

    def rounded(self, name: str, values: Mapping[str, Array]) -> Rounded | None:
        """Computes one integer tensor again from known ones; None if no node rounds it."""
        run = _Run(self, {n: a for n, a in values.items() if n != name}, {name})
        run.compute(self.behind(name, run.arrays)[0])
        return run.rounded.get(name)

    def is_certain(self, known: Known) -> bool:
        """Checks whether onnxruntime must find the same integers: its arithmetic is exact before each rounding."""
        found = (self.rounded(name, known.values) for name in known.codes)
        return not self.tables and not self.by_floats and all(r is None or r.certain for r in found)

    def inner(self, name: str, values: Mapping[str, Array]) -> set[str]:
        """Returns the tensors between an integer tensor and the integer tensors that it is computed from."""
        nodes, _ = self.behind(name, {n: a for n, a in values.items() if n != name})
        return {output for node in nodes for output in node.output} - {name}

    def floats(self, name: str, values: Mapping[str, Array]) -> Array:
        """Returns a tensor of a float section as onnxruntime computes it from known tensors."""
        return self._section(name, values).run(values)[0]

    def behind(self, name: str, known: Mapping[str, Array]) -> tuple[list[NodeProto], list[str]]:
        nodes, sources = sections.behind(self.producers, [name], known)
        return sorted(nodes, key=lambda node: self.order[first(node)]), sources

    def _section(self, name: str, values: Mapping[str, Array]) -> Section:
        if name not in self._sections:
            known = {n: a for n, a in values.items() if n != name and n not in self.constants}
            nodes, sources = self.behind(name, known)
            self._sections[name] = Section(self.model, nodes, sources, [name])
        return self._sections[name]

    def table(self, name: str, values: Mapping[str, Array]) -> tuple[str, Singles] | None:
        """Returns a float tensor as a table: the name of its source tensor, and a value for each code of the source.

        Returns None if it depends on several tensors, on neighbours, or on more than 8 bits.
        """
        if name not in self._entries:
            section = self._section(name, values)
            if not self._is_function(section, values):
                return None
            source = section.sources[0]
            codes = all_codes(values[source].dtype)
            found = Section(self.model, section.nodes, section.sources, [name]).run({source: codes})[0]
            if found.size != codes.size:
                return None
            self._entries[name] = source, found.reshape(-1)
            self.tables.add(name)
        return self._entries[name]

    def _is_function(self, section: Section, values: Mapping[str, Array]) -> bool:
        if len(section.sources) != 1 or BITS.get(values[section.sources[0]].dtype.name, 32) > _TABLE_BITS:
            return False
        inside = {name for node in section.nodes for name in node.output} | set(section.sources)
        read = {name for node in section.nodes for name in node.input if name}
        single = all(_size(self.constants.get(name)) == 1 for name in read - inside | inside & self.constants.keys())
        return single and all(node.op_type in ELEMENTWISE for node in section.nodes)


@dataclass(slots=True, eq=False)
class _Run:
    """One evaluation. `arrays`: arrays that nodes read; `reals`: exact numbers; other tensors are in float sections."""

    definition: Definition
    arrays: dict[str, Array]
    ends: Collection[str]
    forced: Force | None = None
    reals: dict[str, Real] = field(default_factory=dict[str, Real])
    codes: dict[str, Array] = field(default_factory=dict[str, Array])
    rounded: dict[str, Rounded] = field(default_factory=dict[str, Rounded])
    joined: dict[str, Joined] = field(default_factory=dict[str, Joined])

    def compute(self, nodes: Sequence[NodeProto]) -> None:
        last = {name: k for k, node in enumerate(nodes) for name in node.input}
        for k, node in enumerate(nodes):
            constants = self.definition.constants
            if not all(name in constants for name in node.output if name):
                self._node(node)
            for name in node.input:
                if last[name] == k and name not in self.ends:
                    self.reals.pop(name, None)
                    self.rounded.pop(name, None)
                    self.joined.pop(name, None)

    def result(self, name: str) -> Value:
        """Returns a tensor as integers, exact numbers, or float32 numbers."""
        value = self._value(name)
        return self.definition.floats(name, self.arrays) if value is None else value

    def _node(self, proto: NodeProto) -> None:
        fixed = [name in self.definition.constants for name in proto.input]
        found = self._known_result(proto, fixed)
        constant = all(done or not name for done, name in zip(fixed, proto.input, strict=True))
        if found is None and (constant or self._is_integer_node(proto)):
            found = self._by_onnxruntime(proto)
        if found is None:
            self.definition.inexact.update(proto.output)
            self._record_concat(proto, fixed)
            return
        for name, value in zip(proto.output, found, strict=False):
            self._store(name, value, constant=constant)

    def _record_concat(self, proto: NodeProto, fixed: Sequence[bool]) -> None:
        """Records the parts of a Concat that has no constants, and the bounds of a Relu or Clip after it."""
        first_input, output = proto.input[0] if proto.input else "", proto.output[0]
        if proto.op_type == "Concat":
            parts = [self.joined.get(name) or self.reals.get(name) or name for name in proto.input]
            exact = all(not isinstance(p, str) or self._value(p) is None for p in parts)
            if exact and not any(fixed):
                axis = next(a.i for a in proto.attribute if a.name == "axis")
                self.joined[output] = Joined(tuple(parts), axis)
        elif proto.op_type in ("Relu", "Clip") and first_input in self.joined:
            operands = [self._value(name) if name else None for name in proto.input]
            ends = bounds(Node(proto, operands, fixed, self.definition.model.opset_import))
            if ends is not None:
                self.joined[output] = self.joined[first_input].clamped(*ends)

    def _by_onnxruntime(self, proto: NodeProto) -> Result:
        """Computes a node by onnxruntime from known arrays: constants, arithmetic on shapes, scales of a tensor."""
        nodes, sources = self.definition.behind(first(proto), self.arrays)
        return Section(self.definition.model, nodes, sources, [name for name in proto.output if name]).run(self.arrays)

    def _is_integer_node(self, proto: NodeProto) -> bool:
        """Checks whether all operands are known integers, so that the result needs no float section."""
        values = [self._value(name) for name in proto.input if name]
        return bool(values) and all(isinstance(v, np.ndarray) and v.dtype.kind != "f" for v in values)

    def _store(self, name: str, value: Value | Rounded, *, constant: bool) -> None:
        if isinstance(value, Rounded):
            self.rounded[name] = value
            value = value.codes
        if constant:
            self.definition.constants[name] = value
        elif isinstance(value, Real):
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

    def _known_result(self, proto: NodeProto, fixed: Sequence[bool]) -> Result:
        if proto.domain not in _DOMAINS:
            return None
        operands = [self._value(name) if name else None for name in proto.input]
        try:
            return self._result(proto, operands, fixed)
        except RaptorError:
            raise
        except (ValueError, IndexError, TypeError, KeyError, AssertionError, OverflowError) as e:
            raise UserError(f"{where(proto)}: cannot be computed: {e}") from e

    def _result(self, proto: NodeProto, operands: list[Value | None], fixed: Sequence[bool]) -> Result:
        opsets = self.definition.model.opset_import
        kind = proto.op_type
        if kind in QLINEAR or kind in (*_BY_CODE, "QLinearSoftmax"):
            # A quantised operand can come from a float section, such as the result of DynamicQuantizeLinear.
            for k, name in enumerate(proto.input):
                operands[k] = self.definition.floats(name, self.arrays) if name and operands[k] is None else operands[k]
        node = Node(proto, operands, fixed, opsets)
        if kind in _BY_CODE:
            return [self._by_table(node)]
        if kind == "QLinearSoftmax":
            return [self._softmax(node)]
        if kind in QLINEAR:
            return QLINEAR[kind](node)
        if kind == "QuantizeLinear" and operands[0] is None:
            return [self._rounded_section(node)]
        if kind == "DynamicQuantizeLinear":
            self.definition.by_floats.add(proto.output[0])
            return self._by_onnxruntime(proto)
        if kind == "Shape":
            return [_shape(node)]
        missing = [n for n, v in zip(proto.input, operands, strict=True) if n and v is None]
        return EXACT[kind](node) if kind in EXACT and not missing and _has_codes(node) else None

    def _by_table(self, node: Node) -> Rounded:
        """Computes a function of a quantised tensor by a table, for which onnxruntime computes all codes."""
        x = node.codes(0, "X")
        names = [name for name in node.proto.input if name in self.arrays]
        codes = all_codes(x.dtype)
        section = Section(self.definition.model, [node.proto], names, [node.proto.output[0]])
        entries = section.run({**self.arrays, node.proto.input[0]: codes})[0]
        found = entries[x.astype(np.int64) - limits(x.dtype)[0]]
        exact = found.astype(np.float64)
        return Rounded(found, np.zeros((), np.int64), lambda: (exact, np.full((), -0.5)))

    def _softmax(self, node: Node) -> Rounded:
        """Computes QLinearSoftmax as DequantizeLinear, Softmax, QuantizeLinear; onnxruntime's algorithm differs."""
        x, name = node.codes(0, "X"), node.proto.input[0]
        given, output = node.attributes, node.proto.output[0]
        real = onnx.helper.make_node("DequantizeLinear", node.proto.input[:3], [f"{output}.x"])
        function = onnx.helper.make_node("Softmax", [f"{output}.x"], [f"{output}.y"], axis=given.get("axis", -1))
        section = Section(self.definition.model, [real, function], [name], [f"{output}.y"], given["opset"])
        floats = section.run({name: x})[0]
        made = target(node, 3, 4, x.dtype, 0)
        self.definition.by_floats.add(output)
        exact = floats.astype(np.float64) / made.scale
        codes = quantised(floats, made).astype(made.dtype)
        # onnxruntime multiplies by the integer part of 1 / scale.
        lost = 1 - np.floor(1 / made.scale) * np.float64(made.scale)
        return Rounded(codes, made.zero, lambda: (exact, np.abs(exact * lost) + _SOFTMAX_DOUBT))

    def _rounded_section(self, node: Node) -> Rounded:
        """Quantises a float tensor, part by part if it is a recorded Concat."""
        name = node.proto.input[0]
        joined = self.joined.get(name)
        if joined is not None and all(isinstance(a, np.ndarray) and a.size == 1 for a in node.operands[1:]):
            return self._rounded_parts(node, joined)
        return self._rounded_floats(node, name)

    def _rounded_parts(self, node: Node, joined: Joined) -> Rounded:
        made, found = wanted(node, ()), list[Rounded]()
        for part in joined.parts:
            match part:
                case Real():
                    found.append(quantise(part, made))
                case Joined():
                    found.append(self._rounded_parts(node, part))
                case str():
                    found.append(self._rounded_floats(node, part))
        codes = np.concatenate([f.codes for f in found], joined.axis)
        low, high = (quantised(np.float32(bound), made) for bound in (joined.low, joined.high))

        def near() -> tuple[Doubles, Doubles]:
            numbers = [[np.broadcast_to(a, f.codes.shape) for a in f.near()] for f in found]
            exact, doubt = (np.concatenate(each, joined.axis) for each in zip(*numbers, strict=True))
            return np.clip(exact, np.float64(joined.low) / made.scale, np.float64(joined.high) / made.scale), doubt

        clipped = np.minimum(np.maximum(codes.astype(np.int64), low), high)
        return Rounded(clipped.astype(made.dtype), made.zero, near)

    def _rounded_floats(self, node: Node, name: str) -> Rounded:
        """Quantises a float tensor, by a table if it is a function of one quantised tensor."""
        entries = self.definition.table(name, self.arrays)
        if entries is None:
            floats = self.definition.floats(name, self.arrays)
            self.definition.by_floats.add(node.proto.output[0])
        else:
            source, numbers = entries
            x = self.arrays[source]
            floats = numbers[x.astype(np.int64) - limits(x.dtype)[0]]
        made = wanted(node, floats.shape)
        exact = floats.astype(np.float64) / made.scale
        codes = quantised(floats.astype(np.float32), made).astype(made.dtype)
        return Rounded(codes, made.zero, lambda: (exact, _function_doubt(exact)))


def _function_doubt(exact: Doubles) -> Doubles:
    return _FUNCTION_DOUBT + np.abs(exact) * 2.0**-20


def _shape(node: Node) -> Array:
    value = node.get(0)
    if value is None:
        raise UserError(f"{node.where}: the shape of a float section is not known")
    shape = value.terms[0].units.shape if isinstance(value, Real) else value.shape
    given = node.attributes
    return np.array(shape[given.get("start", 0) : given.get("end", len(shape))], np.int64)


def _has_codes(node: Node) -> bool:
    """Checks whether the node reads or makes quantised tensors or exact numbers."""
    values = node.operands[:1] if node.proto.op_type != "Concat" else node.operands
    known = any(isinstance(v, Real) or is_codes(v) for v in (*values, *node.operands))
    return known or node.proto.op_type in ("DequantizeLinear", "QuantizeLinear")


def _size(value: Value | None) -> int:
    if value is None:
        return 0
    return value.terms[0].units.size if isinstance(value, Real) else value.size


def first(node: NodeProto) -> str:
    """Returns the first output of a node."""
    return next(name for name in node.output if name)


def load_definition(model: ModelProto, fixed: Mapping[str, Array] = MappingProxyType({})) -> Definition:
    """Returns the definition of a model whose inputs in `fixed` are constants. The first run computes all constants."""
    model = _with_constants(inlined(model), fixed)
    producers = {name: node for node in model.graph.node for name in node.output if name}
    order = {name: k for k, node in enumerate(model.graph.node) for name in node.output if name}
    constants: dict[str, Value] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(node)
    return Definition(model, producers, order, constants)


def _with_constants(model: ModelProto, fixed: Mapping[str, Array]) -> ModelProto:
    if not fixed:
        return model
    model = ModelProto.FromString(model.SerializeToString())
    kept = [value for value in model.graph.input if value.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in fixed.items())
    return model


def _constant(node: NodeProto) -> Array:
    (attribute,) = node.attribute
    value: Any = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    dtype = np.float32 if attribute.name.startswith("value_float") else np.int64
    return np.asarray(value, dtype)
