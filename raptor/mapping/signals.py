"""Sees signals and volumes as images, so that convolutions over them are computed by line.

The pixels of a signal [1, C, T] are those of an image of one line, [1, C, 1, T], and the pixels of a volume
[1, C, D, H, W] are those of an image [1, C, D * H, W]: nothing moves. Their columns go to several cores, as those of an
image do. A window over a volume keeps its three dimensions: the first two say which lines it reads
(`raptor.mapping.window_axis`). A table of pixels stays as it is. Only signals and volumes that a convolution with
several kernel positions connects are seen so.
"""

import math
from dataclasses import replace

from raptor.graph.ir import Concat, Elementwise, Filter, Graph, Node, Pool, Rename, Stencil
from raptor.graph.window import Window
from raptor.mapping.streaming import is_streamed
from raptor.target.layout import Image

_Weighing = Filter | Pool | Stencil


def lift_signals(graph: Graph) -> Graph:
    """Returns the graph with its signals and volumes as images; as it is if it has no convolution over them."""
    lifted = _lifted(graph)
    if not lifted:
        return graph
    tensors = {n: replace(t, image=_lines(t.image)) if n in lifted else t for n, t in graph.tensors.items()}
    return replace(
        graph,
        tensors=tensors,
        nodes=tuple(_over_lines(n) if n.inputs and n.inputs[0] in lifted else n for n in graph.nodes),
    )


def _lifted(graph: Graph) -> set[str]:
    """Returns the signals and volumes that are connected to a convolution by operators which take lines."""
    joined: list[set[str]] = []
    found: set[str] = set()
    for node in graph.nodes:
        if not _takes_lines(graph, node):
            continue
        names = {n for n in (*node.inputs, node.output) if _can_be_lines(graph, n)}
        met = [names, *(group for group in joined if group & names)]
        joined = [*(group for group in joined if not group & names), set[str]().union(*met)]
        if isinstance(node.operator, Filter) and node.operator.window.tap_count > 1:
            found.add(node.output)
    return set[str]().union(*(group for group in joined if group & found))


def _can_be_lines(graph: Graph, name: str) -> bool:
    """Tells whether a tensor is a signal [C, T] or a volume [C, D, H, W] of several pixels, and not too large.

    There may be an axis of one image before the channels.
    """
    image = graph.tensors[name].image
    fitting = image.channel_axis <= 1 and image.shape[: image.channel_axis] in ((), (1,)) and _dims(image) in (1, 3)
    return fitting and is_streamed(_lines(image))


def _takes_lines(graph: Graph, node: Node) -> bool:
    """Tells whether a node makes a signal of signals, or a volume of volumes, and its windows have their dimensions."""
    if not _can_be_lines(graph, node.output):
        return False
    operator = node.operator
    if isinstance(operator, Concat | Elementwise):
        return True
    if not isinstance(operator, _Weighing | Rename) or not _can_be_lines(graph, node.inputs[0]):
        return False
    before, after = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    if isinstance(operator, Rename):
        return _lines(before).shape[-3:] == _lines(after).shape[-3:]
    window = operator.window
    return _dims(before) == (len(window.kernel) if isinstance(window, Window) else _dims(after))


def _dims(image: Image) -> int:
    """Returns the number of axes behind the channels."""
    return len(image.shape) - image.channel_axis - 1


def _lines(image: Image) -> Image:
    """Returns the image of two dimensions that has the pixels of a signal or a volume."""
    before, after = image.shape[: image.channel_axis + 1], image.shape[image.channel_axis + 1 :]
    return Image((*before, math.prod(after[:-1]), after[-1]), image.channel_axis)


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
