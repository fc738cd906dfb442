"""Gives products of two computed tensors the lines by which they stream: one for each matrix of the batch.

An Einsum may name the axes of its operands and its result in any order. Where rows are the pixels and columns the
channels, in this order, but in images of other dimensions, a move to lines leaves each element in its place.
"""

from dataclasses import replace

from raptor.graph.ir import Dot, Graph, Node, Tensor, unused_name
from raptor.graph.streaming_layout import is_image_of_lines, move_in_place
from raptor.target.tensor_layout import Image
from raptor.transforms.tokens.token_layouts import is_channels_last


def line_up_products(graph: Graph) -> Graph:
    """Returns the graph in which each product of computed tensors reads and makes lines, with moves where none did.

    Operands that are images stay, because other rewrites may read them as they are (`lay_out_matmuls`).
    """
    nodes, tensors = list[Node](), dict(graph.tensors)

    def with_lines(name: str, lines: str, batch: int, pixels: int, *, is_result: bool) -> Tensor | None:
        """Returns a tensor with lines for an operand or a result; None if it gets them without, or is an image.

        A sequence, which has its channels last, gets lines later. An operand with lines may be a view of any layout.
        """
        image = tensors[name].image
        wanted = Image((batch, pixels, image.channels), 2)
        has_lines, last = (image.rows, image.width) == (batch, pixels), is_channels_last(image)
        if is_image_of_lines(image) or (has_lines and last if is_result else has_lines or last):
            return None
        lines = unused_name(lines, tensors)
        tensors[lines] = replace(tensors[name], name=lines, shape=wanted.shape, image=wanted, in_model=False)
        return tensors[lines]

    for node in graph.nodes:
        if not isinstance(node.operator, Dot):
            nodes.append(node)
            continue
        batch, names = node.operator.batch, list(node.inputs)
        for i, pixels in enumerate((node.operator.rows, node.operator.cols)):
            operand = with_lines(names[i], f"{node.output}.lines{i}", batch, pixels, is_result=False)
            if operand is not None:
                nodes.append(Node(node.name, node.op_type, move_in_place(operand.image), (names[i],), operand.name))
                names[i] = operand.name
        result = with_lines(node.output, f"{node.output}.lines", batch, node.operator.rows, is_result=True)
        output = node.output if result is None else result.name
        nodes.append(replace(node, inputs=tuple(names), output=output))
        if result is not None:
            nodes.append(Node(node.name, node.op_type, move_in_place(result.image), (output,), node.output))
    return replace(graph, nodes=tuple(nodes), tensors=tensors)
