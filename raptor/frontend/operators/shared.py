"""Facts about shapes that several importers need."""

import math

from raptor.graph.ir import Tensor


def outer_size(shape: tuple[int, ...], axis: int) -> int:
    """Returns the number of positions before an axis."""
    return math.prod(shape[:axis])


def is_channel_axis(tensor: Tensor, axis: int) -> bool:
    """Tells whether walking along `axis` of the shape walks along the channels of one pixel."""
    image = tensor.image
    same_start = outer_size(tensor.shape, axis) == outer_size(image.shape, image.channel_axis)
    return same_start and tensor.shape[axis] == image.channels
