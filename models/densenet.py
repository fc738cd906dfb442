"""DenseNet-121 (Huang et al., arXiv:1608.06993), in torchvision's form and names."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

_DEPTHS = (6, 12, 24, 16)
_GROWTH = 32


def densenet121(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> stem, 64 at S/4 -> dense blocks and transitions to 1024 at S/32 -> mean -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    x = b.conv(x, "conv0", scale_channels(64, width), 7, stride=2, pad=3)
    x = b.max_pool(b.relu(b.batch_norm(x, "norm0"), "relu0"), "pool0", 3, 2, pad=1)
    for block, depth in enumerate(_DEPTHS, start=1):
        for layer in range(1, depth + 1):
            x = _dense_layer(b, x, f"denseblock{block}.denselayer{layer}", scale_channels(_GROWTH, width))
        if block < len(_DEPTHS):
            x = _normed_conv(b, x, f"transition{block}", "", x.shape[1] // 2, 1)
            x = b.op("AveragePool", f"transition{block}.pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = b.relu(b.batch_norm(x, "norm5"), "relu5")
    return b.gemm(b.mean_pool(x, "avgpool"), "classifier", classes, logits=1)


def _dense_layer(b: ModelBuilder, x: Tensor, name: str, growth: int) -> Tensor:
    """N x C x H x W -> N x (C + growth) x H x W: the input, concatenated with the new channels."""
    y = _normed_conv(b, x, name, "1", 4 * growth, 1)
    y = _normed_conv(b, y, name, "2", growth, 3)
    return b.op("Concat", f"{name}.concat", [x, y], axis=1)


def _normed_conv(b: ModelBuilder, x: Tensor, block: str, number: str, channels: int, kernel: int) -> Tensor:
    x = b.relu(b.batch_norm(x, f"{block}.norm{number}"), f"{block}.relu{number}")
    return b.conv(x, f"{block}.conv{number}", channels, kernel, pad=kernel // 2)
