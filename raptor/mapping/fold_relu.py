"""Moves ReLUs into the crossbars, whose periphery applies them at no cost: from Graph to Graph."""

from collections import Counter
from dataclasses import replace

from raptor.graph.ir import (
    Filter,
    Graph,
    Map,
    Node,
)
from raptor.mapping.kernel_unfolding import tile_of
from raptor.target.arch import Target


def fold_relu(graph: Graph, arch: Target) -> Graph:
    """Returns the graph with a ReLU folded into the layer before it, where one `mvmul` makes each output of that layer.

    The ReLU must be the only reader. With several products for an output (kernel positions or input tiles) or a bias,
    it would clip the sum too early.
    """
    uses = Counter(i for node in graph.nodes for i in node.inputs) + Counter(graph.outputs)
    producers = {node.output: node for node in graph.nodes}
    folded: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        if not (isinstance(node.operator, Map) and node.operator.function == "relu"):
            continue
        source = producers.get(node.inputs[0])
        if source and uses[source.output] == 1 and _single_product(source, graph, arch):
            assert isinstance(source.operator, Filter)
            folded[node.output] = replace(source, operator=replace(source.operator, relu=True), output=node.output)
            gone.add(source.output)
    nodes = tuple(folded.get(n.output, n) for n in graph.nodes if n.output not in gone)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, nodes=nodes, tensors=tensors)


def _single_product(node: Node, graph: Graph, arch: Target) -> bool:
    """Tells whether a node is a filter whose every output is the result of one MVM."""
    if not isinstance(node.operator, Filter):
        return False
    taps, channels, _ = node.operator.weights.shape
    return taps == 1 and node.operator.groups == 1 and channels <= min(arch.xbar_rows, tile_of(graph, arch))
