"""Questions that several importers ask."""

import math

from raptor.frontend.constants import natural_image
from raptor.frontend.graph import Tensor
from raptor.frontend.registry import Refusal
from raptor.layout import Image


def require_natural(tensor: Tensor) -> Tensor:
    """The tensor, unless a Reshape has given it a shape that does not show its channels."""
    if tensor.image != natural_image(tensor.shape):
        raise Refusal(f"'{tensor.name}' was reshaped from {tensor.image.shape} to {tensor.shape}: not supported here")
    return tensor


def outer_size(shape: tuple[int, ...], axis: int) -> int:
    """Number of positions before an axis."""
    return math.prod(shape[:axis])


def is_channel_axis(tensor: Tensor, axis: int) -> bool:
    """Whether walking along `axis` of the shape walks along the channels of one pixel."""
    image = tensor.image
    same_start = outer_size(tensor.shape, axis) == outer_size(image.shape, image.channel_axis)
    return same_start and tensor.shape[axis] == image.channels


def common_image(tensors: list[Tensor], shape: tuple[int, ...]) -> Image:
    """The image of an element-wise result of `shape`: that of all operands, none of which is broadcast."""
    for tensor in tensors:
        if tensor.shape != shape:
            raise Refusal(f"'{tensor.name}' {tensor.shape} would be broadcast to {shape}; only constants may be")
        if tensor.image != tensors[0].image:
            raise Refusal(f"'{tensor.name}' and '{tensors[0].name}' were reshaped from different layouts")
    return tensors[0].image
