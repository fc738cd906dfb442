"""The work of a decision as steps of a list schedule: messages between cores, then the work of each core."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raptor.common.sorted_sets import sorted_unique
from raptor.mapping.evaluation.node_work import MemorySum, NodeWork, StepNeed
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.scheduling.schedule_kernel import SampleWork
from raptor.target.arch import Target, estimate_flit_ns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LONGEST_STEP_NS = 4_000
"""Longest step of a core: between two steps, it can exchange messages, as between two products of a program.

Measured on `bench`, estimated by simulated interval of GoogLeNet, MobileNet-v2, ResNet-18, SqueezeNet, U-Net on 200
cores: without a limit 1.69, 1.03, 1.06, 1.04, 1.01; 8 us: 1.28, 0.93, 0.98, 0.89, 0.95; 4 us: 0.95, 0.89, 0.96, 1.03,
0.95; 2 us: 0.94, 0.88, 0.92, 0.88, 0.95.
"""

MOST_PIECES = 8
"""Largest number of steps into which the work of a core for a line is cut."""

_COLUMNS = 6
"""Times of a step: messages, sender, wire, receiver, work, port (`SampleWork`)."""


@dataclass(frozen=True, eq=False)
class _Round:
    """The steps of a node for a line, or for some lines. They are repeated in rounds, each step in those of its span.

    core, peer, times_ns: of each step, `times_ns` as [columns, steps]. messages: sender and receiver of the first
    steps. begin, end: index of the first and the last step of each core's own work. chains: pairs of steps of a
    core that follow one another. number: of each step in each round, [rounds, steps]; -1 outside its span. stop: number
    of the first step after all rounds.
    """

    work: NodeWork
    core: Ints
    peer: Ints
    times_ns: Floats
    messages: tuple[tuple[int, int], ...]
    begin: Mapping[int, int]
    end: Mapping[int, int]
    chains: tuple[tuple[int, int], ...]
    number: Ints
    stop: int

    @property
    def size(self) -> int:
        return len(self.core)

    @property
    def count(self) -> int:
        """Number of rounds."""
        return len(self.number)

    @cached_property
    def done(self) -> Ints:
        """The number of each step in its latest round up to each round, [rounds, steps]; -1 before its span."""
        return np.maximum.accumulate(self.number, axis=0)

    def made_on(self, core: int) -> int:
        """Returns the index of the step after which a core has its part of the result; else of the last step."""
        return self.end.get(core, self.size - 1)


_Sources = list[tuple[StepNeed, _Round]]
"""Rounds that a node needs, and which of them each round needs."""


def schedule_work(works: list[NodeWork], arch: Target, most: int) -> SampleWork:
    """Returns the steps of a sample for the list scheduler. The lines of a node are done in at most `most` rounds."""
    number: dict[int, int] = {}
    rounds: list[_Round] = []
    edges: list[Ints] = [np.zeros((2, 0), np.int64)]
    made: dict[int, _Sources] = {}
    for work in works:
        sources = [(need, found) for need in work.needs for _, found in made[id(need.work)]]
        if not (work.messages or work.compute_ns or work.memory):
            # What this node needs is needed by its readers: it only gives a tensor another form.
            made[id(work)] = [pair for need in work.needs for pair in made[id(need.work)]]
            continue
        found = _make_round(work, rounds[-1].stop if rounds else 0, most, number)
        edges += _dependences(found, sources)
        rounds.append(found)
        made[id(work)] = [(StepNeed(work, 1, 1, 0), found)]
    return _join(rounds, np.concatenate(edges, axis=1), arch)


def _make_round(work: NodeWork, first: int, most: int, number: dict[int, int]) -> _Round:
    """Returns the steps of a node. `number`: dense numbers of the cores so far; new cores are added."""
    count, messages = min(work.steps, most), tuple(sorted(work.messages))
    own = sorted({*work.compute_ns, *work.memory, *(to for _, to in messages)})
    rows: list[tuple[int, int, Range, tuple[float, ...]]] = []
    for source, to in messages:
        m, span = work.messages[source, to], _rounds_of(work, (source, to), count)
        rows.append((to, source, span, (m.count, m.sender_ns, m.wire_ns, m.receiver_ns, 0.0, 0.0)))
    begin, end, chains = dict[int, int](), dict[int, int](), list[tuple[int, int]]()
    for core in own:
        memory, ns = work.memory.get(core, MemorySum()), work.compute_ns.get(core, 0.0)
        span = _rounds_of(work, core, count)
        short = 1 if work.at_once else int(ns / (span[1] - span[0]) / LONGEST_STEP_NS)
        pieces = max(1, min(MOST_PIECES, short))
        begin[core], end[core] = len(rows), len(rows) + pieces - 1
        chains += ((k, k + 1) for k in range(begin[core], end[core]))
        rows.append((core, -1, span, (0.0, 0.0, 0.0, memory.rest_ns, ns / pieces, memory.port_ns)))
        rows += ((core, -1, span, (0.0, 0.0, 0.0, 0.0, ns / pieces, 0.0)) for _ in range(pieces - 1))
    core = np.array([number.setdefault(core, len(number)) for core, *_ in rows], np.int64)
    peer = np.array([-1 if p < 0 else number.setdefault(p, len(number)) for _, p, *_ in rows], np.int64)
    low, high = np.array([span for *_, span, _ in rows], np.int64).reshape(-1, 2).T
    times_ns = np.array([times for *_, times in rows], np.float64).reshape(-1, _COLUMNS).T / (high - low)
    rounds = np.arange(count)[:, None]
    active = (low <= rounds) & (rounds < high)
    steps = np.where(active, first + np.cumsum(active).reshape(active.shape) - 1, -1)
    stop = first + int(np.count_nonzero(active))
    return _Round(work, core, peer, times_ns, messages, begin, end, tuple(chains), steps, stop)


def _rounds_of(work: NodeWork, place: int | tuple[int, int], count: int) -> Range:
    """Returns the rounds, of `count`, in which a core works, or a sender sends to a core."""
    low, high = work.spans.get(place, (0, work.steps))
    first = low * count // work.steps
    return first, max(first + 1, -(-high * count // work.steps))


def _dependences(steps: _Round, sources: _Sources) -> Iterator[Ints]:
    """Yields the dependences of the steps of a node as [2, pairs]: numbers of the earlier and of the later steps."""
    rounds, total = np.arange(steps.count), steps.work.steps
    inside = [*steps.chains, *((k, steps.begin[to]) for k, (_, to) in enumerate(steps.messages))]
    yield _pairs(steps.number, steps.number, inside)
    receivers = {core for _, core in steps.messages}
    known = {core for _, source in sources for core in source.end}
    last_line = np.minimum((rounds + 1) * total // steps.count, total) - 1
    for need, source in sources:
        lines = source.work.steps
        read = np.minimum(last_line * need.stride // need.spread + need.reach, lines - 1)
        before = source.done[read * source.count // lines]
        asking = [(core, k) for k, (core, _) in enumerate(steps.messages) if core in source.end or core not in known]
        asking += ((c, k) for c, k in steps.begin.items() if c in source.end or c not in receivers)
        yield _pairs(before, steps.number, [(source.made_on(core), k) for core, k in asking])


def _pairs(earlier: Ints, later: Ints, steps: Sequence[tuple[int, int]]) -> Ints:
    """Returns pairs [2, pairs] of steps of two nodes that exist. earlier, later: numbers of all steps in each round.

    steps: the columns of each pair in these.
    """
    inside = np.array(steps, np.int64).reshape(-1, 2).T
    pairs = np.stack([earlier[:, inside[0]].reshape(-1), later[:, inside[1]].reshape(-1)])
    return pairs[:, (pairs >= 0).all(axis=0)]


def _join(rounds: list[_Round], edges: Ints, arch: Target) -> SampleWork:
    """Returns all steps as columns. `edges`: [2, pairs], earlier and later steps."""
    kept = [r.number.reshape(-1) >= 0 for r in rounds]
    core = np.concatenate([np.tile(r.core, r.count)[k] for r, k in zip(rounds, kept, strict=True)])
    peer = np.concatenate([np.tile(r.peer, r.count)[k] for r, k in zip(rounds, kept, strict=True)])
    times_ns = np.concatenate(
        [np.tile(r.times_ns, (1, r.count))[:, k] for r, k in zip(rounds, kept, strict=True)], axis=1
    )
    messages, sender_ns, wire_ns, receiver_ns, work_ns, port_ns = times_ns
    places = (np.repeat(np.arange(r.count) / r.count, r.size) for r in rounds)
    position = np.concatenate([place[k] for place, k in zip(places, kept, strict=True)])
    count, number = len(core), np.arange(len(core))
    earlier, later = np.divmod(sorted_unique(edges[0] * count + edges[1]), count)
    rank = np.empty_like(number)
    rank[np.lexsort((-number, peer < 0, position))] = number
    asking_ns = messages * estimate_flit_ns(arch)
    return SampleWork(
        core,
        peer,
        asking_ns,
        asking_ns,
        sender_ns,
        wire_ns,
        receiver_ns,
        port_ns,
        work_ns,
        rank,
        np.bincount(later, minlength=count),
        np.searchsorted(earlier, np.arange(count + 1)).astype(np.int64),
        later,
    )
