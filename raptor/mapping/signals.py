"""Sees signals of one dimension as images of one line, so that convolutions over them are computed by line.

The pixels of a signal [1, C, T] are those of an image [1, C, 1, T]: nothing moves. Its columns go to several cores, as
those of an image do. Only signals that a convolution with several kernel positions connects are seen so.
"""

from dataclasses import replace

from raptor.graph.ir import Concat, Elementwise, Filter, Graph, Node, Pool, Stencil
from raptor.graph.window import Window
from raptor.mapping.streaming import is_streamed
from raptor.target.layout import Image

_Weighing = Filter | Pool | Stencil


def lift_signals(graph: Graph) -> Graph:
    """Returns the graph with its signals as images of one line; as it is if it has no convolution over signals."""
    lifted = _signals(graph)
    if not lifted:
        return graph
    tensors = {n: replace(t, image=_line(t.image)) if n in lifted else t for n, t in graph.tensors.items()}
    return replace(
        graph, tensors=tensors, nodes=tuple(_over_lines(n) if n.output in lifted else n for n in graph.nodes)
    )


def _signals(graph: Graph) -> set[str]:
    """Returns the signals that are connected to a convolution by operators which take lines."""
    joined: list[set[str]] = []
    found: set[str] = set()
    for node in graph.nodes:
        if not _takes_signals(graph, node):
            continue
        names = {n for n in (*node.inputs, node.output) if _is_signal(graph, n)}
        met = [names, *(group for group in joined if group & names)]
        joined = [*(group for group in joined if not group & names), set[str]().union(*met)]
        if isinstance(node.operator, Filter) and node.operator.window.tap_count > 1:
            found.add(node.output)
    return set[str]().union(*(group for group in joined if group & found))


def _is_signal(graph: Graph, name: str) -> bool:
    """Tells whether a tensor is a signal [1, C, T] of several pixels, and not too long."""
    image = graph.tensors[name].image
    return len(image.shape) == 3 and image.shape[0] == 1 and image.channel_axis == 1 and is_streamed(_line(image))


def _takes_signals(graph: Graph, node: Node) -> bool:
    """Tells whether a node makes a signal of signals, and takes windows of one dimension if it takes windows."""
    if not _is_signal(graph, node.output) or not isinstance(node.operator, _Weighing | Elementwise | Concat):
        return False
    if not isinstance(node.operator, _Weighing):
        return True
    window = node.operator.window
    return isinstance(window, Window) and len(window.kernel) == 1 and _is_signal(graph, node.inputs[0])


def _line(image: Image) -> Image:
    return Image((*image.shape[:2], 1, *image.shape[2:]), 1)


def _over_lines(node: Node) -> Node:
    """Returns the node with a window of two dimensions if it has one of one dimension."""
    operator = node.operator
    if not isinstance(operator, _Weighing) or not isinstance(operator.window, Window):
        return node
    w = operator.window
    if len(w.kernel) > 1:
        return node
    window = replace(
        w,
        in_dims=(1, *w.in_dims),
        out_dims=(1, *w.out_dims),
        kernel=(1, *w.kernel),
        strides=(1, *w.strides),
        pads=(0, *w.pads),
        dilations=(1, *w.dilations),
    )
    return replace(node, operator=replace(operator, window=window))
