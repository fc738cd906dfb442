"""VGG (Simonyan and Zisserman, arXiv:1409.1556), configuration D, with the names of the authors' Caffe model."""

from __future__ import annotations

from models.builder import Builder, Tensor, scaled

_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def vgg16(b: Builder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> five stages of 3x3 convolutions, each halved, S/32 -> 4096 -> 4096 -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    for stage, (depth, channels) in enumerate(_STAGES, start=1):
        for index in range(1, depth + 1):
            x = b.conv(x, f"conv{stage}_{index}", scaled(channels, width), 3, pad=1, bias=True)
            x = b.relu(x, f"relu{stage}_{index}")
        x = b.max_pool(x, f"pool{stage}", 2, 2)
    x = b.op("Flatten", "flatten", [x], axis=1)
    for number in (6, 7):
        x = b.gemm(x, f"fc{number}", scaled(4096, width))
        x = b.relu(x, f"relu{number}")
        x = b.dropout(x, f"drop{number}", 0.5)
    return b.gemm(x, "fc8", classes, logits=1)
