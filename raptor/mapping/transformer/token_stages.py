"""Finds the stages of a model with attentions: chains of token layers, and products of two computed tensors.

Other layers, such as convolutions, may lie between two attentions, or interrupt a chain.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from raptor.graph.ir import Constant, Dot, Elementwise, Filter, Graph, Map, Node, Rename, Softmax, Stencil
from raptor.graph.layers import filter_key, is_pointwise, layer_target
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.modes.critical_operand import find_critical_positions
from raptor.mapping.modes.line_streaming import ChannelRanges, can_stream_product, find_views, line_channel_ranges
from raptor.mapping.modes.operator_cost import operator_ns
from raptor.mapping.transformer.token_cores import MOST_TOGETHER, AttentionProduct, TokenChain, TokenLayer, TokenStages
from raptor.target.arch import Target


def find_stages(graph: Graph, arch: Target, extra_ns: Mapping[str, float]) -> TokenStages | None:
    """Returns the chains and attentions of a graph; None if it has no attention, or layers that no core can hold.

    `extra_ns`: time of the epilogue of each layer.
    """
    parts, constants = line_channel_ranges(graph, arch), count_epilogue_constants(graph)
    views = find_views(graph, parts)
    found = _Finding()
    behind: set[str] = set()
    made: dict[str, int] = {}  # the last chain that a tensor depends on
    relays: dict[int, dict[str, None]] = {}
    for node in _by_depth(graph):
        made[node.output] = max((made[name] for name in node.inputs if name in made), default=0)
        if isinstance(node.operator, Elementwise):
            early = (n for n in node.inputs if made.get(n, made[node.output]) < made[node.output])
            relays.setdefault(made[node.output] - 1, {}).update(dict.fromkeys(early))
        layer = None
        if isinstance(node.operator, Filter) and is_token_layer(graph, node, node.operator, parts, arch):
            layer = node.operator
        if isinstance(node.operator, Dot) and can_stream_product(graph, node, parts, views):
            if node.inputs[0] not in behind:
                found.add_attention(node, _product(graph, node, node.operator))
            behind.add(node.output)
        elif isinstance(node.operator, Elementwise | Softmax | Rename) and behind & set(node.inputs):
            behind.add(node.output)
        elif layer is not None:
            key = filter_key(node)
            chip = layer_target(graph, node, arch)
            extra = extra_ns.get(key, 0.0), constants.get(key, 0)
            tokens = graph.tensors[node.output].image.width
            found.add_layer(node, TokenLayer(key, tokens, layer, parts[node.inputs[0]], chip, *extra))
            made[node.output] = len(found.chains) - 1
        found.follow(node, leaves=isinstance(node.operator, Filter) and layer is None)
    chains = [TokenChain(tuple(chain), arch.xbars_per_core, arch.xbar_rows) for chain in found.chains]
    if not any(found.products) or any(chain.least > MOST_TOGETHER for chain in chains):
        return None
    behind_ns = _find_work_behind(graph, arch, {product.key for together in found.products for product in together})
    products = ([replace(each, extra_ns=behind_ns[each.key]) for each in together] for together in found.products)
    passing = (
        (*(_relaying(graph, first, relays.get(i, ())) for first in together[:1]), *together[1:])
        for i, together in enumerate(products)
    )
    return TokenStages(tuple(chains), tuple(passing), found.breaks)


def _by_depth(graph: Graph) -> list[Node]:
    """Returns the nodes by the number of products of two computed tensors that they depend on, else in their order.

    So a layer that makes values is before the attention that reads them, wherever the model has it.
    """
    depth: dict[str, int] = {}
    for node in graph.nodes:
        depth[node.output] = max((depth.get(name, 0) for name in node.inputs), default=0)
        depth[node.output] += isinstance(node.operator, Dot)
    return sorted(graph.nodes, key=lambda node: depth[node.output])


@dataclass(slots=True)
class _Finding:
    """State of the search for stages, in the order of the nodes.

    reached: number of attentions that each tensor depends on. away: number of other layers on the path to each tensor
    from the first token layer or attention; tensors that depend on neither are missing. others: keys of these layers by
    that number. now: largest number before the last layer or attention that was added.
    """

    chains: list[list[TokenLayer]] = field(default_factory=lambda: [[]])
    products: list[list[AttentionProduct]] = field(default_factory=list[list[AttentionProduct]])
    breaks: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    others: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    reached: dict[str, int] = field(default_factory=dict[str, int])
    away: dict[str, int] = field(default_factory=dict[str, int])
    now: int = 0

    def follow(self, node: Node, *, leaves: bool) -> None:
        """Records the dependences of a node's result. `leaves`: True for a layer on cores of its own."""
        self.reached[node.output] = max(self.reached.get(name, 0) for name in (*node.inputs, node.output))
        known = [self.away[name] for name in (*node.inputs, node.output) if name in self.away]
        if known:
            self.away[node.output] = max(known) + leaves
        if known and leaves:
            self.others.setdefault(self.away[node.output], set()).add(filter_key(node))

    def add_attention(self, node: Node, product: AttentionProduct) -> None:
        """Adds an attention: parallel to the last one, or after it and the layers that follow it."""
        between = self.passed(node)
        follows = max(self.reached.get(name, 0) for name in node.inputs) == len(self.products)
        if self.chains[-1] or between or follows:
            self.next_stage(between)
        self.products[-1].append(product)
        self.reached[node.output], self.away[node.output] = len(self.products), self.now

    def add_layer(self, node: Node, layer: TokenLayer) -> None:
        """Adds a token layer to the last chain, or to a new one after other layers."""
        between = self.passed(node)
        if between:
            self.next_stage(between)
        self.chains[-1].append(layer)
        self.away[node.output] = self.now

    def passed(self, node: Node) -> frozenset[str]:
        """Returns the other layers between the last added layer or attention and a node, and updates `now`."""
        before, self.now = self.now, max(self.now, *(self.away.get(name, 0) for name in node.inputs))
        return frozenset(key for away in range(before + 1, self.now + 1) for key in self.others[away])

    def next_stage(self, between: frozenset[str]) -> None:
        """Starts a new attention and the chain after it. between: other layers before them."""
        if between:
            self.breaks[len(self.products)] = between
        self.products.append([])
        self.chains.append([])


