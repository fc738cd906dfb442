"""Reduces over pixels where they are: no core collects all elements of a tensor because its axis is not the channels.

A softmax over the pixels of an image, or over time, is one over channels after a transposition, whose elements would
move one by one to few cores and back. It becomes a maximum, a difference, an exponential, a sum and a quotient on the
cores of the image: `exp(x - m) / sum(exp(x - m))` with the maximum `m` over these pixels, of each channel.

A mean of every n-th token of a line, as in a norm over time in groups, is a pool down the few columns of an image with
many lines. It becomes a pool over all pixels of the same line with n tokens as the channels of one pixel. Each core
then pools the pixels that it has (`raptor.spatial.lowering.line_pools`).
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.graph.constant_arrays import drop_repetitions
from raptor.graph.ir import (
    Constant,
    Dot,
    Elementwise,
    Graph,
    Indices,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Rename,
    Softmax,
    Tensor,
    unused_name,
)
from raptor.graph.streaming_layout import can_stream, drop_unused_moves, keeps_elements_in_place
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image
from raptor.transforms.tokens.pool_neighbours import pool_neighbours

_PIXEL = 512
"""Largest number of channels of a pixel that is made of a line of tokens."""


def reduce_in_place(graph: Graph) -> Graph:
    """Returns the graph in which softmaxes and pools over pixels of several cores are computed on these cores.

    First, pools over groups of neighbouring tokens become functions of tokens (`pool_neighbours`).
    """
    graph = pool_neighbours(graph)
    makers, multiplied = {node.output: node for node in graph.nodes}, _multiplied(graph)
    rewriter = _Rewriter(dict(graph.tensors))
    for node in graph.nodes:
        if isinstance(node.operator, Softmax) and node.output not in multiplied:
            rewriter.lower_softmax(node, makers.get(node.inputs[0]))
        elif isinstance(node.operator, Map | Rename) and rewriter.are_moved(node):
            rewriter.map_unmoved(node, node.operator)
        elif isinstance(node.operator, Pool):
            rewriter.merge_columns(node, node.operator, makers)
        else:
            rewriter.nodes.append(node)
    if len(rewriter.nodes) == len(graph.nodes):
        return graph
    return drop_unused_moves(replace(graph, tensors=rewriter.tensors, nodes=tuple(rewriter.nodes)))


def _multiplied(graph: Graph) -> Container[str]:
    """Returns the operands of products of two computed tensors, and what moves and functions make them of."""
    found = set[str]()
    for node in reversed(graph.nodes):
        if isinstance(node.operator, Dot) or (
            isinstance(node.operator, Rename | Move | Elementwise) and node.output in found
        ):
            found.update(node.inputs)
    return found


@dataclass(slots=True)
class _Rewriter:
    """The nodes of the new graph so far, and its tensors.

    unmoved: for results in the layout of a softmax, the equal tensor in place, and the move from there to the result.
    """

    tensors: dict[str, Tensor]
    nodes: list[Node] = field(default_factory=list[Node])
    unmoved: dict[str, tuple[str, Move]] = field(default_factory=dict[str, tuple[str, Move]])

    def lower_softmax(self, node: Node, move: Node | None) -> None:
        """Adds a softmax of moved pixels as functions of the pixels, and the move of their results; others as is."""
        source = self._reduced_pixels(move)
        if source is None:
            self.nodes.append(node)
            return
        assert move is not None
        assert isinstance(move.operator, Move)
        name, window, spread = source
        image = self.tensors[name].image
        shifted = self._add(node, Map("sub", (0, 1)), (name, self._pool(node, "max", name, window, spread)), image)
        raised = self._add(node, Map("exp", (0,)), (shifted,), image)
        total = self._pool(node, "sum", raised, window, spread)
        shares = self._add(node, Map("div", (0, 1)), (raised, total), image)
        self._add_moved(node, shares, move.operator)

    def are_moved(self, node: Node) -> bool:
        """Checks whether a function reads results of softmaxes in place alone, all moved alike, in their layout."""
        found = [self.unmoved.get(name) for name in node.inputs]
        alike = {id(each[1]) for each in found if each is not None}
        pixels = {
            (self.tensors[name].image.pixels, self.tensors[name].image.channels) for name in (*node.inputs, node.output)
        }
        return None not in found and len(alike) == 1 and len(pixels) == 1

    def map_unmoved(self, node: Node, operator: Map | Rename) -> None:
        """Adds a function of results in place, and the move of its results."""
        inputs = tuple(self.unmoved[name][0] for name in node.inputs)
        move = self.unmoved[node.inputs[0]][1]
        if isinstance(operator, Rename):
            self._add_moved(node, inputs[0], move)
            return
        image, made = self.tensors[inputs[0]].image, self.tensors[node.output].image

        def in_place(constant: Constant) -> Constant:
            values = np.empty(image.elements, constant.pixels.dtype)
            shape = made.rows, made.width, made.channels
            values[move.sources.reshape(-1)] = np.broadcast_to(constant.pixels, shape).reshape(-1)
            return Constant(drop_repetitions(values.reshape(image.rows, image.width, image.channels)))

        operands = tuple(o if isinstance(o, int) else in_place(o) for o in operator.operands)
        result = self._add(node, replace(operator, operands=operands), inputs, image, self.tensors[node.output])
        self._add_moved(node, result, move)

    def _add_moved(self, node: Node, name: str, move: Move) -> None:
        """Adds the move that makes the result of a node of a tensor in place."""
        self.nodes.append(replace(node, operator=move, inputs=(name,)))
        self.unmoved[node.output] = name, move

    def _reduced_pixels(self, move: Node | None) -> tuple[str, Window, Indices] | None:
        """Returns the tensor whose pixels a move turns into channels, the window over them, and how results spread.

        The window covers the whole image, a line, or a column; None if the move does anything else. The last value has
        the pooled pixel of each pixel of the image.
        """
        if move is None or not isinstance(move.operator, Move) or len(move.inputs) != 1:
            return None
        (name,) = move.inputs
        image, sources = self.tensors[name].image, move.operator.sources
        if not can_stream(image) or sources.size != image.elements or sources.shape[1] == 1:
            return None
        rows, width, channels = image.rows, image.width, image.channels
        pixels = np.arange(image.pixels).reshape(rows, width)
        for kernel, made in (
            ((rows, width), pixels * 0),
            ((1, width), pixels // width),
            ((rows, 1), pixels % width),
        ):
            groups = made.reshape(-1)[sources // channels] * channels + sources % channels
            alike = (groups == groups[:, :1]).all() and len(np.unique(groups[:, 0])) == len(groups)
            if alike and np.unique(sources).size == sources.size:
                return name, _pool_window((rows, width), kernel), made.reshape(-1)
        return None

    def _pool(self, node: Node, function: str, name: str, window: Window, spread: Indices) -> str:
        """Adds a pool, with a copy of its results for each pixel that reads one of several; returns the name."""
        image = self.tensors[name].image
        result = _with_lines(image, *window.out_dims)
        pool = Pool("max" if function == "max" else "sum", window)
        pooled = self._add(node, pool, (name,), result)
        if result.pixels == 1:
            return pooled
        copies = spread[:, None] * image.channels + np.arange(image.channels)
        return self._add(node, Move(copies), (pooled,), image)

    def merge_columns(self, node: Node, pool: Pool, makers: Mapping[str, Node]) -> None:
        """Adds a pool down the columns of a line that is cut into many short lines as one over all pixels."""
        (name,), window = node.inputs, pool.window
        image, line = self.tensors[name].image, _uncut_line(name, makers, self.tensors)
        rows, width = window.in_dims[-2:] if len(window.in_dims) > 1 else (1, 1)
        short = 1 < width < rows and width * image.channels <= _PIXEL
        if window != _pool_window((rows, width), (rows, 1)) or not short or line is None:
            self.nodes.append(node)
            return
        channels = width * image.channels
        same = Move(np.arange(image.elements).reshape(rows, channels))
        merged = self._add(node, same, (line,), Image((1, rows, channels), 2))
        whole = Pool(pool.function, _pool_window((1, rows), (1, rows)))
        pooled = self._add(node, whole, (merged,), Image((1, 1, channels), 2))
        cut = Move(np.arange(channels).reshape(width, image.channels))
        self.nodes.append(replace(node, operator=cut, inputs=(pooled,)))

    def _add(
        self, node: Node, operator: Operator, inputs: tuple[str, ...], image: Image, like: Tensor | None = None
    ) -> str:
        """Adds a node with a new tensor, of the elements of `like` or of its first operand. Returns its name."""
        given = like or self.tensors[inputs[0]]
        name = unused_name(f"{node.output}.in_place{len(self.nodes)}", self.tensors)
        self.tensors[name] = replace(given, name=name, shape=image.shape, image=image, in_model=False)
        self.nodes.append(Node(node.name, node.op_type, operator, inputs, name))
        return name


def _pool_window(dims: tuple[int, int], kernel: tuple[int, int]) -> Window:
    """Returns the window of a pool whose kernel is the whole image, a line or a column."""
    made = dims[0] // kernel[0], dims[1] // kernel[1]
    return Window(dims, made, kernel, (1, 1), (0, 0), (1, 1))


def _with_lines(image: Image, rows: int, width: int) -> Image:
    """Returns an image of the same layout whose lines are as many, or one, with another width."""
    if image.channel_axis == 2:
        return Image((rows, width, image.channels), 2)
    if rows == image.rows:
        return Image((*image.shape[:-1], width), image.channel_axis)
    return Image((*(1 for _ in image.shape[: image.channel_axis]), image.channels, rows, width), image.channel_axis)


def _uncut_line(name: str, makers: Mapping[str, Node], tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the tensor of one line that a tensor is, or is cut from without a change of order; None for others."""
    if tensors[name].image.rows == 1:
        return name
    elements = tensors[name].image.elements
    while (maker := makers.get(name)) is not None and keeps_elements_in_place(maker):
        (name,) = maker.inputs
        image = tensors[name].image
        if image.elements != elements:
            return None
        if image.rows == 1 and image.pixels > 1:
            return name
    return None
