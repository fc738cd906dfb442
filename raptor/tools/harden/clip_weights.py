"""Clips large weights where that costs less than the errors of cells that it saves.

A code's error is a share of the largest weight of its channel. A smaller largest weight makes all errors of the channel
smaller, and the clipped weights wrong. The mean of what a clip takes from a sum goes into the bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raptor.tools.harden.channel_scales import ScaledLayer
from raptor.tools.harden.weight_layers import Floats, LayerConstants

_SHARES = np.linspace(0.3, 1.0, 36)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMoments:
    """Mean and mean square of each channel of a tensor, over samples and positions."""

    mean: Floats
    power: Floats


def clip_layer(
    scaled: ScaledLayer, constants: LayerConstants, moments: Mapping[str, ChannelMoments], error: float
) -> int:
    """Clips the weights of a layer, and returns the number of output channels in which any weight is clipped.

    `error`: standard deviation of a weight, as a share of the largest of its channel.
    """
    layer = scaled.layer
    values = constants.read_value(layer.weight)
    weights = layer.arrange(values).astype(np.float64)
    found = moments[layer.node.input[0]]
    mean, power = (
        np.repeat(x.reshape(scaled.inputs.shape), len(weights) // len(scaled.inputs), axis=0)[:, :, None]
        for x in (found.mean, found.power)
    )
    lost = power - mean**2 if layer.bias is not None else power
    largest = np.abs(weights).max(axis=(1, 2), keepdims=True)
    energy = power.sum(axis=(1, 2)) * weights.shape[2]
    costs = [
        (np.maximum(np.abs(weights) - share * largest, 0) ** 2 * lost).sum(axis=(1, 2))
        + (error * share * largest[:, 0, 0]) ** 2 * energy
        for share in _SHARES
    ]
    # The last share is 1, and of equal costs the last is taken: no clip without a gain.
    best = len(_SHARES) - 1 - np.argmin(costs[::-1], axis=0)
    limits = _SHARES[best][:, None, None] * largest
    clipped = np.clip(weights, -limits, limits)
    constants.write_value(layer.weight, layer.restore(clipped, values.shape))
    if layer.bias is not None:
        shift = ((weights - clipped) * mean).sum(axis=(1, 2))
        constants.write_value(layer.bias, constants.read_value(layer.bias) + shift)
    return int((best < len(_SHARES) - 1).sum())