def _find_work_behind(graph: Graph, arch: Target, products: Container[str]) -> Mapping[str, float]:
    """Returns, for each of some products, the time in ns on one core of the element-wise functions behind it.

    These run on the cores of the product until the next layer, also behind moves and further products of its results.
    """
    made = find_critical_positions(graph)
    owner: dict[str, str] = {}
    found = defaultdict[str, float](float)
    for node in graph.nodes:
        lead = max(node.inputs, key=made.__getitem__, default="")
        if node.output in products:
            owner[node.output] = node.output
        elif lead in owner and not isinstance(node.operator, Filter):
            owner[node.output] = owner[lead]
            found[owner[lead]] += operator_ns(graph, node, arch) if isinstance(node.operator, Elementwise) else 0.0
    return found


def _relaying(graph: Graph, product: AttentionProduct, early: Iterable[str]) -> AttentionProduct:
    """Returns the product with relays: the tensors of `early` that have a pixel for each query."""
    return replace(product, relays=tuple(n for n in early if graph.tensors[n].image.width == product.queries))


def count_epilogue_constants(graph: Graph) -> dict[str, int]:
    """Counts, by layer, the elements of constants in its epilogue that are the same for all pixels, such as a bias.

    Constants that are resident are not loaded for a sample, and do not count.
    """
    if graph.residency.constants:
        return {}
    owner: dict[str, str] = {}
    found: dict[str, int] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            owner[node.output] = filter_key(node)
            continue
        key = next((owner[n] for n in reversed(node.inputs) if n in owner), None)
        if key is not None:
            owner[node.output] = key
            operands = node.operator.operands if isinstance(node.operator, Map) else ()
            short = (o.pixels for o in operands if isinstance(o, Constant) and o.pixels.shape[:2] == (1, 1))
            weights = node.operator.weights.size if isinstance(node.operator, Stencil) else 0
            found[key] = found.get(key, 0) + weights + sum(pixels.size for pixels in short)
    return found


def is_token_layer(graph: Graph, node: Node, filter_: Filter, parts: Mapping[str, ChannelRanges], arch: Target) -> bool:
    """True if a layer works on each token of a sequence independently, and can be computed line by line."""
    given, made = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    if filter_.groups > 1 or filter_.key or not is_pointwise(filter_.window):
        return False
    if not (is_token_layout(given) and is_token_layout(made) and made.rows == 1) or node.inputs[0] not in parts:
        return False
    return all(b - a <= arch.xbar_rows for a, b in parts[node.inputs[0]])


def _product(graph: Graph, node: Node, operator: Dot) -> AttentionProduct:
    channels = graph.tensors[node.inputs[0]].image.channels
    return AttentionProduct(node.output, operator.batch, operator.rows, operator.cols, channels)
