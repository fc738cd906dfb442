"""Layers of integers: which operands they have, as integers, and the range of their sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from raptor.frontend.nodes import attributes_of
from raptor.frontend.qonnx.codes import Array, Coded, Doubles, Ints


@dataclass(frozen=True, slots=True)
class Stream:
    """A computed tensor of integers: real number = code * scale, codes from `low` to `high`."""

    scale: np.float32
    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A MatMul, Gemm or Conv of integers by constant integers.

    weights: as the node reads them. axis: their axis of the output channels. place: axis of the channels in the result,
    and number of its dimensions.
    """

    node: NodeProto
    x: Stream
    weights: Coded
    axis: int
    place: tuple[int, int]

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.weights.values.shape[self.axis]

    def scales(self) -> Doubles | None:
        """Returns the scale of the sums, [channels] or [1]; None if it differs inside of a sum."""
        along = self.weights.axis()
        if along not in (None, self.axis):
            return None
        return (self.weights.scales().astype(np.float64) * np.float64(self.x.scale)).reshape(-1)

    def signed(self, signs: Ints) -> Ints:
        """Returns the weights with a sign for each channel."""
        shape = [-1 if a == self.axis else 1 for a in range(self.weights.values.ndim)]
        return self.weights.values * signs.reshape(shape)

    def range(self) -> tuple[Ints, Ints]:
        """Returns the smallest and the largest sum of each channel; codes that a border leaves out count as 0."""
        columns = np.moveaxis(self.weights.values, self.axis, 0).reshape(self.channels, -1)
        low, high = min(self.x.low, 0), max(self.x.high, 0)
        ends = np.stack([columns * low, columns * high])
        return ends.min(axis=0).sum(axis=1), ends.max(axis=0).sum(axis=1)


def output_axis(node: NodeProto, rank: int) -> int | None:
    """Returns the axis of the output channels in the weights of a layer; None if it has none to speak of."""
    match node.op_type:
        case "Conv":
            return 0
        case "Gemm":
            return 0 if attributes_of(node).get("transB", 0) else 1
        case _:
            return 1 if rank == 2 else None


def is_plain(node: NodeProto) -> bool:
    """Tells whether a layer multiplies and adds, without factors of its own."""
    given = attributes_of(node)
    return given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA", 0)


def coded_floats(values: Array) -> Coded | None:
    """Returns a constant of floats as integers: whole numbers of 8 bits, or 0, scale and -scale; else None."""
    if values.dtype.kind != "f" or not values.size or not np.isfinite(values).all():
        return None
    if (values == np.rint(values)).all() and values.min() >= -128 and values.max() <= 127:
        return Coded(values.astype(np.int64), np.ones((), np.float32))
    if not is_ternary(values):
        return None
    return Coded(np.sign(values).astype(np.int64), np.asarray(np.abs(values).max(), np.float32))


def is_ternary(values: Array) -> bool:
    """Tells whether all numbers are 0, a scale, or its negative."""
    sizes = np.abs(values)
    return bool(values.size and ((sizes == 0) | (sizes == sizes.max())).all())
