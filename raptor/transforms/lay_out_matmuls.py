"""Lays out the operands of products of two computed tensors: one line for each matrix of the batch.

The keys of an attention to the pixels of an image, as in MobileNet-v4, have the lines of that image. So each operand
that is an image becomes a view of it, with as many lines as the product has matrices.
"""

from dataclasses import replace

import numpy as np

from raptor.graph.ir import Dot, Graph, Move, Node
from raptor.target.tensor_layout import Image


def lay_out_matmuls(graph: Graph) -> Graph:
    """Returns the graph with a view of each image that a product of computed tensors reads; its pixels are the same."""
    nodes, tensors = list[Node](), dict(graph.tensors)
    for node in graph.nodes:
        if isinstance(node.operator, Dot):
            batch, names = node.operator.batch, list(node.inputs)
            for i, pixels in enumerate((node.operator.rows, node.operator.cols)):
                given = graph.tensors[names[i]]
                if _is_image(given.image) and (given.image.rows, given.image.width) != (batch, pixels):
                    image, name = Image((batch, pixels, given.image.channels), 2), f"{node.output}.operand{i}"
                    tensors[name] = replace(given, name=name, shape=image.shape, image=image, in_model=False)
                    same = np.arange(image.elements).reshape(image.pixels, image.channels)
                    nodes.append(Node(node.name, node.op_type, Move(same), (names[i],), name))
                    names[i] = name
            node = replace(node, inputs=tuple(names))
        nodes.append(node)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), tensors=tensors)


def _is_image(image: Image) -> bool:
    """Checks whether an image has its channels first, and several lines."""
    return len(image.shape) == 4 and image.channel_axis == 1 and image.rows > 1
