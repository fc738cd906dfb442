"""Layouts of tensors that stream: lines of pixels of an image, or lines of tokens."""

from dataclasses import replace

import numpy as np

from raptor.graph.ir import Concat, Graph, Move, Node, Rename
from raptor.target.tensor_layout import Image

MOST_LINES = 4
"""Largest number of lines that a line may take elements from. More would be a large part of most images, and a line
that needs a whole image is not ready before the image is complete."""


def is_token_layout(image: Image) -> bool:
    """Checks whether an image is laid out as lines of tokens, with the channels of a token in consecutive elements."""
    return len(image.shape) == 3 and image.channel_axis == 2 and image.pixels > 1


def can_stream(image: Image) -> bool:
    """Checks whether an image has a layout that streams: lines of tokens, or two-dimensional images, channels first."""
    if is_token_layout(image):
        return True
    return image.channel_axis == len(image.shape) - 3 and image.channel_axis <= 1 and image.pixels > 1


def is_image_of_lines(image: Image) -> bool:
    """Checks whether an image is [1, channels, lines, columns] with several lines."""
    return len(image.shape) == 4 and image.channel_axis == 1 and image.rows > 1


def move_in_place(image: Image) -> Move:
    """Returns the move whose result has each element, pixel by pixel, where its operand has it."""
    return Move(np.arange(image.elements).reshape(image.pixels, image.channels))


def keeps_elements_in_place(node: Node) -> bool:
    """Checks whether a node renames a tensor, or moves each element to the number, pixel by pixel, that it has."""
    if isinstance(node.operator, Move):
        sources = node.operator.sources
        return len(node.inputs) == 1 and np.array_equal(sources.reshape(-1), np.arange(sources.size))
    return isinstance(node.operator, Rename)


def drop_unused_moves(graph: Graph) -> Graph:
    """Returns the graph without rearrangements that nothing reads."""
    used = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.output in used or not isinstance(node.operator, Move | Rename | Concat):
            used.update(node.inputs)
            kept.append(node)
    defined = {*graph.inputs, *(node.output for node in kept)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in defined}
    return replace(graph, nodes=tuple(kept[::-1]), tensors=tensors)
