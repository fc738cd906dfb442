"""Lays out the operands of products of two computed tensors: one line for each matrix of the batch.

The keys of an attention to the pixels of an image, as in MobileNet-v4, have the lines of that image. So each operand
that is an image becomes a view of it, with as many lines as the product has matrices. The turned keys of an attention
with one head are another name of the keys, with the same pixels: the product reads the keys. A matrix that a dense
layer computes as one vector, such as the rotation of a cloud of points, becomes a line of tokens.
"""

from collections.abc import Mapping
from dataclasses import replace

from raptor.graph.ir import Dot, Graph, Move, Node, Rename, unused_name
from raptor.graph.streaming_layout import can_stream, drop_unused_moves, is_image_of_lines, move_in_place
from raptor.target.tensor_layout import Image


def lay_out_matmuls(graph: Graph) -> Graph:
    """Returns the graph with operands of products of computed tensors that can stream; their pixels are the same."""
    nodes, tensors, makers = list[Node](), dict(graph.tensors), {node.output: node for node in graph.nodes}
    for node in graph.nodes:
        if isinstance(node.operator, Dot):
            batch, names = node.operator.batch, list(node.inputs)
            for i, pixels in enumerate((node.operator.rows, node.operator.cols)):
                names[i] = _streaming_name(names[i], graph, makers)
                given = graph.tensors[names[i]]
                image = Image((batch, pixels, given.image.channels), 2)
                if is_image_of_lines(given.image) and (given.image.rows, given.image.width) != (batch, pixels):
                    view, sources = move_in_place(image), (names[i],)
                elif (made := _moved_vector(names[i], graph, makers)) is not None:
                    view, sources = made.operator, made.inputs
                else:
                    continue
                names[i] = unused_name(f"{node.output}.operand{i}", tensors)
                tensors[names[i]] = replace(given, name=names[i], shape=image.shape, image=image, in_model=False)
                nodes.append(Node(node.name, node.op_type, view, sources, names[i]))
            node = node if node.inputs == tuple(names) else replace(node, inputs=tuple(names))
        nodes.append(node)
    changed = replace(graph, nodes=tuple(nodes), tensors=tensors)
    return drop_unused_moves(changed) if any(a is not b for a, b in zip(nodes, graph.nodes, strict=False)) else graph


def _streaming_name(name: str, graph: Graph, makers: Mapping[str, Node]) -> str:
    """Returns the tensor of which an operand that cannot stream is another name, if that one can, with the same pixels.

    A state is always read by its own name. Returns other operands as they are.
    """
    maker, image = makers.get(name), graph.tensors[name].image
    is_state = maker is not None and not {*maker.inputs}.isdisjoint(graph.residency.state_outputs)
    if maker is None or not isinstance(maker.operator, Rename) or (can_stream(image) and not is_state):
        return name
    given = graph.tensors[maker.inputs[0]].image
    return maker.inputs[0] if can_stream(given) and given.has_pixels_of(image) else name


def _moved_vector(name: str, graph: Graph, makers: Mapping[str, Node]) -> Node | None:
    """Returns the move that makes a matrix which cannot stream of one vector; None for another tensor.

    A step of a model with states reads such vectors as they are.
    """
    maker = makers.get(name)
    if maker is None or not isinstance(maker.operator, Move) or graph.residency.states:
        return None
    given = (graph.tensors[each].image for each in maker.inputs)
    is_of_vectors = any(image.pixels == 1 or len(image.shape) < 3 for image in given)
    return maker if is_of_vectors and not can_stream(graph.tensors[name].image) else None
