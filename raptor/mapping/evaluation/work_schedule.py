"""The work of a decision as steps of a list schedule: messages between cores, then the work of each core."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.index_ranges import concatenate_ranges
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

_Sources = list[tuple[StepNeed, "_NodeRows"]]
"""Operands of a node: which steps of an operand each step needs, and the rows of the operand."""


@dataclass(frozen=True, slots=True, eq=False)
class _NodeRows:
    """Rows of `_StepTable` that belong to one node: first its messages, then the work of each core.

    first, last: numbers of the first and the last row. messages: (sender, receiver) of each row with a message. begin,
    end: numbers of the first and the last row of the work of each core.
    """

    first: int
    last: int
    messages: tuple[tuple[int, int], ...]
    begin: Mapping[int, int]
    end: Mapping[int, int]

    def made_on(self, core: int) -> int:
        """Returns the row that finishes the part of the result on a core; the last row if the core makes no part."""
        return self.end.get(core, self.last)


def schedule_work(works: Sequence[NodeWork], arch: Target, most: int) -> SampleWork:
    """Returns the steps of a sample for the list scheduler. The lines of a node are done in at most `most` rounds."""
    table = _StepTable(most)
    made: dict[int, _Sources] = {}
    for work in works:
        if not (work.messages or work.compute_ns or work.memory):
            # What this node needs is needed by its readers: it only gives a tensor another form.
            made[id(work)] = [pair for need in work.needs for pair in made[id(need.work)]]
            continue
        found = table.add_node(work)
        table.add_needs(found, [(need, source) for need in work.needs for _, source in made[id(need.work)]])
        made[id(work)] = [(StepNeed(work, 1, 1, 0), found)]
    return table.sample_work(arch)


@dataclass(slots=True)
class _StepTable:
    """Collects the work of all nodes in rows. A node repeats a row as one step in each round of the span of the row.

    most: largest number of rounds of a node. dense: number of each core among the cores that have steps. lines, rounds:
    number of lines and of rounds of each node. node, core, peer, span, times: columns of all rows; times in ns, for all
    rounds together: messages, sender, wire, receiver, work, port (`SampleWork`). in_round: pairs of rows of a node; in
    each round, the second waits for the first. needs: (row of a source, row that needs it, stride, spread, reach); see
    `StepNeed`.
    """

    most: int
    dense: dict[int, int] = field(default_factory=dict[int, int])
    lines: list[int] = field(default_factory=list[int])
    rounds: list[int] = field(default_factory=list[int])
    node: list[int] = field(default_factory=list[int])
    core: list[int] = field(default_factory=list[int])
    peer: list[int] = field(default_factory=list[int])
    span: list[Range] = field(default_factory=list[Range])
    times: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    in_round: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    needs: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])

    def add_node(self, work: NodeWork) -> _NodeRows:
        """Adds the rows of a node: its messages, then the work of each core in pieces."""
        rounds, messages, first = min(work.steps, self.most), tuple(sorted(work.messages)), len(self.span)
        own = sorted({*work.compute_ns, *work.memory, *(to for _, to in messages)})
        cores, peers = [to for _, to in messages], [source for source, _ in messages]
        for pair in messages:
            m = work.messages[pair]
            self.span.append(_rounds_of(work, pair, rounds))
            self.times.append((m.count, m.sender_ns, m.wire_ns, m.receiver_ns, 0.0, 0.0))
        begin, end = dict[int, int](), dict[int, int]()
        for core in own:
            memory, ns = work.memory.get(core, MemorySum()), work.compute_ns.get(core, 0.0)
            span = _rounds_of(work, core, rounds)
            short = 1 if work.at_once else int(ns / (span[1] - span[0]) / LONGEST_STEP_NS)
            pieces = max(1, min(MOST_PIECES, short))
            begin[core], end[core] = len(self.span), len(self.span) + pieces - 1
            self.in_round += ((k, k + 1) for k in range(begin[core], end[core]))
            cores += [core] * pieces
            self.span += [span] * pieces
            self.times.append((0.0, 0.0, 0.0, memory.rest_ns, ns / pieces, memory.port_ns))
            self.times += [(0.0, 0.0, 0.0, 0.0, ns / pieces, 0.0)] * (pieces - 1)
        self.in_round += ((first + k, begin[to]) for k, (_, to) in enumerate(messages))
        self.node += [len(self.lines)] * len(cores)
        self.core += [self.dense.setdefault(core, len(self.dense)) for core in cores]
        self.peer += [self.dense.setdefault(core, len(self.dense)) for core in peers]
        self.peer += [-1] * (len(cores) - len(peers))
        self.lines.append(work.steps)
        self.rounds.append(rounds)
        return _NodeRows(first, len(self.span) - 1, messages, begin, end)

    def add_needs(self, steps: _NodeRows, sources: _Sources) -> None:
        """Adds the needs of a node: a message waits for the operand on its sender, work for operands on its core.

        Both wait for the last row of a source that makes nothing on that core.
        """
        receivers = {core for _, core in steps.messages}
        known = {core for _, source in sources for core in source.end}
        sent = [(core, k) for k, (core, _) in enumerate(steps.messages, steps.first)]
        for need, source in sources:
            asking = [(core, k) for core, k in sent if core in source.end or core not in known]
            asking += ((core, k) for core, k in steps.begin.items() if core in source.end or core not in receivers)
            self.needs += ((source.made_on(core), k, need.stride, need.spread, need.reach) for core, k in asking)

    def sample_work(self, arch: Target) -> SampleWork:
        """Returns the steps of all rows in all their rounds, with their dependences, for the list scheduler."""
        span, node = np.array(self.span, np.int64).reshape(-1, 2), np.array(self.node, np.int64)
        counts = span[:, 1] - span[:, 0]
        within, row = concatenate_ranges(counts)
        turn = span[row, 0] + within
        order = np.lexsort((row, turn, node[row]))
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        lines, rounds = np.array(self.lines, np.int64), np.array(self.rounds, np.int64)
        numbers = _StepNumbers(span, node, lines, rounds, np.cumsum(counts) - counts - span[:, 0], number)
        edges = np.concatenate([numbers.round_dependences(self.in_round), numbers.need_dependences(self.needs)], axis=1)
        row, turn = row[order], turn[order]
        times_ns = np.array(self.times, np.float64).reshape(len(span), -1).T / counts
        messages, sender_ns, wire_ns, receiver_ns, work_ns, port_ns = times_ns[:, row]
        core, peer = np.array(self.core, np.int64)[row], np.array(self.peer, np.int64)[row]
        count = len(row)
        earlier, later = np.divmod(sorted_unique(edges[0] * count + edges[1]), count)
        rank = np.empty_like(order)
        rank[np.lexsort((-np.arange(count), peer < 0, turn / rounds[node[row]]))] = np.arange(count)
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


def _rounds_of(work: NodeWork, place: int | tuple[int, int], count: int) -> Range:
    """Returns the rounds, of `count`, in which a core works, or a sender sends to a core."""
    low, high = work.spans.get(place, (0, work.steps))
    first = low * count // work.steps
    return first, max(first + 1, -(-high * count // work.steps))


@dataclass(frozen=True, slots=True, eq=False)
class _StepNumbers:
    """Numbers steps in the order of nodes, rounds, rows, and finds the dependences between them.

    span, node: rounds and node of each row. lines, rounds: number of lines and of rounds of each node. The step of row
    i in round t has the number `number[offset[i] + t]`.
    """

    span: Ints
    node: Ints
    lines: Ints
    rounds: Ints
    offset: Ints
    number: Ints

    def step_numbers(self, row: Ints, turn: Ints) -> Ints:
        """Returns the number of the step of each given row in the given round, which its span has."""
        return self.number[self.offset[row] + turn]

    def round_dependences(self, pairs: list[tuple[int, int]]) -> Ints:
        """Returns [2, dependences]: in each round that both rows of a pair have, the second waits for the first."""
        before, after = np.array(pairs, np.int64).reshape(-1, 2).T
        low = np.maximum(self.span[before, 0], self.span[after, 0])
        high = np.minimum(self.span[before, 1], self.span[after, 1])
        within, pair = concatenate_ranges(np.maximum(high - low, 0))
        turn = low[pair] + within
        return np.stack([self.step_numbers(before[pair], turn), self.step_numbers(after[pair], turn)])

    def need_dependences(self, needs: list[tuple[int, int, int, int, int]]) -> Ints:
        """Returns [2, dependences]: each step of a reader waits for the latest step of its source that it needs."""
        before, after, stride, spread, reach = np.array(needs, np.int64).reshape(-1, 5).T
        first, stop = self.span[after].T
        within, k = concatenate_ranges(stop - first)
        turn = first[k] + within
        reader, source = self.node[after][k], self.node[before][k]
        last_line = np.minimum((turn + 1) * self.lines[reader] // self.rounds[reader], self.lines[reader]) - 1
        read = np.minimum(last_line * stride[k] // spread[k] + reach[k], self.lines[source] - 1)
        latest = np.minimum(read * self.rounds[source] // self.lines[source], self.span[before[k], 1] - 1)
        made = latest >= self.span[before[k], 0]
        return np.stack(
            [self.step_numbers(before[k][made], latest[made]), self.step_numbers(after[k][made], turn[made])]
        )
