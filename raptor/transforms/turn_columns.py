"""Turns images of one column into images of one line: [N, C, H, 1] has the pixels of [N, C, 1, H] in the same order.

Networks for images also compute sequences, as images of width 1. Cores share the columns of a line, so such an image
would be work for one core, line after line. No element moves.
"""

from collections.abc import Container

from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
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
from raptor.graph.streaming_layout import MOST_LINES, is_token_layout
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image
from raptor.transforms.turned_operators import find_turnable_sets, turn_tensors


def turn_columns(graph: Graph) -> Graph:
    """Returns the graph with its images of one column as images of one line, each with all that must be like it."""
    columns = {name for name, tensor in graph.tensors.items() if _is_column(tensor.image)}
    sets = find_turnable_sets(graph, columns, lambda node: _can_turn(node, graph, columns))
    turned = {name for names in sets for name in names}
    if not turned:
        return graph
    images = {name: graph.tensors[name].image for name in turned}
    return turn_tensors(graph, {name: _turn_image(image) for name, image in images.items()})


def _is_column(image: Image) -> bool:
    """Checks whether an image, channels first or of tokens, has several lines of one pixel."""
    if is_token_layout(image):
        return image.rows > 1 and image.width == 1
    behind = image.shape[image.channel_axis + 1 :]
    return image.channel_axis <= 1 and len(behind) > 1 and behind[-1] == 1 and behind[-2] > 1


def _turn_image(image: Image) -> Image:
    if is_token_layout(image):
        return Image((image.width, image.rows, image.channels), image.channel_axis)
    *before, height, width = image.shape
    return Image((*before, width, height), image.channel_axis)


def _can_turn(node: Node, graph: Graph, columns: Container[str]) -> bool:
    """Checks whether a node can compute with turned `columns`: its other tensors have one pixel, or need no layout.

    A line that is made of many lines of another tensor could not stream.
    """
    operator, images = node.operator, {n: graph.tensors[n].image for n in (*node.inputs, node.output)}
    others = [image for name, image in images.items() if name not in columns and image.pixels > 1]
    match operator:
        case Filter(window=window) | Pool(window=window) | Stencil(window=window):
            varies = isinstance(operator, Stencil) and operator.weights.shape[0] > 1
            return isinstance(window, Window) and len(window.kernel) > 1 and not others and not varies
        case Map() | Requantise() | Bound() | Lookup() | Concat() | Softmax() | ChannelSum():
            return not others
        case Move() | Rename():
            return all(image.rows <= MOST_LINES for image in others)
        case _:
            return False
