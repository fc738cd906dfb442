"""Networks of MLPerf Tiny (Banbury et al., arXiv:2106.07597): key words, small images, machines that sound wrong."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

_BINS, _FRAMES = 10, 49


def ds_cnn(b: ModelBuilder, *, classes: int, width: float) -> Tensor:
    """DS-CNN for key words: 1x1x49x10 spectrum -> 64 at 25x5 -> four separable convolutions -> mean -> 1 x classes."""
    channels = scale_channels(64, width)
    x = b.input(1, 1, _FRAMES, _BINS)
    x = _conv(b, x, "stem", channels, (10, 4), pad=(4, 1, 5, 1), stride=2)
    for number in range(1, 5):
        x = _conv(b, x, f"block{number}.depthwise", channels, (3, 3), pad=(1, 1), groups=channels)
        x = _conv(b, x, f"block{number}.pointwise", channels, (1, 1))
    x = b.dropout(b.mean_pool(x, "avgpool"), "dropout", 0.4)
    return b.gemm(x, "classifier", classes, logits=1)


def resnet8(b: ModelBuilder, *, classes: int, width: float) -> Tensor:
    """ResNet for images of 32x32: 16 channels -> blocks of 16, 32 at 16x16, 64 at 8x8 -> mean -> 1 x classes."""
    x = b.input(1, 3, 32, 32)
    x = _conv(b, x, "stem", scale_channels(16, width), (3, 3), pad=(1, 1))
    for number, channels in enumerate((16, 32, 64), start=1):
        x = _add_block(b, x, f"block{number}", scale_channels(channels, width), stride=1 if number == 1 else 2)
    return b.gemm(b.mean_pool(x, "avgpool"), "fc", classes, logits=1)


def _add_block(b: ModelBuilder, x: Tensor, name: str, channels: int, *, stride: int) -> Tensor:
    """3x3 3x3, added to the input, which passes a 1x1 convolution where the stride is above 1."""
    y = _conv(b, x, f"{name}.first", channels, (3, 3), pad=(1, 1), stride=stride)
    y = b.conv(y, f"{name}.second.conv", channels, 3, pad=1, bias=True)
    y = b.batch_norm(y, f"{name}.second.bn")
    if stride > 1:
        x = b.conv(x, f"{name}.shortcut", channels, 1, stride=stride, bias=True)
    return b.relu(b.op("Add", f"{name}.add", [x, y]), f"{name}.relu")


def fc_autoencoder(b: ModelBuilder, *, features: int, width: float) -> Tensor:
    """Autoencoder of a sound: 1 x features -> four layers of 128 -> 8 -> four layers of 128 -> 1 x features."""
    x = b.input(1, features)
    hidden = scale_channels(128, width)
    for number, size in enumerate((*[hidden] * 4, 8, *[hidden] * 4), start=1):
        x = b.gemm(x, f"fc{number}", size)
        x = b.relu(b.batch_norm(x, f"bn{number}"), f"relu{number}")
    return b.gemm(x, "fc10", features, logits=1)


def _conv(
    b: ModelBuilder,
    x: Tensor,
    name: str,
    channels: int,
    kernel: tuple[int, int],
    *,
    pad: tuple[int, ...] = (0, 0),
    stride: int = 1,
    groups: int = 1,
) -> Tensor:
    """Adds a convolution with a bias (so does the reference), BatchNormalization and Relu."""
    x = b.conv(x, f"{name}.conv", channels, kernel, pad=pad, stride=stride, groups=groups, bias=True)
    return b.relu(b.batch_norm(x, f"{name}.bn"), f"{name}.relu")
