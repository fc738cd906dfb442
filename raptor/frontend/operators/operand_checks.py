"""Facts about shapes and biases that several importers need."""

import math

from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.graph.ir import Tensor


def outer_size(shape: tuple[int, ...], axis: int) -> int:
    """Returns the product of the dimensions before `axis`."""
    return math.prod(shape[:axis])


def is_channel_axis(tensor: Tensor, axis: int) -> bool:
    """Checks whether `axis` of the ONNX shape is the channel axis of the image."""
    image = tensor.image
    same_start = outer_size(tensor.shape, axis) == outer_size(image.shape, image.channel_axis)
    return same_start and tensor.shape[axis] == image.channels


def require_bias(node: NodeView, bias: tuple[int, ...], result: tuple[int, ...]) -> None:
    """Raises `ImportRefusal` unless a bias has one number per channel; the bias of a Gemm may be broadcast."""
    if node.op_type != "Gemm":
        if bias != result[1:2]:
            raise ImportRefusal(f"its bias has the shape {bias}, must be ({result[1]},)")
    elif len(bias) > len(result) or any(b not in (1, n) for b, n in zip(bias[::-1], result[::-1], strict=False)):
        raise ImportRefusal(f"its bias has the shape {bias}, which cannot be broadcast to {result}")
