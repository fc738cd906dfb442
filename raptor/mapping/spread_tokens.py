"""Spreads a transformer for the least latency: all cores serve all chains and all attentions.

If each chain has cores of its own, they wait while a sample is in the other chains. Here some neighbouring cores hold
all layers of all chains once: a *copy*. It takes some tokens through the whole model, and a layer is cut among several
of its cores, which pass some tokens at a time to those of the next layer. A sample then has nearly the whole chip at
any time, but the next one has to wait until it is done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby

from raptor.mapping.decision import DotGrid, LineGrid, LineUnfolding
from raptor.mapping.knobs import MESSAGE_NS, Knobs
from raptor.mapping.streaming import Parts, Range, cut_channels
from raptor.mapping.token_cores import Chain, Product, Shape, Stages, TokenCores, TokenLayer, even
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_element_ns, mvmul_ns, vector_ns

ONE = 1
"""Tokens of a block: with more, a layer takes more crossbars, which copies need."""

PARTIAL = 2
"""Factor on the time of sending keys and values if cores that send them wait for partial sums of others that send."""

SEGMENT_NS = 25_000
"""Least time of a core for the tokens that it passes on together.

The next layer begins when they are there, so fewer tokens mean less latency, but more messages and longer compilation.
Scheduled for BERT-base (144 cores with 96 crossbars): 33.5 ms without segments; 25.2, 23.6 and 22.5 ms with 16, 8 and 4
tokens, for which the compilation takes 1.4, 1.9 and 3.1 times as long. 8 tokens of it take 20 us. ViT-tiny on 200 cores
of `bench` is faster without segments (5.93 ms) than with two for each copy, which take less than 25 us each (6.01 ms).
"""

WAITING = 1.5
"""Factor on all times, for cores that wait for one another: a guess.

Measured without it on `bench` with 200 cores: ViT-tiny takes 1.4 times as long, BERT-tiny 1.7 times.
"""


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to cut a layer among cores: each has a group of input ranges and a range of output channels.

    xbars: crossbars of each core, by group and then by range. homes: number of cores that have sums, the others have
    partial sums only. token_ns: time of a core for a token, with the message that brings it.
    """

    ins: tuple[Parts, ...]
    outs: tuple[Range, ...]
    xbars: tuple[int, ...]
    homes: int
    token_ns: float

    @classmethod
    def of(cls, shape: Shape, ins: tuple[Parts, ...], outs: tuple[Range, ...]) -> "Cut":
        """Returns the cut into these groups and ranges."""
        ranges = cut_channels(shape.outputs, shape.arch.xbar_rows)
        parts = ((p, next(i for i, (_, stop) in enumerate(outs) if low < stop)) for p, (low, _) in enumerate(ranges))
        homes = {(p % len(ins), part) for p, part in parts}
        xbars = (sum(n for _, n in shape.blocks(group, high - low, ONE)) for group in ins for low, high in outs)
        widest = max(high - low for low, high in shape.parts)
        sent_ns = len(outs) * widest * message_element_ns(shape.arch)
        return cls(ins, outs, tuple(xbars), len(homes), shape.token_ns(ins, outs, ONE) + sent_ns)

    def grid(self, cols: tuple[Range, ...], arch: Target, step_ns: float) -> LineGrid:
        """Returns the grid for these segments of tokens."""
        step = max(1, int(step_ns / mvmul_ns(arch, max(self.xbars))))
        return LineGrid(cols, self.ins, self.outs, 1, ONE, 0, step)


