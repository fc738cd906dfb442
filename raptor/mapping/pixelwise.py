"""The second reference: pixel by pixel, as before the thesis's channel-wise lowering (thesis, 4.1)."""

from collections import Counter
from collections.abc import Mapping as ReadOnly
from dataclasses import replace

from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.graph.ir import Filter, Graph, Node
from raptor.mapping.decision import (
    FilterMapping,
    Mapping,
    filter_key,
    map_raptor,
)
from raptor.target.arch import Arch

MAX_OPERATIONS = 200_000
"""Operations of SpatialIR, each on one pixel: half a minute."""


def map_pixelwise(graph: Graph, arch: Arch) -> Mapping:
    """The crossbars of `map_raptor`; every pixel of every tile is a value of its own.

    Raises `CapacityError` as `map_raptor` does, and `UserError` when that makes more than `MAX_OPERATIONS`.
    """
    mapping = replace(map_raptor(graph, arch), strategy="pixelwise", by_pixel=True)
    counts = {n.output: _operations(graph, n, mapping.filters, mapping.tile) for n in graph.nodes}
    total = sum(counts.values())
    if total > MAX_OPERATIONS:
        raise _too_many(graph, counts, total)
    return mapping


def _operations(graph: Graph, node: Node, filters: ReadOnly[str, FilterMapping], tile: int) -> int:
    """One for each pixel of the result, or two for each product with it: the product and its addition."""
    if not isinstance(node.operator, Filter):
        image = graph.tensors[node.output].image
        return image.pixels * -(-image.channels // tile)
    taps = Counter(matrix.tap for matrix in filters[filter_key(node)].matrices)
    pixels = (node.operator.window.input_pixels() >= 0).sum(axis=0)
    return sum(2 * int(pixels[tap]) * count for tap, count in taps.items())


def _too_many(graph: Graph, counts: ReadOnly[str, int], total: int) -> UserError:
    most = max(graph.nodes, key=lambda n: counts[n.output])
    other = f"{option('mapping', 'raptor')}, which has one for all pixels, or a smaller image ({option('shapes')})"
    return UserError(
        f"{option('mapping', 'pixelwise')}: {graph.name}: {total} operations on single pixels, the most is "
        f"{MAX_OPERATIONS}; {counts[most.output]} of them are for {most.name} ({most.op_type}); try {other}"
    )
