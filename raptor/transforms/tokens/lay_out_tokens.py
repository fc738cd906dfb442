"""Lays sequences out for streaming: a token is a pixel with all its channels, and a sequence is a line of tokens.

The front end takes axis 1 of every tensor for the channels, as ONNX does for images. In a sequence [1, N, D] these are
the tokens: then a mean over D is a pool along a line, and elements move before every product. This pass gives such
tensors the layout that the products need, composes consecutive moves, and turns sums over D into a `ChannelSum`. The
results stay the same. A tensor [H, N, d] of the heads of an attention becomes an image of H lines.

A tensor [1, H, W, C] that is a transposed image [1, C, H, W] gets the pixels and the lines of that image: H lines of W
tokens. So transpositions between the two become renames, and the operators between them stream as on the image.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.constant_arrays import drop_repetitions
from raptor.graph.ir import (
    ChannelSum,
    Constant,
    ConstantTensor,
    Dot,
    Elementwise,
    Filter,
    Graph,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Rename,
    Tensor,
    unused_name,
)
from raptor.graph.layers import is_pointwise
from raptor.graph.rearrangement import make_move
from raptor.graph.requantise.definition import Requantise
from raptor.graph.streaming_layout import drop_unused_moves, is_token_layout
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image
from raptor.transforms.tokens.flatten_batches import flatten_batches
from raptor.transforms.tokens.group_queries import group_queries
from raptor.transforms.tokens.line_up_products import line_up_products
from raptor.transforms.tokens.part_sequences import part_sequences
from raptor.transforms.tokens.pool_stacks import pool_stacks
from raptor.transforms.tokens.token_layouts import TokenLayouts, c_positions, moved_from

Ints = npt.NDArray[np.int64]


def lay_out_tokens(graph: Graph) -> Graph:
    """Returns the graph with its sequences laid out as tokens. A graph without sequences is returned as it is.

    Products with repeated states read each of their matrices once (`group_queries`), layers of whole images are layers
    of tokens (`flatten_batches`), pools over stacks are element-wise functions (`pool_stacks`), and reshapes between
    tokens of different lengths are moves (`part_sequences`).
    """
    whole = group_queries(flatten_batches(pool_stacks(graph)))
    graph = part_sequences(line_up_products(whole))
    layouts = TokenLayouts(graph)
    images = layouts.images()
    if not images:
        return whole
    tensors = {n: replace(t, image=images.get(n, t.image)) for n, t in graph.tensors.items()}
    sums = {name for name in images if layouts.alike.find(name) in layouts.sums}
    changed = _NodeRewriter(graph, tensors, images, sums, layouts.over)
    nodes = tuple(made for node in graph.nodes for made in changed.nodes(node))
    return drop_unused_moves(
        replace(graph, tensors=tensors, nodes=tuple(_composed(nodes, tensors, set(graph.residency.state_outputs))))
    )


def _over_all(image: Image) -> Window:
    """Returns the window of a pool over all pixels."""
    lines, point = (image.rows, image.width), (1, 1)
    return Window(lines, point, lines, point, (0, 0), point)


@dataclass(frozen=True, slots=True)
class _NodeRewriter:
    """Builds the nodes for the new layouts.

    `graph`: before the change. `tensors`: with the new images. `images`: the changed images. `sums`: tensors that
    become sums over channels. `over`: results of pools that become pools over all tokens.
    """

    graph: Graph
    tensors: dict[str, Tensor]
    images: dict[str, Image]
    sums: set[str]
    over: set[str]

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yields the node for the new images of its operands and its result; before it, moves that repeat sums."""
        if not any(name in self.images for name in (*node.inputs, node.output)):
            yield replace(node, operator=self.operator(node)) if isinstance(node.operator, Filter) else node
            return
        if node.output in self.over:
            yield from self.over_tokens(node)
            return
        if isinstance(node.operator, Elementwise):
            image, names = self.tensors[node.output].image, list(node.inputs)
            for i, name in enumerate(names):
                if name in self.sums and self.tensors[name].image != image:
                    names[i] = unused_name(f"{node.output}.repeated{i}", self.tensors)
                    self.tensors[names[i]] = replace(self.tensors[node.output], name=names[i], in_model=False)
                    sources = np.repeat(np.arange(image.pixels)[:, None], image.channels, axis=1)
                    yield Node(node.name, node.op_type, Move(sources), (name,), names[i])
            node = replace(node, inputs=tuple(names))
        yield replace(node, operator=self.operator(node))

    def over_tokens(self, node: Node) -> Iterator[Node]:
        """Yields a pool over all tokens, and the operators that turn its channels into the pixels of the old result."""
        image, operator = self.tensors[node.inputs[0]].image, node.operator
        function = operator.function if isinstance(operator, Pool) else "sum"
        steps: list[Operator] = [Pool(function, _over_all(image))]
        if isinstance(operator, ChannelSum) and operator.factor != 1:
            steps.append(Map("mul", (0, Constant(np.full((1, 1, 1), operator.factor, np.float32)))))
        name = node.inputs[0]
        for i, step in enumerate(steps):
            result = unused_name(f"{node.output}.over{i}", self.tensors)
            small = Image((1, 1, image.channels), 2)
            self.tensors[result] = replace(self.tensors[node.output], name=result, image=small, in_model=False)
            yield Node(node.name, node.op_type, step, (name,), result)
            name = result
        back = self.tensors[node.output].image
        sources = c_positions(back).reshape(back.pixels, back.channels)
        yield Node(node.name, node.op_type, Move(sources), (name,), node.output)

    def operator(self, node: Node) -> Operator:
        """Returns the operator for the new layouts."""
        match node.operator:
            case Move() as operator:
                return self.moved(node, operator)
            case Map() as operator:
                operands = tuple(self.constant(node, o) if isinstance(o, Constant) else o for o in operator.operands)
                return replace(operator, operands=operands)
            case ConstantTensor(pixels):
                old, new = (tensors[node.output].image for tensors in (self.graph.tensors, self.tensors))
                return ConstantTensor(new.to_pixels(old.from_pixels(pixels)))
            case Requantise() as operator if len(set(operator.row_class)) == 1:
                return replace(operator, row_class=np.zeros(self.tensors[node.output].image.rows, np.int64))
            case Pool() if node.output in self.sums:
                return ChannelSum(1.0)
            case Pool(window=window) as pool if window.is_global and is_token_layout(
                image := self.tensors[node.inputs[0]].image
            ):
                return replace(pool, window=_over_all(image))
            case Filter() as operator if is_pointwise(operator.window) and is_token_layout(
                image := self.tensors[node.output].image
            ):
                # A window over one dimension becomes one over lines, also where the layout was right before.
                return replace(operator, window=Window.pointwise((image.rows, image.width)))
            case _:
                return node.operator

    def moved(self, node: Node, operator: Move) -> Move:
        """Returns the same move between the new layouts."""
        given = [self.graph.tensors[n].image for n in node.inputs]
        wanted = moved_from(operator, given, self.graph.tensors[node.output].image)
        return make_move([self.tensors[n].image for n in node.inputs], wanted, self.tensors[node.output].image)

    def constant(self, node: Node, constant: Constant) -> Constant:
        """Returns a constant operand for the new layout of the result."""
        if constant.pixels.size == 1:
            return constant
        old, new = (tensors[node.output].image for tensors in (self.graph.tensors, self.tensors))
        full = np.broadcast_to(constant.pixels, (old.rows, old.width, old.channels))
        return Constant(drop_repetitions(new.to_pixels(old.from_pixels(full).reshape(new.shape))))


