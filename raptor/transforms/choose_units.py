"""Layers that only add up their channels: by products, or on the vector unit, whichever is faster."""

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filters_of, is_mean, layer_nodes
from raptor.target.arch import Target
from raptor.target.timing import mvmul_ns, vector_ns
from raptor.transforms.choices import OnVectorUnit


def choose_means(graph: Graph, arch: Target) -> dict[str, OnVectorUnit]:
    """Returns the layers, by key, that only add up their channels, and take less time on the vector unit.

    The front end makes them for means, as in a layer normalisation.
    """
    layers = layer_nodes(graph)
    means = {key: f for key, f in filters_of(graph).items() if is_mean(graph, layers[key])}
    return {key: OnVectorUnit() for key, f in means.items() if sum_ns(arch, *f.weights.shape[1:]) < _mean_ns(arch, f)}


def _mean_ns(arch: Target, filter_: Filter) -> float:
    """Returns the time of the MVMs of one pixel of a layer with one kernel position."""
    _, channels, results = filter_.weights.shape
    return -(-channels // arch.xbar_rows) * mvmul_ns(arch, -(-results // arch.outputs_per_xbar))


def sum_ns(arch: Target, channels: int, results: int) -> float:
    """Returns the time in ns to add up the channels of a pixel, and to repeat the sum in `results` channels."""
    return vector_ns(arch, channels, 1) + (vector_ns(arch, results, 1) if results > 1 else 0.0)
