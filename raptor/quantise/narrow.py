"""Gives the weights of some layers fewer bits than the others: mixed precision.

Weights and biases are quantised again from the floats, so that nothing is rounded twice.
"""

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.quantise.originals import Array, Originals
from raptor.quantise.pairs import Quantised

WIDTHS: Mapping[int, int] = {4: TensorProto.INT4, 8: TensorProto.INT8}
"""Bits of a weight -> type of ONNX."""


def narrow(model: ModelProto, floats: ModelProto, bits: Mapping[str, int]) -> None:
    """Changes the weights of layers of `model`, which was made from `floats`, to other widths; in place.

    `bits`: width by the name of the layer. Raises `UserError` for a layer that has no quantised weights.
    """
    found, originals = Quantised(model), Originals(floats)
    weights = {reader.name: node for node in found.weights() for reader, at in found.readers[node.output[0]] if at == 1}
    unknown = sorted(bits.keys() - weights.keys())
    if unknown:
        raise UserError(
            f"{option('layers', unknown[0])}: no layer with weights that are quantised; layers are {', '.join(weights)}"
        )
    for name, width in bits.items():
        reader, _ = found.readers[weights[name].output[0]][0]
        _quantise(found, weights[name], originals.value(reader, 1), width)
        _rescale_bias(found, reader, originals)


def _scale(found: Quantised, node: NodeProto) -> Array:
    return numpy_helper.to_array(found.constants[node.input[1]])


def _quantise(found: Quantised, node: NodeProto, values: Array, width: int) -> None:
    """Writes weights of `width` bits; the largest of each scale becomes the largest code."""
    old, most = _scale(found, node), (1 << (width - 1)) - 1
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1) % values.ndim
    others = tuple(a for a in range(values.ndim) if a != axis or old.ndim == 0)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.asarray(np.where(largest > 0, largest, 1) / most, np.float32)
    codes = np.clip(np.rint(values / scale), -most, most).astype(np.int64)
    kind = WIDTHS[width]
    target = found.constants[node.input[0]]
    target.CopyFrom(helper.make_tensor(target.name, kind, codes.shape, codes.ravel().tolist()))
    _store(found.constants[node.input[1]], scale.reshape(old.shape))
    if len(node.input) > 2:
        zero = found.constants[node.input[2]]
        zero.CopyFrom(helper.make_tensor(zero.name, kind, zero.dims, [0] * old.size))


def _rescale_bias(found: Quantised, reader: NodeProto, originals: Originals) -> None:
    """Writes the bias of a layer in units of its new products."""
    node = found.producers.get(reader.input[2]) if len(reader.input) > 2 else None
    if node is None or node.input[0] not in found.constants:
        return
    scales = [_scale(found, found.producers[name]) for name in reader.input[:2]]
    scale = np.asarray(scales[0] * scales[1], np.float32).reshape(_scale(found, node).shape)
    codes = np.rint(originals.value(reader, 2).astype(np.float64) / scale).astype(np.int32)
    _store(found.constants[node.input[1]], scale)
    _store(found.constants[node.input[0]], codes)


def _store(tensor: TensorProto, values: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
