"""Chooses cores for transformers: layers between two attentions share cores, and attentions use all cores of a group.

Between two attentions, tokens are independent. So the layers there form a chain: a core holds the weights of all of
them and processes some tokens, which never leave it. If a core is too small, several cores hold a chain together, each
some output channels. An attention needs keys and values of all tokens, but no crossbars: any core can compute some
queries of some heads. Attentions and chains alternate, so they can use the same cores: the model is cut into groups of
neighbouring attentions and chains, and a group has cores of its own. Few groups are good for the latency, because more
cores work on each attention; many are good for the interval, because more samples are in flight.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from raptor.graph.ir import Filter
from raptor.mapping.allocation.phase_sharing import divide_in_proportion
from raptor.mapping.decision import DotGrid, LineGrid, LineUnfolding
from raptor.mapping.knobs import MESSAGE_OVERHEAD_NS, TuningKnobs
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, cut_channels, even_ranges
from raptor.mapping.modes.line_unfolding import most_additions, pixels_per_block
from raptor.target.arch import Target
from raptor.target.timing import (
    ISSUE_NS,
    global_port_ns,
    message_element_ns,
    mvmul_ns,
    vector_element_ns,
    vector_ns,
)

MOST_TOGETHER = 32
"""Largest number of cores that hold a chain together. With more, the layers of a chain get cores of their own."""


GROUP_ROUNDS = 4
"""Number of times that cores are divided among groups, if other layers lie between attentions."""

NO_OTHER_LAYERS: Mapping[str, float] = {}

SENDER_WAITING = 2
"""Factor on the time of an attention whose cores also send its keys and values: a guess, measured on BERT-tiny only."""


@dataclass(frozen=True, slots=True)
class TokenLayerShape:
    """Shape of a layer of tokens: output channels, channel ranges of its input, and the target with its widths."""

    outputs: int
    parts: ChannelRanges
    arch: Target

    def enumerate_cuts(self, cores: int) -> Iterator[tuple[tuple[ChannelRanges, ...], tuple[Range, ...]]]:
        """Yields cuts of the layer for at most `cores` cores: (groups of input ranges, output ranges).

        Only one of the two dimensions is cut.
        """
        ranges = cut_channels(self.outputs, self.arch.xbar_rows)
        pieces = even_ranges(len(ranges), min(cores, len(ranges)))
        yield (self.parts,), tuple((ranges[a][0], ranges[b - 1][1]) for a, b in pieces)
        if cores > 1 and len(self.parts) > 1:
            groups = even_ranges(len(self.parts), min(cores, len(self.parts)))
            yield tuple(self.parts[a:b] for a, b in groups), ((0, ranges[-1][1]),)

    def blocks(self, group: ChannelRanges, width: int, pixels: int) -> Iterator[tuple[int, int]]:
        """Yields (tokens of a block, at most `pixels`; crossbars of its matrix) for each channel range of the input."""
        for part in group:
            count = min(pixels, pixels_per_block(part, self.arch.xbar_rows))
            yield count, -(-count * width // self.arch.outputs_per_xbar)

    def token_ns(self, ins: tuple[ChannelRanges, ...], outs: tuple[Range, ...], pixels: int) -> float:
        """Returns the time in ns of a core for a token: products, sums, and partial sums of other cores."""
        sums, width = with_accumulators(self.arch), max(b - a for a, b in outs)
        products = max(
            sum((mvmul_ns(self.arch, xbars) + ISSUE_NS) / count for count, xbars in self.blocks(group, width, pixels))
            for group in ins
        )
        added = width * vector_element_ns(sums) * max(len(group) for group in ins)
        own = self.own_width(len(ins), outs)
        received = own * most_additions(len(ins)) * (vector_element_ns(sums) + message_element_ns(sums))
        return products + added + received + (width - own) * message_element_ns(sums)

    def own_width(self, groups: int, outs: tuple[Range, ...]) -> int:
        """Returns the largest number of output channels for which one core adds the partial sums of all groups."""
        if groups == 1:
            return max(b - a for a, b in outs)
        own: Counter[tuple[int, Range]] = Counter()
        for p, (low, high) in enumerate(cut_channels(self.outputs, self.arch.xbar_rows)):
            own[p % groups, next(piece for piece in outs if low < piece[1])] += high - low
        return max(own.values())


@dataclass(frozen=True, slots=True)
class _Share:
    """The best cut of a layer: groups of input ranges, output ranges, and the time of a core for a token."""

    ins: tuple[ChannelRanges, ...]
    outs: tuple[Range, ...]
    token_ns: float

    @property
    def width(self) -> int:
        """Largest number of output channels of a core."""
        return max(b - a for a, b in self.outs)


@lru_cache(maxsize=4096)
def _share(shape: TokenLayerShape, cores: int, pixels: int) -> _Share:
    """Returns the fastest cut for at most `cores` cores, with blocks of at most `pixels` tokens."""
    ways = (_Share(ins, outs, shape.token_ns(ins, outs, pixels)) for ins, outs in shape.enumerate_cuts(cores))
    return min(ways, key=lambda way: way.token_ns)


@dataclass(frozen=True, slots=True)
class TokenLayer:
    """A layer on tokens: its filter, the channel ranges of its input, and the target with its widths.

    `extra_ns`: time of its epilogue, for all tokens. `constants`: elements of constants that each of its cores loads
    for the epilogue.
    """

    key: str
    tokens: int
    filter_: Filter
    parts: ChannelRanges
    arch: Target
    extra_ns: float
    constants: int

    @property
    def shape(self) -> "TokenLayerShape":
        return TokenLayerShape(self.filter_.weights.shape[2], self.parts, self.arch)

    def share(self, cores: int, pixels: int) -> _Share:
        """Returns the fastest cut of the layer for at most `cores` cores, with blocks of at most `pixels` tokens."""
        return _share(self.shape, cores, pixels)

    def xbars(self, cores: int, pixels: int, held: int = 0) -> int:
        """Returns the most crossbars of a core that processes `held` tokens (0: full blocks of `pixels` only).

        A smaller last block is filled up with tokens of other cores, so that it needs no matrix of its own, unless the
        layer has too few tokens.
        """
        way = self.share(cores, pixels)

        def with_rest(count: int, xbars: int) -> int:
            rest = self.tokens % count if self.tokens > count and -(-held // count) * count > self.tokens else 0
            return xbars + -(-rest * way.width // self.arch.outputs_per_xbar)

        return max(sum(with_rest(*block) for block in self.shape.blocks(group, way.width, pixels)) for group in way.ins)

    def grid(self, cols: tuple[Range, ...], cores: int, pixels: int, step_ns: float) -> LineGrid:
        """Returns the grid for the token segments `cols`, each on `cores` cores."""
        way = self.share(cores, pixels)
        widest = max(n for _, n in self.shape.blocks(way.ins[0], way.width, pixels))
        step = max(1, int(step_ns / mvmul_ns(self.arch, widest)))
        return LineGrid(cols, way.ins, way.outs, 1, pixels, 0, step)


@dataclass(frozen=True, slots=True)
class ChainReplication:
    """A replication of a chain: `copies` copies on `together` cores each, with blocks of `pixels` tokens.

    core_ns: work of a core for a sample, with the wait for all constants.
    """

    copies: int
    together: int
    pixels: int
    core_ns: float


@dataclass(frozen=True, slots=True)
class _ReplicationMemo:
    """Memo for chains of equal layers: replication by (copies, cores of each), and the best one by number of cores."""

    ways: dict[tuple[int, int], ChainReplication | None] = field(
        default_factory=dict[tuple[int, int], ChainReplication | None]
    )
    best: dict[int, ChainReplication | None] = field(default_factory=dict[int, ChainReplication | None])


@lru_cache(maxsize=64)
def _known(_chain: Hashable) -> _ReplicationMemo:
    return _ReplicationMemo()


@dataclass(frozen=True)
class TokenChain:
    """Layers between two attentions."""

    layers: tuple[TokenLayer, ...]
    xbars_per_core: int
    xbar_rows: int

    @cached_property
    def known(self) -> "_ReplicationMemo":
        """Memo that chains of equal layers share."""
        layers = ((each.shape, each.tokens, each.extra_ns, each.constants) for each in self.layers)
        return _known((*layers, self.xbars_per_core))

    @property
    def tokens(self) -> int:
        """Largest number of tokens of a layer."""
        return max((layer.tokens for layer in self.layers), default=0)

    @cached_property
    def least(self) -> int:
        """Fewest cores that hold the chain together: 0 without layers, `MOST_TOGETHER + 1` if more would be needed."""
        tried = range(1, MOST_TOGETHER + 1) if self.layers else (0,)
        return next((cores for cores in tried if self.block(cores, 0) is not None), MOST_TOGETHER + 1)

    def block(self, together: int, held: int) -> int | None:
        """Returns the tokens of a block on `together` cores; None if these are too few. `held`: see `xbars`."""
        for pixels in (self.xbar_rows, 1):
            if sum(layer.xbars(together, pixels, held) for layer in self.layers) <= self.xbars_per_core:
                return pixels
        return None

    def copies(self, cores: int) -> int:
        """Returns the number of copies of the chain on at most `cores` cores; 0 if it does not fit."""
        way = self.replicate(cores)
        return way.copies if way else 0

    def replicate(self, cores: int) -> ChainReplication | None:
        """Returns the fastest replication on at most `cores` cores (fewest cores on ties); None if none fits.

        With fewer copies, each has more cores, among which the layers are cut.
        """
        known = self.known.best
        if cores not in known:
            most = min(cores // self.least, self.tokens) if self.least else 0
            each = {-(-self.tokens // copies) for copies in range(1, most + 1)}
            copies = (-(-self.tokens // tokens) for tokens in each)
            tried = (self.replication(count, min(cores // count, MOST_TOGETHER)) for count in copies)
            fitting = [way for way in tried if way is not None]
            known[cores] = min(fitting, key=lambda way: (way.core_ns, way.copies * way.together), default=None)
        return known[cores]

    def replication(self, copies: int, together: int) -> ChainReplication | None:
        """Returns the replication with `copies` copies on `together` cores each, memoised; None if it does not fit."""
        known = self.known.ways
        if (copies, together) not in known:
            known[copies, together] = self.way_of(copies, together)
        return known[copies, together]

    def way_of(self, copies: int, together: int) -> ChainReplication | None:
        """Returns the result of `held` without the memo."""
        pixels = self.block(together, -(-self.tokens // copies))
        if pixels is None:
            return None
        constants = min(copies * self.loading_ns, self.making_constants_ns(together, pixels))
        work = sum(
            -(-layer.tokens // copies) * layer.share(together, pixels).token_ns + layer.extra_ns / (copies * together)
            for layer in self.layers
        )
        return ChainReplication(copies, together, pixels, constants + work)

    def core_ns(self, cores: int) -> float:
        """Returns the work in ns of a core for a sample, on `cores` cores; infinite if the chain does not fit."""
        way = self.replicate(cores)
        return way.core_ns if way else math.inf if self.layers else 0.0

    @cached_property
    def loading_ns(self) -> float:
        """Time in ns for which the constants of one copy occupy the port of global memory."""
        return sum(global_port_ns(layer.arch, layer.constants) for layer in self.layers)

    def making_constants_ns(self, together: int, pixels: int) -> float:
        """Returns the time in ns of a core to make its constants by an MVM; infinite without free crossbars."""
        arch = self.layers[0].arch
        needed = -(-sum(layer.constants for layer in self.layers) // (together * arch.outputs_per_xbar))
        used = sum(layer.xbars(together, pixels) for layer in self.layers)
        return mvmul_ns(arch, needed) + ISSUE_NS if used + needed <= self.xbars_per_core else math.inf

    def best(self, cores: int) -> int:
        """Returns the number of cores, at most `cores`, with which the chain is fastest; the fewest on ties."""
        return min(range(self.least, cores + 1), key=self.core_ns, default=0)

    def records(self, cores: Sequence[int], step_ns: float) -> Iterator[tuple[str, LineUnfolding]]:
        """Yields (key, record) of each layer on these cores."""
        way = self.replicate(len(cores))
        if way is None:
            return
        for layer in self.layers:
            cols = even_ranges(layer.tokens, min(way.copies, layer.tokens))
            grid = layer.grid(cols, way.together, way.pixels, step_ns)
            own = (cores[s * way.together + j] for s in range(len(cols)) for j in range(len(grid.outs) * len(grid.ins)))
            yield layer.key, LineUnfolding(grid, tuple(own))


@dataclass(frozen=True, slots=True)
class AttentionProduct:
    """The first product of an attention: its name, heads, queries of a head, keys of a head, channels of a head.

    `relays`: token tensors from before the attention that layers after it read. `extra_ns`: time on one core of the
    element-wise functions that run behind the product, on its cores.
    """

    key: str
    heads: int
    queries: int
    keys: int
    channels: int
    relays: tuple[str, ...] = ()
    extra_ns: float = 0.0

    def enumerate_splits(self, cores: int) -> Iterator[tuple[int, int]]:
        """Yields (ranges of heads, most ranges of queries) for at most `cores` cores."""
        for heads in range(1, min(self.heads, cores) + 1):
            yield heads, min(self.queries, cores // heads)

    def sending_ns(self, heads: int, receivers: int, senders: int, arch: Target) -> float:
        """Returns the time in ns for a sender to send its part of keys and values of `heads` heads to all receivers."""
        each = -(-self.keys // max(1, senders)) * heads * self.channels
        return 2 * receivers * (MESSAGE_OVERHEAD_NS + each * message_element_ns(arch))

    def best(self, cores: int, senders: int | None, arch: Target, homes: int = 1) -> tuple[float, tuple[int, int]]:
        """Returns the best (time in ns, (ranges of heads, ranges of queries)) on at most `cores` cores.

        With more cores, each computes less, but there is more to send. senders: number of cores that send keys and
        values; None if sending does not count here. homes: number of cores that share the channels of each sender.
        """
        return _best(replace(self, key="", relays=()), cores, senders, arch, homes)

    def record(
        self, cores: Sequence[int], senders: int | None, arch: Target, *, relaying: bool = False, homes: int = 1
    ) -> DotGrid:
        """Returns the record of the product on the best number of these cores (`best`)."""
        _, (heads, queries) = self.best(len(cores), senders, arch, homes)
        own, relays = tuple(cores[: heads * queries]), self.relays if relaying else ()
        return DotGrid(even_ranges(self.heads, heads), even_ranges(self.queries, queries), own, relays)


@lru_cache(maxsize=1024)
def _dot_times(keys: int, channels: int, arch: Target) -> tuple[float, float]:
    """Returns (time in ns of a core for a head of an attention, additional time for each of its queries)."""
    scores = keys * (vector_ns(arch, channels, 2) + ISSUE_NS)
    means = channels * (vector_ns(arch, keys, 2) + ISSUE_NS)
    moved = 2 * keys * channels * message_element_ns(arch)
    turned = channels * vector_ns(arch, keys, 1)
    return moved + turned + MESSAGE_OVERHEAD_NS, scores + means + vector_ns(arch, keys, 2)


@lru_cache(maxsize=4096)
def _best(
    product: AttentionProduct, cores: int, senders: int | None, arch: Target, homes: int
) -> tuple[float, tuple[int, int]]:
    """Returns the time in ns of the fastest split, and its heads and queries; a memo for attentions of equal sizes."""
    (head_ns, query_ns), flit_ns = _dot_times(product.keys, product.channels, arch), message_element_ns(arch)
    query_ns += product.extra_ns / (product.heads * product.queries)
    sent = 0.0 if senders is None else -(-product.keys // max(1, senders)) * product.channels * flit_ns
    found: list[tuple[float, tuple[int, int]]] = []
    for heads, most in product.enumerate_splits(cores):
        each = -(-product.heads // heads)
        for queries in {-(-product.queries // n) for n in range(-(-product.queries // most), product.queries + 1)}:
            work_ns = each * (-(-product.queries // queries) * query_ns + head_ns)
            sending_ns = 0.0 if senders is None else 2 * heads * queries * (MESSAGE_OVERHEAD_NS + each * sent)
            found.append((work_ns + sending_ns / homes, (heads, queries)))
    return min(found)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class TokenStages:
    """Alternating chains and attentions: `chains[i]` is before `products[i]`, and the last chain after all of them.

    breaks: keys of other layers, by number of the attention before which they lie. If they lie inside a chain, it is
    cut into two, and the attention between these is empty.
    """

    chains: tuple[TokenChain, ...]
    products: tuple[tuple[AttentionProduct, ...], ...]
    breaks: Mapping[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])

    @property
    def keys(self) -> set[str]:
        """The layers of all chains."""
        return {layer.key for chain in self.chains for layer in chain.layers}

    def cuts(self) -> tuple[tuple[Range, ...], ...]:
        """Returns partitions of the attentions into groups of neighbours, from few to many: even, and at breaks."""
        count, ends = len(self.products), sorted({0, *self.breaks, len(self.products)})
        found: dict[tuple[Range, ...], None] = {}
        for groups in range(1, count + 1):
            at_breaks: list[Range] = []
            for first, last in pairwise(ends):
                own = min(last - first, max(1, round((last - first) * groups / count)))
                at_breaks += [(first + a, first + b) for a, b in even_ranges(last - first, own)]
            found |= dict.fromkeys((even_ranges(count, groups), tuple(at_breaks)))
        return tuple(found)

    def other_layers_ns(self, group: Range, layer_ns: Mapping[str, float]) -> float:
        """Returns the time in ns of a sample in other layers within a group: the slowest one of each break."""
        within = (keys for at, keys in self.breaks.items() if group[0] < at < group[1])
        return sum(max(layer_ns.get(key, 0.0) for key in keys) for keys in within)

    def group(self, first: int, last: int) -> "TokenStages":
        """Returns attentions `first` to `last` (excluded) and the chain after each; from 0 on, the first chain, too."""
        return TokenStages(self.chains[first + 1 if first else 0 : last + 1], self.products[first:last])


@dataclass(slots=True)
class TokenCores:
    """A choice of cores for a transformer: a record for each layer by key, and for each product by name.

    latency_ns, interval_ns: estimated latency of a sample, and interval between samples. cores: number of cores in use.
    """

    latency_ns: float = 0.0
    interval_ns: float = 0.0
    cores: int = 0
    layers: dict[str, LineUnfolding] = field(default_factory=dict[str, LineUnfolding])
    products: dict[str, DotGrid] = field(default_factory=dict[str, DotGrid])


def group_stages(
    stages: TokenStages,
    arch: Target,
    cores: int,
    groups: Sequence[Range],
    knobs: TuningKnobs,
    layer_ns: Mapping[str, float] = NO_OTHER_LAYERS,
) -> TokenCores | None:
    """Returns the choice with these groups of attentions; None if a group has too few cores for its chains.

    Groups with other layers in between differ in their work, so cores are redivided in proportion to the last times.
    `layer_ns`: time of a sample in each of the other layers.
    """
    shares, best = even_ranges(cores, len(groups)), None
    for _ in range(GROUP_ROUNDS if stages.breaks else 1):
        found = _with_shares(stages, arch, groups, shares, knobs)
        if found is None:
            break
        choice, times = found
        occupied = [ns + stages.other_layers_ns(group, layer_ns) for ns, group in zip(times, groups, strict=True)]
        choice.interval_ns = max(occupied)
        choice.latency_ns = sum(times) + stages.other_layers_ns((-1, len(stages.products)), layer_ns)
        if best is None or choice.interval_ns < best.interval_ns:
            best = choice
        weights = [(high - low) * ns for (low, high), ns in zip(shares, occupied, strict=True)]
        shares = tuple(pairwise(accumulate(divide_in_proportion(weights, cores), initial=0)))
    return best


def _with_shares(
    stages: TokenStages, arch: Target, groups: Sequence[Range], shares: Sequence[Range], knobs: TuningKnobs
) -> tuple[TokenCores, list[float]] | None:
    """Returns the choice with these groups on these ranges of cores, and their times; None if a range is too small."""
    choice = TokenCores(cores=shares[-1][1])
    times: list[float] = []
    senders = 1
    for (first, last), (low, high) in zip(groups, shares, strict=True):
        group, own = stages.group(first, last), range(low, high)
        found = (_in_group(group, packed, own, arch, senders) for packed in pack_chains(group.chains))
        fitting = [way for way in found if way is not None]
        if not fitting:
            return None
        best = min(fitting, key=lambda way: sum(way.times_ns))
        for chain, place in best.chains:
            choice.layers |= dict(chain.records(place, knobs.step_ns))
        choice.products |= best.products
        senders = best.senders
        times.append(sum(best.times_ns))
    return choice, times


@dataclass(slots=True)
class _Group:
    """The cores of a group: its chains with their cores, its products, and the time of each for a sample.

    senders: number of cores that make keys and values for the next group.
    """

    chains: list[tuple[TokenChain, range]]
    senders: int
    products: dict[str, DotGrid] = field(default_factory=dict[str, DotGrid])
    times_ns: list[float] = field(default_factory=list[float])


def _in_group(
    group: TokenStages, chains: Sequence[TokenChain], cores: range, arch: Target, given: int
) -> _Group | None:
    """Returns the cores of a group whose layers are in these `chains`; None if it has too few cores.

    given: number of cores of the previous group that make keys and values for the first attention. The cores that
    send keys and values to an attention do not compute it: while one of them computes, receivers would wait.
    """
    shares = _shares(chains, len(cores))
    if shares is None or any(chain.core_ns(share) == math.inf for chain, share in zip(chains, shares, strict=True)):
        return None
    ends = list(accumulate(shares, initial=cores.start))
    placed = [(chain, range(*place)) for chain, place in zip(chains, pairwise(ends), strict=True)]
    places = {layer.key: (place, chain.copies(len(place))) for chain, place in placed for layer in chain.layers}
    makers = [places[chain.layers[-1].key] if chain.layers else (range(0), 1) for chain in group.chains]
    if len(makers) == len(group.products):
        makers.insert(0, (range(0), given))
    found = _Group(placed, makers[-1][1])
    found.times_ns += (chain.core_ns(share) for chain, share in zip(chains, shares, strict=True))
    for (senders, copies), together in zip(makers, group.products, strict=False):
        free = [core for core in cores if core not in senders]
        for product in together:
            found.products[product.key] = product.record(free or cores, copies, arch)
            time_ns, _ = product.best(len(free or cores), copies, arch)
            found.times_ns.append(time_ns if free else SENDER_WAITING * time_ns)
    return found


def pack_chains(chains: Sequence[TokenChain]) -> Iterator[Sequence[TokenChain]]:
    """Yields regroupings of the layers of some chains: each chain by itself, then packed as densely as they fit.

    When packed, a core may hold the end of one chain and the begin of the next one.
    """
    yield chains
    whole = [chain for chain in chains if chain.layers]
    if whole:
        cores = max(chain.least for chain in whole)
        yield from (_packed(whole, cores, pixels) for pixels in (whole[0].xbar_rows, 1))


def _packed(chains: Sequence[TokenChain], cores: int, pixels: int) -> Sequence[TokenChain]:
    """Packs layers, in order, into few chains that `cores` cores hold together, with blocks of `pixels` tokens."""
    packed: list[list[TokenLayer]] = [[]]
    used, most = 0, chains[0].xbars_per_core
    for layer in (layer for chain in chains for layer in chain.layers):
        xbars = layer.xbars(cores, pixels)
        if used + xbars > most and packed[-1]:
            packed.append([])
            used = 0
        packed[-1].append(layer)
        used += xbars
    return [TokenChain(tuple(layers), most, chains[0].xbar_rows) for layers in packed]


@dataclass(slots=True)
class _Apart:
    """Chains and attentions with cores of their own. shares: number of cores of each chain, then of each attention."""

    stages: TokenStages
    arch: Target
    chains: list[TokenChain] = field(init=False)
    shares: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.chains = [chain for chain in self.stages.chains if chain.layers]
        self.shares = [*(chain.least for chain in self.chains), *(min(1, len(p)) for p in self.stages.products)]

    def senders(self, attention: int) -> int:
        """Returns the number of cores that make keys and values for an attention."""
        chain = self.stages.chains[attention]
        return chain.copies(self.shares[self.chains.index(chain)]) if chain.layers else 1

    def time_ns(self, item: int) -> float:
        """Returns the time in ns of an item for a sample: a chain, with sending keys and values, or an attention."""
        attention = item - len(self.chains)
        if attention >= 0:
            return sum(each.best(self.shares[item], None, self.arch)[0] for each in self.stages.products[attention])
        chain, sending = self.chains[item], 0.0
        attention = self.stages.chains.index(chain)
        if attention < len(self.stages.products):
            cores, senders = self.shares[len(self.chains) + attention], self.senders(attention)
            for product in self.stages.products[attention]:
                _, (heads, queries) = product.best(cores, None, self.arch)
                sending += product.sending_ns(-(-product.heads // heads), heads * queries, senders, self.arch)
        return chain.core_ns(self.shares[item]) + sending

    def share(self, cores: int) -> list[float] | None:
        """Gives the slowest item more cores as long as that helps. Returns all times; None for too few cores."""
        if sum(self.shares) > cores:
            return None
        times = [self.time_ns(item) for item in range(len(self.shares))]
        while True:
            slowest = max(range(len(times)), key=times.__getitem__)
            before, free = self.shares[slowest], cores - sum(self.shares)
            for self.shares[slowest] in range(before + 1, before + free + 1):
                time_ns = self.time_ns(slowest)
                if time_ns < times[slowest]:
                    times[slowest] = time_ns
                    break
            else:
                self.shares[slowest] = before
                return times


def separate_stages(
    stages: TokenStages, arch: Target, cores: int, knobs: TuningKnobs, layer_ns: Mapping[str, float] = NO_OTHER_LAYERS
) -> TokenCores | None:
    """Returns the choice in which each chain and each attention has cores of its own; None if there are too few.

    They work on different samples at the same time, so the slowest one gets more cores. Values that are read after an
    attention are relayed by its cores, so that the cores that made them can begin the next sample.
    """
    found = _Apart(stages, arch)
    times = found.share(cores)
    if times is None or math.inf in times:
        return None
    between_ns = stages.other_layers_ns((-1, len(stages.products)), layer_ns)
    choice = TokenCores(sum(times) + between_ns, max(times), cores)
    ends = [range(*place) for place in pairwise(accumulate(found.shares, initial=0))]
    for chain, place in zip(found.chains, ends, strict=False):
        choice.layers |= dict(chain.records(place, knobs.step_ns))
    for together, place in zip(stages.products, ends[len(found.chains) :], strict=True):
        for product in together:
            choice.products[product.key] = product.record(place, None, arch, relaying=True)
    return choice


def _shares(chains: Sequence[TokenChain], cores: int) -> list[int] | None:
    """Divides cores among chains that work one after another, in whole copies; None if there are too few.

    The sum of `work / cores` is least if cores are proportional to the square root of the work.
    """
    free = cores - sum(chain.least for chain in chains)
    if free < 0 or not cores:
        return None
    roots = [math.sqrt(chain.core_ns(chain.least) * chain.least) for chain in chains]
    return [
        chain.best(chain.least + int(free * root / max(sum(roots), 1.0)))
        for chain, root in zip(chains, roots, strict=True)
    ]
