"""Cores of a decoder's step: cores share each line of a cache, and layers have cores of their own if there are enough.

A step of a decoder multiplies one token by all keys, and its shares by all values. Both are states, and far larger than
what is multiplied by them. So each core keeps some keys, and some channels of the values, of one head. Only queries,
scores, shares and results travel. All queries of a head are multiplied where its keys are.

All layers multiply one token, one after another. Layers on different cores work on different sessions at the same time,
and the row tiles of a layer, whose products are added, multiply at the same time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from raptor.graph.ir import Dot, Filter, Graph, Move, Node, Rename
from raptor.graph.layers import filter_key, find_filters, find_layer_nodes, layer_target
from raptor.mapping.decision import (
    Decision,
    FullyConnected,
    KernelUnfolding,
    LayerRecord,
    LineFlow,
    Matrix,
    SharedDot,
    count_matrix_crossbars,
    record_cores,
)
from raptor.mapping.modes.dense_unfolding import spread_matrices, summing_cores, unfold_dense
from raptor.mapping.modes.line_streaming import Range, can_stream_product, even_ranges, find_views, line_channel_ranges
from raptor.mapping.transformer.shared_step import share_layers
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_ns, vector_ns


@dataclass(frozen=True, slots=True)
class _CacheProduct:
    """A product of `queries` pixels of each of `lines` lines by `keys` pixels of a state, with `channels` channels.

    cuts: pixels of the state at which another tensor begins: at the row that this step appends.
    """

    name: str
    lines: int
    queries: int
    keys: int
    channels: int
    cuts: tuple[int, ...]

    @classmethod
    def from_node(cls, graph: Graph, node: Node, operator: Dot, state: Node) -> "_CacheProduct":
        """Returns the product of a node. `state`: the node that makes the next value of the state."""
        channels = graph.tensors[node.inputs[0]].image.channels
        return cls(node.output, operator.batch, operator.rows, operator.cols, channels, tuple(_find_cuts(graph, state)))

    def time_ns(self, cores: int, arch: Target) -> float:
        """Returns the time in ns of a step if so many cores share a line: products of each, and messages.

        The other operand of each query is passed on from core to core, and one core collects the results of a query.
        """
        each, levels = -(-self.keys // cores), (cores - 1).bit_length()
        products = self.queries * each * (vector_ns(arch, self.channels, 2) + ISSUE_NS)
        return products + levels * self.queries * message_ns(arch, self.channels) + cores * message_ns(arch, each)


def _find_cuts(graph: Graph, state: Node) -> list[int]:
    """Returns the pixels of a moved tensor that come from another operand than the pixel before, on some line.

    A part that is one piece of an operand is used as it is, so that nothing is moved before the product.
    """
    image = graph.tensors[state.output].image
    assert isinstance(state.operator, Move), "views are moves"
    ends = np.cumsum([graph.tensors[name].image.elements for name in state.inputs])
    operand = np.searchsorted(ends, state.operator.sources[:, 0], side="right").reshape(image.rows, image.width)
    return (np.flatnonzero((np.diff(operand, axis=1) != 0).any(axis=0)) + 1).tolist()


def _cut_parts(parts: Sequence[Range], cuts: Sequence[int]) -> Iterator[tuple[int, Range]]:
    """Yields parts, cut once more at `cuts`, each with the number of the part that it is from."""
    for number, (first, last) in enumerate(parts):
        ends = [first, *(cut for cut in cuts if first < cut < last), last]
        yield from ((number, part) for part in pairwise(ends))


_Attention = list[_CacheProduct]
"""Products that depend on one another and have equal lines, such as scores and means; they have the same cores."""


_Chains = Mapping[tuple[int, int], list[str]]
"""Layers of one token, by number of attentions before them, and by number of layers on the longest path to them."""


def place_decoder(graph: Graph, decision: Decision, arch: Target) -> Decision:
    """Returns a decision with cores for all caches, and for the layers of one token; the same one without caches.

    If there are too few for layers of their own, layers share all cores, and so do caches. A layer that does not fit
    then keeps the cores that it has.
    """
    if not graph.residency.states or not isinstance(decision.flow, LineFlow):
        return decision
    attentions = _find_attentions(graph, arch)
    if not attentions:
        return decision
    lines = sum(attention[0].lines for attention in attentions)
    layers, chains = dict(decision.layers), _find_chains(graph, decision, attentions)
    cuts, room = _cut_layers(graph, decision, arch, chains), min(arch.usable_cores // 2, arch.usable_cores - lines)
    for most in range(_MOST_TOGETHER, 0, -1) if _fewest_cores(cuts, arch) <= room else ():
        spread = _spread_layers(decision, arch, chains, cuts, most)
        if len(_layer_cores(spread)) <= room:
            layers, taken = spread, _layer_cores(spread)
            break
    else:
        layers |= _share_layers(graph, decision, arch, chains) or {}
        taken, lines = set[int](), max(attention[0].lines for attention in attentions)
    products, first = dict(decision.flow.products), 0
    for attention in attentions:
        busy = taken or _feeding_cores(graph, attention, layers, decision.tile)
        free = [core for core in range(arch.usable_cores) if core not in busy] or list(range(arch.usable_cores))
        share = _best_share(attention, max(1, len(free) // lines), arch)
        own = [free[(first + k) % len(free)] for k in range(attention[0].lines * share)]
        first += len(own)
        for product in attention:
            parts = [*_cut_parts(even_ranges(product.keys, share), product.cuts)]
            cores = tuple(own[line * share + k] for line in range(product.lines) for k, _ in parts)
            rows = tuple((line, line + 1) for line in range(product.lines))
            products[product.name] = SharedDot(rows, tuple(part for _, part in parts), cores)
    loaders = {name: own for name, own in decision.flow.loaders.items() if name not in graph.residency.state_inputs}
    return replace(decision, flow=replace(decision.flow, products=products, loaders=loaders), layers=layers)


def spread_one_token(graph: Graph, decision: Decision, arch: Target) -> list[Decision]:
    """Returns decisions by which the row tiles of layers, whose products are added, multiply at the same time.

    Only for a graph in which all layers multiply one token, so that a product waits for the one before. Layers that
    follow one another share cores, `_TOGETHER` of them; more layers on the same cores are longer at work for a sample.
    """
    layers = {key for node in graph.nodes if isinstance(node.operator, Filter) for key in (filter_key(node),)}
    chains: _Chains = {} if graph.residency.states else _find_chains(graph, decision, [])
    if len(chains) < _FEWEST_LAYERS or layers != {key for keys in chains.values() for key in keys}:
        return []
    found, cuts = list[Decision](), _cut_layers(graph, decision, arch, chains)
    for together in _TOGETHER:
        grouped = {(level // together, level): keys for (_, level), keys in chains.items()}
        for most in range(_MOST_TOGETHER, 0, -1):
            spread = _spread_layers(decision, arch, grouped, cuts, most)
            if spread != dict(decision.layers) and len(_layer_cores(spread)) <= arch.usable_cores:
                found.append(replace(decision, layers=spread))
                break
    return found


def _feeding_cores(graph: Graph, attention: _Attention, layers: Mapping[str, LayerRecord], tile: int) -> set[int]:
    """Returns the cores that make what an attention reads: results of layers that reach it through no other layer."""
    maker = {node.output: node for node in graph.nodes}
    found = set[int]()
    seen, left = set[str](), [product.name for product in attention]
    while left:
        node = maker.get(left.pop())
        if node is None or node.output in seen:
            continue
        seen.add(node.output)
        layer = layers.get(filter_key(node)) if isinstance(node.operator, Filter) else None
        if isinstance(layer, FullyConnected):
            found.update(summing_cores(layer.matrices, layer.cores, tile))
        elif layer is None:
            left += node.inputs
    return found


def _share_layers(graph: Graph, decision: Decision, arch: Target, chains: _Chains) -> dict[str, FullyConnected] | None:
    """Returns new records of the layers of one token, which share all cores; None if these have too few crossbars."""
    keys = [key for together in chains.values() for key in together]
    others = {key: layer for key, layer in decision.layers.items() if key not in keys}
    held = Counter[int]()
    for layer in others.values():
        if isinstance(layer, KernelUnfolding | FullyConnected):
            held.update(count_matrix_crossbars(layer.matrices, layer.cores))
        elif record_cores(layer):
            return None
    return share_layers(graph, keys, held, arch, decision.tile)


_MOST_TOGETHER = 8
"""Most cores of a layer of one token."""
_TOGETHER = 1, 3
"""Numbers of consecutive layers on the same cores that are tried."""
_FEWEST_LAYERS = 2


def _best_share(attention: _Attention, most: int, arch: Target) -> int:
    """Returns the number of cores, at most `most`, that share a line in the least time; the fewest on ties."""
    most = min(most, *(product.keys for product in attention))
    return min(range(1, most + 1), key=lambda n: (sum(product.time_ns(n, arch) for product in attention), n))


def _layer_cores(layers: Mapping[str, LayerRecord]) -> set[int]:
    return {core for layer in layers.values() for core in record_cores(layer)}


def _find_chains(graph: Graph, decision: Decision, attentions: Sequence[_Attention]) -> _Chains:
    """Returns the layers of one token between attentions; those that do not depend on one another are together.

    Of these, the one comes first behind which most is computed: it is on the core where their input is made.
    """
    products = {product.name for attention in attentions for product in attention}
    place: dict[str, tuple[int, int]] = {}
    found: dict[tuple[int, int], list[str]] = {}
    for node in graph.nodes:
        attention, layer = max((place.get(name, (0, 0)) for name in node.inputs), default=(0, 0))
        if isinstance(node.operator, Filter) and not node.operator.key:
            layer += 1
            if isinstance(decision.layers.get(filter_key(node)), FullyConnected):
                found.setdefault((attention, layer), []).append(filter_key(node))
        place[node.output] = attention + (node.output in products), layer
    behind = _elements_behind(graph)
    return {place: sorted(keys, key=lambda key: -behind[key]) for place, keys in sorted(found.items())}


def _elements_behind(graph: Graph) -> Mapping[str, int]:
    """Returns the number of elements that are made on the path from each tensor to an output where these are most."""
    behind = dict.fromkeys(graph.tensors, 0)
    for node in reversed(graph.nodes):
        made = 0 if isinstance(node.operator, Rename) else graph.tensors[node.output].image.elements
        for name in node.inputs:
            behind[name] = max(behind[name], behind[node.output] + made)
    return behind


_Cuts = Mapping[str, tuple[Target, tuple[Matrix, ...]]]
"""The matrices of layers of one token, each with a tile of outputs, and the chip as the layer sees it."""


def _cut_layers(graph: Graph, decision: Decision, arch: Target, chains: _Chains) -> _Cuts:
    filters, nodes = find_filters(graph), find_layer_nodes(graph)
    chips = {key: layer_target(graph, nodes[key], arch) for keys in chains.values() for key in keys}
    return {key: (chip, tuple(unfold_dense(filters[key], chip, decision.tile, 1))) for key, chip in chips.items()}


def _fewest_cores(cuts: _Cuts, arch: Target) -> int:
    """Returns the number of cores that the matrices of layers fill at least."""
    return -(-sum(m.xbars for _, matrices in cuts.values() for m in matrices) // arch.xbars_per_core)


def _spread_layers(decision: Decision, arch: Target, chains: _Chains, cuts: _Cuts, most: int) -> dict[str, LayerRecord]:
    """Returns the layers, with new cores for those of `chains`, each on at most `most`, if its matrices fit them.

    Layers between two attentions follow one another, so they share cores; only layers that do not depend on one another
    have different ones. A layer begins on the last cores of the one before, where its input is made.
    """
    layers, held = dict(decision.layers), Counter[int]()
    moved = {key for keys in chains.values() for key in keys}
    first = max(_layer_cores({key: layer for key, layer in layers.items() if key not in moved}), default=-1) + 1
    attention, end, before = 0, first, first
    for (number, _), keys in chains.items():
        if number != attention:
            attention, first, before = number, end, end
        cut = [(key, *cuts[key]) for key in keys]
        ways = [(key, m, spread_matrices(m, 0, _most(m, most, arch), chip, decision.tile)) for key, chip, m in cut]
        width = sum(max(cores or (0,)) + 1 for _, _, cores in ways)
        start = max(first, before - width)
        for key, matrices, cores in ways:
            own = tuple(start + core for core in cores or ())
            if not own:
                return dict(decision.layers)
            layers[key], start = FullyConnected(matrices, own), own[-1] + 1
            held.update(count_matrix_crossbars(matrices, own))
        before, end = start, max(end, start)
    return layers if max(held.values(), default=0) <= arch.xbars_per_core else dict(decision.layers)


def _most(matrices: Sequence[Matrix], most: int, arch: Target) -> int:
    """Returns the number of cores that a layer may have: as many at least as its matrices fill."""
    return max(most, -(-sum(matrix.xbars for matrix in matrices) // arch.xbars_per_core))


def _find_attentions(graph: Graph, arch: Target) -> list[_Attention]:
    """Returns, for each attention, its products of computed tensors whose right operand is a state, such as a cache."""
    parts = line_channel_ranges(graph, arch)
    views = find_views(graph, parts)
    states = {n.output: n for n in graph.nodes if n.output in views and n.output in graph.residency.state_outputs}
    found: list[_Attention] = []
    behind: dict[str, int] = {}
    for node in graph.nodes:
        before = max((behind[name] for name in node.inputs if name in behind), default=-1)
        operator, state = node.operator, states.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if isinstance(operator, Dot) and state and can_stream_product(graph, node, parts, views):
            product = _CacheProduct.from_node(graph, node, operator, state)
            if before < 0 or found[before][0].lines != product.lines:
                before = len(found)
                found.append([])
            found[before].append(product)
        if before >= 0 and not isinstance(operator, Filter):
            behind[node.output] = before
    return found
