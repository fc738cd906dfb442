"""Time of the vector operations of nodes without weights that work on lines, estimated for all lines on one core."""

import math

import numpy as np

from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Filter,
    Graph,
    Indices,
    Lookup,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Requantise,
    Softmax,
)
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.mapping.modes.integer_costs import requantise_ns
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, vector_ns


def operator_ns(graph: Graph, node: Node, arch: Target) -> float:
    """Returns the time in ns of the vector operations of a node that works on lines."""
    result, elements = graph.tensors[node.output].element, graph.tensors[node.output].image.elements
    if isinstance(node.operator, Requantise):
        if isinstance(node.operator.recipe, RequantiseRecipe):
            return requantise_ns(node.operator.recipe, result, elements, arch)
        return vector_ns(arch.with_element(graph.tensors[node.inputs[0]].element), elements, 2, result)
    if isinstance(node.operator, ChannelSum | Softmax):
        return _over_channels_ns(graph, node, arch)
    return _passes(node.operator) * vector_ns(arch.with_element(result), elements, 2)


def _over_channels_ns(graph: Graph, node: Node, arch: Target) -> float:
    """Returns the time in ns of a reduction over the channels of each pixel, and of the broadcast of a sum."""
    given, made = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    repeated = isinstance(node.operator, ChannelSum) and made.channels > 1
    again_ns = vector_ns(arch, made.channels, 1) if repeated else 0.0
    return given.pixels * (vector_ns(arch, given.channels, 1) + ISSUE_NS + again_ns)


def _passes(operator: Operator) -> float:
    """Returns the number of vector operations for each element of the result."""
    match operator:
        case Map() | Bound() | Lookup() | Filter():  # a ReLU of a filter
            return 1
        case Pool(window=window) if len(window.kernel) >= 2:
            # First down the columns of whole lines, then along them (`raptor.spatial.lowering.line_pools`).
            down, along = math.prod(window.kernel[:-1]), window.kernel[-1]
            return (down - 1) * window.strides[-1] + along - 1
        case _:
            return 0


def copies_ns(graph: Graph, node: Node, arch: Target) -> float:
    """Returns the time in ns of the copies that put together the lines of a moved tensor, run by run."""
    assert isinstance(node.operator, Move)
    return copy_lines_ns(node.operator.sources.reshape(graph.tensors[node.output].image.rows, -1), arch)


def copy_lines_ns(sources: Indices, arch: Target) -> float:
    """Returns the time in ns of the copies of the runs of neighbouring elements. `sources`: [lines, elements]."""
    runs = len(sources) + int(np.count_nonzero(np.diff(sources, axis=1) != 1))
    return runs * (vector_ns(arch, -(-sources.size // runs), 1) + ISSUE_NS)
