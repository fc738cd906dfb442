"""MobileNet v2 (Sandler et al., arXiv:1801.04381), in torchvision's form."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

# Expansion, channels, blocks, stride of the first block.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 32 at S/2 -> inverted residuals to 320 at S/32 -> 1280 -> mean -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    x = _conv(b, x, "features.0", scale_channels(32, width), 3, stride=2)
    index = 1
    for expansion, channels, count, stride in _STAGES:
        for block in range(count):
            first = stride if block == 0 else 1
            x = _inverted_residual(b, x, f"features.{index}", expansion, scale_channels(channels, width), first)
            index += 1
    x = _conv(b, x, f"features.{index}", scale_channels(1280, width), 1)
    x = b.dropout(b.mean_pool(x, "avgpool"), "dropout", 0.2)
    return b.gemm(x, "classifier", classes, logits=1)


def _inverted_residual(b: ModelBuilder, x: Tensor, name: str, expansion: int, channels: int, stride: int) -> Tensor:
    """Wide 1x1, depthwise 3x3, narrow 1x1 without activation; added to the input where the shapes allow."""
    y = x
    if expansion > 1:
        y = _conv(b, y, f"{name}.expand", expansion * x.shape[1], 1)
    y = _conv(b, y, f"{name}.depthwise", y.shape[1], 3, stride=stride, groups=y.shape[1])
    y = b.batch_norm(b.conv(y, f"{name}.project", channels, 1), f"{name}.project.bn")
    return b.op("Add", f"{name}.add", [x, y]) if y.shape == x.shape else y


def _conv(
    b: ModelBuilder, x: Tensor, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride=stride, pad=kernel // 2, groups=groups)
    x = b.batch_norm(x, f"{name}.bn")
    limits = [b.constant(f"{name}.relu6.min", 0.0), b.constant(f"{name}.relu6.max", 6.0)]
    return b.op("Clip", f"{name}.relu6", [x, *limits])
