"""Rebalances cores between streamed layers by a line-level estimate of the latency (local search).

A line is ready when its core is free and the lines it reads are ready. So the delay of each layer, in lines, counts,
and the layer is found where one more core reduces the latency most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import filter_key
from raptor.graph.window import Window
from raptor.mapping.allocation.core_division import CoreDivision, CoreOption
from raptor.mapping.knobs import MESSAGE_OVERHEAD_NS
from raptor.mapping.modes.window_axis import input_lines_read

if TYPE_CHECKING:
    from raptor.mapping.allocation.latency_kernel import Floats, Ints, LineTable

MOVE_DISTANCE = 4
"""Largest distance of a move on a front of options, to faster or to slower ones."""

EXACT_TRIALS = 30
"""Number of the most promising exchanges that are estimated exactly in each step."""

_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class LinePipeline:
    """A graph as lines. keys: number of each layer by key. ready_ns: scratch array with an entry per line."""

    lines: "LineTable"
    keys: Mapping[str, int]
    ready_ns: "Floats"

    @classmethod
    def from_graph(cls, graph: Graph, keys: Mapping[str, int]) -> "LinePipeline":
        """Makes the lines of a graph. `keys`: number of each streamed layer, loaded input and gathered tensor."""
        from raptor.mapping.allocation.latency_kernel import LineTable  # compiled code is loaded only where it runs

        number = {name: i for i, name in enumerate(graph.inputs)}
        counts = [graph.tensors[name].image.rows for name in graph.inputs]
        rows = [(count, 1, 0, keys.get(name, -1)) for count, name in zip(counts, graph.inputs, strict=True)]
        operands: list[list[int]] = [[] for _ in graph.inputs]
        for node in graph.nodes:
            operands.append([number[name] for name in node.inputs if name in number])
            number[node.output] = len(counts)
            counts.append(graph.tensors[node.output].image.rows)
            key = filter_key(node) if isinstance(node.operator, Filter) else node.output
            given = max((counts[i] for i in operands[-1]), default=counts[-1])
            rows.append((given, *_needed(node, given, counts[-1]), keys.get(key, -1)))
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        given, stride, reach, layer = (np.ascontiguousarray(column) for column in columns)
        ends = np.cumsum([0, *map(len, operands)])
        flat = np.array([i for some in operands for i in some], np.int64)
        lines = LineTable(np.cumsum([0, *counts]), given, stride, reach, layer, ends, flat)
        return cls(lines, keys, np.zeros(sum(counts)))

    def latency_ns(self, core_ns: "Floats", height: "Ints") -> float:
        """Returns the latency of a sample in ns. core_ns, height: [layers], load of a core, and lines of a block."""
        from raptor.mapping.allocation.latency_kernel import simulate_lines

        return simulate_lines(self.ready_ns, self.lines, core_ns, height, float(MESSAGE_OVERHEAD_NS))


def _needed(node: Node, given: int, made: int) -> tuple[int, int]:
    """Returns (stride, reach): line y of the result needs lines 0 to y * stride + reach of its operands.

    given, made: number of lines of the operands, and of the result. Operators that are not known to stream need all
    lines.
    """
    window = getattr(node.operator, "window", None)
    if isinstance(window, Window) and not window.transposed and len(window.kernel) >= 2:
        if (given, made) == (window.in_lines, window.out_lines):
            # In a volume, the lines of a slice are left out at its end only; on average, it is as if they all were.
            first = max((line for line, _ in input_lines_read(window)[0]), default=0)
            return math.prod(window.strides[:-1]), first
    elif window is None and given == made:
        return 1, 0
    return 0, given - 1


@dataclass(slots=True, eq=False)
class _SearchState:
    """State of the local search: the current options `at`, and the times that follow from them."""

    division: CoreDivision
    pipeline: LinePipeline
    latency: float
    at: list[int]
    core_ns: "Floats"
    height: "Ints"

    def set(self, unit: int, number: int) -> None:
        """Takes another option of a layer or pair. Both layers of a pair get the load of the pair."""
        self.at[unit] = number
        option = self.division.fronts[unit][number]
        for key, own in option.plans.items():
            self.core_ns[self.pipeline.keys[key]] = option.core_ns
            self.height[self.pipeline.keys[key]] = own.plan.grid.height

    def cost(self, moves: "Sequence[_Move]" = ()) -> float:
        """Returns log(interval) + `latency` * log(latency) after some moves, which are then undone."""
        before = [(m.unit, self.at[m.unit]) for m in moves]
        for m in moves:
            self.set(m.unit, m.number)
        interval_ns, latency_ns = self.core_ns.max(), self.pipeline.latency_ns(self.core_ns, self.height)
        for unit, number in before:
            self.set(unit, number)
        return float(np.log(interval_ns) + self.latency * np.log(latency_ns))

    def option(self, unit: int) -> CoreOption:
        return self.division.fronts[unit][self.at[unit]]

    def moves(self, cost: float) -> "list[_Move]":
        """Returns all moves of one layer or pair to another option, with their effect on `cost`."""
        found: list[_Move] = []
        for unit, front in enumerate(self.division.fronts):
            i = self.at[unit]
            for j in range(max(0, i - MOVE_DISTANCE), min(len(front), i + MOVE_DISTANCE + 1)):
                if j != i and front[j].plans:
                    move = _Move(unit, j, front[j].cores - front[i].cores)
                    found.append(replace(move, added=self.cost([move]) - cost))
        return found


@dataclass(frozen=True, slots=True)
class _Move:
    """A move of a layer or pair to option `number`: additional cores, and the change of the cost (`added`)."""

    unit: int
    number: int
    cores: int
    added: float = 0.0


def rebalance_cores(graph: Graph, division: CoreDivision, cores: int, latency: float) -> CoreDivision:
    """Moves cores between layers as long as that lowers interval * latency^`latency` (local search).

    Cores are given to the layer that gains most, and taken from the layers that lose least. `cores`: available cores.
    `latency`: the exponent, above 0.
    """
    keys = [key for option in division.chosen_options for key in option.plans]
    if not keys:
        return division
    pipeline = LinePipeline.from_graph(graph, {key: i for i, key in enumerate(keys)})
    state = _SearchState(division, pipeline, latency, [*division.at], np.zeros(len(keys)), np.ones(len(keys), np.int64))
    for unit, number in enumerate(division.at):
        state.set(unit, number)
    cost, free = state.cost(), cores - division.cores
    while True:
        tried = [(state.cost(moves), moves) for moves in _exchanges(state.moves(cost), free)[:EXACT_TRIALS]]
        best, moves = min([(cost, list[_Move]()), *tried], key=itemgetter(0))
        if best >= cost - _LEAST_GAIN:
            return replace(division, at=tuple(state.at))
        for m in moves:
            state.set(m.unit, m.number)
        cost, free = best, free - sum(m.cores for m in moves)


def _exchanges(moves: Sequence[_Move], free: int) -> list[list[_Move]]:
    """Returns exchanges, the most promising first: a gain, and the losses that free its cores. `free`: spare cores."""
    losses = sorted((m for m in moves if m.cores < 0), key=lambda m: -m.added / m.cores)
    found: list[list[_Move]] = []
    for gain in moves:
        if gain.cores < 0 or gain.added >= 0:
            continue
        if gain.cores <= free:
            found.append([gain])
            continue
        others = [m for m in losses if m.unit != gain.unit]
        enough = [m for m in others if gain.cores + m.cores <= free]
        if enough:
            found.append([gain, min(enough, key=lambda m: m.added)])
        several = _cheapest(others, gain.cores - free)
        if several:
            found.append([gain, *several])
    return sorted(found, key=lambda some: sum(m.added for m in some))


def _cheapest(losses: Sequence[_Move], cores: int) -> list[_Move]:
    """Returns the first losses, of different layers, that free `cores` cores; an empty list if they are too few."""
    found: dict[int, _Move] = {}
    for move in losses:
        found.setdefault(move.unit, move)
        if sum(-m.cores for m in found.values()) >= cores:
            return [*found.values()]
    return []
