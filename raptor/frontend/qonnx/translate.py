"""Translates a QONNX model node by node: quantised constants, QuantizeLinear and DequantizeLinear, or thresholds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import describe_node, extract_fault
from raptor.frontend.proto.onnx_wrappers import run_reference
from raptor.frontend.proto.read_model import walk_graphs
from raptor.frontend.qonnx import absorb_chains
from raptor.frontend.qonnx.integer_layers import (
    IntegerLayer,
    QuantisedTensor,
    code_floats,
    find_output_axis,
    has_no_scaling,
    is_ternary,
)
from raptor.frontend.qonnx.quantisers import (
    BIPOLAR_ROUNDING,
    QONNX_DOMAINS,
    QUANTISERS,
    Array,
    CodedConstant,
    Doubles,
    Ints,
    QuantGrid,
    ThresholdLevels,
    bipolar_levels,
    node_error,
    read_bipolar_scale,
    read_grid,
    read_multithreshold,
    sign_levels,
)
from raptor.frontend.qonnx.writer import RESULT_OPSET, QdqWriter
from raptor.frontend.registry import explain_unsupported

_MOVES = frozenset(
    ("Identity", "Dropout", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Gather")
)
"""Operators that move quantised elements without changing codes or scale."""
MOST_THRESHOLDS = 15
"""Maximum number of thresholds of a `Quant` after a layer; with more, operators between them are computed in floats."""
_FOLDED = _MOVES | {"Constant", "Cast", "Mul", "Div", "Add", "Sub", "Sqrt", "Neg", "Sign"}
"""Operators that are folded if their operands are constants: scales, thresholds and weights may be written so."""
_MOST_FOLDED = 1 << 24
"""Maximum number of elements of folded constants."""


def is_qonnx(model: ModelProto) -> bool:
    """Checks whether a model has QONNX operators."""
    return any(node.domain in QONNX_DOMAINS for graph in walk_graphs(model.graph) for node in graph.node)


def is_binarised(model: ModelProto) -> bool:
    """Checks whether a float model is binarised: all layers read results of Sign and have binary or ternary weights."""
    layers = [n for n in model.graph.node if n.op_type in absorb_chains.LAYER_OPS]
    if not layers or not any(n.op_type == "Sign" for n in model.graph.node):
        return False
    binary, signs = _binary_constants(model), _signs(model)
    return all(n.input[0] in signs and n.input[1] in binary for n in layers)


def _signs(model: ModelProto) -> set[str]:
    """Returns the results of Sign, and of operators that only move them."""
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Sign" or (node.op_type in _MOVES and node.input[0] in found):
            found.update(node.output)
    return found


def _binary_constants(model: ModelProto) -> set[str]:
    """Returns the binary or ternary constants, and the signs of constants."""
    known = {t.name for t in model.graph.initializer}
    floats = (t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    found = {t.name for t in floats if is_ternary(numpy_helper.to_array(t))}
    signs = (n for n in model.graph.node if n.op_type == "Sign" and n.input[0] in known)
    return found | {node.output[0] for node in signs}


def translate_model(model: ModelProto) -> ModelProto:
    """Returns an equivalent model of standard operators.

    Raises `UnsupportedError` for unknown operators, and `UserError` for quantisers without a standard form.
    """
    refused = [
        UnsupportedNode(describe_node(n), n.op_type, reason) for n in model.graph.node if (reason := _fault_of(n))
    ]
    if refused:
        raise UnsupportedError(refused)
    inner = [n for graph in list(walk_graphs(model.graph))[1:] for n in graph.node if n.domain in QONNX_DOMAINS]
    if inner:
        raise node_error(inner[0], "it is inside of a branch or loop, where operators of QONNX are not supported")
    return _Translation(_converted(model)).run()


def _fault_of(node: NodeProto) -> str:
    """Returns the reason why a node cannot be in a QONNX model; empty if it can."""
    if node.domain in QONNX_DOMAINS:
        return "" if node.op_type in QUANTISERS else "this operator of QONNX is not supported"
    if node.domain in STANDARD_DOMAINS and onnx.defs.has(node.op_type):
        return ""
    return explain_unsupported(node.domain, node.op_type)


def _converted(model: ModelProto) -> ModelProto:
    """Returns the model in operator set `OPSET`, with an Identity in place of QONNX nodes during the conversion."""
    copy = ModelProto.FromString(model.SerializeToString())
    own: dict[str, NodeProto] = {}
    for node in copy.graph.node:
        if node.domain in QONNX_DOMAINS:
            own[node.output[0]] = NodeProto.FromString(node.SerializeToString())
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output, node.name))
    weights = {t.name for t in copy.graph.initializer}
    inputs = [v for v in copy.graph.input if v.name not in weights]
    del copy.graph.input[:], copy.opset_import[:]
    copy.graph.input.extend(inputs)
    copy.opset_import.extend(o for o in model.opset_import if o.domain in STANDARD_DOMAINS)
    try:
        copy = onnx.version_converter.convert_version(copy, RESULT_OPSET)
        copy = onnx.shape_inference.infer_shapes(copy, data_prop=True)
    except Exception as error:  # exceptions of onnx's C++ code have no common base
        raise UserError(
            f"onnx cannot convert the model to operator set {RESULT_OPSET}: {extract_fault(error)}"
        ) from None
    for node in copy.graph.node:
        if node.output[0] in own:
            node.CopyFrom(own[node.output[0]])
    return copy


class _Translation:
    """Translation of one model in node order. `coded`: quantised constants; `streams`: computed quantised tensors."""

    def __init__(self, model: ModelProto) -> None:
        self.model, graph = model, model.graph
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.producers = {o: node for node in graph.node for o in node.output}
        values = (*graph.input, *graph.value_info, *graph.output)
        self.ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}
        self.coded: dict[str, CodedConstant] = {}
        self.streams: dict[str, QuantisedTensor] = {}
        names = {name for n in graph.node for name in (*n.input, *n.output)} | self.constants.keys()
        self.writer = QdqWriter(names, {v.name for v in graph.input})

    def run(self) -> ModelProto:
        for node in self.model.graph.node:
            if not self._constant(node) and not self._quantiser(node):
                self._keep(node)
        return self.writer.build_model(self.model)

    def _constant(self, node: NodeProto) -> bool:
        """Folds a node of constants. Returns True if the result is quantised, so that the node is dropped."""
        if not all(i in self.constants for i in node.input if i):
            return False
        x, out = self.constants.get(node.input[0]) if node.input else None, node.output[0]
        if x is not None and node.op_type in ("Quant", "IntQuant") and node.domain in QONNX_DOMAINS:
            self._add(out, read_grid(node, self.constants).quantise(x))
        elif x is not None and node.op_type == "BipolarQuant":
            self._add(
                out, CodedConstant(np.where(x >= 0, 1, -1).astype(np.int64), read_bipolar_scale(node, self.constants))
            )
        elif node.op_type in _MOVES and node.input[0] in self.coded:
            coded = self.coded[node.input[0]]
            scale = np.broadcast_to(coded.scale, coded.values.shape)
            moved = [self._computed(node, values) for values in (coded.values, scale)]
            self._add(out, CodedConstant(*moved))
        else:
            if node.op_type in _FOLDED and sum(self.constants[i].size for i in node.input if i) < _MOST_FOLDED:
                self.constants[out] = self._computed(node)
            return False
        return True

    def _add(self, name: str, value: CodedConstant) -> None:
        self.coded[name], self.constants[name] = value, value.dequantised

    def _computed(self, node: NodeProto, first: Array | None = None) -> Array:
        given = {i: self.constants[i] for i in node.input if i}
        if first is not None:
            given[node.input[0]] = first
        operands = [numpy_helper.from_array(np.asarray(v), name) for name, v in given.items()]
        return run_reference(node, operands, [helper.make_opsetid("", RESULT_OPSET)])[0]

    def _quantiser(self, node: NodeProto) -> bool:
        """Writes a quantiser of a computed tensor. Returns False for other nodes."""
        if node.domain not in QONNX_DOMAINS and node.op_type != "Sign":
            return False
        levels = self._levels(node)
        if isinstance(levels, QuantGrid):
            self._grid(node, levels)
            return True
        if self._moved_into_thresholds(node, levels):
            return True
        if node.op_type == "Sign":
            self.writer.write_signs(node)
        else:
            self.writer.write_comparisons(node, levels, self.ranks.get(node.input[0]))
        self.streams[node.output[0]] = QuantisedTensor(levels.scale, levels.first, levels.last)
        return True

    def _moved_into_thresholds(self, node: NodeProto, levels: ThresholdLevels) -> bool:
        """Writes a quantiser after an integer layer as thresholds of its sums; False if there is no such layer."""
        found = self._thresholds(node, levels)
        if found is not None:
            self.writer.write_thresholds(node, levels, *found)
            self.streams[node.output[0]] = QuantisedTensor(levels.scale, levels.first, levels.last)
        return found is not None

    def _levels(self, node: NodeProto) -> ThresholdLevels | QuantGrid:
        """Reads a quantiser: a `Quant` of more than one bit as a grid, all others as thresholds."""
        match node.op_type:
            case "Quant" | "IntQuant":
                found = read_grid(node, self.constants)
                return found.to_levels() if found.rounding == BIPOLAR_ROUNDING and found.scale.size == 1 else found
            case "BipolarQuant":
                scale = read_bipolar_scale(node, self.constants)
                if scale.size != 1:
                    raise node_error(node, f"it has {scale.size} scales for a computed tensor; one is supported")
                return bipolar_levels(np.float32(scale.item()))
            case "Sign":
                return sign_levels()
            case _:
                return read_multithreshold(node, self.constants, self.ranks.get(node.input[0]))

    def _grid(self, node: NodeProto, given: QuantGrid) -> None:
        if not given.is_even:
            raise node_error(node, f"its rounding mode is {given.rounding}; of computed tensors, ROUND is supported")
        few = given.high - given.low <= MOST_THRESHOLDS and given.scale.size == 1
        if few and self._moved_into_thresholds(node, given.to_levels()):
            return
        self.writer.write_quantiser(node, given, self.ranks.get(node.input[0]))
        if given.scale.size == 1:
            scale = np.float32(given.scale.item())
            self.streams[node.output[0]] = QuantisedTensor(scale, given.low - given.zero, given.high - given.zero)

    def _thresholds(self, node: NodeProto, levels: ThresholdLevels) -> tuple[IntegerLayer, Ints, Ints] | None:
        """Returns the layer before a quantiser, signs of its channels, thresholds of its sums; None if impossible."""
        path = absorb_chains.walk_to_layer(node.input[0], self.producers, self.constants)
        layer = self._layer(path[-1]) if path else None
        scales = None if layer is None else layer.scales()
        bias = None if layer is None else self._bias(layer)
        if layer is None or scales is None or bias is None:
            return None
        if levels.thresholds.shape[0] not in (1, layer.channels):
            raise node_error(node, f"it has thresholds for {levels.thresholds.shape[0]} channels of {layer.channels}")
        if levels.thresholds.shape[0] > 1 and levels.axis != layer.channel_place[0]:
            return None
        stages = [absorb_chains.read_stage(n, self.constants, layer.channels, layer.channel_place) for n in path[:-1]]
        found = [s for s in stages if s is not None]
        if len(found) < len(stages):
            return None
        every = (*found, absorb_chains.ChainStage(scales, bias))
        signs, sums = absorb_chains.compose_conditions(levels, every, layer.channels).convert_to_sums(
            *layer.sum_range()
        )
        return layer, signs, sums

    def _layer(self, node: NodeProto) -> IntegerLayer | None:
        rank, x, weights = self.ranks.get(node.output[0]), self._stream(node.input[0]), self._weights(node.input[1])
        axis = None if weights is None or rank is None else find_output_axis(node, weights.values.ndim)
        if rank is None or x is None or weights is None or axis is None or not has_no_scaling(node):
            return None
        return IntegerLayer(node, x, weights, axis, (1 if node.op_type == "Conv" else rank - 1, rank))

    def _stream(self, name: str) -> QuantisedTensor | None:
        """Returns the quantised tensor that `name` holds, maybe moved; None if it is not quantised."""
        while name not in self.streams and name in self.producers and self.producers[name].op_type in _MOVES:
            name = self.producers[name].input[0]
        return self.streams.get(name)

    def _weights(self, name: str) -> CodedConstant | None:
        value = self.constants.get(name)
        return self.coded.get(name) or (None if value is None else code_floats(value))

    def _bias(self, layer: IntegerLayer) -> Doubles | None:
        """Returns the bias of a layer, [channels] or [1], zero if absent; None if it is computed."""
        name = layer.node.input[2] if len(layer.node.input) > 2 else ""
        value = self.constants.get(name)
        if not name:
            return np.zeros(1)
        if layer.node.op_type == "Conv":
            return None if value is None else value.astype(np.float64)
        return absorb_chains.read_channel_vector(value, layer.channels, layer.channel_place)

    def _keep(self, node: NodeProto) -> None:
        """Writes a node unchanged, except that the constants of an integer layer are quantised."""
        for name in node.input:
            if name in self.coded:
                self.writer.write_constant(name, self.coded[name])
        if node.op_type in absorb_chains.LAYER_OPS and self._stream(node.input[0]) is not None:
            weights = self._weights(node.input[1])
            if weights is not None and node.input[1] not in self.coded:
                node = self.writer.quantise_operand(node, 1, weights)
            value = self.constants.get(node.input[2]) if len(node.input) > 2 else None
            if value is not None and node.input[2] not in self.coded and not self._is_rounded(node.output[0]):
                node = self.writer.split_bias(node, value)
        self.writer.keep(node)

    def _is_rounded(self, name: str) -> bool:
        """Checks whether all readers of a tensor quantise it, maybe after a Relu."""
        readers = [n for n in self.model.graph.node if name in n.input]
        outputs = {v.name for v in self.model.graph.output}
        done = (n.op_type in QUANTISERS or (n.op_type == "Relu" and self._is_rounded(n.output[0])) for n in readers)
        return bool(readers) and name not in outputs and all(done)
