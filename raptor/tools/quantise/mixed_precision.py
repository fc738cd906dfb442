"""Mixed precision: gives single layers other bit widths than the rest of a quantised model.

Weights and biases are quantised again from the floats, so nothing is rounded twice. If only one layer reads a tensor,
the tensor gets that layer's width; otherwise the tensor is requantised for the layer.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.tools.quantise.float_constants import Array, FloatConstants
from raptor.tools.quantise.policy import Operand
from raptor.tools.quantise.qdq_pairs import DQ, Q, QdqModel

WEIGHT_TYPES: Mapping[int, int] = {4: TensorProto.INT4, 8: TensorProto.INT8}
"""ONNX type of a signed weight, keyed by its bits."""
_UNSIGNED: Mapping[int, int] = {4: TensorProto.UINT4, 8: TensorProto.UINT8, 16: TensorProto.UINT16}
_SIGNED: Mapping[int, int] = {4: TensorProto.INT4, 8: TensorProto.INT8, 16: TensorProto.INT16}
_SELECTING = ("Relu", "Clip", "MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")
"""Operators that only move, select or clip values, so they commute with a quantiser of the same scale."""


def change_widths(model: ModelProto, floats: ModelProto, weights: Mapping[str, int], inputs: Mapping[str, int]) -> None:
    """Changes the bit widths of single layers of a QDQ model, in place.

    `floats`: the float model that `model` was made from. `weights`: bits of the weights, keyed by layer name. `inputs`:
    bits of the integers that the layer reads. Raises `UserError` for a layer without quantised weights.
    """
    layers = find_weighted_layers(model)
    unknown = sorted((weights.keys() | inputs.keys()) - layers.keys())
    if unknown:
        raise UserError(
            f"{spell_option('layers', unknown[0])}: no layer with weights that are quantised; "
            f"layers are {', '.join(layers)}"
        )
    for name, width in inputs.items():
        _narrow_input(QdqModel(model), find_weighted_layers(model)[name], width)
    found, originals, layers = QdqModel(model), FloatConstants(floats), find_weighted_layers(model)
    for name, width in weights.items():
        _quantise_weights(found, found.producers[layers[name].input[1]], originals.read_value(layers[name], 1), width)
    for name in weights.keys() | inputs.keys():
        _rescale_bias(found, layers[name], originals)


def find_weighted_layers(model: ModelProto) -> dict[str, NodeProto]:
    """Returns the nodes that read quantised weights, keyed by name, in the order of the model."""
    found = QdqModel(model)
    weights = {node.output[0] for node in found.weight_dequantisers()}
    return {n.name: n for n in model.graph.node if len(n.input) > 1 and n.input[1] in weights and n.op_type != Q}


def find_adjustable_operands(model: ModelProto) -> dict[str, tuple[Operand, ...]]:
    """Returns the operands whose width can be changed, keyed by layer name."""
    found = QdqModel(model)
    return {
        name: ("weights", "inputs") if _input_dequantiser(found, node) is not None else ("weights",)
        for name, node in find_weighted_layers(model).items()
    }


def _input_dequantiser(found: QdqModel, reader: NodeProto) -> NodeProto | None:
    """Returns the DequantizeLinear before a layer's input if it restores computed integers, else None."""
    node = found.producers.get(reader.input[0])
    return node if node is not None and node.op_type == DQ and node.input[0] in found.producers else None


def _narrow_input(found: QdqModel, reader: NodeProto, width: int) -> None:
    """Changes the integers that a layer reads to `width` bits; the range of real values stays the same."""
    restore = _input_dequantiser(found, reader)
    if restore is None:
        raise UserError(
            f"{spell_option('layers', reader.name)}: its input is not quantised, so that it has no other width"
        )
    old = found.constants[restore.input[2]]
    kinds = _UNSIGNED if old.data_type in _UNSIGNED.values() else _SIGNED
    before = next(bits for bits, kind in kinds.items() if kind == old.data_type)
    if before == width:
        return
    unsigned = kinds is _UNSIGNED
    share = _largest_code(width, unsigned=unsigned) / _largest_code(before, unsigned=unsigned)
    scale = np.asarray(_scale(found, restore) / share, np.float32)
    zero = int(np.rint(numpy_helper.to_array(old).astype(np.int64) * share))
    names = [f"{reader.name}.input_scale", f"{reader.name}.input_zero_point"]
    found.proto.graph.initializer.append(numpy_helper.from_array(scale, names[0]))
    found.proto.graph.initializer.append(helper.make_tensor(names[1], kinds[width], (), [zero]))
    pairs = list(_own_pairs(found, reader))
    if not pairs:
        _requantise_input(found, reader, names)
    for pair in pairs:
        for node in pair:
            node.input[1:3] = names
    _forget_types(found, {quantise.output[0] for quantise, _ in pairs})


