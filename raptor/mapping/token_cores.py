"""Chooses cores for transformers: layers between two attentions share cores, and attentions take all cores of a group.

Between two attentions every token is for itself. So the layers there form a chain: a core holds the weights of all of
them and takes some tokens, which never leave it. If a core is too small, several cores hold a chain together, each some
output channels. An attention needs keys and values of all tokens, and no crossbars: any core can take some queries of
some heads. Attentions and chains come in turns, so they can use the same cores: the model is cut into groups of
neighbouring attentions and chains, and a group has cores of its own. Few groups are good for the latency, because more
cores work on each attention; many are good for the interval, because more samples are under way.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from raptor.graph.ir import Filter
from raptor.mapping.decision import DotGrid, LineGrid, LineUnfolding
from raptor.mapping.knobs import MESSAGE_NS, Knobs
from raptor.mapping.line_unfolding import block_pixels, most_added
from raptor.mapping.phases import shared_out
from raptor.mapping.streaming import Parts, Range, cut_channels
from raptor.mapping.widths import accumulating
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


ROUNDS = 4
"""Number of times that cores are shared out among groups between other layers."""

NO_OTHERS: Mapping[str, float] = {}

WAITING = 2
"""Factor on the time of an attention whose cores also send its keys and values: a guess, measured on BERT-tiny only."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a layer of tokens: output channels, channel ranges of its input, and the target with its widths."""

    outputs: int
    parts: Parts
    arch: Target

    def cut(self, cores: int) -> Iterator[tuple[tuple[Parts, ...], tuple[Range, ...]]]:
        """Yields ways to share the layer among cores: groups of input ranges, output ranges; one of them is whole.

        There may be fewer of them than cores.
        """
        ranges = cut_channels(self.outputs, self.arch.xbar_rows)
        pieces = even(len(ranges), min(cores, len(ranges)))
        yield (self.parts,), tuple((ranges[a][0], ranges[b - 1][1]) for a, b in pieces)
        if cores > 1 and len(self.parts) > 1:
            groups = even(len(self.parts), min(cores, len(self.parts)))
            yield tuple(self.parts[a:b] for a, b in groups), ((0, ranges[-1][1]),)

    def blocks(self, group: Parts, width: int, pixels: int) -> Iterator[tuple[int, int]]:
        """Yields for each channel range of the input the tokens of a block, at most `pixels`, and its crossbars."""
        for part in group:
            count = min(pixels, block_pixels(part, self.arch.xbar_rows))
            yield count, -(-count * width // self.arch.outputs_per_xbar)

    def token_ns(self, ins: tuple[Parts, ...], outs: tuple[Range, ...], pixels: int) -> float:
        """Returns the time of a core for a token: products, sums, and partial sums of other cores."""
        sums, width = accumulating(self.arch), max(b - a for a, b in outs)
        products = max(
            sum((mvmul_ns(self.arch, xbars) + ISSUE_NS) / count for count, xbars in self.blocks(group, width, pixels))
            for group in ins
        )
        added = width * vector_element_ns(sums) * max(len(group) for group in ins)
        own = self.own_width(len(ins), outs)
        received = own * most_added(len(ins)) * (vector_element_ns(sums) + message_element_ns(sums))
        return products + added + received + (width - own) * message_element_ns(sums)

    def own_width(self, groups: int, outs: tuple[Range, ...]) -> int:
        """Returns for how many output channels the core that has most adds the partial sums of all groups."""
        if groups == 1:
            return max(b - a for a, b in outs)
        own: Counter[tuple[int, Range]] = Counter()
        for p, (low, high) in enumerate(cut_channels(self.outputs, self.arch.xbar_rows)):
            own[p % groups, next(piece for piece in outs if low < piece[1])] += high - low
        return max(own.values())


@dataclass(frozen=True, slots=True)
class _Share:
    """The best way to share a layer: groups of input ranges, output ranges. `token_ns`: time of a core for a token."""

    ins: tuple[Parts, ...]
    outs: tuple[Range, ...]
    token_ns: float

    @property
    def width(self) -> int:
        """The outputs of the core that has most."""
        return max(b - a for a, b in self.outs)


@lru_cache(maxsize=4096)
def _share(shape: Shape, cores: int, pixels: int) -> _Share:
    """Returns the way with which a core takes least time, with blocks of at most `pixels` tokens."""
    ways = (_Share(ins, outs, shape.token_ns(ins, outs, pixels)) for ins, outs in shape.cut(cores))
    return min(ways, key=lambda way: way.token_ns)


@dataclass(frozen=True, slots=True)
class TokenLayer:
    """A layer of some tokens: its filter, the channel ranges of its input, and the target with its widths.

    `extra_ns`: time of what follows it on its cores, for all tokens. `constants`: elements of constants that each of
    its cores loads for that.
    """

    key: str
    tokens: int
    filter_: Filter
    parts: Parts
    arch: Target
    extra_ns: float
    constants: int

    @property
    def shape(self) -> "Shape":
        return Shape(self.filter_.weights.shape[2], self.parts, self.arch)

    def share(self, cores: int, pixels: int) -> _Share:
        """Returns the best way to share the layer among cores, with blocks of at most `pixels` tokens."""
        return _share(self.shape, cores, pixels)

    def xbars(self, cores: int, pixels: int, held: int = 0) -> int:
        """Returns the crossbars of the core that needs most, if it holds `held` tokens (0: blocks of `pixels` only).

        A last block of fewer tokens than the others is filled up with tokens of other cores, so that it needs no matrix
        of its own. Only where all tokens of the layer are not enough for that, it does.
        """
        way = self.share(cores, pixels)

        def with_rest(count: int, xbars: int) -> int:
            rest = self.tokens % count if self.tokens > count and -(-held // count) * count > self.tokens else 0
            return xbars + -(-rest * way.width // self.arch.outputs_per_xbar)

        return max(sum(with_rest(*block) for block in self.shape.blocks(group, way.width, pixels)) for group in way.ins)

    def grid(self, cols: tuple[Range, ...], cores: int, pixels: int, step_ns: float) -> LineGrid:
        """Returns the grid for tokens `cols`, each on `cores` cores."""
        way = self.share(cores, pixels)
        widest = max(n for _, n in self.shape.blocks(way.ins[0], way.width, pixels))
        step = max(1, int(step_ns / mvmul_ns(self.arch, widest)))
        return LineGrid(cols, way.ins, way.outs, 1, pixels, 0, step)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to hold a chain: `copies` of it on `together` cores each, with blocks of `pixels` tokens.

    core_ns: working time of a core for a sample, with the wait for all constants.
    """

    copies: int
    together: int
    pixels: int
    core_ns: float


@dataclass(frozen=True, slots=True)
class _Known:
    """Ways to hold chains of the same layers: by numbers of copies and cores of each, and the best one by all cores."""

    ways: dict[tuple[int, int], Way | None] = field(default_factory=dict[tuple[int, int], Way | None])
    best: dict[int, Way | None] = field(default_factory=dict[int, Way | None])


@lru_cache(maxsize=64)
def _known(_chain: Hashable) -> _Known:
    return _Known()


@dataclass(frozen=True)
class Chain:
    """Layers between two attentions."""

    layers: tuple[TokenLayer, ...]
    xbars_per_core: int
    xbar_rows: int

    @cached_property
    def known(self) -> "_Known":
        """Ways of chains of these layers that were looked at."""
        layers = ((each.shape, each.tokens, each.extra_ns, each.constants) for each in self.layers)
        return _known((*layers, self.xbars_per_core))

    @property
    def tokens(self) -> int:
        """Largest number of tokens of a layer."""
        return max((layer.tokens for layer in self.layers), default=0)

    @cached_property
    def least(self) -> int:
        """The fewest cores that hold the chain together: 0 for no layers, more than `MOST_TOGETHER` if none do."""
        tried = range(1, MOST_TOGETHER + 1) if self.layers else (0,)
        return next((cores for cores in tried if self.block(cores, 0) is not None), MOST_TOGETHER + 1)

    def block(self, together: int, held: int) -> int | None:
        """Returns the tokens of a block if so many cores hold the chain; None if they do not. `held`: see `xbars`."""
        for pixels in (self.xbar_rows, 1):
            if sum(layer.xbars(together, pixels, held) for layer in self.layers) <= self.xbars_per_core:
                return pixels
        return None

    def copies(self, cores: int) -> int:
        """Returns how often some cores hold the chain."""
        way = self.way(cores)
        return way.copies if way else 0

    def way(self, cores: int) -> Way | None:
        """Returns the fastest way to hold the chain on at most so many cores, with the fewest of them; None for none.

        With fewer copies, each is on more cores, which share the layers.
        """
        known = self.known.best
        if cores not in known:
            most = min(cores // self.least, self.tokens) if self.least else 0
            each = {-(-self.tokens // copies) for copies in range(1, most + 1)}
            copies = (-(-self.tokens // tokens) for tokens in each)
            tried = (self.held(count, min(cores // count, MOST_TOGETHER)) for count in copies)
            fitting = [way for way in tried if way is not None]
            known[cores] = min(fitting, key=lambda way: (way.core_ns, way.copies * way.together), default=None)
        return known[cores]

    def held(self, copies: int, together: int) -> Way | None:
        """Returns the way with so many copies on so many cores each; None if they do not hold the chain."""
        known = self.known.ways
        if (copies, together) not in known:
            known[copies, together] = self.way_of(copies, together)
        return known[copies, together]

    def way_of(self, copies: int, together: int) -> Way | None:
        """Returns what `held` does."""
        pixels = self.block(together, -(-self.tokens // copies))
        if pixels is None:
            return None
        constants = min(copies * self.loading_ns, self.making_ns(together, pixels))
        work = sum(
            -(-layer.tokens // copies) * layer.share(together, pixels).token_ns + layer.extra_ns / (copies * together)
            for layer in self.layers
        )
        return Way(copies, together, pixels, constants + work)

    def core_ns(self, cores: int) -> float:
        """Returns the working time of one of so many cores for a sample; infinite if they do not hold the chain."""
        way = self.way(cores)
        return way.core_ns if way else math.inf if self.layers else 0.0

    @cached_property
    def loading_ns(self) -> float:
        """The time that the port of global memory is busy with the constants of one copy."""
        return sum(global_port_ns(layer.arch, layer.constants) for layer in self.layers)

    def making_ns(self, together: int, pixels: int) -> float:
        """Returns the time of a core to make its constants by a product; infinite without crossbars for it."""
        arch = self.layers[0].arch
        needed = -(-sum(layer.constants for layer in self.layers) // (together * arch.outputs_per_xbar))
        used = sum(layer.xbars(together, pixels) for layer in self.layers)
        return mvmul_ns(arch, needed) + ISSUE_NS if used + needed <= self.xbars_per_core else math.inf

    def best(self, cores: int) -> int:
        """Returns the number of cores, at most `cores`, with which the chain is fastest; the least of equal ones."""
        return min(range(self.least, cores + 1), key=self.core_ns, default=0)

    def records(self, cores: Sequence[int], step_ns: float) -> Iterator[tuple[str, LineUnfolding]]:
        """Yields key and record of each layer on these cores."""
        way = self.way(len(cores))
        if way is None:
            return
        for layer in self.layers:
            cols = even(layer.tokens, min(way.copies, layer.tokens))
            grid = layer.grid(cols, way.together, way.pixels, step_ns)
            own = (cores[s * way.together + j] for s in range(len(cols)) for j in range(len(grid.outs) * len(grid.ins)))
            yield layer.key, LineUnfolding(grid, tuple(own))


@dataclass(frozen=True, slots=True)
class Product:
    """The first product of an attention: its name, heads, queries of a head, keys of a head, channels of each.

    `relays`: tensors of tokens from before it that the layers behind it read.
    """

    key: str
    heads: int
    queries: int
    keys: int
    channels: int
    relays: tuple[str, ...] = ()

    def splits(self, cores: int) -> Iterator[tuple[int, int]]:
        """Yields ways to cut heads and queries for at most so many cores."""
        for heads in range(1, min(self.heads, cores) + 1):
            yield heads, min(self.queries, cores // heads)

    def core_ns(self, heads: int, queries: int, arch: Target) -> float:
        """Returns the working time of a core for heads and queries of each.

        Keys and values of the heads come by messages; the values are transposed. Then there is a dot product of
        vectors for each query and key, and for each query and channel.
        """
        head_ns, query_ns = _dot_times(self.keys, self.channels, arch)
        return heads * (queries * query_ns + head_ns)

    def sending_ns(self, heads: int, receivers: int, senders: int, arch: Target) -> float:
        """Returns the time in which each sender of keys and values sends its part of `heads` heads to all receivers."""
        each = -(-self.keys // max(1, senders)) * heads * self.channels
        return 2 * receivers * (MESSAGE_NS + each * message_element_ns(arch))

    def best(self, cores: int, senders: int | None, arch: Target, homes: int = 1) -> tuple[float, tuple[int, int]]:
        """Returns the least time on at most so many cores, and the numbers of ranges of heads and queries.

        With more cores, each computes less, but there is more to send. senders: number of cores that send keys and
        values in this time; None if it is none of the attention's. homes: number of cores that share the channels of
        each sender.
        """
        return _best(replace(self, key="", relays=()), cores, senders, arch, homes)

    def record(
        self, cores: Sequence[int], senders: int | None, arch: Target, *, relaying: bool = False, homes: int = 1
    ) -> DotGrid:
        """Returns the record for some of these cores."""
        _, (heads, queries) = self.best(len(cores), senders, arch, homes)
        own, relays = tuple(cores[: heads * queries]), self.relays if relaying else ()
        return DotGrid(even(self.heads, heads), even(self.queries, queries), own, relays)


@lru_cache(maxsize=1024)
def _dot_times(keys: int, channels: int, arch: Target) -> tuple[float, float]:
    """Returns the time of a core for a head of an attention, and for each of its queries."""
    scores = keys * (vector_ns(arch, channels, 2) + ISSUE_NS)
    means = channels * (vector_ns(arch, keys, 2) + ISSUE_NS)
    moved = 2 * keys * channels * message_element_ns(arch)
    turned = channels * vector_ns(arch, keys, 1)
    return moved + turned + MESSAGE_NS, scores + means + vector_ns(arch, keys, 2)


@lru_cache(maxsize=4096)
def _best(product: Product, cores: int, senders: int | None, arch: Target, homes: int) -> tuple[float, tuple[int, int]]:
    """Returns what `Product.best` does: attentions of equal sizes share the answer."""
    (head_ns, query_ns), flit_ns = _dot_times(product.keys, product.channels, arch), message_element_ns(arch)
    sent = 0.0 if senders is None else -(-product.keys // max(1, senders)) * product.channels * flit_ns
    found: list[tuple[float, tuple[int, int]]] = []
    for heads, most in product.splits(cores):
        each = -(-product.heads // heads)
        for queries in {-(-product.queries // n) for n in range(-(-product.queries // most), product.queries + 1)}:
            work_ns = each * (-(-product.queries // queries) * query_ns + head_ns)
            sending_ns = 0.0 if senders is None else 2 * heads * queries * (MESSAGE_NS + each * sent)
            found.append((work_ns + sending_ns / homes, (heads, queries)))
    return min(found)


@dataclass(frozen=True, slots=True)
class Stages:
    """Chains and attentions in turns: `chains[i]` is before `products[i]`; there is one chain more.

    breaks: attentions before which other layers lie, and the keys of these. If they are in the middle of a chain, it is
    cut into two, and the attention between them is empty.
    """

    chains: tuple[Chain, ...]
    products: tuple[tuple[Product, ...], ...]
    breaks: Mapping[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])

    @property
    def keys(self) -> set[str]:
        """The layers of all chains."""
        return {layer.key for chain in self.chains for layer in chain.layers}

    def cuts(self) -> tuple[tuple[Range, ...], ...]:
        """Returns ways to cut the attentions into groups of neighbours, from few to many: evenly, and at each break."""
        count, ends = len(self.products), sorted({0, *self.breaks, len(self.products)})
        found: dict[tuple[Range, ...], None] = {}
        for groups in range(1, count + 1):
            at_breaks: list[Range] = []
            for first, last in pairwise(ends):
                own = min(last - first, max(1, round((last - first) * groups / count)))
                at_breaks += [(first + a, first + b) for a, b in even(last - first, own)]
            found |= dict.fromkeys((even(count, groups), tuple(at_breaks)))
        return tuple(found)

    def between_ns(self, group: Range, layer_ns: Mapping[str, float]) -> float:
        """Returns the time of a sample in other layers within a group: at each break, that of the slowest there."""
        within = (keys for at, keys in self.breaks.items() if group[0] < at < group[1])
        return sum(max(layer_ns.get(key, 0.0) for key in keys) for keys in within)

    def group(self, first: int, last: int) -> "Stages":
        """Returns the attentions `first` to `last` with the chain after each; the first group has the first chain."""
        return Stages(self.chains[first + 1 if first else 0 : last + 1], self.products[first:last])


@dataclass(slots=True)
class TokenCores:
    """The choice: a record for each layer and each product, by name.

    latency_ns, interval_ns: estimates of the time of a sample, and between samples. cores: number of cores used.
    """

    latency_ns: float = 0.0
    interval_ns: float = 0.0
    cores: int = 0
    layers: dict[str, LineUnfolding] = field(default_factory=dict[str, LineUnfolding])
    products: dict[str, DotGrid] = field(default_factory=dict[str, DotGrid])


def in_groups(
    stages: Stages,
    arch: Target,
    cores: int,
    groups: Sequence[Range],
    knobs: Knobs,
    layer_ns: Mapping[str, float] = NO_OTHERS,
) -> TokenCores | None:
    """Returns the choice with these groups of attentions; None if a group has too few cores for its chains.

    Groups beside other layers differ in their work, so they get cores in proportion to what they took with the last.
    `layer_ns`: time of a sample in each of the other layers.
    """
    shares, best = even(cores, len(groups)), None
    for _ in range(ROUNDS if stages.breaks else 1):
        found = _with_shares(stages, arch, groups, shares, knobs)
        if found is None:
            break
        choice, times = found
        occupied = [ns + stages.between_ns(group, layer_ns) for ns, group in zip(times, groups, strict=True)]
        choice.interval_ns = max(occupied)
        choice.latency_ns = sum(times) + stages.between_ns((-1, len(stages.products)), layer_ns)
        if best is None or choice.interval_ns < best.interval_ns:
            best = choice
        weights = [(high - low) * ns for (low, high), ns in zip(shares, occupied, strict=True)]
        shares = tuple(pairwise(accumulate(shared_out(weights, cores), initial=0)))
    return best


def _with_shares(
    stages: Stages, arch: Target, groups: Sequence[Range], shares: Sequence[Range], knobs: Knobs
) -> tuple[TokenCores, list[float]] | None:
    """Returns the choice with these groups on these cores, and their times; None if one has too few cores."""
    choice = TokenCores(cores=shares[-1][1])
    times: list[float] = []
    senders = 1
    for (first, last), (low, high) in zip(groups, shares, strict=True):
        group, own = stages.group(first, last), range(low, high)
        found = (_in_group(group, packed, own, arch, senders) for packed in packings(group.chains))
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
    """Cores of a group: its chains with their cores, its products, and the times of all of them for a sample.

    senders: number of cores that make keys and values for the next group.
    """

    chains: list[tuple[Chain, range]]
    senders: int
    products: dict[str, DotGrid] = field(default_factory=dict[str, DotGrid])
    times_ns: list[float] = field(default_factory=list[float])


def _in_group(group: Stages, chains: Sequence[Chain], cores: range, arch: Target, given: int) -> _Group | None:
    """Returns the cores of a group whose layers are in these `chains`; None if it has too few cores.

    given: number of cores of the group before that make keys and values for the first attention.

    The cores that send keys and values to an attention take no part in it: while one of them computes, others wait.
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
            found.times_ns.append(time_ns if free else WAITING * time_ns)
    return found


def packings(chains: Sequence[Chain]) -> Iterator[Sequence[Chain]]:
    """Yields ways to put the layers of some chains on cores: each chain for itself, and as closely as they fit.

    Then a core may hold the end of one chain and the begin of the next one.
    """
    yield chains
    whole = [chain for chain in chains if chain.layers]
    if whole:
        cores = max(chain.least for chain in whole)
        yield from (_packed(whole, cores, pixels) for pixels in (whole[0].xbar_rows, 1))


def _packed(chains: Sequence[Chain], cores: int, pixels: int) -> Sequence[Chain]:
    """Returns the layers as few chains, in order, if `cores` hold each together, with blocks of so many tokens."""
    packed: list[list[TokenLayer]] = [[]]
    used, most = 0, chains[0].xbars_per_core
    for layer in (layer for chain in chains for layer in chain.layers):
        xbars = layer.xbars(cores, pixels)
        if used + xbars > most and packed[-1]:
            packed.append([])
            used = 0
        packed[-1].append(layer)
        used += xbars
    return [Chain(tuple(layers), most, chains[0].xbar_rows) for layers in packed]


@dataclass(slots=True)
class _Apart:
    """Chains and attentions with cores of their own: numbers of cores, first of the chains, then of the attentions."""

    stages: Stages
    arch: Target
    chains: list[Chain] = field(init=False)
    shares: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.chains = [chain for chain in self.stages.chains if chain.layers]
        self.shares = [*(chain.least for chain in self.chains), *(min(1, len(p)) for p in self.stages.products)]

    def senders(self, attention: int) -> int:
        """Returns the number of cores that make keys and values for an attention."""
        chain = self.stages.chains[attention]
        return chain.copies(self.shares[self.chains.index(chain)]) if chain.layers else 1

    def time_ns(self, item: int) -> float:
        """Returns the time of a chain for a sample, with sending keys and values, or of an attention."""
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
        """Gives the slowest more cores as long as that helps. Returns all times; None if there are too few cores."""
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


def apart(
    stages: Stages, arch: Target, cores: int, knobs: Knobs, layer_ns: Mapping[str, float] = NO_OTHERS
) -> TokenCores | None:
    """Returns the choice in which each chain and each attention has cores of its own; None if there are too few.

    They work on different samples at the same time, so the slowest one gets more cores. Values that are needed behind
    an attention pass through its cores: those that made them begin the next sample.
    """
    found = _Apart(stages, arch)
    times = found.share(cores)
    if times is None or math.inf in times:
        return None
    between_ns = stages.between_ns((-1, len(stages.products)), layer_ns)
    choice = TokenCores(sum(times) + between_ns, max(times), cores)
    ends = [range(*place) for place in pairwise(accumulate(found.shares, initial=0))]
    for chain, place in zip(found.chains, ends, strict=False):
        choice.layers |= dict(chain.records(place, knobs.step_ns))
    for together, place in zip(stages.products, ends[len(found.chains) :], strict=True):
        for product in together:
            choice.products[product.key] = product.record(place, None, arch, relaying=True)
    return choice


def _shares(chains: Sequence[Chain], cores: int) -> list[int] | None:
    """Shares cores among chains that work one after another, in whole copies; None if there are too few.

    The sum of `work / cores` is least if cores grow with the root of the work.
    """
    free = cores - sum(chain.least for chain in chains)
    if free < 0 or not cores:
        return None
    roots = [math.sqrt(chain.core_ns(chain.least) * chain.least) for chain in chains]
    return [
        chain.best(chain.least + int(free * root / max(sum(roots), 1.0)))
        for chain, root in zip(chains, roots, strict=True)
    ]


def even(count: int, pieces: int) -> tuple[Range, ...]:
    """Cuts 0 to `count` into ranges of sizes that differ by at most 1."""
    return tuple((count * i // pieces, count * (i + 1) // pieces) for i in range(pieces))
