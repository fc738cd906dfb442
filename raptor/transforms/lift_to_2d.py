"""Lifts signals and volumes to images, and batches to a dimension, so that convolutions stream line by line.

A signal [N, C, T] has the pixels of images of one line, [N, C, 1, T], and a volume [N, C, D, H, W] has the pixels of
images [N, C, D * H, W]: nothing moves. Their columns go to several cores, as the columns of an image do. Windows over
volumes keep their three dimensions, and windows over a batch get the batch as a dimension: all dimensions but the last
say which lines they read (`raptor.mapping.modes.window_axis`). Tables of pixels stay as they are. Only signals and
volumes that are connected to a layer or a product are lifted."""

import math
from collections.abc import Container
from dataclasses import replace

import numpy as np

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import (
    ChannelSum,
    Concat,
    Constant,
    Dot,
    Elementwise,
    Filter,
    Graph,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Softmax,
    Stencil,
)
from raptor.graph.layers import is_pointwise
from raptor.graph.streaming_layout import can_stream
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image

_Weighing = Filter | Pool | Stencil


def lift_to_2d(graph: Graph) -> Graph:
    """Returns the graph with its signals and volumes as images, and with windows that say which lines they read."""
    graph = _unfold_images(graph)
    lifted = _lifted(graph)
    tensors = {n: replace(t, image=_lines(t.image)) if n in lifted else t for n, t in graph.tensors.items()}
    nodes = tuple(_over_lines(graph, node, lifted) for node in graph.nodes)
    return graph if nodes == graph.nodes and not lifted else replace(graph, tensors=tensors, nodes=nodes)


def _unfold_images(graph: Graph) -> Graph:
    """Gives signals the image from and to which they are reshaped, if it is the only image that their nodes need.

    Exporters write norms on [N, C, H * W]: without this, lines would be joined before a norm and split again after it.
    """
    signals = {name for name in graph.tensors if _is_signal(graph, name)}
    alike = DisjointSets()
    for node in graph.nodes:
        if isinstance(node.operator, Map) and node.output in signals:
            for name in signals.intersection(node.inputs):
                alike.union(node.output, name)
    known: dict[str, set[Image]] = {}
    for node in graph.nodes:
        names = {*node.inputs, node.output}
        for name in names & signals:
            others = known.setdefault(alike.find(name), set())
            if isinstance(node.operator, Rename):
                others.update(graph.tensors[n].image for n in names - signals)
            elif not isinstance(node.operator, Map) or not _repeats(node.operator):
                others.add(graph.tensors[name].image)
    images = {key: next(iter(found)) for key, found in known.items() if len(found) == 1}
    unfolded = {
        name: replace(graph.tensors[name], image=image)
        for name in signals
        if (image := images.get(alike.find(name))) is not None
        and _dims(image) == 2
        and _folded(image) == graph.tensors[name].image
    }
    # In the order of the tensors before.
    return replace(graph, tensors={**graph.tensors, **unfolded}) if unfolded else graph


def _is_signal(graph: Graph, name: str) -> bool:
    return _can_be_lines(graph, name) and _dims(graph.tensors[name].image) == 1


def _folded(image: Image) -> Image:
    """Returns the signal [N, C, H * W] of an image [N, C, H, W]."""
    axis = image.channel_axis
    return Image((*image.shape[: axis + 1], math.prod(image.shape[axis + 1 :])), axis)


def _repeats(operator: Map) -> bool:
    """Checks whether the constants are the same for all pixels."""
    constants = (o.pixels.shape[:2] for o in operator.operands if isinstance(o, Constant))
    return all(shape == (1, 1) for shape in constants)


def _lifted(graph: Graph) -> set[str]:
    """Returns the signals and volumes that are connected to a convolution or a product, by operators on lines.

    A moved operand of a product of two computed tensors is no such signal: it is read as a view, whatever its image is.
    """
    found = _multiplied(graph)
    joined = [{name} for name in found]
    for node in graph.nodes:
        if not _takes_lines(graph, node):
            continue
        names = {n for n in (*node.inputs, node.output) if _can_be_lines(graph, n)}
        met = [names, *(group for group in joined if group & names)]
        joined = [*(group for group in joined if not group & names), set[str]().union(*met)]
        if isinstance(node.operator, Filter | Stencil) and isinstance(node.operator.window, Window):
            found.add(node.output)
    found.update(_beside_images(graph))
    joined += [{name} for name in found]
    return set[str]().union(*(group for group in joined if group & found))


