"""Rounds every scale of a quantised model up to a power of two, which makes its arithmetic exact in float32 as well.

Scales only grow, so nothing saturates that did not before. Weights and biases are quantised again from the floats.
"""

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.common.errors import InternalError
from raptor.tools.quantise.float_constants import Array, FloatConstants
from raptor.tools.quantise.qdq_pairs import DQ, Q, QdqModel

_BITS: Mapping[int, int] = {TensorProto.INT4: 4, TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32}


def ceil_power_of_two(scale: Array) -> Array:
    """Returns the smallest powers of two that are at least `scale`, in its type."""
    mantissa, exponent = np.frexp(scale)
    return np.ldexp(np.ones_like(scale), np.where(mantissa == 0.5, exponent - 1, exponent))


def round_scales_to_powers(model: ModelProto, floats: ModelProto) -> None:
    """Makes all scales of `model` powers of two, in place, and requantises its constants. Zero points must be 0."""
    found = QdqModel(model)
    original = FloatConstants(floats)
    biases = [n for n in found.weight_dequantisers() if found.constants[n.input[0]].data_type == TensorProto.INT32]
    of_biases = {n.input[1] for n in biases}
    for name in {n.input[1]: None for n in model.graph.node if n.op_type in (Q, DQ) and n.input[1] not in of_biases}:
        _store(found.constants[name], ceil_power_of_two(numpy_helper.to_array(found.constants[name])))
    for node in found.weight_dequantisers():
        reader, position = found.readers[node.output[0]][0]
        if node.input[1] in of_biases:
            scale = _scale_of(found, reader.input[0]) * _scale_of(found, reader.input[1])
            scale = scale.reshape(tuple(found.constants[node.input[1]].dims))
            _store(found.constants[node.input[1]], scale)
        _quantise_again(found, node, original.read_value(reader, position))
    _check(found, biases)


def _scale_of(found: QdqModel, restored: str) -> Array:
    return numpy_helper.to_array(found.constants[found.producers[restored].input[1]])


def _quantise_again(found: QdqModel, node: NodeProto, values: Array) -> None:
    """Writes round(values / scale), ties to even. Only a bias can saturate, if its scale is too small."""
    target = found.constants[node.input[0]]
    scale = numpy_helper.to_array(found.constants[node.input[1]])
    old = numpy_helper.to_array(target)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1) if scale.ndim else 0
    if scale.size > 1:
        scale = scale.reshape([-1 if k == axis % values.ndim else 1 for k in range(values.ndim)])
    codes = np.rint(values.astype(np.float64) / scale)
    limits = _limits(target.data_type)
    _store(target, np.clip(codes, *limits).astype(old.dtype).reshape(old.shape))


def _limits(kind: int) -> tuple[int, int]:
    bits = _BITS[kind]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _store(tensor: TensorProto, values: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _check(found: QdqModel, biases: "list[NodeProto]") -> None:
    """Raises `InternalError` unless scales are powers of two, zero points 0, and biases have their products' scales."""
    for node in found.proto.graph.node:
        if node.op_type not in (Q, DQ):
            continue
        scale = numpy_helper.to_array(found.constants[node.input[1]])
        if not (np.frexp(scale)[0] == 0.5).all():
            raise InternalError(f"{node.name}: a scale is no power of two")
        if len(node.input) > 2 and numpy_helper.to_array(found.constants[node.input[2]]).any():
            raise InternalError(f"{node.name}: a zero point is not 0")
    for node in biases:
        reader, _ = found.readers[node.output[0]][0]
        product = _scale_of(found, reader.input[0]) * _scale_of(found, reader.input[1])
        if not (numpy_helper.to_array(found.constants[node.input[1]]) == product).all():
            raise InternalError(f"{node.name}: the scale of a bias is not the product of those of its layer")
