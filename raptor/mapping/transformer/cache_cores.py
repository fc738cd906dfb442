"""Cores for the products with a cache: each line of a cache is shared by several cores, which keep their part of it.

A step of a decoder multiplies one token by all keys, and its shares by all values. Both are states, and far larger than
what is multiplied by them. So each core keeps some keys, and some channels of the values, of one head. Only queries,
scores, shares and results travel. All queries of a head are multiplied where its keys are.
"""

from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import count

from raptor.graph.ir import Dot, Graph, Node
from raptor.mapping.decision import Decision, LineFlow, SharedDot
from raptor.mapping.modes.line_streaming import can_stream_product, find_views, line_channel_ranges
from raptor.mapping.transformer.token_cores import even_ranges
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_ns, vector_ns


@dataclass(frozen=True, slots=True)
class _CacheProduct:
    """A product of `queries` pixels of each of `lines` lines by `keys` pixels of a state, with `channels` channels."""

    name: str
    lines: int
    queries: int
    keys: int
    channels: int

    @classmethod
    def from_node(cls, graph: Graph, node: Node, operator: Dot) -> "_CacheProduct":
        """Returns the product of a node."""
        channels = graph.tensors[node.inputs[0]].image.channels
        return cls(node.output, operator.batch, operator.rows, operator.cols, channels)

    def time_ns(self, cores: int, arch: Target) -> float:
        """Returns the time in ns of a step if so many cores share a line: products of each, and messages to them all.

        Each core gets the other operand of each query, and returns its results.
        """
        each = -(-self.keys // cores)
        products = self.queries * each * (vector_ns(arch, self.channels, 2) + ISSUE_NS)
        sent = message_ns(arch, self.channels) + message_ns(arch, each)
        return products + (cores - 1) * (self.queries * sent)


def share_caches(graph: Graph, decision: Decision, arch: Target) -> Decision:
    """Returns a decision whose products with states that views make are shared by cores without layers.

    Products that follow one another, such as scores and means of an attention, have the same cores. Each attention has
    cores of its own, as far as there are enough.
    """
    if not graph.residency.states or not isinstance(decision.flow, LineFlow):
        return decision
    attentions = _find_attentions(graph, arch)
    layered = {core for layer in decision.layers.values() for core in getattr(layer, "cores", ())}
    free = [core for core in range(arch.usable_cores) if core not in layered] or list(range(arch.usable_cores))
    if not attentions:
        return decision
    lines = sum(products[0].lines for products in attentions)
    products = dict(decision.flow.products)
    first = count(0)
    for attention in attentions:
        most = max(1, min(len(free) // lines, *(p.keys for p in attention)))
        cores = min(range(1, most + 1), key=lambda n: (sum(p.time_ns(n, arch) for p in attention), n))
        own = [free[next(first) % len(free)] for _ in range(attention[0].lines * cores)]
        for product in attention:
            rows = tuple((line, line + 1) for line in range(product.lines))
            products[product.name] = SharedDot(rows, even_ranges(product.keys, cores), tuple(own))
    return replace(decision, flow=replace(decision.flow, products=products))


def _find_attentions(graph: Graph, arch: Target) -> list[list[_CacheProduct]]:
    """Returns the products with states, of which those that depend on one another and have as many lines are one."""
    parts = line_channel_ranges(graph, arch)
    views, kept = find_views(graph, parts), set(graph.residency.state_outputs)
    found: list[list[_CacheProduct]] = []
    behind: dict[str, int] = {}
    for node in graph.nodes:
        before = max((behind[name] for name in node.inputs if name in behind), default=-1)
        if isinstance(node.operator, Dot) and _multiplies_state(node, kept & views):
            if not can_stream_product(graph, node, parts, views):
                continue
            product = _CacheProduct.from_node(graph, node, node.operator)
            if before < 0 or len(found[before]) > 1 or found[before][0].lines != product.lines:
                found.append([])
                before = len(found) - 1
            found[before].append(product)
        if before >= 0:
            behind[node.output] = before
    return found


def _multiplies_state(node: Node, states: Container[str]) -> bool:
    return node.inputs[1] in states
