"""Splits normalisations into their elementary nodes, so that each step rounds.

(x - mean) / deviation does not change when a number is added to x. So errors in x and in the result alone do not show
that float32 rounds the mean.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

from validator.model.node import attributes_of

OPSET = 13
"""Version of the operator set of the nodes."""


def steps(proto: NodeProto, operands: Mapping[str, npt.NDArray[Any]]) -> list[NodeProto]:
    """Returns the elementary nodes of a node; empty for other operators, and if several results are used."""
    if proto.domain or sum(map(bool, proto.output)) != 1:
        return []
    given: dict[str, Any] = attributes_of(proto)
    shape = operands[proto.input[0]].shape if proto.input else ()
    rank, epsilon = len(shape), given.get("epsilon", 1e-5)
    match proto.op_type:
        case "InstanceNormalization":
            return _normalised(proto, list(range(2, rank)), inner=epsilon) + _affine(proto, rank - 2)
        case "LayerNormalization":
            axis = int(given.get("axis", -1)) % rank
            return _normalised(proto, list(range(axis, rank)), inner=epsilon) + _affine(proto, 0)
        case "MeanVarianceNormalization":
            return [*_normalised(proto, given.get("axes", [0, 2, 3]), outer=1e-9), _copy("_normal", proto.output[0])]
        case "LRN" if rank > 2:
            return _lrn(proto, given, shape)
        case "LpNormalization" if given.get("p", 2) == 2:
            return _lp_normalised(proto, int(given.get("axis", -1)))
        case _:
            return []


def _lrn(proto: NodeProto, given: Mapping[str, Any], shape: tuple[int, ...]) -> list[NodeProto]:
    """Returns the nodes of LRN: x / (bias + alpha / size * sum of squares in near channels) ** beta.

    onnxruntime updates its sum from channel to channel, so a large number leaves an error in all later channels.
    """
    image, size, channel = proto.input[0], int(given["size"]), np.arange(shape[1])
    apart = channel[None, :] - channel[:, None]
    near = (apart >= -((size - 1) // 2)) & (apart <= size // 2)
    band = near.astype(np.float32) * np.float32(given.get("alpha", 1e-4) / size)
    return [
        helper.make_node("Mul", [image, image], ["_square"]),
        _constant("_flat", np.array([shape[0], shape[1], -1], np.int64)),
        helper.make_node("Reshape", ["_square", "_flat"], ["_rows"]),
        _constant("_band", band),
        helper.make_node("MatMul", ["_band", "_rows"], ["_near"]),
        _constant("_shape", np.array(shape, np.int64)),
        helper.make_node("Reshape", ["_near", "_shape"], ["_sum"]),
        _constant("_bias", np.float32(given.get("bias", 1.0))),
        helper.make_node("Add", ["_sum", "_bias"], ["_positive"]),
        _constant("_beta", np.float32(given.get("beta", 0.75))),
        helper.make_node("Pow", ["_positive", "_beta"], ["_divisor"]),
        helper.make_node("Div", [image, "_divisor"], [proto.output[0]]),
    ]


def _lp_normalised(proto: NodeProto, axis: int) -> list[NodeProto]:
    """Returns the nodes of x / length (the Euclidean norm), whose squares may underflow."""
    image = proto.input[0]
    return [
        helper.make_node("Mul", [image, image], ["_square"]),
        _constant("_axes", np.array([axis], np.int64)),
        helper.make_node("ReduceSum", ["_square", "_axes"], ["_sum"]),
        helper.make_node("Sqrt", ["_sum"], ["_length"]),
        # A row of zeros stays as it is.
        _constant("_zero", np.float32(0)),
        _constant("_one", np.float32(1)),
        helper.make_node("Equal", ["_length", "_zero"], ["_empty"]),
        helper.make_node("Where", ["_empty", "_one", "_length"], ["_divisor"]),
        helper.make_node("Div", [image, "_divisor"], [proto.output[0]]),
    ]


def _normalised(proto: NodeProto, axes: list[int], *, inner: float = 0.0, outer: float = 0.0) -> list[NodeProto]:
    """Returns the nodes of (x - mean) / deviation. `inner` is added to the variance, `outer` to its root."""
    image = proto.input[0]
    return [
        helper.make_node("ReduceMean", [image], ["_mean"], axes=axes),
        helper.make_node("Sub", [image, "_mean"], ["_apart"]),
        helper.make_node("Mul", ["_apart", "_apart"], ["_square"]),
        helper.make_node("ReduceMean", ["_square"], ["_variance"], axes=axes),
        _constant("_inner", np.float32(inner)),
        helper.make_node("Add", ["_variance", "_inner"], ["_positive"]),
        helper.make_node("Sqrt", ["_positive"], ["_root"]),
        _constant("_outer", np.float32(outer)),
        helper.make_node("Add", ["_root", "_outer"], ["_deviation"]),
        helper.make_node("Div", ["_apart", "_deviation"], ["_normal"]),
    ]


def _affine(proto: NodeProto, pixels: int) -> list[NodeProto]:
    """Returns the nodes that multiply by the scale and add the bias; both get `pixels` dimensions of size 1."""
    scale, bias = (*proto.input[1:], "")[:2]
    axes = list(range(1, pixels + 1))
    nodes = [
        _constant("_axes", np.array(axes, np.int64)),
        helper.make_node("Unsqueeze", [scale, "_axes"], ["_scale"]),
        helper.make_node("Mul", ["_normal", "_scale"], ["_scaled"]),
    ]
    if not bias:
        return [*nodes, _copy("_scaled", proto.output[0])]
    moved = helper.make_node("Unsqueeze", [bias, "_axes"], ["_bias"])
    return [*nodes, moved, helper.make_node("Add", ["_scaled", "_bias"], [proto.output[0]])]


def _constant(name: str, value: Any) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def _copy(source: str, target: str) -> NodeProto:
    return helper.make_node("Identity", [source], [target])
