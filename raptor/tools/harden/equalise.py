"""Equalisation for noise: scales of channels for which errors of cells add the least to the sums of the layers.

A weight's error is a share of the largest weight of its output channel, whatever its code. So the noise of output j of
a layer is proportional to max_i W_ji^2 * sum_i E[x_i^2]. Scaled by s, inputs are s_i x_i and weights W_ji / s_i.
Relative to the output, only the scales of the inputs matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.tools.harden.channel_scales import ChannelScales, ScaledLayer
from raptor.tools.harden.weight_layers import Floats, LayerConstants

MOST_SCALE = 4.0
"""Largest factor by which a channel is scaled, up or down: activations of a tensor share one range."""
_STEPS, _RATE = 300, 0.03
_POWER = 16
"""The maximum of weights is the norm with this exponent, which has a gradient everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerNoise:
    """Data of a layer for its noise.

    `weights`: largest magnitude [outputs, input channels of a group]. `power`: mean square of each input channel.
    """

    scaled: ScaledLayer
    weights: Floats
    power: Floats

    def measure(self, scales: Floats) -> Floats:
        """Returns the variance of each output's noise, up to a factor that all scales share, without smoothing."""
        inputs = self.scaled.input_scales(scales)
        return (self.weights / inputs).max(axis=1) ** 2 * (inputs**2 * self.power).sum(axis=1)


def describe_noise(
    found: ChannelScales, constants: LayerConstants, powers: Mapping[str, Floats]
) -> Sequence[LayerNoise]:
    """Returns the layers that are on crossbars. `powers`: mean square of the channels of each layer's input tensor."""
    layers: list[LayerNoise] = []
    for scaled in found.layers:
        values = constants.read_value(scaled.layer.weight)
        if not scaled.layer.is_on_crossbars(values):
            continue
        weights = np.abs(scaled.layer.arrange(values)).max(axis=2).astype(np.float64)
        power = powers[scaled.layer.node.input[0]].reshape(scaled.inputs.shape)
        layers.append(LayerNoise(scaled, weights, np.repeat(power, len(weights) // len(power), axis=0)))
    return layers


def choose_scales(layers: Sequence[LayerNoise], count: int) -> Floats:
    """Returns `count` scales, the first of which is 1, that minimise the mean over layers of the relative noise."""
    logs = np.zeros(count)
    first, second = np.zeros(count), np.zeros(count)
    starts = [smooth_noise(layer, logs)[0] for layer in layers]
    for step in range(1, _STEPS + 1):
        gradient = np.zeros(count)
        for layer, start in zip(layers, starts, strict=True):
            _, slope = smooth_noise(layer, logs, start)
            np.add.at(gradient, layer.scaled.inputs, slope)
        gradient[0] = 0.0
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        direction = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-12)
        logs = np.clip(logs - _RATE * direction, -np.log(MOST_SCALE), np.log(MOST_SCALE))
    return np.exp(logs)


def smooth_noise(
    layer: LayerNoise, logs: npt.NDArray[np.float64], start: Floats | None = None
) -> tuple[Floats, Floats]:
    """Returns the noise of each output with a smooth maximum, and the gradient of the mean of noise / `start`.

    The gradient is with respect to the logarithms of the scales, [groups, input channels].
    """
    inputs = np.repeat(logs[layer.scaled.inputs], len(layer.weights) // len(layer.scaled.inputs), axis=0)
    largest = layer.weights.max(axis=1, keepdims=True)
    powered = (layer.weights / np.where(largest, largest, 1.0) * np.exp(-inputs)) ** _POWER
    summed = np.maximum(powered.sum(axis=1), 1e-300)
    energy = np.exp(2 * inputs) * layer.power
    noise = summed ** (2 / _POWER) * energy.sum(axis=1) + 1e-30
    if start is None:
        return noise, np.zeros(0)
    shares = 2 * (energy / np.maximum(energy.sum(axis=1, keepdims=True), 1e-300) - powered / summed[:, None])
    by_weight = (noise / start)[:, None] * shares / len(noise)
    return noise, by_weight.reshape(*layer.scaled.inputs.shape[:1], -1, by_weight.shape[1]).sum(axis=1)
