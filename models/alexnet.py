"""AlexNet (Krizhevsky, arXiv:1404.5997), in torchvision's form and names."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

# Channels, kernel, stride, pad; whether a pool follows.
_CONVS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


def alexnet(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> five convolutions, 256 at S/32 - 1 -> 4096 -> 4096 -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    for number, (channels, kernel, stride, pad, pooled) in enumerate(_CONVS, start=1):
        x = b.conv(x, f"conv{number}", scale_channels(channels, width), kernel, stride=stride, pad=pad, bias=True)
        x = b.relu(x, f"relu{number}")
        if pooled:
            x = b.max_pool(x, f"pool{number}", 3, 2)
    x = b.op("Flatten", "flatten", [x], axis=1)
    for number in (6, 7):
        x = b.dropout(x, f"drop{number}", 0.5)
        x = b.relu(b.gemm(x, f"fc{number}", scale_channels(4096, width)), f"relu{number}")
    return b.gemm(x, "fc8", classes, logits=1)
