"""Maps a transformer for the least latency: all cores serve all chains and all attentions.

If each chain has cores of its own, they are idle while a sample is in the other chains. Here, a *copy* is a set of
neighbouring cores that holds all layers of all chains once, and processes some tokens through the whole model. A layer
is cut among several cores of a copy, which pass a few tokens at a time to the cores of the next layer. A sample then
uses nearly the whole chip at any time, but the next one has to wait until it is done.

If the tokens of a copy are passed on in several segments, its layers work at the same time. Then the busiest core
counts, and a layer should not take more cores than it needs, since fewer and wider products need less core time in
total. The first tokens of each copy should leave an attention early, so its cores take the queries of a copy in turns.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

from raptor.mapping.decision import DotGrid, LineUnfolding, renumber_record
from raptor.mapping.knobs import MESSAGE_OVERHEAD_NS, TuningKnobs
from raptor.mapping.modes.line_streaming import Range, even_ranges
from raptor.mapping.transformer.token_cores import (
    NO_OTHER_LAYERS,
    AttentionProduct,
    TokenChain,
    TokenCores,
    TokenLayer,
    TokenStages,
)
from raptor.mapping.transformer.token_cuts import TokenCut, enumerate_cuts
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, vector_ns

PARTIAL_SUM_FACTOR = 2
"""Factor on the time of sending keys and values if cores that send them wait for partial sums of others that send."""

SEGMENT_NS = 25_000
"""Least work of a core, in ns, for a segment: the tokens that it passes on together.

The next layer starts when they arrive, so fewer tokens mean less latency, but more messages and longer compilation.
Scheduled for BERT-base (144 cores with 96 crossbars): 33.5 ms without segments; 25.2, 23.6 and 22.5 ms with 16, 8 and 4
tokens, for which the compilation takes 1.4, 1.9 and 3.1 times as long. 8 tokens of it take 20 us. ViT-tiny on 200 cores
of `bench` is faster without segments (5.93 ms) than with two for each copy, which take less than 25 us each (6.01 ms).
"""

TIME_LIMITS = tuple(2 ** (n / 2) for n in range(6))
"""Limits on the time of a layer that are tried, relative to the slowest layer if each has its fastest cut."""

SPREAD_WAITING = 1.35
"""Factor on all times, for cores that wait for one another: a guess.

