"""ShuffleNet v2 1.0x (Ma et al., arXiv:1807.11164), in torchvision's form."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

_STAGES = ((116, 4), (232, 8), (464, 4))
"""(channels, units) of each stage."""


def shufflenet_v2(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 24 at S/4 -> shuffled units to 464 at S/32 -> 1024 -> mean -> 1 x classes."""
    x = b.input(1, 3, image_size, image_size)
    x = b.relu(_conv(b, x, "conv1", scale_channels(24, width), 3, stride=2), "conv1.relu")
    x = b.max_pool(x, "maxpool", 3, 2, pad=1)
    for stage, (channels, units) in enumerate(_STAGES, start=2):
        for unit in range(units):
            half = scale_channels(channels // 2, width)
            x = _unit(b, x, f"stage{stage}.{unit}", half, stride=2 if unit == 0 else 1)
    x = b.relu(_conv(b, x, "conv5", scale_channels(1024, width), 1), "conv5.relu")
    return b.gemm(b.mean_pool(x, "avgpool"), "fc", classes, logits=1)


def _unit(b: ModelBuilder, x: Tensor, name: str, half: int, stride: int) -> Tensor:
    """Two concatenated and shuffled halves; with stride 1 the first half of the input is passed on unchanged."""
    if stride == 1:
        first = b.slice(x, f"{name}.first", 1, 0, half)
        second = b.slice(x, f"{name}.second", 1, half, 2 * half)
    else:
        first = _depthwise(b, x, f"{name}.branch1.0", stride)
        first = b.relu(_conv(b, first, f"{name}.branch1.1", half, 1), f"{name}.branch1.relu")
        second = x
    second = b.relu(_conv(b, second, f"{name}.branch2.0", half, 1), f"{name}.branch2.relu1")
    second = _depthwise(b, second, f"{name}.branch2.1", stride)
    second = b.relu(_conv(b, second, f"{name}.branch2.2", half, 1), f"{name}.branch2.relu2")
    return _shuffle(b, b.op("Concat", f"{name}.concat", [first, second], axis=1), f"{name}.shuffle")


def _shuffle(b: ModelBuilder, x: Tensor, name: str) -> Tensor:
    """Interleaves the channels of both halves."""
    _, channels, height, width = x.shape
    x = b.reshape(x, f"{name}.split", 0, 2, channels // 2, height, width)
    x = b.op("Transpose", f"{name}.transpose", [x], perm=[0, 2, 1, 3, 4])
    return b.reshape(x, f"{name}.join", 0, channels, height, width)


def _depthwise(b: ModelBuilder, x: Tensor, name: str, stride: int) -> Tensor:
    return _conv(b, x, name, x.shape[1], 3, stride=stride, groups=x.shape[1])


def _conv(
    b: ModelBuilder, x: Tensor, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride=stride, pad=kernel // 2, groups=groups)
    return b.batch_norm(x, f"{name}.bn")
