"""The strategy `pixelwise`: a second reference that works pixel by pixel, as the thesis (4.1) before `applyFilters`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import filter_key
from raptor.mapping.decision import Decision, KernelUnfolding, PixelFlow
from raptor.mapping.reference_mapping import map_raptor
from raptor.target.arch import Target

MAX_OPERATIONS = 200_000
"""Largest number of SpatialIR operations, each on one pixel; so many take half a minute to compile."""


def map_pixelwise(graph: Graph, arch: Target) -> Decision:
    """Returns the decision of `map_raptor`, but every pixel of every tile is a value of its own.

    Raises `CapacityError` like `map_raptor`, and `UserError` if there would be more than `MAX_OPERATIONS`.
    """
    decision = replace(map_raptor(graph, arch), strategy="pixelwise", flow=PixelFlow())
    check_operation_count(graph, decision)
    return decision


def check_operation_count(graph: Graph, decision: Decision) -> None:
    """Raises `UserError` if a pixelwise decision makes more than `MAX_OPERATIONS` operations."""
    counts = {n.output: _operations(graph, n, decision) for n in graph.nodes}
    total = sum(counts.values())
    if total > MAX_OPERATIONS:
        raise _too_many(graph, counts, total)


def _operations(graph: Graph, node: Node, decision: Decision) -> int:
    """Counts the operations of a node: one for each pixel and tile of the result.

    A layer with weights has two for each MVM: the MVM and its addition.
    """
    if not isinstance(node.operator, Filter):
        image = graph.tensors[node.output].image
        return image.pixels * -(-image.channels // decision.tile)
    layer = decision.layers[filter_key(node)]
    assert isinstance(layer, KernelUnfolding), "by pixel there is no other unfolding"
    taps = Counter(matrix.tap for matrix in layer.matrices)
    pixels = (node.operator.window.input_pixels() >= 0).sum(axis=0)
    return sum(2 * int(pixels[tap]) * count for tap, count in taps.items())


def _too_many(graph: Graph, counts: Mapping[str, int], total: int) -> UserError:
    """Makes the error for a model with too many operations; it names the node with most of them."""
    most = max(graph.nodes, key=lambda n: counts[n.output])
    smaller = f"a smaller image ({spell_option('shapes')})"
    other = f"{spell_option('mapping', 'raptor')}, which has one for all pixels, or {smaller}"
    return UserError(
        f"{spell_option('mapping', 'pixelwise')}: {graph.name}: {total} operations on single pixels, the most is "
        f"{MAX_OPERATIONS}; {counts[most.output]} of them are for {most.name} ({most.op_type}); try {other}"
    )
