"""Splits normalisations into their elementary nodes, so that each step rounds.

(x - mean) / deviation does not change when a number is added to x. So errors in x and in the result alone do not show
that float32 rounds the mean.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from validator.model.float64.node_builder import NodeBuilder
from validator.model.node import attributes_of

OPSET = 13
"""Version of the operator set of the nodes."""


def steps(proto: NodeProto, operands: Mapping[str, npt.NDArray[Any]]) -> list[NodeProto]:
    """Returns the elementary nodes of a node; empty for other operators, and if several results are used."""
    if proto.domain or sum(map(bool, proto.output)) != 1:
        return []
    given: dict[str, Any] = attributes_of(proto)
    shape = operands[proto.input[0]].shape if proto.input else ()
    rank, epsilon, split = len(shape), given.get("epsilon", 1e-5), _Split(stem=f"{proto.output[0]}.step")
    match proto.op_type:
        case "InstanceNormalization":
            result = split.affine(split.normalised(proto.input[0], range(2, rank), inner=epsilon), proto, rank - 2)
        case "LayerNormalization":
            axis = int(given.get("axis", -1)) % rank
            result = split.affine(split.normalised(proto.input[0], range(axis, rank), inner=epsilon), proto, 0)
        case "MeanVarianceNormalization":
            result = split.normalised(proto.input[0], given.get("axes", [0, 2, 3]), outer=1e-9)
        case "LRN" if rank > 2:
            result = split.lrn(proto.input[0], given, shape)
        case "LpNormalization" if given.get("p", 2) == 2:
            result = split.lp(proto.input[0], int(given.get("axis", -1)))
        case _:
            return []
    split.add("Identity", result, name=proto.output[0])
    return split.nodes


class _Split(NodeBuilder):
    """Builder of the elementary nodes of normalisations. Its methods return the name of the result."""

    def lrn(self, image: str, given: Mapping[str, Any], shape: tuple[int, ...]) -> str:
        """Adds the nodes of LRN: x / (bias + alpha / size * sum of squares in near channels) ** beta.

        onnxruntime updates its sum from channel to channel, so a large number leaves an error in all later channels.
        """
        size, channel = int(given["size"]), np.arange(shape[1])
        apart = channel[None, :] - channel[:, None]
        near = (apart >= -((size - 1) // 2)) & (apart <= size // 2)
        band = near.astype(np.float32) * np.float32(given.get("alpha", 1e-4) / size)
        square = self.add("Mul", image, image)
        rows = self.add("Reshape", square, self.constant([shape[0], shape[1], -1]))
        total = self.add("Reshape", self.add("MatMul", self.constant(band), rows), self.constant(shape))
        positive = self.add("Add", total, self.number(given.get("bias", 1.0)))
        return self.add("Div", image, self.add("Pow", positive, self.number(given.get("beta", 0.75))))

    def lp(self, image: str, axis: int) -> str:
        """Adds the nodes of x / length (the Euclidean norm), whose squares may underflow. Rows of zeros stay."""
        square = self.add("Mul", image, image)
        length = self.add("Sqrt", self.add("ReduceSum", square, self.constant([axis])))
        empty = self.add("Equal", length, self.number(0))
        return self.add("Div", image, self.add("Where", empty, self.number(1), length))

    def normalised(self, image: str, axes: Iterable[int], *, inner: float = 0.0, outer: float = 0.0) -> str:
        """Adds the nodes of (x - mean) / deviation. `inner` is added to the variance, `outer` to its root."""
        over = {"axes": [*axes]}
        apart = self.add("Sub", image, self.add("ReduceMean", image, attributes=over))
        variance = self.add("ReduceMean", self.add("Mul", apart, apart), attributes=over)
        root = self.add("Sqrt", self.add("Add", variance, self.number(inner)))
        return self.add("Div", apart, self.add("Add", root, self.number(outer)))

    def affine(self, normal: str, proto: NodeProto, pixels: int) -> str:
        """Adds the nodes that multiply by the scale and add the bias; both get `pixels` dimensions of size 1."""
        scale, bias = (*proto.input[1:], "")[:2]
        axes = self.constant(np.arange(1, pixels + 1))
        scaled = self.add("Mul", normal, self.add("Unsqueeze", scale, axes))
        return self.add("Add", scaled, self.add("Unsqueeze", bias, axes)) if bias else scaled
