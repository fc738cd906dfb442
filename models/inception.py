"""Inception v3 (Szegedy et al., arXiv:1512.00567), in torchvision's form and names, without the auxiliary head."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

Kernel = int | tuple[int, int]


def inception_v3(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> stem, 192 at S/8 -> modules A, B, C, D, E to 2048 at S/32 -> mean -> 1 x classes."""
    net = _Net(b, width)
    x = b.input(1, 3, image_size, image_size)
    x = net.conv(x, "Conv2d_1a_3x3", 32, 3, stride=2)
    x = net.conv(x, "Conv2d_2a_3x3", 32, 3)
    x = net.conv(x, "Conv2d_2b_3x3", 64, 3, pad=1)
    x = b.max_pool(x, "maxpool1", 3, 2)
    x = net.conv(x, "Conv2d_3b_1x1", 80, 1)
    x = net.conv(x, "Conv2d_4a_3x3", 192, 3)
    x = b.max_pool(x, "maxpool2", 3, 2)
    for letter, pool_channels in (("b", 32), ("c", 64), ("d", 64)):
        x = net.module_a(x, f"Mixed_5{letter}", pool_channels)
    x = net.module_b(x, "Mixed_6a")
    for letter, channels in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        x = net.module_c(x, f"Mixed_6{letter}", channels)
    x = net.module_d(x, "Mixed_7a")
    for letter in "bc":
        x = net.module_e(x, f"Mixed_7{letter}")
    x = b.dropout(b.mean_pool(x, "avgpool"), "dropout", 0.5)
    return b.gemm(x, "fc", classes, logits=1)


class _Net:
    """Modules of the network; channels are given for width 1."""

    def __init__(self, builder: ModelBuilder, width: float) -> None:
        self._b, self._width = builder, width

    def conv(
        self, x: Tensor, name: str, channels: int, kernel: Kernel, *, stride: int = 1, pad: int | None = 0
    ) -> Tensor:
        """Adds a convolution with BatchNorm and Relu; pad None keeps the size."""
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = [k // 2 for k in sizes] if pad is None else pad
        x = self._b.conv(x, f"{name}.conv", scale_channels(channels, self._width), sizes, stride=stride, pad=pads)
        return self._b.relu(self._b.batch_norm(x, f"{name}.bn", epsilon=1e-3), f"{name}.relu")

    def chain(self, x: Tensor, name: str, *layers: tuple[int, Kernel]) -> Tensor:
        """Adds consecutive convolutions, which keep the size."""
        for number, (channels, kernel) in enumerate(layers, start=1):
            x = self.conv(x, f"{name}_{number}", channels, kernel, pad=None)
        return x

    def module_a(self, x: Tensor, name: str, pool_channels: int) -> Tensor:
        branches = [
            self.chain(x, f"{name}.branch1x1", (64, 1)),
            self.chain(x, f"{name}.branch5x5", (48, 1), (64, 5)),
            self.chain(x, f"{name}.branch3x3dbl", (64, 1), (96, 3), (96, 3)),
            self._pooled(x, name, pool_channels),
        ]
        return self._concat(branches, name)

    def module_b(self, x: Tensor, name: str) -> Tensor:
        double = self.chain(x, f"{name}.branch3x3dbl", (64, 1), (96, 3))
        branches = [
            self.conv(x, f"{name}.branch3x3", 384, 3, stride=2),
            self.conv(double, f"{name}.branch3x3dbl_3", 96, 3, stride=2),
            self._b.max_pool(x, f"{name}.pool", 3, 2),
        ]
        return self._concat(branches, name)

    def module_c(self, x: Tensor, name: str, channels: int) -> Tensor:
        c, row, col = channels, (1, 7), (7, 1)
        branches = [
            self.chain(x, f"{name}.branch1x1", (192, 1)),
            self.chain(x, f"{name}.branch7x7", (c, 1), (c, row), (192, col)),
            self.chain(x, f"{name}.branch7x7dbl", (c, 1), (c, col), (c, row), (c, col), (192, row)),
            self._pooled(x, name, 192),
        ]
        return self._concat(branches, name)

    def module_d(self, x: Tensor, name: str) -> Tensor:
        three = self.chain(x, f"{name}.branch3x3", (192, 1))
        seven = self.chain(x, f"{name}.branch7x7x3", (192, 1), (192, (1, 7)), (192, (7, 1)))
        branches = [
            self.conv(three, f"{name}.branch3x3_2", 320, 3, stride=2),
            self.conv(seven, f"{name}.branch7x7x3_4", 192, 3, stride=2),
            self._b.max_pool(x, f"{name}.pool", 3, 2),
        ]
        return self._concat(branches, name)

    def module_e(self, x: Tensor, name: str) -> Tensor:
        three = self.chain(x, f"{name}.branch3x3", (384, 1))
        double = self.chain(x, f"{name}.branch3x3dbl", (448, 1), (384, 3))
        branches = [
            self.chain(x, f"{name}.branch1x1", (320, 1)),
            self.conv(three, f"{name}.branch3x3_2a", 384, (1, 3), pad=None),
            self.conv(three, f"{name}.branch3x3_2b", 384, (3, 1), pad=None),
            self.conv(double, f"{name}.branch3x3dbl_3a", 384, (1, 3), pad=None),
            self.conv(double, f"{name}.branch3x3dbl_3b", 384, (3, 1), pad=None),
            self._pooled(x, name, 192),
        ]
        return self._concat(branches, name)

    def _pooled(self, x: Tensor, name: str, channels: int) -> Tensor:
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
        x = self._b.op("AveragePool", f"{name}.pool", [x], count_include_pad=1, **window)
        return self.chain(x, f"{name}.branch_pool", (channels, 1))

    def _concat(self, branches: list[Tensor], name: str) -> Tensor:
        return self._b.op("Concat", f"{name}.concat", branches, axis=1)
