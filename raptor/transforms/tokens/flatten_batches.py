"""Layers of all pixels of each image of a batch, as layers of tokens.

A dense layer on a reshaped tensor [N, ...], such as the bands of each frame of a spectrogram, is imported as a window
over all pixels of N images. Each of these images is a token: its elements, pixel by pixel, are the channels.
"""

from dataclasses import replace

import numpy as np

from raptor.graph.ir import Filter, Graph, Move, Node, Tensor, unused_name
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image


def flatten_batches(graph: Graph) -> Graph:
    """Returns the graph with layers of one output pixel for each of several images as products of tokens."""
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        nodes += _flattened(node, node.operator, tensors) if _reads_whole_images(node.operator) else (node,)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, tensors=tensors, nodes=tuple(nodes))


def _reads_whole_images(operator: object) -> bool:
    """Checks whether an operator is a layer with a window over all pixels of each image of a batch."""
    if not isinstance(operator, Filter) or operator.groups > 1 or operator.key:
        return False
    window = operator.window
    each = replace(window, batch=1)
    return window.batch > 1 and window.tap_count > 1 and each.is_global and set(window.dilations) == {1}


def _flattened(node: Node, operator: object, tensors: dict[str, Tensor]) -> tuple[Node, Node]:
    """Returns a move of images to tokens, in which each element keeps its number, and the layer of these tokens."""
    assert isinstance(operator, Filter)
    given, batch, outs = tensors[node.inputs[0]], operator.window.batch, operator.weights.shape[2]
    shape, name = (batch, given.image.elements // batch), unused_name(f"{node.output}.tokens", tensors)
    tensors[name] = replace(given, name=name, shape=shape, image=Image(shape, 1), in_model=False, coding=None)
    tokens = Node(node.name, node.op_type, Move(np.arange(given.image.elements).reshape(shape)), node.inputs, name)
    weights = operator.weights.reshape(1, -1, outs)
    layer = replace(operator, weights=weights, window=Window.pointwise((batch,)))
    return tokens, replace(node, operator=layer, inputs=(name,))
