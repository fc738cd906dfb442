"""Counts the multiply-accumulates (MACs) of a node of the Graph."""

from raptor.graph.ir import (
    Dot,
    Filter,
    Graph,
    Node,
    Stencil,
)
from raptor.graph.window import Window, WindowTable


def count_macs(node: Node, graph: Graph) -> int:
    """Returns the multiply-accumulates of a node per sample, products with padding included, as published counts do."""
    match node.operator:
        case Filter(weights, window):
            return _positions(window) * weights.size
        case Dot(batch, rows, cols):
            return batch * rows * cols * graph.tensors[node.inputs[0]].image.channels
        case Stencil(_, window):
            channels = graph.tensors[node.output].image.channels
            taps = window.tap_count
            return _positions(window) * taps * channels
        case _:
            return 0


def _positions(window: Window | WindowTable) -> int:
    """Returns the uses of each weight per sample: output pixels, or input pixels if the window is transposed."""
    if isinstance(window, Window) and window.transposed:
        return window.in_pixels
    return window.out_pixels