def _beside_images(graph: Graph) -> set[str]:
    """Returns the signals and volumes that moves, pools or renames make of images, or images of them.

    Operands of products of two computed tensors are none: they are read as views.
    """
    found, multiplied = set[str](), {n for node in graph.nodes if isinstance(node.operator, Dot) for n in node.inputs}
    for node in graph.nodes:
        names = {*node.inputs, node.output} if isinstance(node.operator, Move | Pool | Rename) else set[str]()
        lines = {name for name in names if _can_be_lines(graph, name)}
        if names - lines and all(can_stream(graph.tensors[name].image) for name in names - lines):
            found |= lines - multiplied
    return found


def _multiplied(graph: Graph) -> set[str]:
    """Returns the signals that a product of two computed tensors reads, and that no move computes."""
    moved = {node.output for node in graph.nodes if isinstance(node.operator, Move)}
    operands = {n for node in graph.nodes if isinstance(node.operator, Dot) for n in node.inputs}
    return {name for name in operands - moved if _is_signal(graph, name)}


def _can_be_lines(graph: Graph, name: str) -> bool:
    """Checks whether a tensor is a signal [C, T], a volume [C, D, H, W] or a batch of these, and can stream.

    A signal [1, 1, C, T] is one, too: keys of a single head.
    """
    image = graph.tensors[name].image
    one_batch = image.channel_axis <= 1 or math.prod(image.shape[: image.channel_axis]) == 1
    return one_batch and _dims(image) in (1, 3) and can_stream(_lines(image))


def _takes_lines(graph: Graph, node: Node) -> bool:
    """Checks whether a node computes a signal from signals or a volume from volumes, with a window of as many axes."""
    if not _can_be_lines(graph, node.output):
        return False
    operator = node.operator
    if isinstance(operator, Concat | Elementwise | Softmax | ChannelSum):
        return True
    if isinstance(operator, Move):
        return _takes_channels(graph, node, operator)
    if not isinstance(operator, _Weighing | Rename) or not _can_be_lines(graph, node.inputs[0]):
        return False
    before, after = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    if isinstance(operator, Rename):
        return _lines(before).shape[-3:] == _lines(after).shape[-3:]
    window = operator.window
    return _dims(before) == (len(window.kernel) if isinstance(window, Window) else _dims(after))


def _takes_channels(graph: Graph, node: Node, move: Move) -> bool:
    """Checks whether a move makes each pixel of a signal or volume of channels of the same pixel of one tensor."""
    if len(node.inputs) != 1 or not _can_be_lines(graph, node.inputs[0]):
        return False
    given, made = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    same = _dims(given) == _dims(made) and given.pixel_dims == made.pixel_dims and (move.sources >= 0).all()
    return bool(same and (move.sources // given.channels == np.arange(made.pixels)[:, None]).all())


def _dims(image: Image) -> int:
    """Returns the number of axes after the channels."""
    return len(image.shape) - image.channel_axis - 1


def _lines(image: Image) -> Image:
    """Returns the two-dimensional images that have the pixels of a signal or a volume."""
    axis = min(image.channel_axis, 1)
    before, after = image.shape[image.channel_axis - axis :][: axis + 1], image.shape[image.channel_axis + 1 :]
    return Image((*before, math.prod(after[:-1]), after[-1]), axis)


def _over_lines(graph: Graph, node: Node, lifted: Container[str]) -> Node:
    """Returns the node with the batch as a dimension of its window, if it streams as images and needs that."""
    operator = node.operator
    if not isinstance(operator, _Weighing) or not isinstance(operator.window, Window):
        return node
    w, (name,) = operator.window, node.inputs
    image, made = graph.tensors[name].image, graph.tensors[node.output].image
    lines = [(w.batch, *w.in_dims), (w.batch, *w.out_dims)] == [(i.rows, i.width) for i in (image, made)]
    streamed = name in lifted or (can_stream(image) and (len(w.kernel) == _dims(image) or lines))
    same_pixels = image.has_lines_of(made) and image.pixels == w.in_pixels
    if (streamed or (can_stream(image) and can_stream(made))) and is_pointwise(w) and same_pixels:
        window = Window.pointwise((image.rows, image.width))  # whatever dimensions the pixels had before
        return node if window == w else replace(node, operator=replace(operator, window=window))
    if not streamed or (len(w.kernel) > 1 and w.batch == 1):
        return node
    window = replace(
        w,
        in_dims=(w.batch, *w.in_dims),
        out_dims=(w.batch, *w.out_dims),
        kernel=(1, *w.kernel),
        strides=(1, *w.strides),
        pads=(0, *w.pads),
        dilations=(1, *w.dilations),
        batch=1,
    )
    return replace(node, operator=replace(operator, window=window))
