"""Models of sequences: a WaveNet cell and an LSTM, of the sizes that Siemieniuk et al. (OCC) evaluate."""

from __future__ import annotations

import math

from models.model_builder import ModelBuilder, Tensor


def wavenet_cell(b: ModelBuilder, *, samples: int, dilation: int, channels: int, skip: int) -> list[Tensor]:
    """1 x channels x samples -> the next cell's input, of the same shape, and 1 x skip x samples (arXiv:1609.03499).

    Two causal, dilated convolutions of two taps are multiplied; 1x1 convolutions of the product make both outputs.
    """
    x = b.input(1, channels, samples)
    past = (dilation, 0)
    y = b.op("Tanh", "filter", [b.conv(x, "filter.conv", channels, 2, pad=past, dilation=dilation, bias=True)])
    gate = b.op("Sigmoid", "gate", [b.conv(x, "gate.conv", channels, 2, pad=past, dilation=dilation, bias=True)])
    y = b.op("Mul", "gated", [y, gate])
    residual = b.conv(y, "residual.conv", channels, 1, bias=True)
    return [b.op("Add", "residual", [residual, x]), b.conv(y, "skip", skip, 1, bias=True)]


def lstm(b: ModelBuilder, *, steps: int, features: int, hidden: int, classes: int) -> Tensor:
    """1 x steps x features -> LSTM, its last state -> 1 x classes."""
    x = b.op("Transpose", "steps_first", [b.input(1, steps, features)], perm=[1, 0, 2])
    std = math.sqrt(1 / hidden)
    weights = [
        b.parameter("lstm.weight_ih", (1, 4 * hidden, features), std=std),
        b.parameter("lstm.weight_hh", (1, 4 * hidden, hidden), std=std),
        b.parameter("lstm.bias", (1, 8 * hidden), std=std),
    ]
    x = b.op("LSTM", "lstm", [x, *weights], hidden_size=hidden)
    x = b.slice(x, "last", 0, steps - 1, steps)
    x = b.op("Squeeze", "squeeze", [x, b.constant("squeeze.axes", [0, 1])])
    return b.gemm(x, "fc", classes, logits=1)
