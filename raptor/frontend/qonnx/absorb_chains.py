"""Absorbs element-wise operators between a layer and its quantiser into thresholds on the layer's sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.qonnx.quantisers import Array, Doubles, Ints, ThresholdLevels

LAYER_OPS = frozenset(("MatMul", "Gemm", "Conv"))
_AFFINE = frozenset(("Mul", "Div", "Add", "Sub", "BatchNormalization"))
CHAIN_OPS = _AFFINE | {"Relu", "Identity", "Dropout"}
"""Operators that may stand between a layer and its quantiser."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainStage:
    """One element-wise operator of a chain: y = factor * x + addend per channel, then max(y, 0) if `relu`.

    Arrays: [channels] or [1].
    """

    factor: Doubles
    addend: Doubles
    relu: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdConditions:
    """Threshold conditions on x per channel: x >= threshold if `rising`, else x <= threshold; without = if `strict`.

    thresholds: [channels, count]; rising: [channels, 1]; strict: [count].
    """

    thresholds: Doubles
    rising: npt.NDArray[np.bool_]
    strict: npt.NDArray[np.bool_]

    @classmethod
    def from_levels(cls, levels: ThresholdLevels, channels: int) -> ThresholdConditions:
        """Returns the conditions of a quantiser."""
        full = np.broadcast_to(levels.thresholds, (channels, levels.thresholds.shape[1]))
        return cls(full, np.ones((channels, 1), np.bool_), levels.strict)

    def pull_through(self, stage: ChainStage) -> ThresholdConditions:
        """Returns the equivalent conditions on the input of a stage."""
        found = self._before_relu() if stage.relu else self
        factor, addend = stage.factor[:, None], stage.addend[:, None]
        always = np.where(found.rising, -np.inf, np.inf)
        met = found._met_by(addend)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = (found.thresholds - addend) / factor
        rising = found.rising ^ (factor < 0)
        constant = np.where(met, always, -always)
        return ThresholdConditions(np.where(factor == 0, constant, moved), rising, found.strict)

    def _before_relu(self) -> ThresholdConditions:
        """Returns the conditions on x that are equivalent to these conditions on max(x, 0)."""
        met = self._met_by(np.zeros((1, 1)))
        # A rising condition that 0 meets is always met; a falling one that 0 does not meet is never met.
        return replace(self, thresholds=np.where(met == self.rising, -np.inf, self.thresholds))

    def _met_by(self, x: Doubles) -> npt.NDArray[np.bool_]:
        above = np.where(self.strict, x > self.thresholds, x >= self.thresholds)
        below = np.where(self.strict, x < self.thresholds, x <= self.thresholds)
        return np.where(self.rising, above, below)

    def convert_to_sums(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Returns signs [channels] and thresholds [channels, count], the smallest sign * sum that meets each condition.

        low, high: range of each channel's sums. A condition that no sum meets gets the largest sum plus one.
        """
        signs = np.where(self.rising[:, 0], 1, -1)
        turned = self.thresholds * signs[:, None]
        whole = np.where(self.strict, np.floor(turned) + 1, np.ceil(turned))
        first, last = np.minimum(low * signs, high * signs), np.maximum(low * signs, high * signs)
        return signs, np.clip(whole, first[:, None], last[:, None] + 1).astype(np.int64)


def read_stage(
    node: NodeProto, constants: Mapping[str, Array], channels: int, place: tuple[int, int]
) -> ChainStage | None:
    """Returns a node of a chain as a stage; None if it varies within a channel or reads another computed tensor.

    place: channel axis and rank.
    """
    one, none = np.ones(1), np.zeros(1)
    if node.op_type in ("Identity", "Dropout"):
        return ChainStage(one, none)
    if node.op_type == "Relu":
        return ChainStage(one, none, relu=True)
    if node.op_type == "BatchNormalization":
        return _normalisation(node, constants) if place[0] == 1 else None
    position = 1 if node.input[0] not in constants else 0
    value = read_channel_vector(constants.get(node.input[position]), channels, place)
    if value is None or (position == 0 and node.op_type == "Div"):
        return None
    match node.op_type:
        case "Mul":
            return ChainStage(value, none)
        case "Div":
            return ChainStage(1 / value, none) if (value != 0).all() else None
        case "Add":
            return ChainStage(one, value)
        case _:
            return ChainStage(one, -value) if position else ChainStage(-one, value)


def _normalisation(node: NodeProto, constants: Mapping[str, Array]) -> ChainStage | None:
    found = [constants.get(name) for name in node.input[1:5]]
    if len(found) < 4 or read_attributes(node).get("training_mode", 0):
        return None
    scale, bias, mean, variance = (None if v is None else v.astype(np.float64).reshape(-1) for v in found)
    if scale is None or bias is None or mean is None or variance is None:
        return None
    factor = scale / np.sqrt(variance + read_attributes(node).get("epsilon", 1e-5))
    return ChainStage(factor, bias - mean * factor)


def read_channel_vector(value: Array | None, channels: int, place: tuple[int, int]) -> Doubles | None:
    """Returns a constant that varies along the channel axis only, as [channels] or [1]; else None."""
    axis, rank = place
    if value is None or value.dtype.kind != "f" or value.ndim > rank:
        return None
    if value.size == 1:
        return value.astype(np.float64).reshape(1)
    full = (1,) * (rank - value.ndim) + value.shape
    is_along = full[axis] == channels == value.size
    return value.astype(np.float64).reshape(-1) if is_along else None


def walk_to_layer(name: str, producers: Mapping[str, NodeProto], constants: Mapping[str, Array]) -> list[NodeProto]:
    """Returns the nodes from a tensor back to the layer of its chain, the layer last; empty if there is no layer."""
    found: list[NodeProto] = []
    while (node := producers.get(name)) is not None:
        found.append(node)
        if node.op_type in LAYER_OPS:
            return found
        if node.op_type not in CHAIN_OPS:
            break
        computed = [i for i in node.input if i and i not in constants]
        if len(computed) != 1:
            break
        name = computed[0]
    return []


def compose_conditions(levels: ThresholdLevels, stages: Sequence[ChainStage], channels: int) -> ThresholdConditions:
    """Returns the conditions of a quantiser on the input of a chain of stages, given last stage first."""
    found = ThresholdConditions.from_levels(levels, channels)
    for stage in stages:
        found = found.pull_through(stage)
    return found
