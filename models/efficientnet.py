"""EfficientNet-B0 (Tan and Le, arXiv:1905.11946), in torchvision's form."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

# Expansion, kernel, stride of the first block, channels, blocks.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet_b0(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 32 at S/2 -> MBConv blocks to 320 at S/32 -> 1280 -> mean -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    x = _swish(b, _conv(b, x, "features.0", scale_channels(32, width), 3, stride=2), "features.0")
    for stage, (expansion, kernel, stride, channels, count) in enumerate(_STAGES, start=1):
        for block in range(count):
            name = f"features.{stage}.{block}"
            x = _mbconv(b, x, name, expansion, kernel, stride if block == 0 else 1, scale_channels(channels, width))
    x = _swish(b, _conv(b, x, "features.8", scale_channels(1280, width), 1), "features.8")
    x = b.dropout(b.mean_pool(x, "avgpool"), "dropout", 0.2)
    return b.gemm(x, "classifier", classes, logits=1)


def _mbconv(b: ModelBuilder, x: Tensor, name: str, expansion: int, kernel: int, stride: int, channels: int) -> Tensor:
    """Wide 1x1, depthwise, squeeze and excitation, narrow 1x1; added to the input where the shapes allow."""
    y = x
    if expansion > 1:
        y = _conv(b, y, f"{name}.expand", expansion * x.shape[1], 1)
        y = _swish(b, y, f"{name}.expand")
    y = _conv(b, y, f"{name}.depthwise", y.shape[1], kernel, stride=stride, groups=y.shape[1])
    y = _swish(b, y, f"{name}.depthwise")
    y = _excite(b, y, f"{name}.se", max(1, x.shape[1] // 4))
    y = _conv(b, y, f"{name}.project", channels, 1)
    return b.op("Add", f"{name}.add", [x, y]) if y.shape == x.shape else y


def _excite(b: ModelBuilder, x: Tensor, name: str, squeezed: int) -> Tensor:
    """Scales each channel by a factor between 0 and 1, computed from the means of all channels."""
    y = b.op("GlobalAveragePool", f"{name}.pool", [x])
    y = _swish(b, b.conv(y, f"{name}.fc1", squeezed, 1, bias=True), f"{name}.fc1")
    y = b.op("Sigmoid", f"{name}.gate", [b.conv(y, f"{name}.fc2", x.shape[1], 1, bias=True)])
    return b.op("Mul", f"{name}.mul", [x, y])


def _swish(b: ModelBuilder, x: Tensor, name: str) -> Tensor:
    return b.op("Mul", f"{name}.swish", [x, b.op("Sigmoid", f"{name}.sigmoid", [x])])


def _conv(
    b: ModelBuilder, x: Tensor, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride=stride, pad=kernel // 2, groups=groups)
    return b.batch_norm(x, f"{name}.bn")
