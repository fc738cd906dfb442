"""Splits long lines of pixels into shorter ones, each of which depends on a few lines of an image.

A detector concatenates the pixels of all its images, [1, C, H * W + ...]: one line that depends on very many lines.
Operators on single pixels do not depend on where a line ends. So these lines are cut to a width that divides the lines
of all images, and each depends on few lines of an image. No element moves.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.common.union_find import DisjointSets
from raptor.graph.constant_arrays import drop_repetitions
from raptor.graph.ir import ChannelSum, Concat, Constant, Filter, Graph, Map, Move, Node, Rename, Softmax
from raptor.graph.layers import is_pointwise
from raptor.graph.streaming_layout import MOST_LINES
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image

FEWEST = 4
"""Fewest pixels of a line; shorter lines would be too many."""


def split_rows(graph: Graph) -> Graph:
    """Returns the graph with long lines cut. A graph without such lines is returned as it is."""
    widths = _Sequences(graph).widths()
    if not widths:
        return graph
    cut = {name: _cut(graph.tensors[name].image, width) for name, width in widths.items()}
    tensors = {n: replace(t, image=cut.get(n, t.image)) for n, t in graph.tensors.items()}
    changed = replace(graph, tensors=tensors)
    return replace(changed, nodes=tuple(_changed(node, graph, changed) for node in graph.nodes))


def _cut(image: Image, width: int) -> Image:
    """Returns an image of the same pixels with lines of this width."""
    return Image((*image.shape[: image.channel_axis + 1], image.pixels // width, width), image.channel_axis)


@dataclass(slots=True)
class _Sequences:
    """Finds the lines to cut.

    alike: sets of tensors that must have one width, because operators compute them pixel by pixel. kept: sets with an
    operator that reads several pixels at once, or with a tensor that cannot be cut.
    """

    graph: Graph
    alike: DisjointSets = field(default_factory=DisjointSets)
    kept: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if _is_by_pixel(node) or (
                isinstance(node.operator, Rename) and self.same_lines(node.inputs[0], node.output)
            ):
                for name in node.inputs:
                    if self.same_lines(name, node.output):
                        self.alike.union(node.output, name)
        for name in (*self.graph.inputs, *(name for name in self.graph.tensors if not self.can_be_cut(name))):
            self.kept.add(self.alike.find(name))
        for node in self.graph.nodes:
            if not self.allows(node):
                self.kept |= {self.alike.find(name) for name in (*node.inputs, node.output)}

    def allows(self, node: Node) -> bool:
        """Checks whether the lines that an operator reads and makes can be cut."""
        if not _is_by_pixel(node):
            return isinstance(node.operator, Move | Rename)
        return all(self.image(n).pixels == 1 or self.same_lines(n, node.output) for n in node.inputs)

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def same_lines(self, name: str, other: str) -> bool:
        """Checks whether two tensors have equal numbers of lines, and of pixels per line."""
        return self.image(name).has_lines_of(self.image(other))

    def can_be_cut(self, name: str) -> bool:
        """Checks whether a float tensor has several pixels, and no batch before its channels."""
        tensor = self.graph.tensors[name]
        before = math.prod(tensor.image.shape[: tensor.image.channel_axis])
        return tensor.element.kind == "float" and before == 1 and tensor.image.pixels > 1

    def widths(self) -> dict[str, int]:
        """Returns the new width of the lines of each tensor whose lines are cut."""
        near, borders, names = DisjointSets(), defaultdict[str, set[int]](set), defaultdict[str, list[str]](list)
        for keys, _ in self.moved():
            for key in keys:
                near.union(keys[0], key)
        for keys, images in self.moved():
            borders[near.find(keys[0])].update(images)
        for name in self.graph.tensors:
            names[near.find(self.alike.find(name))].append(name)
        found: dict[str, int] = {}
        for key, widths in borders.items():
            lines = [self.image(name).width for name in names[key]]
            if widths and max(lines) > MOST_LINES * max(widths):  # else it streams as it is
                width = _width(lines, widths)
                found |= dict.fromkeys(names[key], width) if width >= FEWEST else {}
        return found

    def moved(self) -> Iterator[tuple[list[str], list[int]]]:
        """Yields for each move the sets of its tensors that can be cut, and the widths of its other tensors."""
        for node in self.graph.nodes:
            if isinstance(node.operator, Move | Rename):
                names = {name: self.alike.find(name) for name in (*node.inputs, node.output)}
                keys = [key for key in names.values() if key not in self.kept]
                if keys:
                    yield keys, [self.image(name).width for name, key in names.items() if key in self.kept]


def _width(lines: Sequence[int], borders: Collection[int]) -> int:
    """Returns the largest width that divides all `lines` and is at most `MOST_LINES` times the narrowest image.

    Wide lines are better, because a layer has no more cores than its lines have pixels. `borders`: widths of images.
    """
    common = math.gcd(*lines, *borders)
    times = (n for n in range(MOST_LINES, 0, -1) if n * common <= MOST_LINES * min(borders))
    return next(n * common for n in times if all(line % (n * common) == 0 for line in lines))


def _is_by_pixel(node: Node) -> bool:
    """Checks whether an operator computes each pixel from the same pixel of its operands."""
    if isinstance(node.operator, Filter):
        return is_pointwise(node.operator.window) and node.operator.window.batch == 1 and not node.operator.key
    return isinstance(node.operator, Map | Softmax | ChannelSum | Concat)


def _changed(node: Node, before: Graph, after: Graph) -> Node:
    """Returns a node for the new lines."""
    old, new = before.tensors[node.output].image, after.tensors[node.output].image
    if all(before.tensors[name].image == after.tensors[name].image for name in (*node.inputs, node.output)):
        return node
    given = after.tensors[node.inputs[0]].image
    match node.operator:
        case Rename() if not given.has_lines_of(new):
            return replace(node, operator=Move(np.arange(new.elements).reshape(new.pixels, new.channels)))
        case Filter() as operator:
            return replace(node, operator=replace(operator, window=Window.pointwise((new.rows, new.width))))
        case Map() as operator:
            operands = tuple(_lines_of(o, old, new) if isinstance(o, Constant) else o for o in operator.operands)
            return replace(node, operator=replace(operator, operands=operands))
        case _:
            return node


def _lines_of(constant: Constant, old: Image, new: Image) -> Constant:
    """Returns a constant operand for other lines of the same pixels."""
    if constant.pixels.shape[:2] == (1, 1):
        return constant
    full = np.broadcast_to(constant.pixels, (old.rows, old.width, constant.pixels.shape[2]))
    return Constant(drop_repetitions(full.reshape(new.rows, new.width, -1)))
