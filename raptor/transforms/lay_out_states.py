"""Lays out states that are only taken apart: a state of several vectors lies as its next value is put together.

The front end takes axis 1 of every tensor for the channels, as ONNX does for images. Some exporters keep all states of
a model in one tensor [1, layers, units, 2], in which the elements of the vectors alternate. Its next value is laid out
by what makes it, each vector in a run of its own. If the state lies otherwise, each of its elements is copied alone,
twice: when a step ends, and when the next one takes its vectors. Each rearrangement that other nodes read then reads
the state itself, not another rearrangement.
"""

from dataclasses import dataclass, replace

import numpy as np

from raptor.graph.ir import Graph, Indices, Move, Node, Rename
from raptor.graph.rearrangement import c_order, count_move_work, make_move, through_move
from raptor.graph.streaming_layout import drop_unused_moves
from raptor.target.tensor_layout import Image
from raptor.transforms.tokens.token_layouts import moved_from


def lay_out_states(graph: Graph) -> Graph:
    """Returns the graph with states in the layouts of their next values, where that moves fewer runs of elements."""
    for pair in graph.residency.states:
        found = _TakenState.from_graph(graph, pair.input)
        wanted = graph.tensors[pair.output].image
        if found is not None and found.move_work(wanted, wanted) < found.move_work(found.image, wanted):
            graph = found.laid_out(wanted)
    return graph


@dataclass(frozen=True, slots=True)
class _TakenState:
    """A state that is read by rearrangements alone.

    taken: for each tensor that rearrangements alone make of it, the C-order numbers of its elements in the state, in C
    order. read: those of these tensors that other nodes read, or that leave the model.
    """

    graph: Graph
    name: str
    taken: dict[str, Indices]
    read: tuple[str, ...]

    @classmethod
    def from_graph(cls, graph: Graph, name: str) -> "_TakenState | None":
        """Returns a state that is read by rearrangements of it alone; None for others."""
        taken = {name: np.arange(graph.tensors[name].image.elements)}
        kept = {*graph.outputs, *graph.residency.state_outputs}
        read = dict.fromkeys(kept & {name})
        for node in graph.nodes:
            operands = taken.keys() & {*node.inputs}
            if not operands:
                continue
            if not isinstance(node.operator, Move | Rename) or len(node.inputs) != 1:
                read |= dict.fromkeys(sorted(operands))
                continue
            made, given = (graph.tensors[n].image for n in (node.output, node.inputs[0]))
            sources = c_order(made.shape)
            if isinstance(node.operator, Move):
                sources = moved_from(node.operator, [given], made)
            taken[node.output] = through_move(taken[node.inputs[0]], sources.reshape(-1))
            read |= dict.fromkeys(kept & {node.output})
        return None if name in read else cls(graph, name, taken, tuple(read))

    @property
    def image(self) -> Image:
        return self.graph.tensors[self.name].image

    def move_from_state(self, name: str, image: Image) -> Move:
        """Returns the rearrangement of the state with an image to one of the tensors."""
        made = self.graph.tensors[name].image
        return make_move([image], self.taken[name].reshape(made.shape), made)

    def move_work(self, image: Image, after: Image) -> float:
        """Returns the work of all rearrangements of the state, in copies of runs, if it has this image.

        `after`: image of its next value, which is rearranged when a step ends.
        """
        update = make_move([after], c_order(image.shape), image)
        made = [self.graph.tensors[name].image for name in self.read]
        taking = (
            count_move_work(self.move_from_state(n, image), [image], m) for n, m in zip(self.read, made, strict=True)
        )
        return count_move_work(update, [after], image) + sum(taking)

    def laid_out(self, image: Image) -> Graph:
        """Returns the graph in which the state has this image, and its rearrangements read it directly."""
        tensors = dict(self.graph.tensors)
        tensors[self.name] = replace(tensors[self.name], image=image)

        def changed(node: Node) -> Node:
            if node.output not in self.taken:
                return node
            return replace(node, operator=self.move_from_state(node.output, image), inputs=(self.name,))

        nodes = tuple(changed(node) for node in self.graph.nodes)
        return drop_unused_moves(replace(self.graph, tensors=tensors, nodes=nodes))
