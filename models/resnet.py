"""ResNet (He et al., arXiv:1512.03385), in torchvision's form and names: v1.5, the stride is in the 3x3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from models.model_builder import ModelBuilder, Tensor, scale_channels

Block = Callable[[ModelBuilder, Tensor, str, int, int], Tensor]


def add_basic_block(b: ModelBuilder, x: Tensor, name: str, planes: int, stride: int) -> Tensor:
    """3x3 3x3: N x C x H x W -> N x planes x H/stride x W/stride."""
    y = _conv_bn(b, x, name, "1", planes, 3, stride)
    y = b.relu(y, f"{name}.relu1")
    y = _conv_bn(b, y, name, "2", planes, 3)
    return _join(b, x, y, name, stride)


def _bottleneck(b: ModelBuilder, x: Tensor, name: str, planes: int, stride: int) -> Tensor:
    """1x1 3x3 1x1: N x C x H x W -> N x 4 planes x H/stride x W/stride."""
    y = _conv_bn(b, x, name, "1", planes, 1)
    y = b.relu(y, f"{name}.relu1")
    y = _conv_bn(b, y, name, "2", planes, 3, stride)
    y = b.relu(y, f"{name}.relu2")
    y = _conv_bn(b, y, name, "3", 4 * planes, 1)
    return _join(b, x, y, name, stride)


def _conv_bn(
    b: ModelBuilder, x: Tensor, block: str, number: str, channels: int, kernel: int, stride: int = 1
) -> Tensor:
    x = b.conv(x, f"{block}.conv{number}", channels, kernel, stride=stride, pad=kernel // 2)
    return b.batch_norm(x, f"{block}.bn{number}")


def _join(b: ModelBuilder, x: Tensor, y: Tensor, name: str, stride: int) -> Tensor:
    """Adds the shortcut, through a 1x1 convolution where the block changes the shape, and applies Relu."""
    if x.shape[1] != y.shape[1] or stride > 1:
        x = b.conv(x, f"{name}.downsample.0", y.shape[1], 1, stride=stride)
        x = b.batch_norm(x, f"{name}.downsample.1")
    return b.relu(b.op("Add", f"{name}.add", [y, x]), f"{name}.relu")


def _resnet(
    b: ModelBuilder,
    *,
    block: Block,
    depths: tuple[int, int, int, int],
    head: str,
    image_size: int,
    classes: int,
    width: float,
) -> Tensor:
    """1x3xSxS -> stem, S/4 -> four stages of 64, 128, 256, 512 planes, S/32 -> mean -> 1 x classes."""
    planes = scale_channels(64, width)
    x = b.input(1, 3, image_size, image_size)
    x = b.conv(x, "conv1", planes, 7, stride=2, pad=3)
    x = b.relu(b.batch_norm(x, "bn1"), "relu")
    x = b.max_pool(x, "maxpool", 3, 2, pad=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(b, x, f"layer{stage + 1}.{index}", planes << stage, stride)
    if head == "reduce_mean":
        x = b.op("ReduceMean", "avgpool", [x], axes=[2, 3], keepdims=1)
    else:
        x = b.op("GlobalAveragePool", "avgpool", [x])
    x = b.op("Flatten", "flatten", [x], axis=1)
    return b.gemm(x, "fc", classes, logits=1)


resnet18 = partial(_resnet, block=add_basic_block, depths=(2, 2, 2, 2))
resnet34 = partial(_resnet, block=add_basic_block, depths=(3, 4, 6, 3))
resnet50 = partial(_resnet, block=_bottleneck, depths=(3, 4, 6, 3))
