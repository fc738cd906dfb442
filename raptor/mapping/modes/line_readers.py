"""Finds the layers that read a tensor line by line, and where they read it: there, a view is made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from raptor.graph.ir import ChannelSum, Concat, Elementwise, Filter, Graph, Node, Rename
from raptor.graph.layers import filter_key, is_pointwise
from raptor.graph.window import Window
from raptor.mapping.decision import Decision, LineUnfolding
from raptor.mapping.modes.line_streaming import Range
from raptor.target.tensor_layout import Image


def find_line_readers(
    graph: Graph, readers: Mapping[str, Sequence[Node]], name: str, first: int = 0
) -> Iterator[tuple[Node, int]]:
    """Yields the layers that read each line of a tensor once, and as which of their channels they read its first one.

    They read it directly, through element-wise operators or a concatenation of channels. So do layers whose kernel has
    one row. The first one leads. `readers`: the nodes that read each tensor. `first`: the first channel that counts.
    """
    for node in readers.get(name, ()):
        passes = isinstance(node.operator, Concat | Elementwise | Rename | ChannelSum)
        if isinstance(node.operator, Filter) and _reads_lines_once(node.operator.window):
            yield node, first
        elif passes and graph.tensors[node.output].image.has_lines_of(graph.tensors[name].image):
            joined = isinstance(node.operator, Concat)
            before = node.inputs[: node.inputs.index(name)] if joined else ()
            begin = first + sum(graph.tensors[other].image.channels for other in before)
            yield from find_line_readers(graph, readers, node.output, begin)


def _reads_lines_once(window: object) -> bool:
    """True if every output line of a layer reads the input line of the same number alone."""
    if not isinstance(window, Window) or len(window.kernel) < 2:
        return is_pointwise(window)
    along_lines = {*window.kernel[:-1], *window.strides[:-1]} == {1}
    return along_lines and not window.transposed and window.in_lines == window.out_lines


@dataclass(frozen=True, slots=True)
class LineReader:
    """A layer by line that reads some channels of a tensor, `part` as the layer counts its input channels."""

    layer: LineUnfolding
    part: Range

    def cells(self, image: Image, line: int) -> list[tuple[Range, int]]:
        """Returns the columns of a line of the tensor, and the core that reads them first.

        The columns are cut as those of the result; neighbours send what a wide kernel reads beyond them.
        """
        segments, whole = [*self.layer.grid.segments_at(line)], self.layer.grid.cols[-1][1]
        ends = [*(first * image.width // whole for _, (first, _) in segments), image.width]
        cells = zip(segments, pairwise(ends), strict=True)
        return [(own, self.layer.receiving_core(s, self.part)) for (s, _), own in cells if own[0] < own[1]]


def find_line_reader(
    graph: Graph, decision: Decision, readers: Mapping[str, Sequence[Node]], name: str, part: Range
) -> LineReader | None:
    """Returns the first of `find_line_readers` that is computed by line, for channels `part`; None if none is."""
    for node, first in find_line_readers(graph, readers, name):
        layer = decision.layers.get(filter_key(node))
        if isinstance(layer, LineUnfolding):
            return LineReader(layer, (first + part[0], first + part[1]))
    return None
