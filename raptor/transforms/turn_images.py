"""Turns images that are higher than wide: the columns of the model's image are the lines that stream.

Cores share the pixels of a line, so a layer has no more cores by columns than its lines have pixels. Spectrograms often
have many frames as rows, and a few bands as columns. In a turned image the rows are along the line. Inputs and outputs
of the model are turned, too: that is the order in which global memory holds them, so nothing moves.
"""

import math
from collections.abc import Container, Iterator
from dataclasses import replace

from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
    ConstantTensor,
    Filter,
    Graph,
    Lookup,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Softmax,
    Stencil,
)
from raptor.graph.requantise.definition import Requantise
from raptor.graph.window import WindowTable
from raptor.target.tensor_layout import Image
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.turned_operators import find_turnable_sets, turn_tensors

LEAST_HEIGHT = 1.25
"""Least sum of the heights of connected images, relative to that of their widths, for them to be turned."""


def turn_images(graph: Graph, rewrites: RewriteChoice) -> Graph:
    """Returns the graph with high images turned (see `find_high_images`), if that was chosen."""
    if not rewrites.turned:
        return graph
    high = find_high_images(graph)
    if not high:
        return graph
    images = {name: replace(graph.tensors[name].image, turned=True) for name in sorted(high)}
    return turn_tensors(graph, images | dict(_turned_inputs(graph, high)))


def _turned_inputs(graph: Graph, high: Container[str]) -> Iterator[tuple[str, Image]]:
    """Yields new images of the inputs that are rearranged to images `high`, and to nothing else.

    They get the layout by which lines of the turned images are lines of the input.
    """
    readers = graph.readers()
    for name in graph.inputs:
        dims = [size for size in graph.tensors[name].shape if size > 1]
        moves = (isinstance(node.operator, Move | Rename) and node.output in high for node in readers.get(name, ()))
        if name not in high and len(dims) in (2, 3) and all(moves) and name not in graph.residency.state_inputs:
            yield name, Image((*dims, 1)[:3], 2, turned=True)


def find_high_images(graph: Graph) -> set[str]:
    """Returns the tensors to turn: connected images that are on the whole higher than wide.

    Images are connected by operators that need equal layouts of them. Images are not turned if an operator cannot
    compute with turned images, or if they are a state of the model.
    """
    images = {name for name, tensor in graph.tensors.items() if _has_rows_and_columns(tensor.image)}
    states = *graph.residency.state_inputs, *graph.residency.state_outputs
    sets = find_turnable_sets(graph, images, lambda node: _can_turn(node, graph, images), states)

    def is_high(names: list[str]) -> bool:
        found = [graph.tensors[name].image for name in names]
        return sum(i.rows for i in found) >= LEAST_HEIGHT * sum(i.width for i in found)

    return {name for names in sets if is_high(names) for name in names}


def _has_rows_and_columns(image: Image) -> bool:
    """Checks whether an image has rows of columns, and is no batch; with channels first, it may also be a line."""
    *before, height, _ = 1, 1, *image.pixel_dims
    channels_first = image.channel_axis == len(image.shape) - 3
    return math.prod(before) == 1 and image.pixels > 1 and (channels_first or height > 1)


def _can_turn(node: Node, graph: Graph, images: Container[str]) -> bool:
    """Checks whether a node can compute with turned `images`.

    A rearrangement can read or make images and other tensors; other operators need one layout of all, except of tensors
    of one pixel.
    """
    pixels = {name: graph.tensors[name].image.pixels for name in (*node.inputs, node.output)}
    others = any(name not in images and count > 1 for name, count in pixels.items())
    match node.operator:
        case Filter(window=window) | Pool(window=window) | Stencil(window=window):
            slides = isinstance(window, WindowTable) or (len(window.kernel) == 2 and window.batch == 1)
            return slides and not others
        case Map() | Requantise() | Bound() | Lookup() | Concat() | Softmax() | ChannelSum() | ConstantTensor():
            return not others
        case Move() | Rename():
            return True
        case _:
            return False
