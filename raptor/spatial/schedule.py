"""PlacedGraph to Schedule: computes in the order in which a chip with blocking messages would start them.

A list schedule: a compute starts when its core is free and its inputs are there; a message keeps both cores busy.
`pim.lower` visits computes in this order, so it decides which core waits for which, never what is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.costs import Costs
from raptor.spatial.ir import Compute, Copy, TakeRows
from raptor.spatial.orders import STORED, Aim, Order, best_order
from raptor.spatial.placed import Fetch, PlacedGraph, Schedule
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.timing import (
    ISSUE_NS,
    copy_ns,
    global_port_ns,
    load_ns,
    message_times,
)

if TYPE_CHECKING:
    from raptor.spatial.schedule_kernel import Ints, Work


def schedule(placed: PlacedGraph, decision: Decision, arch: Target, aim: Aim) -> Schedule:
    """Returns the computes in global order: as they are, or by start time if the flow is by line.

    Of computes that can start at the same time, the one with the lowest `urgency` comes first. The `flow` of the result
    is that of the decision, with the name of the order that was chosen by `aim`.
    """
    count, flow = len(placed.graph.computes), decision.flow
    if not isinstance(flow, ByLine) or not count:
        return Schedule(placed, (), tuple(range(count)), flow)
    order: list[int] = []
    fetches: list[Fetch] = []
    name = Order(flow.patience_ns, flow.sample)
    for together in _together(placed, flow):
        found = Problem(arch, placed, together)
        local, name = best_order(found.work(), name, aim if flow.streamed else STORED)
        first = count + len(fetches)
        numbers = [*together, *range(first, first + len(found.fetched))]
        order += (numbers[i] for i in local.tolist())
        fetches += found.fetched
    chosen = replace(flow, patience_ns=name.patience_ns, sample=name.sample)
    return Schedule(placed, tuple(fetches), tuple(order), chosen)


def _together(placed: PlacedGraph, flow: ByLine) -> list[range]:
    """Returns ranges of computes that are scheduled together: all, or those of a node if lines are not streamed."""
    computes = placed.graph.computes
    if flow.streamed:
        return [range(len(computes))]
    ends = accumulate((len(list(run)) for _, run in groupby(computes, key=lambda c: c.node)), initial=0)
    return [range(first, last) for first, last in pairwise(ends)]


@dataclass(slots=True)
class Problem:
    """Some neighbouring computes, and the fetches of the tiles that they read from other cores, to be put in order.

    Computes are numbered from 0, fetches after them. steps, cores, positions: by this number. makers: the computes that
    make each tile, by name. fetches: number of the fetch of a tile to a core. loaded: the compute that loads a tile, by
    name, or a constant, by content, to a core. outputs: names of the tiles that are stored in global memory.
    """

    arch: Target
    placed: PlacedGraph
    together: range
    steps: list[Compute | Fetch] = field(init=False)
    cores: list[int] = field(init=False)
    positions: list[float] = field(init=False)
    makers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fetches: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    loaded: dict[tuple[str | bytes, int], int] = field(default_factory=dict[tuple[str | bytes, int], int])
    outputs: set[str] = field(init=False)

    def __post_init__(self) -> None:
        chosen = slice(self.together.start, self.together.stop)
        graph = self.placed.graph
        computes = graph.computes[chosen]
        self.steps, self.cores = [*computes], [*self.placed.cores[chosen]]
        self.positions = [*self.placed.positions[chosen]]
        self.outputs = {part.tile.name for name in graph.outputs for part in graph.tensors[name].parts}
        for i, compute in enumerate(computes):
            for tile in compute.results:
                self.makers.setdefault(tile.name, []).append(i)

    @property
    def fetched(self) -> list[Fetch]:
        """The fetches, in order of their numbers."""
        return [step for step in self.steps if isinstance(step, Fetch)]

    def work(self) -> "Work":
        """Returns computes and fetches as columns. A fetch comes before the first use of a tile on another core."""
        from raptor.spatial.schedule_kernel import Work  # compiled code is loaded only where it runs

        needs = [self.needs(i, step) for i, step in enumerate(list(self.steps)) if isinstance(step, Compute)]
        needs += [set(self.makers[fetch.tile.name]) for fetch in self.fetched]
        count = len(self.steps)
        edges = np.array([(j, i) for i, need in enumerate(needs) for j in need], np.int64).reshape(-1, 2)
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        rank = np.empty(count, np.int64)
        rank[sorted(range(count), key=self.urgency)] = np.arange(count)
        core = np.array(self.cores, np.int64)
        peer, sizes, local_ns = (np.array(column) for column in zip(*map(self.message, range(count)), strict=True))
        times = message_times(self.arch, peer, core, sizes)
        memory_ns, around_ns = self.memory()
        return Work(
            core,
            peer,
            times.request_ns,
            times.grant_ns,
            times.sender_ns + ISSUE_NS,
            times.wire_ns,
            np.where(peer >= 0, times.receiver_ns + ISSUE_NS, local_ns),
            memory_ns,
            around_ns + self.work_ns(),
            rank,
            np.array([len(need) for need in needs], np.int64),
            np.searchsorted(edges[:, 0], np.arange(count + 1)).astype(np.int64),
            np.ascontiguousarray(edges[:, 1]),
            *_pairs(core, peer),
        )

    def needs(self, i: int, compute: Compute) -> set[int]:
        """Returns the numbers of computes and fetches that must be done before a compute; adds new fetches."""
        need: set[int] = set()
        for tile in compute.inputs:
            made = self.makers.get(tile.name, [])
            if _copies(compute) or not made or self.cores[made[0]] == self.cores[i]:
                need |= set(made)
            else:
                need.add(self.fetch(tile, i, compute.node))
        return need

    def fetch(self, tile: Tile, user: int, node: str) -> int:
        """Returns the number of the fetch that copies a whole tile to the core of its user; adds it if it is new."""
        core = self.cores[user]
        if (tile.name, core) not in self.fetches:
            self.fetches[tile.name, core] = len(self.steps)
            self.steps.append(Fetch(tile, core, node))
            self.cores.append(core)
            self.positions.append(self.positions[user])
        return self.fetches[tile.name, core]

    def urgency(self, i: int) -> tuple[float, bool, int]:
        """Returns the sort key of work that can start at the same time.

        Rows higher up in the image come first, then messages before other work, then the work nearer to the end.
        """
        step = self.steps[i]
        return self.positions[i], isinstance(step, Compute) and not _copies(step), -i

    def message(self, i: int) -> tuple[int, int, float]:
        """Returns the transfer before work: sending core (-1: none), bytes, and its time in ns if it is a copy."""
        tile, elements = _taken(self.steps[i])
        if tile is None or tile.name not in self.makers:
            return -1, 0, 0.0
        arch = self.arch.holding(tile.element)
        size, source = elements * arch.element_bytes, self.cores[self.makers[tile.name][0]]
        if source == self.cores[i]:
            return -1, size, copy_ns(arch, elements)
        return source, size, 0.0

    def memory(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns for each step the time in ns that global memory is busy with its transfers, and the rest of them."""
        port_ns, around_ns = np.zeros(len(self.steps)), np.zeros(len(self.steps))
        for i, step in enumerate(self.steps):
            for tile, elements in self.exchanged(i, step):
                arch = self.arch.holding(tile.element)
                busy_ns = global_port_ns(arch, elements)
                port_ns[i] += busy_ns
                around_ns[i] += load_ns(arch, elements, self.cores[i]) - busy_ns
        return port_ns, around_ns

    def exchanged(self, i: int, step: Compute | Fetch) -> Iterator[tuple[Tile, int]]:
        """Yields the tiles that a step loads or stores, and their elements. Most are loaded at their first use."""
        taken, elements = _taken(step)
        if taken is not None:
            if taken.name not in self.makers:
                yield taken, elements
            return
        assert isinstance(step, Compute), "a fetch takes a tile"
        for tile in (*step.inputs, *_constants(step)):
            # Equal constants are one.
            content = tile.values.tobytes() if isinstance(tile, ConstantTile) else tile.name
            if tile.name not in self.makers and self.loaded.setdefault((content, self.cores[i]), i) == i:
                yield tile, tile.elements
        yield from ((tile, tile.elements) for tile in step.results if tile.name in self.outputs)

    def work_ns(self) -> npt.NDArray[np.float64]:
        """Estimates the time of each step on its core in ns, without transfers."""
        costs = Costs(self.arch, self.placed.graph.filters)
        return np.array([costs.work_ns(step) if isinstance(step, Compute) else 0.0 for step in self.steps])


