"""Small classifiers of 28x28 grey images."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels


def mlp(b: ModelBuilder, *, classes: int, width: float) -> Tensor:
    """1x784 -> 256 -> 128 -> 1 x classes, all fully connected."""
    x = b.input(1, 784)
    for number, features in enumerate((256, 128), start=1):
        x = b.gemm(x, f"fc{number}", scale_channels(features, width))
        x = b.relu(x, f"relu{number}")
    return b.gemm(x, "fc3", classes, logits=1)


def mlp3(b: ModelBuilder, *, features: int) -> Tensor:
    """OCC's fused perceptron: 1 x features through three fully connected layers of that size, each with Relu."""
    x = b.input(1, features)
    for number in (1, 2, 3):
        x = b.relu(b.gemm(x, f"fc{number}", features), f"relu{number}")
    return x


def lenet5(b: ModelBuilder, *, pool: str, classes: int, width: float) -> Tensor:
    """LeNet-5 (LeCun et al. 1998), with Relu for tanh: 1x1x28x28 -> 6x14x14 -> 16x5x5 -> 120 -> 84 -> 1 x classes.

    As in its usual form, the second convolution reads all 6 maps and the output layer is linear.
    """
    x = b.input(1, 1, 28, 28)
    for number, channels, pad in ((1, 6, 2), (2, 16, 0)):
        x = b.conv(x, f"conv{number}", scale_channels(channels, width), 5, pad=pad, bias=True)
        x = b.relu(x, f"relu{number}")
        x = _pool(b, x, f"pool{number}", pool)
    x = b.op("Flatten", "flatten", [x], axis=1)
    for number, features in ((1, 120), (2, 84)):
        x = b.gemm(x, f"fc{number}", scale_channels(features, width))
        x = b.relu(x, f"relu{number + 2}")
    return b.gemm(x, "fc3", classes, logits=1)


def _pool(b: ModelBuilder, x: Tensor, name: str, kind: str) -> Tensor:
    if kind == "max":
        return b.max_pool(x, name, 2, 2)
    return b.op("AveragePool", name, [x], kernel_shape=[2, 2], strides=[2, 2])