def _largest_code(width: int, *, unsigned: bool) -> int:
    return (1 << width) - 1 if unsigned else (1 << (width - 1)) - 1


def _own_pairs(found: QdqModel, reader: NodeProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Yields the Q/DQ pairs before a layer that can take its width, the nearest first.

    No other layer reads them, they share scale and zero point, and only selecting operators are between them.
    """
    restore, scaled = found.producers[reader.input[0]], None
    outputs = {v.name for v in found.proto.graph.output}
    while restore is not None and restore.op_type == DQ and restore.input[0] in found.producers:
        quantise = found.producers[restore.input[0]]
        read = found.readers[restore.output[0]], found.readers[quantise.output[0]]
        if any(len(r) != 1 for r in read) or restore.output[0] in outputs:
            return
        if scaled not in (None, _scale_and_zero(found, restore)):
            return
        scaled = _scale_and_zero(found, restore)
        yield quantise, restore
        before = found.producers.get(quantise.input[0])
        restore = found.producers.get(before.input[0]) if before is not None and before.op_type in _SELECTING else None


def _scale_and_zero(found: QdqModel, node: NodeProto) -> tuple[float, int]:
    """Returns scale and zero point of an activation."""
    scale, zero = (numpy_helper.to_array(found.constants[name]) for name in node.input[1:3])
    return float(scale), int(zero)


def _requantise_input(found: QdqModel, reader: NodeProto, names: list[str]) -> None:
    graph, codes, restored = found.proto.graph, f"{reader.name}.input_codes", f"{reader.name}.input"
    nodes = (
        helper.make_node(Q, [reader.input[0], *names], [codes], f"{codes}_{Q}"),
        helper.make_node(DQ, [codes, *names], [restored], f"{restored}_{DQ}"),
    )
    at = list(graph.node).index(reader)
    reader.input[0] = restored
    for node in reversed(nodes):
        graph.node.insert(at, node)


def _forget_types(found: QdqModel, tensors: set[str]) -> None:
    infos = found.proto.graph.value_info
    for info in [v for v in infos if v.name in tensors]:
        infos.remove(info)


def _scale(found: QdqModel, node: NodeProto) -> Array:
    return numpy_helper.to_array(found.constants[node.input[1]])


def _quantise_weights(found: QdqModel, node: NodeProto, values: Array, width: int) -> None:
    """Quantises weights to `width` bits; the largest absolute value under each scale becomes the largest code."""
    old, most = _scale(found, node), (1 << (width - 1)) - 1
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1) % max(values.ndim, 1)
    others = tuple(a for a in range(values.ndim) if a != axis or old.ndim == 0)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.asarray(np.where(largest > 0, largest, 1) / most, np.float32)
    codes = np.clip(np.rint(values / scale), -most, most).astype(np.int64)
    kind = WEIGHT_TYPES[width]
    target = found.constants[node.input[0]]
    target.CopyFrom(helper.make_tensor(target.name, kind, codes.shape, codes.ravel().tolist()))
    _store(found.constants[node.input[1]], scale.reshape(old.shape))
    if len(node.input) > 2:
        zero = found.constants[node.input[2]]
        zero.CopyFrom(helper.make_tensor(zero.name, kind, zero.dims, [0] * old.size))


def _rescale_bias(found: QdqModel, reader: NodeProto, originals: FloatConstants) -> None:
    """Quantises the bias of a layer again, with the scale of its new products (input scale x weight scale)."""
    node = found.producers.get(reader.input[2]) if len(reader.input) > 2 else None
    if node is None or node.input[0] not in found.constants:
        return
    scales = [_scale(found, found.producers[name]) for name in reader.input[:2]]
    scale = np.asarray(scales[0] * scales[1], np.float32).reshape(_scale(found, node).shape)
    codes = np.rint(originals.read_value(reader, 2).astype(np.float64) / scale).astype(np.int32)
    _store(found.constants[node.input[1]], scale)
    _store(found.constants[node.input[0]], codes)


def _store(tensor: TensorProto, values: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