def _pairs(core: "Ints", peer: "Ints") -> tuple["Ints", "Ints", "Ints"]:
    """Numbers the pairs of core and peer, core by core: see `Work`."""
    cores = int(max(core.max(), peer.max())) + 1
    keys, pair = np.unique(core * (cores + 1) + peer + 1, return_inverse=True)
    first = np.searchsorted(keys, np.arange(cores + 1) * (cores + 1))
    return pair.astype(np.int64), first.astype(np.int64), keys % (cores + 1) - 1


def _constants(compute: Compute) -> Iterator[Tile]:
    """Yields the constants that a compute needs on its core; rows of a table are taken one by one."""
    for op in compute.body:
        if not isinstance(op, TakeRows):
            yield from (tile for tile in op.operands if isinstance(tile, ConstantTile))


def _copies(compute: Compute) -> bool:
    """True if the compute is a copy."""
    return bool(compute.body) and isinstance(compute.body[0], Copy)


def _taken(step: Compute | Fetch) -> tuple[Tile | None, int]:
    """Returns the tile that a copy or a fetch reads, and how many elements; None and 0 for other work."""
    if isinstance(step, Fetch):
        return step.tile, step.tile.elements
    op = step.body[0] if step.body else None
    return (op.source, op.elements) if isinstance(op, Copy) else (None, 0)
