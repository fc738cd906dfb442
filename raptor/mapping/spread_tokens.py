"""Spreads a transformer for the least latency: all cores serve all chains and all attentions.

If each chain has cores of its own, they wait while a sample is in the other chains. Here some neighbouring cores hold
all layers of all chains once: a *copy*. It takes some tokens through the whole model, and a layer is cut among several
of its cores. A sample then has nearly the whole chip at any time, but the next one has to wait until it is done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, product

from raptor.mapping.decision import DotGrid, LineGrid, LineUnfolding
from raptor.mapping.knobs import MESSAGE_NS, Knobs
from raptor.mapping.streaming import Parts, Range, cut_channels
from raptor.mapping.token_cores import Product, Shape, Stages, TokenCores, TokenLayer, even
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_element_ns, mvmul_ns, vector_ns

ONE = 1
"""Tokens of a block: with more, a layer takes more crossbars, which copies need."""

PARTIAL = 2
"""Factor on the time of sending keys and values if cores that send them wait for partial sums of others that send."""

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

    def grid(self, tokens: int, copies: int, arch: Target, step_ns: float) -> LineGrid:
        """Returns the grid for all tokens, shared among so many copies."""
        step = max(1, int(step_ns / mvmul_ns(arch, max(self.xbars))))
        return LineGrid(even(tokens, min(copies, tokens)), self.ins, self.outs, 1, ONE, 0, step)


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
    of a copy. times_ns: of the chains and attentions.
    """

    stages: Stages
    arch: Target
    cores: int
    copies: int
    together: int
    cut_of: dict[str, Cut] = field(default_factory=dict[str, Cut])
    own: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    used: list[int] = field(default_factory=list[int])
    times_ns: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.used = [0] * self.together
        for i, chain in enumerate(self.stages.chains):
            behind = self.stages.products[i] if i < len(self.stages.products) else ()
            homes = 1
            for layer in chain.layers:
                makes = behind if layer is chain.layers[-1] else ()
                cut = min(cuts(layer.shape, self.together), key=lambda c, of=layer, to=makes: self.layer_ns(of, c, to))
                self.cut_of[layer.key], homes = cut, cut.homes
                self.own[layer.key] = self.place(cut)
                self.times_ns.append(self.layer_ns(layer, cut, ()))
            self.times_ns += (each.best(self.cores, self.copies, self.arch, homes)[0] for each in behind)

    def layer_ns(self, layer: TokenLayer, cut: Cut, behind: Sequence[Product]) -> float:
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
        time_ns = WAITING * sum(self.times_ns)
        choice = TokenCores(time_ns, time_ns, self.cores)
        for layer in (layer for chain in self.stages.chains for layer in chain.layers):
            grid = self.cut_of[layer.key].grid(layer.tokens, self.copies, layer.arch, knobs.step_ns)
            own = product(range(len(grid.cols)), self.own[layer.key])
            cores = tuple(copy * self.together + core for copy, core in own)
            choice.layers[layer.key] = LineUnfolding(grid, cores)
        for chain, behind in zip(self.stages.chains, self.stages.products, strict=False):
            homes = self.cut_of[chain.layers[-1].key].homes if chain.layers else 1
            for each in behind:
                record = each.record(range(self.cores), self.copies, self.arch, homes=homes)
                choice.products[each.key] = in_steps(record, each, self.arch, knobs.step_ns)
        return choice


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
    best = min((way for way in tried if way.fits), key=lambda way: sum(way.times_ns), default=None)
    return best and best.choice(knobs)
