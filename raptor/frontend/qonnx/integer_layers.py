"""Integer layers of QONNX models: their operands as integers, and the range of their sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.qonnx.quantisers import Array, CodedConstant, Doubles, Ints


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """A computed quantised tensor: real = code * scale, with codes from `low` to `high`."""

    scale: np.float32
    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class IntegerLayer:
    """A MatMul, Gemm or Conv of a quantised tensor and quantised constant weights.

    x: the input. weights: as the node reads them. axis: output channel axis of the weights. place: (channel axis, rank)
    of the result.
    """

    node: NodeProto
    x: QuantisedTensor
    weights: CodedConstant
    axis: int
    channel_place: tuple[int, int]

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.weights.values.shape[self.axis]

    def scales(self) -> Doubles | None:
        """Returns the scale of the sums, [channels] or [1]; None if it differs between products of one sum."""
        along = self.weights.find_scale_axis()
        if along not in (None, self.axis):
            return None
        return (self.weights.scale_vector().astype(np.float64) * np.float64(self.x.scale)).reshape(-1)

    def apply_signs(self, signs: Ints) -> Ints:
        """Returns the weights multiplied by a sign for each output channel."""
        shape = [-1 if a == self.axis else 1 for a in range(self.weights.values.ndim)]
        return self.weights.values * signs.reshape(shape)

    def sum_range(self) -> tuple[Ints, Ints]:
        """Returns the smallest and largest sum of each channel; padding counts as code 0."""
        columns = np.moveaxis(self.weights.values, self.axis, 0).reshape(self.channels, -1)
        low, high = min(self.x.low, 0), max(self.x.high, 0)
        ends = np.stack([columns * low, columns * high])
        return ends.min(axis=0).sum(axis=1), ends.max(axis=0).sum(axis=1)


def find_output_axis(node: NodeProto, rank: int) -> int | None:
    """Returns the output channel axis of a layer's weights; None for a MatMul with weights of a rank other than 2."""
    match node.op_type:
        case "Conv":
            return 0
        case "Gemm":
            return 0 if read_attributes(node).get("transB", 0) else 1
        case _:
            return 1 if rank == 2 else None


def has_no_scaling(node: NodeProto) -> bool:
    """Checks whether a layer has no scaling factors (alpha, beta) and no transposed input."""
    given = read_attributes(node)
    return given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA", 0)


def code_floats(values: Array) -> CodedConstant | None:
    """Returns a float constant as integers if it holds 8-bit integers, or only 0, scale and -scale; else None."""
    if values.dtype.kind != "f" or not values.size or not np.isfinite(values).all():
        return None
    if (values == np.rint(values)).all() and values.min() >= -128 and values.max() <= 127:
        return CodedConstant(values.astype(np.int64), np.ones((), np.float32))
    if not is_ternary(values):
        return None
    return CodedConstant(np.sign(values).astype(np.int64), np.asarray(np.abs(values).max(), np.float32))


def is_ternary(values: Array) -> bool:
    """Checks whether all numbers are 0, a scale, or its negative."""
    sizes = np.abs(values)
    return bool(values.size and ((sizes == 0) | (sizes == sizes.max())).all())
