"""Slices a layer that is too large for the chip into layers with fewer outputs or fewer inputs.

Slices of the outputs read the whole input, and their results are concatenated. Slices of the inputs compute partial
sums, which are added. Both are expressed in ONNX nodes, so that later stages need not know of the slicing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.proto.nodes import read_attributes

Range = tuple[int, int]
Array = npt.NDArray[Any]


SLICE_OPERANDS, GEMM_ALONE = 10, 11
"""First operator sets in which the range of `Slice` is an operand, and in which `Gemm` needs no third operand."""


@dataclass(frozen=True, slots=True)
class _LayerForm:
    """Form of a layer. weights: operand that holds them. outputs, inputs: axes of the weights.

    axis: channel axis of tensors. bias: operand with one entry per output. by_output: operands that may have one entry
    per output. sums: False if the results cannot be added, because they are rounded or integers.
    """

    weights: int
    outputs: int
    inputs: int
    axis: int
    bias: int | None = None
    by_output: tuple[int, ...] = ()
    sums: bool = True


def _form(node: NodeProto) -> _LayerForm | None:
    given = read_attributes(node)
    match node.op_type:
        case "Conv" if given.get("group", 1) == 1:
            return _LayerForm(1, 0, 1, 1, bias=2)
        case "QLinearConv" if given.get("group", 1) == 1:
            return _LayerForm(3, 0, 1, 1, bias=8, by_output=(4, 5), sums=False)
        case "ConvInteger" if given.get("group", 1) == 1:
            return _LayerForm(1, 0, 1, 1, by_output=(3,), sums=False)
        case "Gemm" if not given.get("transA", 0):
            return _LayerForm(1, *((0, 1) if given.get("transB", 0) else (1, 0)), -1, bias=2)
        case "MatMul":
            return _LayerForm(1, -1, -2, -1)
        case "MatMulInteger":
            return _LayerForm(1, -1, -2, -1, by_output=(3,), sums=False)
        case "QLinearMatMul":
            return _LayerForm(3, -1, -2, -1, by_output=(4, 5), sums=False)
        case _:
            return None


_PREFIX = "raptor/slice"
"""Prefix of the names of added constants; a model may be sliced repeatedly."""


@dataclass(slots=True)
class LayerSlicer:
    """Slices layers of a complete model, in place. `made`: number of constants added."""

    proto: ModelProto
    made: int = 0

    @classmethod
    def from_proto(cls, proto: ModelProto) -> "LayerSlicer":
        """Returns a slicer of a copy of the model."""
        copied = ModelProto()
        copied.CopyFrom(proto)
        return cls(copied)

    def layer_sizes(self, node: NodeProto) -> tuple[int, int] | None:
        """Returns (inputs, outputs) of a layer; None if it cannot be sliced.

        Inputs are 1 if the layer cannot be sliced along them.
        """
        form = _form(node)
        weights = None if form is None else self._constant(node.input[form.weights])
        if form is None or weights is None or weights.ndim < 2:
            return None
        floats = form.sums and self._is_float(node)
        return weights.shape[form.inputs] if floats else 1, weights.shape[form.outputs]

    def slice_layer(self, node: NodeProto, parts: int, sums: int) -> None:
        """Replaces a layer by slices: `parts` ranges of outputs, each the sum over `sums` ranges of inputs."""
        form, sizes = _form(node), self.layer_sizes(node)
        assert form is not None
        assert sizes is not None
        nodes: list[NodeProto] = []
        columns = list(_even(sizes[1], parts))
        behind = self._behind(node) if len(columns) > 1 else []
        ends = [node, *behind]
        for k, cols in enumerate(columns):
            names = [f"{end.output[0]}/part{k}" if len(columns) > 1 else end.output[0] for end in ends]
            nodes += self._summed(node, form, names[0], cols, tuple(_even(sizes[0], sums)))
            nodes += (_renamed(n, [given], made) for n, given, made in zip(behind, names, names[1:], strict=False))
        if len(columns) > 1:
            whole = ends[-1].output[0]
            parts_of = [f"{whole}/part{k}" for k in range(len(columns))]
            axis = self._axis(node.output[0], form.axis)
            nodes.append(helper.make_node("Concat", parts_of, [whole], name=f"{node.name}/parts", axis=axis))
        kept = list(self.proto.graph.node)
        at = kept.index(node)
        del self.proto.graph.node[:]
        self.proto.graph.node.extend([*kept[:at], *nodes, *(n for n in kept[at + 1 :] if n not in behind)])

    def _behind(self, node: NodeProto) -> list[NodeProto]:
        """Returns the element-wise nodes after a layer up to its QuantizeLinear; empty if there is none.

        If they are sliced with the layer, integers instead of floats wait in memory between rounds.
        """
        known, outputs = self._initializers(), {v.name for v in self.proto.graph.output}
        found: list[NodeProto] = []
        while True:
            made = (found or [node])[-1].output[0]
            readers = [n for n in self.proto.graph.node if made in n.input]
            if len(readers) != 1 or made in outputs or readers[0].op_type not in ("Relu", "Clip", "QuantizeLinear"):
                return []
            others = [name for name in readers[0].input[1:] if name]
            if not all(name in known and math.prod(known[name].dims) == 1 for name in others):
                return []
            found.append(readers[0])
            if readers[0].op_type == "QuantizeLinear":
                return found

    def _summed(
        self, node: NodeProto, form: _LayerForm, name: str, cols: Range, rows: Sequence[Range]
    ) -> Iterator[NodeProto]:
        if len(rows) == 1:
            yield self._piece(node, form, node.input[0], name, cols, None)
            return
        total = ""
        for k, part in enumerate(rows):
            given, found = f"{name}/in{k}", f"{name}/sum{k}"
            yield self._cut_out(
                node.input[0], given, self._axis(node.input[0], form.axis), part, f"{node.name}/{given}"
            )
            yield self._piece(node, form, given, found, cols, part)
            if k:
                added = name if k + 1 == len(rows) else f"{name}/added{k}"
                yield helper.make_node("Add", [total, found], [added], name=f"{node.name}/{added}")
                found = added
            total = found

    def _cut_out(self, name: str, output: str, axis: int, part: Range, node_name: str) -> NodeProto:
        if self._opset < SLICE_OPERANDS:
            start, end = part
            return helper.make_node("Slice", [name], [output], name=node_name, starts=[start], ends=[end], axes=[axis])
        ends = [self._add(np.array([v], np.int64)) for v in (*part, axis)]
        return helper.make_node("Slice", [name, *ends], [output], name=node_name)

    @property
    def _opset(self) -> int:
        return next((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 1)

    def _axis(self, name: str, axis: int) -> int:
        """Returns a non-negative axis, which early operator sets need, if the rank of the tensor is known."""
        graph = self.proto.graph
        values = (v for v in (*graph.input, *graph.value_info, *graph.output) if v.name == name)
        rank = next((len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")), None)
        return axis if rank is None else axis % rank

    def _piece(
        self, node: NodeProto, form: _LayerForm, given: str, name: str, cols: Range, rows: Range | None
    ) -> NodeProto:
        """Returns the layer for a range of outputs and of inputs; only the first range of inputs has the bias."""
        piece = NodeProto()
        piece.CopyFrom(node)
        piece.output[:] = [name]
        piece.name = f"{node.name}/{name.removeprefix(node.output[0]).strip('/')}".rstrip("/")
        piece.input[0] = given
        weights = self._sliced(node.input[form.weights], form.outputs, cols)
        piece.input[form.weights] = weights if rows is None else self._sliced(weights, form.inputs, rows)
        for k in form.by_output:
            if k < len(node.input) and node.input[k]:
                piece.input[k] = self._entries(node.input[k], cols)
        if form.bias is not None and form.bias < len(node.input) and node.input[form.bias]:
            bias = self._entries(node.input[form.bias], cols)
            if rows is None or rows[0] == 0:
                piece.input[form.bias] = bias
            elif node.op_type == "Gemm" and self._opset < GEMM_ALONE:
                piece.input[form.bias] = self._add(np.zeros(self._shape(bias), np.float32))
            else:
                del piece.input[form.bias :]
        return piece

    def _entries(self, name: str, cols: Range) -> str:
        """Returns the operand for a range of outputs; unchanged if it has no entry per output."""
        values = self._constant(name)
        if values is None:
            raise UserError(f"'{name}' is computed, so that its layer cannot be sliced")
        return name if values.ndim == 0 or values.shape[-1] == 1 else self._sliced(name, -1, cols)

    def _sliced(self, name: str, axis: int, part: Range) -> str:
        """Returns a slice of a constant, through its DequantizeLinear if it is quantised."""
        maker = self._dequantised(name)
        if maker is None:
            return self._add(np.take(self._initializer(name), range(*part), axis))
        inner = self._initializer(maker.input[0])
        copied = NodeProto()
        copied.CopyFrom(maker)
        copied.input[0] = self._add(np.take(inner, range(*part), axis))
        along = next((a.i for a in maker.attribute if a.name == "axis"), 1)
        for k in range(1, len(maker.input)):
            values = self._initializer(maker.input[k]) if maker.input[k] else None
            if values is not None and values.ndim == 1 and values.size > 1 and along % inner.ndim == axis % inner.ndim:
                copied.input[k] = self._add(values[slice(*part)])
        copied.output[:] = [f"{copied.input[0]}/dequantised"]
        copied.name = copied.output[0]
        self.proto.graph.node.insert(0, copied)
        return copied.output[0]

    def _constant(self, name: str) -> Array | None:
        """Returns a constant, the integers of a quantised one; None for a computed tensor."""
        maker = self._dequantised(name)
        found = self._initializers().get(name if maker is None else maker.input[0])
        return None if found is None else numpy_helper.to_array(found)

    def _shape(self, name: str) -> tuple[int, ...]:
        found = self._constant(name)
        assert found is not None, "slices are constants"
        return found.shape

    def _initializer(self, name: str) -> Array:
        return numpy_helper.to_array(self._initializers()[name])

    def _initializers(self) -> Mapping[str, Any]:
        return {t.name: t for t in self.proto.graph.initializer}

    def _dequantised(self, name: str) -> NodeProto | None:
        known = self._initializers()
        makers = (n for n in self.proto.graph.node if name in n.output and n.op_type == "DequantizeLinear")
        return next((n for n in makers if all(i in known for i in n.input if i)), None)

    def _is_float(self, node: NodeProto) -> bool:
        return self._dequantised(node.input[1]) is None and self._initializer(node.input[1]).dtype == np.float32

    def _add(self, values: Array) -> str:
        known = self._initializers()
        name = next(n for k in count(self.made) if (n := f"{_PREFIX}{k}") not in known)
        self.made += 1
        self.proto.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _renamed(node: NodeProto, inputs: Sequence[str], output: str) -> NodeProto:
    copied = NodeProto()
    copied.CopyFrom(node)
    copied.input[: len(inputs)] = inputs
    copied.output[:] = [output]
    copied.name = f"{node.name}/{output}"
    return copied


def _even(size: int, parts: int) -> Iterator[Range]:
    parts = min(parts, size)
    yield from ((size * k // parts, size * (k + 1) // parts) for k in range(parts))