def _composed(nodes: tuple[Node, ...], tensors: dict[str, Tensor], kept: set[str]) -> Iterator[Node]:
    """Yields the nodes with consecutive moves composed: the last one reads the inputs of the first.

    Not so through the tensors `kept`, the next values of states, which are made in any case.

    A move that leaves all elements in place becomes a rename. A rename of moved elements that a dot product reads
    becomes a move, which can be a view.
    """
    multiplied = {name for node in nodes if isinstance(node.operator, Dot) for name in node.inputs}
    known: dict[str, tuple[tuple[str, ...], Ints]] = {}
    for node in nodes:
        if not isinstance(node.operator, Move | Rename):
            yield node
            continue
        made = tensors[node.output].image
        sources = node.operator.sources if isinstance(node.operator, Move) else np.arange(made.elements)
        inputs, sources = _through(node.inputs, sources.reshape(-1), tensors, known)
        if node.output not in kept:
            known[node.output] = inputs, sources
        given = tensors[inputs[0]].image
        if len(inputs) == 1 and given.has_pixels_of(made) and np.array_equal(sources, np.arange(made.elements)):
            yield replace(node, operator=Rename(), inputs=inputs)
        elif isinstance(node.operator, Rename) and (inputs == node.inputs or node.output not in multiplied):
            yield node
        else:
            yield replace(node, operator=Move(sources.reshape(made.pixels, made.channels)), inputs=inputs)


def _through(
    names: tuple[str, ...], sources: Ints, tensors: dict[str, Tensor], known: dict[str, tuple[tuple[str, ...], Ints]]
) -> tuple[tuple[str, ...], Ints]:
    """Returns the tensors from which a move takes its elements, through earlier moves, and these elements."""
    if known.keys().isdisjoint(names):
        return names, sources
    inputs: list[str] = []
    places: list[Ints] = []
    first = 0
    for name in names:
        own, place = known.get(name, ((name,), np.arange(tensors[name].image.elements)))
        places.append(np.where(place < 0, -1, place + first))
        inputs += own
        first += sum(tensors[n].image.elements for n in own)
    return tuple(inputs), np.concatenate([*places, [-1]])[sources]
