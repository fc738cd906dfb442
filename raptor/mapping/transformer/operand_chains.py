"""Chains of cores that pass the second operand of a product of two computed tensors on, such as keys and values.

Each core of an attention needs keys and values of all tokens. Where few cores make them, as for an attention over the
pixels of an image, these send to all others, one after another. In chains, they send to the first core of each.
"""

from dataclasses import replace

from raptor.graph.ir import Dot, Elementwise, Graph, Node, Rename, Softmax
from raptor.mapping.decision import Decision, DotGrid, LineFlow


def chain_products(graph: Graph, decision: Decision, length: int) -> Decision:
    """Returns a decision in which chains of cores pass the second operand of each product on a grid of cores on.

    A product that follows on the same cores, such as that of scores and values, gets the same chains. `length`: number
    of cores of a chain. Products with fewer columns of cores stay as they are.
    """
    if not isinstance(decision.flow, LineFlow):
        return decision
    products, grids = dict(decision.flow.products), dict[str, DotGrid]()
    for node in graph.nodes:
        chosen = decision.flow.products.get(node.output, grids.get(node.inputs[0]) if node.inputs else None)
        if not isinstance(chosen, DotGrid):
            continue
        if isinstance(node.operator, Dot):
            chosen = replace(chosen, relays=chosen.relays if node.output in products else ())
            if len({*chosen.cores[: len(chosen.cols)]}) > length:
                products[node.output] = replace(chosen, chain=length)
        if _stays_in_place(graph, node):
            grids[node.output] = chosen
    return replace(decision, flow=replace(decision.flow, products=products))


def _stays_in_place(graph: Graph, node: Node) -> bool:
    """Checks whether a node computes each pixel of its result on the core of that pixel of its first operand."""
    first, made = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    return first.has_lines_of(made) and isinstance(node.operator, Dot | Elementwise | Softmax | Rename)
