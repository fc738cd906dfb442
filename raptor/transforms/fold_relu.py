"""Folds ReLUs into the layers before them, where they cost nothing, and bounds of integers into requantisations."""

from collections import Counter
from dataclasses import replace

from raptor.graph.ir import Bound, Filter, Graph, Map, Node, Operator, Requantise
from raptor.graph.layers import graph_tile_channels
from raptor.target.arch import Target


def fold_relu(graph: Graph, arch: Target) -> Graph:
    """Returns the graph with each ReLU folded into the layer before it, if one `mvmul` computes each of its outputs.

    The ReLU must be the only reader. With several products for an output (kernel positions or input tiles) or a bias,
    it would clip the sum too early. Bounds of integers are folded into the clamp of the requantisation before them.
    """
    uses = Counter(i for node in graph.nodes for i in node.inputs) + Counter(graph.outputs)
    producers = {node.output: node for node in graph.nodes}
    folded: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.inputs else None
        if source is None or uses[source.output] > 1:
            continue
        operator = _both(source, node, graph, arch)
        if operator is not None:
            folded[node.output] = replace(source, operator=operator, output=node.output)
            gone.add(source.output)
    nodes = tuple(folded.get(n.output, n) for n in graph.nodes if n.output not in gone)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, nodes=nodes, tensors=tensors)


def _both(source: Node, node: Node, graph: Graph, arch: Target) -> Operator | None:
    """Returns one operator that computes `source` and then `node`; None if there is none."""
    match source.operator, node.operator:
        case Filter() as layer, Map("relu") if _single_product(source, graph, arch):
            return replace(layer, relu=True)
        case Requantise(low=low, high=high) as rounding, Bound() as bound if _alike(source, node, graph):
            low, high = (
                max(low, low if bound.low is None else bound.low),
                min(high, high if bound.high is None else bound.high),
            )
            return replace(rounding, low=low, high=high) if low <= high else None
        case _:
            return None


def _alike(source: Node, node: Node, graph: Graph) -> bool:
    """Checks whether the results have one type and layout."""
    a, b = (graph.tensors[n.output] for n in (source, node))
    return (a.element, a.image, a.shape) == (b.element, b.image, b.shape)


def _single_product(node: Node, graph: Graph, arch: Target) -> bool:
    """Checks whether a node is a filter whose every output is the result of one MVM."""
    if not isinstance(node.operator, Filter):
        return False
    taps, channels, _ = node.operator.weights.shape
    return taps == 1 and node.operator.groups == 1 and channels <= min(arch.xbar_rows, graph_tile_channels(graph, arch))