@cache
def cuts(shape: Shape, cores: int) -> tuple[Cut, ...]:
    """Returns the ways to cut a layer among at most so many cores."""
    ranges = cut_channels(shape.outputs, shape.arch.xbar_rows)
    found: list[Cut] = []
    for groups in range(1, min(len(shape.parts), cores) + 1):
        ins = tuple(shape.parts[a:b] for a, b in even(len(shape.parts), groups))
        for pieces in range(1, min(len(ranges), cores // groups) + 1):
            outs = tuple((ranges[a][0], ranges[b - 1][1]) for a, b in even(len(ranges), pieces))
            found.append(Cut.of(shape, ins, outs))
    return tuple(found)


@dataclass(slots=True)
class _Spread:
    """A choice for so many `copies` of `together` cores each.

    cut_of: the cut of each layer. own: its cores within a copy, in the order of the grid. used: crossbars of each core
    of a copy. segments: in how many parts a copy passes its tokens from layer to layer. time_ns: estimate for a sample.
    """

    stages: Stages
    arch: Target
    cores: int
    copies: int
    together: int
    cut_of: dict[str, Cut] = field(default_factory=dict[str, Cut])
    own: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    used: list[int] = field(default_factory=list[int])
    segments: int = 1
    time_ns: float = 0.0

    def __post_init__(self) -> None:
        self.used = [0] * self.together
        for layer, behind in self.layers():
            key = partial(self.layer_ns, layer, behind)
            self.cut_of[layer.key] = min(cuts(layer.shape, self.together), key=key)
            self.own[layer.key] = self.place(self.cut_of[layer.key])
        tokens = min((-(-layer.tokens // self.copies) for layer, _ in self.layers()), default=1)
        longest_ns = tokens * max((cut.token_ns for cut in self.cut_of.values()), default=0.0)
        self.segments = max(1, min(tokens, int(longest_ns / SEGMENT_NS)))
        self.time_ns = WAITING * sum(map(self.chain_ns, range(len(self.stages.chains))))

    def layers(self) -> Iterator[tuple[TokenLayer, Sequence[Product]]]:
        """Yields each layer with the attentions whose keys and values it makes."""
        for chain, behind in zip(self.stages.chains, (*self.stages.products, ()), strict=True):
            yield from ((layer, behind if layer is chain.layers[-1] else ()) for layer in chain.layers)

    def homes(self, chain: Chain) -> int:
        """Returns the number of cores of a copy that have results of a chain."""
        return self.cut_of[chain.layers[-1].key].homes if chain.layers else 1

    def chain_ns(self, i: int) -> float:
        """Returns the time of a chain and the attentions behind it: layers work on different segments at a time."""
        chain, behind = self.stages.chains[i], self.stages.products[i : i + 1]
        times_ns = [self.layer_ns(layer, (), self.cut_of[layer.key]) for layer in chain.layers]
        longest_ns, homes = max(times_ns, default=0.0), self.homes(chain)
        attentions = (each.best(self.cores, self.copies, self.arch, homes)[0] for some in behind for each in some)
        return longest_ns + (sum(times_ns) - longest_ns) / self.segments + sum(attentions)

    def layer_ns(self, layer: TokenLayer, behind: Sequence[Product], cut: Cut) -> float:
        """Returns the time of a layer for a sample, and of sending keys and values to the attentions `behind` it."""
        messages = (len(cut.ins) + len(cut.outs)) * MESSAGE_NS
        work = -(-layer.tokens // self.copies) * cut.token_ns + layer.extra_ns / (self.copies * cut.homes)
        sending = (each.sending_ns(-(-each.heads // self.cores), self.cores, self.copies, self.arch) for each in behind)
        waiting = PARTIAL if len(cut.ins) > 1 else 1
        return messages + work + waiting * sum(sending) / cut.homes

    def place(self, cut: Cut) -> tuple[int, ...]:
        """Puts the matrices of a layer on different cores of a copy, the largest where most crossbars are free."""
        free = sorted(range(self.together), key=lambda core: (self.used[core], core))
        largest = sorted(range(len(cut.xbars)), key=lambda piece: -cut.xbars[piece])
        core_of = dict(zip(largest, free, strict=False))
        for piece, core in core_of.items():
            self.used[core] += cut.xbars[piece]
        return tuple(core_of[piece] for piece in range(len(cut.xbars)))

    @property
    def fits(self) -> bool:
        return max(self.used) <= self.arch.xbars_per_core

    def choice(self, knobs: Knobs) -> TokenCores:
        """Returns the records."""
        choice = TokenCores(self.time_ns, self.time_ns, self.cores)
        choice.layers |= {layer.key: self.record(layer, knobs.step_ns) for layer, _ in self.layers()}
        for chain, behind in zip(self.stages.chains, self.stages.products, strict=False):
            for each in behind:
                record = each.record(range(self.cores), self.copies, self.arch, homes=self.homes(chain))
                choice.products[each.key] = in_steps(record, each, self.arch, knobs.step_ns)
        return choice

    def record(self, layer: TokenLayer, step_ns: float) -> LineUnfolding:
        """Returns the record of a layer: the cores of a copy come once for each of its segments."""
        copies = min(self.copies, layer.tokens)
        segments = min(self.segments, layer.tokens // copies)
        grid = self.cut_of[layer.key].grid(even(layer.tokens, copies * segments), layer.arch, step_ns)
        first = (copy * self.together for copy in range(copies) for _ in range(segments))
        return LineUnfolding(grid, tuple(core + own for core in first for own in self.own[layer.key]))


def in_steps(grid: DotGrid, found: Product, arch: Target, step_ns: float) -> DotGrid:
    """Returns a grid whose cores compute the scores of few queries at a time.

    Between two steps, a core can exchange messages: here it also has keys and values that others wait for.
    """
    each = max(1, int(step_ns / (found.keys * (vector_ns(arch, found.channels, 2) + ISSUE_NS))))
    steps = [
        (i, (x, min(x + each, stop))) for i, (first, stop) in enumerate(grid.cols) for x in range(first, stop, each)
    ]
    width = len(grid.cols)
    cores = tuple(grid.cores[row * width + i] for row in range(len(grid.rows)) for i, _ in steps)
    return DotGrid(grid.rows, tuple(cols for _, cols in steps), cores, grid.relays)


def _shares(cores: int, tokens: int) -> Iterator[tuple[int, int]]:
    """Yields ways to share cores: number of copies, and of the cores of each."""
    found = ((copies, cores // copies) for copies in range(1, min(cores, tokens) + 1))
    for _, same in groupby(found, key=lambda share: share[1]):
        yield list(same)[-1]


def spread(stages: Stages, arch: Target, cores: int, knobs: Knobs) -> TokenCores | None:
    """Returns the choice in which all of so many cores serve all chains; None if they cannot hold the layers."""
    tokens = max((chain.tokens for chain in stages.chains), default=0)
    tried = (_Spread(stages, arch, cores, *share) for share in _shares(cores, tokens))
    best = min((way for way in tried if way.fits), key=lambda way: way.time_ns, default=None)
    return best and best.choice(knobs)
