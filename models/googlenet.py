"""GoogLeNet (Szegedy et al., arXiv:1409.4842), in torchvision's form and names.

It has BatchNorm after each convolution, no LRN, 3x3 where the paper's third branch has 5x5, and no auxiliary heads.
"""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

# Channels of each inception module: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection.
_STAGES = (
    {"inception3a": (64, 96, 128, 16, 32, 32), "inception3b": (128, 128, 192, 32, 96, 64)},
    {
        "inception4a": (192, 96, 208, 16, 48, 64),
        "inception4b": (160, 112, 224, 24, 64, 64),
        "inception4c": (128, 128, 256, 24, 64, 64),
        "inception4d": (112, 144, 288, 32, 64, 64),
        "inception4e": (256, 160, 320, 32, 128, 128),
    },
    {"inception5a": (256, 160, 320, 32, 128, 128), "inception5b": (384, 192, 384, 48, 128, 128)},
)


def googlenet(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> stem, 192 at S/8 -> inceptions 3, 4, 5 to 1024 at S/32 -> mean -> 1 x classes -> softmax."""
    x = b.input(1, 3, image_size, image_size)
    x = _conv(b, x, "conv1", scale_channels(64, width), 7, stride=2)
    x = b.max_pool(x, "maxpool1", 3, 2, ceil=True)
    x = _conv(b, x, "conv2", scale_channels(64, width), 1)
    x = _conv(b, x, "conv3", scale_channels(192, width), 3)
    for stage, modules in enumerate(_STAGES, start=2):
        x = b.max_pool(x, f"maxpool{stage}", 2 if stage == 4 else 3, 2, ceil=True)
        for name, channels in modules.items():
            x = _inception(b, x, name, [scale_channels(c, width) for c in channels])
    x = b.op("GlobalAveragePool", "avgpool", [x])
    x = b.op("Flatten", "flatten", [x], axis=1)
    x = b.dropout(x, "dropout", 0.2)
    x = b.gemm(x, "fc", classes, logits=1)
    return b.op("Softmax", "softmax", [x], axis=1)


def _inception(b: ModelBuilder, x: Tensor, name: str, channels: list[int]) -> Tensor:
    """N x C x H x W -> four parallel branches -> N x sum of their channels x H x W."""
    c1, c3_reduce, c3, c5_reduce, c5, c_pool = channels
    branch1 = _conv(b, x, f"{name}.branch1", c1, 1)
    branch2 = _conv(b, x, f"{name}.branch2.0", c3_reduce, 1)
    branch2 = _conv(b, branch2, f"{name}.branch2.1", c3, 3)
    branch3 = _conv(b, x, f"{name}.branch3.0", c5_reduce, 1)
    branch3 = _conv(b, branch3, f"{name}.branch3.1", c5, 3)
    branch4 = b.max_pool(x, f"{name}.branch4.0", 3, 1, pad=1, ceil=True)
    branch4 = _conv(b, branch4, f"{name}.branch4.1", c_pool, 1)
    return b.op("Concat", f"{name}.concat", [branch1, branch2, branch3, branch4], axis=1)


def _conv(b: ModelBuilder, x: Tensor, name: str, channels: int, kernel: int, stride: int = 1) -> Tensor:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride=stride, pad=kernel // 2)
    return b.relu(b.batch_norm(x, f"{name}.bn", epsilon=1e-3), f"{name}.relu")
