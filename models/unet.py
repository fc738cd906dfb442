"""U-Net (Ronneberger et al., arXiv:1505.04597), in milesial's form: padded, with BatchNorm, transposed convolutions."""

from __future__ import annotations

from models.model_builder import ModelBuilder, Tensor, scale_channels

_CHANNELS = (64, 128, 256, 512, 1024)


def unet(b: ModelBuilder, *, image_size: int, classes: int, width: float) -> Tensor:
    """1x3xSxS -> 64 at S -> down to 1024 at S/16 -> up, concatenated with the encoder's maps -> 1 x classes x S x S."""
    if image_size % 16:
        raise ValueError(f"option image_size is {image_size}, must be a multiple of 16")
    x = _double(b, b.input(1, 3, image_size, image_size), "inc", scale_channels(_CHANNELS[0], width))
    skipped: list[Tensor] = []
    for number, channels in enumerate(_CHANNELS[1:], start=1):
        skipped.append(x)
        x = b.max_pool(x, f"down{number}.pool", 2, 2)
        x = _double(b, x, f"down{number}", scale_channels(channels, width))
    for number, skip in enumerate(reversed(skipped), start=1):
        x = b.conv_transpose(x, f"up{number}.up", skip.shape[1], 2)
        x = b.op("Concat", f"up{number}.concat", [skip, x], axis=1)
        x = _double(b, x, f"up{number}", skip.shape[1])
    return b.conv(x, "outc", classes, 1, bias=True, logits=1)


def _double(b: ModelBuilder, x: Tensor, name: str, channels: int) -> Tensor:
    for number in (1, 2):
        x = b.conv(x, f"{name}.conv{number}", channels, 3, pad=1)
        x = b.relu(b.batch_norm(x, f"{name}.bn{number}"), f"{name}.relu{number}")
    return x
