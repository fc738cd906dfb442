"""SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360; 1.1 from the authors' repository, as in torchvision)."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

# Squeeze channels of fire2 to fire9; each expand has four times as many. A pool precedes fire2, fire4 and fire6.
_FIRES = {2: 16, 3: 16, 4: 32, 5: 32, 6: 48, 7: 48, 8: 64, 9: 64}
_POOLED = (2, 4, 6)


def squeezenet(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 64 at S/2 -> fire modules to 512 at S/16 -> 1x1 convolution to classes -> mean -> softmax."""
    x = b.input(1, 3, image_size, image_size)
    x = b.conv(x, "conv1", scale_channels(64, width), 3, stride=2, bias=True)
    x = b.relu(x, "relu_conv1")
    for number, squeeze in _FIRES.items():
        if number in _POOLED:
            x = b.max_pool(x, f"pool{number - 1}", 3, 2, ceil=True)
        x = _fire(b, x, f"fire{number}", scale_channels(squeeze, width), scale_channels(4 * squeeze, width))
    x = b.dropout(x, "drop9", 0.5)
    x = b.conv(x, "conv10", classes, 1, bias=True, logits=2)
    x = b.relu(x, "relu_conv10")
    x = b.op("GlobalAveragePool", "pool10", [x])
    x = b.op("Flatten", "flatten", [x], axis=1)
    return b.op("Softmax", "softmax", [x], axis=1)


def _fire(b: ModelBuilder, x: Tensor, name: str, squeeze: int, expand: int) -> Tensor:
    """N x C x H x W -> squeeze 1x1 -> expand 1x1 in parallel with expand 3x3 -> N x 2 expand x H x W."""
    x = b.conv(x, f"{name}.squeeze", squeeze, 1, bias=True)
    x = b.relu(x, f"{name}.squeeze_relu")
    sides: list[Tensor] = []
    for kernel in (1, 3):
        side = f"{name}.expand{kernel}x{kernel}"
        y = b.conv(x, side, expand, kernel, pad=kernel // 2, bias=True)
        sides.append(b.relu(y, f"{side}_relu"))
    return b.op("Concat", f"{name}.concat", sides, axis=1)
