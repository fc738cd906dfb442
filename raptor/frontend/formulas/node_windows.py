"""Windows of convolutions and pools, from the attributes of the ONNX node."""

from collections.abc import Iterable
from dataclasses import dataclass

from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image


@dataclass(frozen=True, slots=True)
class PaddedWindow:
    """A window, and the padding after the last pixel of each dimension, which `Window` does not need."""

    window: Window
    end_pads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial dimension; `span`: extent of the dilated kernel."""

    size: int
    span: int
    stride: int


def spatial_dims(image: Image) -> tuple[int, ...]:
    """Returns the spatial dimensions of a natural image (N, C, spatial...)."""
    return image.shape[2:]


def read_window(node: NodeView, image: Image, kernel: tuple[int, ...]) -> PaddedWindow:
    """Returns the window of a Conv or pool over an image (N, C, spatial...).

    Raises `ImportRefusal` without spatial dimensions.
    """
    dims = spatial_dims(image)
    rank = len(dims)
    if rank == 0:
        raise ImportRefusal("its input has no spatial dimensions")
    strides = node.ints("strides", (1,) * rank)
    dilations = node.ints("dilations", (1,) * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = [_Axis(*a) for a in zip(dims, spans, strides, strict=True)]
    begins, ends = _pads(node, axes)
    padded = [a.size + b + e for a, b, e in zip(axes, begins, ends, strict=True)]
    outs = tuple(_out_size(node, *a) for a in zip(axes, padded, begins, strict=True))
    return PaddedWindow(Window(dims, outs, kernel, strides, begins, dilations, image.shape[0]), ends)


def _pads(node: NodeView, axes: list[_Axis]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mode = node.string("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = node.ints("pads", (0,) * 2 * len(axes))
        return pads[: len(axes)], pads[len(axes) :]
    if mode == "VALID":
        return (0,) * len(axes), (0,) * len(axes)
    totals = [max((-(-a.size // a.stride) - 1) * a.stride + a.span - a.size, 0) for a in axes]
    smaller, larger = _tuple(t // 2 for t in totals), _tuple(t - t // 2 for t in totals)
    return (smaller, larger) if mode == "SAME_UPPER" else (larger, smaller)


def _out_size(node: NodeView, axis: _Axis, padded: int, begin: int) -> int:
    steps = padded - axis.span
    if not node.integer("ceil_mode", 0):
        return steps // axis.stride + 1
    size = -(-steps // axis.stride) + 1
    # ONNX: a window may not start in the padding after the image.
    return size - 1 if (size - 1) * axis.stride >= axis.size + begin else size


def _tuple(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)
