"""Which tensors stream line by line, and where their channels are cut."""

from itertools import accumulate

from raptor.graph.ir import (
    Concat,
    Graph,
    Map,
    Node,
    Pool,
    Rename,
    Stencil,
)
from raptor.target.layout import Image

Range = tuple[int, int]
Parts = tuple[Range, ...]


LONGEST = 8192
"""Lines and columns at most, those of the largest screens: each line is an operation, each column is looked at."""


def is_streamed(image: Image) -> bool:
    """One image of two dimensions and channels, with several lines, not too large."""
    if max(image.rows, image.width) > LONGEST:
        return False
    alone = len(image.shape) == 3 or (len(image.shape) == 4 and image.shape[0] == 1)
    return alone and image.channel_axis == len(image.shape) - 3 and image.rows > 1


def cut_channels(channels: int, tile: int) -> Parts:
    """Ranges of at most `tile` channels."""
    return tuple((first, min(first + tile, channels)) for first in range(0, channels, tile))


def line_parts(graph: Graph, tile: int) -> dict[str, Parts]:
    """Channel ranges of every streamed tensor; a concatenation keeps those of its operands and moves nothing."""
    parts = {n: cut_channels(graph.tensors[n].image.channels, tile) for n in graph.inputs if _streams(graph, n)}
    for node in graph.nodes:
        if _streams(graph, node.output):
            channels = graph.tensors[node.output].image.channels
            parts[node.output] = _kept(graph, node, parts) or cut_channels(channels, tile)
    return parts


def _streams(graph: Graph, name: str) -> bool:
    return is_streamed(graph.tensors[name].image)


def _kept(graph: Graph, node: Node, parts: dict[str, Parts]) -> Parts | None:
    """The parts of what the node reads, if it leaves channels where they are."""
    if isinstance(node.operator, Concat) and all(name in parts for name in node.inputs):
        return _joined([parts[name] for name in node.inputs])
    if isinstance(node.operator, Map | Pool | Rename | Stencil):
        same = (n for n in node.inputs if n in parts and keeps_channels(graph, n, node.output))
        return next((parts[name] for name in same), None)
    return None


def keeps_channels(graph: Graph, before: str, after: str) -> bool:
    return graph.tensors[before].image.channels == graph.tensors[after].image.channels


def _joined(parts: list[Parts]) -> Parts:
    bases = accumulate((p[-1][1] for p in parts), initial=0)
    return tuple((base + a, base + b) for base, ranges in zip(bases, parts, strict=False) for a, b in ranges)
