"""Tiny YOLO v4 (Bochkovskiy et al., arXiv:2004.10934; the authors' yolov4-tiny.cfg), up to its two heads."""

from __future__ import annotations

from models.model_builder import ABSENT, ModelBuilder, Tensor, scale_channels


def tiny_yolo_v4(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> list[Tensor]:
    """1x3xSxS -> backbone, 512 at S/32 -> boxes 1 x 3(5 + classes) at S/32, and at S/16 after merging both scales."""
    if image_size % 32:
        raise ValueError(f"option image_size is {image_size}, must be a multiple of 32")
    x = b.input(1, 3, image_size, image_size)
    x = _conv(b, x, "conv1", scale_channels(32, width), 3, stride=2)
    x = _conv(b, x, "conv2", scale_channels(64, width), 3, stride=2)
    fine = x
    for number, channels in enumerate((64, 128, 256), start=1):
        x, fine = _stage(b, x, f"csp{number}", scale_channels(channels, width))
    x = _conv(b, x, "conv3", scale_channels(512, width), 3)
    x = _conv(b, x, "neck", scale_channels(256, width), 1)
    boxes = 3 * (5 + classes)
    coarse_head = b.conv(
        _conv(b, x, "head1.conv", scale_channels(512, width), 3), "head1", boxes, 1, bias=True, logits=1
    )
    x = _conv(b, x, "up.conv", scale_channels(128, width), 1)
    scales = b.constant("up.scales", [1.0, 1.0, 2.0, 2.0])
    sampling = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = b.op("Resize", "up.resize", [x, ABSENT, scales], **sampling)
    x = b.op("Concat", "up.concat", [x, fine], axis=1)
    fine_head = b.conv(_conv(b, x, "head2.conv", scale_channels(256, width), 3), "head2", boxes, 1, bias=True, logits=1)
    return [coarse_head, fine_head]


def _stage(b: ModelBuilder, x: Tensor, name: str, channels: int) -> tuple[Tensor, Tensor]:
    """N x C x H x W -> N x 2 channels x H/2 x W/2, and the feature map that the fine head reads.

    Cross-stage partial: only the second half of the channels passes through the two inner convolutions.
    """
    x = _conv(b, x, f"{name}.conv1", channels, 3)
    half = b.slice(x, f"{name}.route", 1, channels // 2, channels)
    first = _conv(b, half, f"{name}.conv2", channels // 2, 3)
    second = _conv(b, first, f"{name}.conv3", channels // 2, 3)
    y = b.op("Concat", f"{name}.concat1", [second, first], axis=1)
    y = _conv(b, y, f"{name}.conv4", channels, 1)
    both = b.op("Concat", f"{name}.concat2", [x, y], axis=1)
    return b.max_pool(both, f"{name}.pool", 2, 2), y


def _conv(b: ModelBuilder, x: Tensor, name: str, channels: int, kernel: int, *, stride: int = 1) -> Tensor:
    x = b.conv(x, f"{name}.conv", channels, kernel, stride=stride, pad=kernel // 2)
    return b.op("LeakyRelu", f"{name}.leaky", [b.batch_norm(x, f"{name}.bn")], alpha=0.1)