Measured without it on `bench` with 200 cores: ViT-tiny takes 1.4 times as long, BERT-tiny 1.7 times.
"""

_Timed = tuple[float, TokenCut]
"""Time of a layer for a sample in ns, and its cut."""


@dataclass(frozen=True)
class ModelCopies:
    """A division of `cores` cores into `copies` copies of `together` cores each, which hold all layers.

    after: the attentions after the last chain, which are on other cores.
    """

    stages: TokenStages
    arch: Target
    cores: int
    copies: int
    together: int
    after: Sequence[AttentionProduct] = ()

    @property
    def attentions_behind(self) -> tuple[Sequence[AttentionProduct], ...]:
        """The attentions after each chain."""
        return (*self.stages.products, self.after)

    def layers(self) -> Iterator[tuple[TokenLayer, Sequence[AttentionProduct]]]:
        """Yields each layer with the attentions whose keys and values it makes."""
        for chain, behind in zip(self.stages.chains, self.attentions_behind, strict=True):
            yield from ((layer, behind if layer is chain.layers[-1] else ()) for layer in chain.layers)

    @cached_property
    def timed_cuts(self) -> dict[str, list[_Timed]]:
        """The candidate cuts of each layer, with their times."""
        known: dict[tuple[int, float, int, Sequence[AttentionProduct]], list[_Timed]] = {}
        found: dict[str, list[_Timed]] = {}
        for layer, behind in self.layers():
            tried = enumerate_cuts(layer.shape, self.together)
            same = id(tried), layer.extra_ns, layer.tokens, tuple(replace(each, key="", relays=()) for each in behind)
            if same not in known:
                known[same] = [(self.layer_ns(layer, behind, cut), cut) for cut in tried]
            found[layer.key] = known[same]
        return found

    def layer_ns(self, layer: TokenLayer, behind: Sequence[AttentionProduct], cut: TokenCut) -> float:
        """Returns the time in ns of a layer for a sample, with sending keys and values to the attentions after it."""
        messages = (len(cut.ins) + len(cut.outs)) * MESSAGE_OVERHEAD_NS
        work = -(-layer.tokens // self.copies) * cut.token_ns + layer.extra_ns / (self.copies * cut.homes)
        sending = (each.sending_ns(-(-each.heads // self.cores), self.cores, self.copies, self.arch) for each in behind)
        waiting = PARTIAL_SUM_FACTOR if len(cut.ins) > 1 else 1
        return messages + work + waiting * sum(sending) / cut.homes

    def choices(self) -> Iterator["SpreadChoice"]:
        """Yields choices that fit: with the fastest cut of each layer, and with cuts that need less total core time."""
        floor_ns = max((min(ns for ns, _ in ways) for ways in self.timed_cuts.values()), default=0.0)
        different = {id(ways): ways for ways in self.timed_cuts.values()}
        before: dict[int, _Timed] = {}
        for limit_ns in (0.0, *(factor * floor_ns for factor in TIME_LIMITS)):
            least = {number: _least(ways, limit_ns) for number, ways in different.items()}
            if least != before:
                chosen = {key: least[id(ways)] for key, ways in self.timed_cuts.items()}
                tried = (SpreadChoice(self, chosen, by_work) for by_work in (True, False))
                yield from (way for way in tried if way.fits)
            before = least


def _least(ways: Sequence[_Timed], limit_ns: float) -> _Timed:
    """Returns the cut with the least total core time within the limit; if none is, the fastest one."""
    limit_ns = max(limit_ns, min(ns for ns, _ in ways))
    return min((way for way in ways if way[0] <= limit_ns), key=lambda way: (way[0] * len(way[1].xbars), way[0]))


class AttentionShare(NamedTuple):
    """The number of cores of an attention, its time, and the load of its busiest core by it and the chain after it."""

    cores: int
    time_ns: float
    busy_ns: float


@dataclass(slots=True)
class SpreadChoice:
    """A choice of cuts, and of their cores within a copy.

    chosen: time and cut of each layer. by_work: True to prefer cores with the least work for a chain, False to prefer
    cores with the fewest crossbars in use. own: the cores of each layer, in the order of the grid. used: crossbars in
    use on each core of a copy. works_ns: [chains][cores], work of each core for each chain. segments: number of parts
    in which a copy passes its tokens from layer to layer.
    """

    form: ModelCopies
    chosen: dict[str, _Timed]
    by_work: bool
    own: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    used: list[int] = field(default_factory=list[int])
    works_ns: list[list[float]] = field(default_factory=list[list[float]])
    segments: int = 1

    def __post_init__(self) -> None:
        self.used = [0] * self.form.together
        for chain in self.form.stages.chains:
            self.works_ns.append([0.0] * self.form.together)
            for layer in chain.layers:
                self.own[layer.key] = self.place(*self.chosen[layer.key], self.works_ns[-1])
        tokens = min((-(-layer.tokens // self.form.copies) for layer, _ in self.form.layers()), default=1)
        longest_ns = tokens * max((cut.token_ns for _, cut in self.chosen.values()), default=0.0)
        self.segments = max(1, min(tokens, int(longest_ns / SEGMENT_NS)))

    def place(self, time_ns: float, cut: TokenCut, works_ns: list[float]) -> tuple[int, ...]:
        """Puts the matrices of a layer on different cores of a copy, the largest on the preferred core (`by_work`).

        time_ns: work of a core for the layer. works_ns: work of each core for the chain so far; updated.
        """

        loads = [*zip(works_ns, self.used, strict=True)] if self.by_work else self.used
        free = sorted(range(self.form.together), key=loads.__getitem__)
        largest = sorted(range(len(cut.xbars)), key=cut.xbars.__getitem__, reverse=True)
        core_of = dict(zip(largest, free, strict=False))
        for piece, core in core_of.items():
            self.used[core] += cut.xbars[piece]
            works_ns[core] += time_ns
        return tuple(core_of[piece] for piece in range(len(cut.xbars)))

    @property
    def fits(self) -> bool:
        return max(self.used) <= self.form.arch.xbars_per_core

    @property
    def floor_ns(self) -> float:
        """Lower bound of `time_ns`: without the attentions."""
        return SPREAD_WAITING * sum(self.chain_ns(i, ()) for i in range(len(self.form.stages.chains)))

    @property
    def time_ns(self) -> float:
        """Estimated latency of a sample in ns, which is also its interval."""
        before = ((), *self.form.stages.products)
        return SPREAD_WAITING * sum(self.chain_ns(i, attentions) for i, attentions in enumerate(before))

    def chain_ns(self, i: int, before: Sequence[AttentionProduct]) -> float:
        """Returns the time in ns of chain `i` with the attentions before it.

        The first segment passes all layers one after another; each further one adds the load of the busiest core.
        """
        alone_ns, busy_ns = sum(self.chosen[layer.key][0] for layer in self.form.stages.chains[i].layers), 0.0
        for product in before:
            helping = self.attention_share(i, product)
            alone_ns, busy_ns = alone_ns + helping.time_ns, max(busy_ns, helping.busy_ns)
        busy_ns = max(busy_ns, *self.works_ns[i])
        return busy_ns + (alone_ns - busy_ns) / self.segments

    def homes(self, chain: TokenChain) -> int:
        """Returns the number of cores of a copy that hold results of a chain."""
        return self.chosen[chain.layers[-1].key][1].homes if chain.layers else 1

    def attention_share(self, i: int, product: AttentionProduct) -> AttentionShare:
        """Chooses how many cores compute an attention before chain `i`.

        Cores with the least work for the chain come first; cores with equal work all take part, or none of them.
        """
        form, homes = self.form, self.homes(self.form.stages.chains[i - 1])
        loads = Counter(self.works_ns[i])
        loads = {ns: form.copies * count for ns, count in loads.items()}
        loads[0.0] = loads.get(0.0, 0) + form.cores - form.copies * form.together
        most_ns, cores, found = max(loads), 0, list[AttentionShare]()
        for work_ns, count in sorted((ns, count) for ns, count in loads.items() if count):
            cores += count
            time_ns = product.best(cores, form.copies, form.arch, homes)[0]
            found.append(AttentionShare(cores, time_ns, work_ns + time_ns))
        return min(found, key=lambda each: max(each.busy_ns, most_ns) * (self.segments - 1) + each.time_ns)

    def attention_cores(self, i: int, product: AttentionProduct) -> tuple[int, ...]:
        """Returns the cores that compute an attention before chain `i` (`attention_share`)."""
        form = self.form
        works_ns = [*self.works_ns[i] * form.copies, *[0.0] * (form.cores - form.copies * form.together)]
        return tuple(sorted(range(form.cores), key=works_ns.__getitem__)[: self.attention_share(i, product).cores])

    def choice(self, knobs: TuningKnobs) -> TokenCores:
        """Returns the records of all layers and products, with the estimates."""
        form = self.form
        choice = TokenCores(self.time_ns, self.time_ns, form.cores)
        choice.layers |= {layer.key: self.record(layer, knobs.step_ns) for layer, _ in form.layers()}
        for i, behind in enumerate(form.stages.products):
            for each in behind:
                cores, homes = self.attention_cores(i + 1, each), self.homes(form.stages.chains[i])
                record = each.record(cores, form.copies, form.arch, homes=homes)
                stepped = cut_query_steps(record, each, form.arch, knobs.step_ns)
                choice.products[each.key] = deal_queries(stepped, form.copies) if self.segments > 1 else stepped
        return choice

    def record(self, layer: TokenLayer, step_ns: float) -> LineUnfolding:
        """Returns the record of a layer, which names the cores of a copy once for each of its segments."""
        copies = min(self.form.copies, layer.tokens)
        segments = min(self.segments, layer.tokens // copies)
        grid = self.chosen[layer.key][1].grid(even_ranges(layer.tokens, copies * segments), layer.arch, step_ns)
        first = (copy * self.form.together for copy in range(copies) for _ in range(segments))
        return LineUnfolding(grid, tuple(core + own for core in first for own in self.own[layer.key]))


def cut_query_steps(grid: DotGrid, found: AttentionProduct, arch: Target, step_ns: float) -> DotGrid:
    """Cuts the queries of a grid so that a core computes the scores of few queries at a time.

    Between two steps, a core can exchange messages: other cores wait for keys and values that it has made.
    """
    each = max(1, int(step_ns / (found.keys * (vector_ns(arch, found.channels, 2) + ISSUE_NS))))
    steps = [
        (i, (x, min(x + each, stop))) for i, (first, stop) in enumerate(grid.cols) for x in range(first, stop, each)
    ]
    width = len(grid.cols)
    cores = tuple(grid.cores[row * width + i] for row in range(len(grid.rows)) for i, _ in steps)
    return replace(grid, cols=tuple(cols for _, cols in steps), cores=cores)


def deal_queries(grid: DotGrid, copies: int) -> DotGrid:
    """Returns a grid whose cores take the queries of each copy in turns, instead of a range of queries each.

    So the first tokens of each copy, with which the layers after an attention start, are ready earlier.
    """
    width, queries = len(grid.cols), grid.cols[-1][1]
    ends = [stop for _, stop in even_ranges(queries, min(copies, queries))]
    copy_of = [bisect_right(ends, low) for low, _ in grid.cols]
    place = [x - copy_of.index(copy) for x, copy in enumerate(copy_of)]
    dealt = sorted(range(width), key=lambda x: (place[x], copy_of[x]))
    cores = list(grid.cores)
    for first in range(0, len(cores), width):
        own = list(dict.fromkeys(grid.cores[first : first + width]))
        for turn, x in enumerate(dealt):
            cores[first + x] = own[turn % len(own)]
    return replace(grid, cores=tuple(cores))


def _shares(cores: int, tokens: int) -> Iterator[tuple[int, int]]:
    """Yields (number of copies, cores of each copy): the most copies for each size."""
    found = ((copies, cores // copies) for copies in range(1, min(cores, tokens) + 1))
    for _, same in groupby(found, key=lambda share: share[1]):
        yield list(same)[-1]


_KNOWN = WeakKeyDictionary[TokenStages, dict[tuple[int, int, int, Target], "tuple[float, SpreadChoice] | None"]]()
"""Results of `_spread_group`. While layers beside chains get cores one by one, it is called with equal arguments."""


def spread_groups(
    stages: TokenStages,
    arch: Target,
    cores: int,
    groups: Sequence[Range],
    knobs: TuningKnobs,
    layer_ns: Mapping[str, float] = NO_OTHER_LAYERS,
) -> TokenCores | None:
    """Returns the choice in which each group of attentions has its own cores, all of which serve all its chains.

    None if the cores of a group cannot hold its layers. `layer_ns`: see `choose_token_cores`.
    """
    choice = TokenCores(cores=cores)
    for (first, last), (low, high) in zip(groups, even_ranges(cores, len(groups)), strict=True):
        known, key = _KNOWN.setdefault(stages, {}), (first, last, high - low, arch)
        if key not in known:
            known[key] = _spread_group(stages, *key)
        found = known[key]
        if found is None:
            return None
        time_ns, own = found[0], found[1].choice(knobs)
        choice.layers |= {key: renumber_record(layer, low.__add__) for key, layer in own.layers.items()}
        choice.products |= {key: renumber_record(grid, low.__add__) for key, grid in own.products.items()}
        choice.latency_ns += time_ns
        choice.interval_ns = max(choice.interval_ns, time_ns + stages.other_layers_ns((first, last), layer_ns))
    choice.latency_ns += stages.other_layers_ns((-1, len(stages.products)), layer_ns)
    return choice


def _spread_group(
    stages: TokenStages, first: int, last: int, cores: int, arch: Target
) -> tuple[float, SpreadChoice] | None:
    """Returns the best choice for attentions `first` to `last` (excluded) and the chains after them, and its time.

    The first group also has the first chain.
    """
    begin = stages.chains[0] if first == 0 else replace(stages.chains[0], layers=())
    group = TokenStages((begin, *stages.chains[first + 1 : last + 1]), stages.products[first:last])
    after = stages.products[last] if last < len(stages.products) else ()
    tokens = max((chain.tokens for chain in group.chains), default=0)
    best: tuple[float, SpreadChoice] | None = None
    for way in (
        way for share in _shares(cores, tokens) for way in ModelCopies(group, arch, cores, *share, after).choices()
    ):
        if best is None or way.floor_ns < best[0]:
            time_ns = way.time_ns
            best = (time_ns, way) if best is None or time_ns < best[0] else best
    return best
