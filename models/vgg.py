"""VGG (Simonyan and Zisserman, arXiv:1409.1556), configurations D and E, with the names of their Caffe models."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

_CHANNELS = (64, 128, 256, 512, 512)


def vgg16(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> five stages of 3x3 convolutions, each halved, S/32 -> 4096 -> 4096 -> 1 x classes."""
    return _vgg(b, (2, 2, 3, 3, 3), image_size, classes, width)


def vgg19(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 1 x classes, like `vgg16` with one more convolution in each of the last three stages."""
    return _vgg(b, (2, 2, 4, 4, 4), image_size, classes, width)


def _vgg(b: ModelBuilder, depths: tuple[int, ...], image_size: int, classes: int, width: float) -> Tensor:
    x = b.input(1, 3, image_size, image_size)
    for stage, (depth, channels) in enumerate(zip(depths, _CHANNELS, strict=True), start=1):
        for index in range(1, depth + 1):
            x = b.conv(x, f"conv{stage}_{index}", scale_channels(channels, width), 3, pad=1, bias=True)
            x = b.relu(x, f"relu{stage}_{index}")
        x = b.max_pool(x, f"pool{stage}", 2, 2)
    x = b.op("Flatten", "flatten", [x], axis=1)
    for number in (6, 7):
        x = b.gemm(x, f"fc{number}", scale_channels(4096, width))
        x = b.relu(x, f"relu{number}")
        x = b.dropout(x, f"drop{number}", 0.5)
    return b.gemm(x, "fc8", classes, logits=1)
