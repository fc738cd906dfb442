"""Writes nodes and constants of the translated model: quantisers, thresholds, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from raptor.frontend.proto.model_checks import describe_node
from raptor.frontend.proto.read_model import find_reads
from raptor.frontend.qonnx.integer_layers import IntegerLayer
from raptor.frontend.qonnx.quantisers import (
    Array,
    CodedConstant,
    Ints,
    QonnxCodeType,
    QuantGrid,
    ThresholdLevels,
    find_narrowest_kind,
    node_error,
)

RESULT_OPSET = 25
"""Operator set of the result: the first with 2-bit integers."""
_IR = 10
_MOST_TERMS = 8
"""Maximum number of terms of one sum that the compiler computes in integers."""


class QdqWriter:
    """The translated model under construction. `names`: names in use; `inputs`: the model's inputs."""

    def __init__(self, names: set[str], inputs: set[str]) -> None:
        self._names, self._inputs = set(names), inputs
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._written: set[str] = set()

    def keep(self, node: NodeProto) -> None:
        """Writes a node unchanged."""
        self._nodes.append(node)

    def build_model(self, origin: ModelProto) -> ModelProto:
        """Returns the model with the inputs and outputs of the original one, without nodes that nothing reads."""
        needed = {v.name for v in origin.graph.output}
        kept: list[NodeProto] = []
        for node in reversed(self._nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(find_reads(node))
        every = [*origin.graph.initializer, *self._initializers.values()]
        graph = helper.make_graph(kept[::-1], origin.graph.name, [], [], [t for t in every if t.name in needed])
        graph.input.extend(origin.graph.input)
        graph.output.extend(origin.graph.output)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", RESULT_OPSET)], ir_version=_IR)

    def write_constant(self, name: str, value: CodedConstant) -> None:
        """Writes a quantised constant with its DequantizeLinear, once. Its scales may differ along one axis."""
        if name in self._written:
            return
        self._written.add(name)
        codes = self._codes(f"{name}.codes", value.values)
        axis = value.find_scale_axis()
        scale = self._floats(f"{name}.scale", value.scale_vector())
        given: dict[str, Any] = {} if axis is None else {"axis": axis}
        self._nodes.append(helper.make_node("DequantizeLinear", [codes, scale], [name], **given))

    def quantise_operand(self, node: NodeProto, position: int, value: CodedConstant) -> NodeProto:
        """Returns the node with a quantised constant in place of the float constant at `position`."""
        copy = NodeProto.FromString(node.SerializeToString())
        copy.input[position] = self._name(f"{node.input[position]}.coded")
        self.write_constant(copy.input[position], value)
        return copy

    def split_bias(self, node: NodeProto, bias: Array) -> NodeProto:
        """Splits a float bias into a separate operator, so that it is not quantised to the scale of the sums."""
        copy, behind = NodeProto.FromString(node.SerializeToString()), 0
        if node.op_type == "Conv":
            behind = next((len(a.ints) for a in node.attribute if a.name == "kernel_shape"), 2)
        copy.output[0] = self._name(f"{node.output[0]}.sums")
        del copy.input[2]
        minus = self._floats(f"{node.input[2]}.negative", -bias.reshape(*bias.shape, *[1] * behind))
        self._nodes.append(copy)
        return helper.make_node("Sub", [copy.output[0], minus], node.output, f"{describe_node(node)}.bias")

    def write_quantiser(self, node: NodeProto, grid: QuantGrid, rank: int | None) -> None:
        """Writes a `Quant` as QuantizeLinear and DequantizeLinear, clamped if no integer type has exactly its codes."""
        kind = find_narrowest_kind(min(grid.low, grid.zero), max(grid.high, grid.zero))
        if kind is None or kind.elem_type == TensorProto.INT32:
            raise node_error(
                node, f"its codes reach from {grid.low} to {grid.high}; computed integers have at most 16 bits"
            )
        name, out, axis = node.input[0], node.output[0], self._axis(node, grid, rank)
        is_bounded = (kind.low, kind.high) != (grid.low, grid.high)
        # The host can quantise an input of the model only if no operator precedes the quantiser.
        is_late = is_bounded and (axis is not None or name in self._inputs)
        if is_bounded and not is_late:
            unit = np.float64(grid.scale.item())
            low, high = (np.float32((code - grid.zero) * unit) for code in (grid.low, grid.high))
            name = self._clipped(name, low, high, f"{out}.bound")
        scale = self._floats(f"{out}.scale", grid.scale.reshape(() if axis is None else -1))
        zero = self._integers(f"{out}.zero", np.full(() if axis is None else grid.scale.size, grid.zero), kind)
        given: dict[str, Any] = {} if axis is None else {"axis": axis}
        codes = self._step("QuantizeLinear", [name, scale, zero], f"{out}.codes", describe_node(node), **given)
        if is_late:
            codes = self._bounded(f"{out}.bound", codes, grid, kind)
        self._nodes.append(helper.make_node("DequantizeLinear", [codes, scale, zero], node.output, **given))

    def _bounded(self, stem: str, codes: str, grid: QuantGrid, kind: QonnxCodeType) -> str:
        units = [self._floats(f"{stem}.one", 1), self._integers(f"{stem}.none", np.zeros((), np.int64), kind)]
        whole = self._step("DequantizeLinear", [codes, *units], f"{stem}.whole")
        return self._step("QuantizeLinear", [self._clipped(whole, grid.low, grid.high, stem), *units], f"{stem}.codes")

    @staticmethod
    def _axis(node: NodeProto, grid: QuantGrid, rank: int | None) -> int | None:
        if grid.scale.size == 1:
            return None
        wide = [a for a, n in enumerate(grid.scale.shape) if n > 1]
        if rank is None or len(wide) > 1:
            raise node_error(
                node, f"its scale has the shape {list(grid.scale.shape)}; scales may differ along one axis"
            )
        return wide[0] + rank - grid.scale.ndim

    def write_thresholds(
        self, node: NodeProto, levels: ThresholdLevels, layer: IntegerLayer, signs: Ints, sums: Ints
    ) -> None:
        """Writes a layer and its quantiser in integers: codes count the thresholds that sign * sum reaches."""
        out = node.output[0]
        weights = self._name(f"{out}.weights")
        self.write_constant(weights, CodedConstant(layer.apply_signs(signs), np.ones((), np.float32)))
        copy = NodeProto.FromString(layer.node.SerializeToString())
        copy.input[1] = weights
        del copy.input[2:]
        copy.output[0] = self._name(f"{out}.sums")
        self._nodes.append(copy)
        behind = [1] * (layer.channel_place[1] - 1 - layer.channel_place[0])
        columns = [sums[:, k].reshape(-1, *behind) for k in range(sums.shape[1])]
        unit = layer.x.scale
        if len(columns) == 1:
            self._single(node, levels, copy.output[0], columns[0], unit)
            return
        counts = [self._reached(f"{out}.{k}", copy.output[0], column, unit) for k, column in enumerate(columns)]
        self._counted(node, levels, self._total(out, counts))

    def _single(self, node: NodeProto, levels: ThresholdLevels, sums: str, threshold: Ints, unit: np.float32) -> None:
        """Writes clamp(step * (sum - threshold) + first + step, first, first + step)."""
        name = self._clipped(
            self._shifted(f"{node.output[0]}.0", sums, -threshold, unit), -unit, 0, f"{node.output[0]}.bound"
        )
        self._rounded(node, levels, name, unit / np.float32(levels.step), levels.last)

    def _reached(self, stem: str, sums: str, threshold: Ints, unit: np.float32) -> str:
        """Writes 1 where a sum reaches its threshold, else 0."""
        name = self._clipped(self._shifted(stem, sums, 1 - threshold, unit), 0, unit, f"{stem}.bound")
        return self._integer(stem, name, unit, 1)

    def _integer(self, stem: str, name: str, unit: np.float32, last: int) -> str:
        """Writes numbers from 0 to `last` units as integers of scale 1."""
        kind = find_narrowest_kind(0, last)
        assert kind is not None, "a count of at most 16 bits"
        zero = self._integers(f"{stem}.zero", np.zeros((), np.int64), kind)
        codes = self._step("QuantizeLinear", [name, self._floats(f"{stem}.unit", unit), zero], f"{stem}.codes")
        return self._step("DequantizeLinear", [codes, self._floats(f"{stem}.one", 1), zero], f"{stem}.count")

    def _shifted(self, stem: str, sums: str, added: Ints, unit: np.float32) -> str:
        self.write_constant(f"{stem}.addend", CodedConstant(added, np.asarray(unit)))
        return self._step("Add", [sums, f"{stem}.addend"], f"{stem}.shifted")

    def _total(self, stem: str, counts: list[str]) -> str:
        level, largest = 0, 1
        while len(counts) > 1:
            groups = [counts[k : k + _MOST_TERMS] for k in range(0, len(counts), _MOST_TERMS)]
            names = [
                self._step("Sum", g, f"{stem}.sum.{level}.{k}") if len(g) > 1 else g[0] for k, g in enumerate(groups)
            ]
            largest, level = largest * _MOST_TERMS, level + 1
            if len(names) > 1:
                one = np.float32(1)
                names = [self._integer(f"{stem}.part.{level}.{k}", n, one, largest) for k, n in enumerate(names)]
            counts = names
        return counts[0]

    def _counted(self, node: NodeProto, levels: ThresholdLevels, total: str) -> None:
        """Writes the codes of a quantiser: step * count + first."""
        self._rounded(node, levels, total, np.float32(1 / levels.step), levels.first)

    def _rounded(self, node: NodeProto, levels: ThresholdLevels, name: str, unit: np.float32, zero: int) -> None:
        """Writes name / unit + zero as the codes of a quantiser, and dequantises them."""
        out = node.output[0]
        kind = find_narrowest_kind(min(levels.first, zero, 0), max(levels.last, zero, 0))
        assert kind is not None, "checked where the levels were read"
        point = self._integers(f"{out}.point", np.asarray(zero), kind)
        codes = self._step(
            "QuantizeLinear", [name, self._floats(f"{out}.unit", unit), point], f"{out}.codes", describe_node(node)
        )
        none = self._integers(f"{out}.none", np.zeros((), np.int64), kind)
        scale = self._floats(f"{out}.scale", levels.scale)
        self._nodes.append(helper.make_node("DequantizeLinear", [codes, scale, none], node.output))

    def write_comparisons(self, node: NodeProto, levels: ThresholdLevels, rank: int | None) -> None:
        """Writes a quantiser of floats as a sum of comparisons."""
        out, one, none = node.output[0], self._floats("one", 1), self._floats("none", 0)
        if levels.thresholds.shape[0] > 1 and rank is None:
            raise node_error(node, "the number of dimensions of its input is not known")
        behind = [1] * ((rank or 1) - 1 - levels.axis) if levels.thresholds.shape[0] > 1 else []
        counts: list[str] = []
        for k, border in enumerate(levels.thresholds.astype(np.float32).T):
            borders = self._floats(
                f"{out}.threshold.{k}", border.reshape(-1, *behind) if border.size > 1 else border.item()
            )
            kind = "Greater" if levels.strict[k] else "GreaterOrEqual"
            met = self._step(kind, [node.input[0], borders], f"{out}.met.{k}")
            counts.append(self._step("Where", [met, one, none], f"{out}.reached.{k}"))
        self._counted(node, levels, counts[0] if len(counts) == 1 else self._step("Sum", counts, f"{out}.total"))

    def write_signs(self, node: NodeProto) -> None:
        """Writes a Sign of floats, and its result as integers."""
        copy, kind = NodeProto.FromString(node.SerializeToString()), find_narrowest_kind(-1, 1)
        assert kind is not None, "two bits"
        copy.output[0] = self._name(f"{node.output[0]}.float")
        self._nodes.append(copy)
        units = [self._floats("one", 1), self._integers("none", np.zeros((), np.int64), kind)]
        codes = self._step("QuantizeLinear", [copy.output[0], *units], f"{node.output[0]}.codes")
        self._nodes.append(helper.make_node("DequantizeLinear", [codes, *units], node.output))

    def _clipped(self, name: str, low: float | np.float32, high: float | np.float32, stem: str) -> str:
        ends = [self._floats(f"{stem}.{end}", value) for end, value in (("low", low), ("high", high))]
        return self._step("Clip", [name, *ends], stem)

    def _step(self, op_type: str, inputs: Sequence[str], stem: str, name: str = "", **given: Any) -> str:
        output = self._name(stem)
        self._nodes.append(helper.make_node(op_type, inputs, [output], name or output, **given))
        return output

    def _codes(self, stem: str, values: Ints) -> str:
        kind = find_narrowest_kind(int(values.min(initial=0)), int(values.max(initial=0)))
        assert kind is not None, "quantised to at most 32 bits"
        return self._integers(stem, values, kind)

    def _integers(self, stem: str, values: Array, kind: QonnxCodeType) -> str:
        return self._store(helper.make_tensor(self._name(stem), kind.elem_type, values.shape, values.ravel().tolist()))

    def _floats(self, stem: str, values: Array | np.float32 | float) -> str:
        array = np.asarray(values, np.float32)
        return self._store(helper.make_tensor(self._name(stem), TensorProto.FLOAT, array.shape, array.ravel().tolist()))

    def _store(self, tensor: TensorProto) -> str:
        self._initializers[tensor.name] = tensor
        return tensor.name

    def _name(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}.{count}"
        self._names.add(name)
        return name
