"""Values that are kept for long, passed through idle cores.

A core begins a sample when it has done its work of the one before. A value that is made early and read late keeps the
core of its maker, or that of its reader, for all the time between: in a layer that is recurrent in both directions, for
instance, half of the results of each direction wait for those of the other. Here the time of a sample is cut into slots
of equal length, each with some cores that nothing else uses. A value that has to wait goes to a core of the slot in
which it is made, from there to one of the next slot, and so on until it is read. So every core keeps it for one slot.
Values that are made in one slot and read in another one travel together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.ir import BodyOp, Compute, Copy
from raptor.spatial.mesh_placement import usable
from raptor.spatial.operations import OneResult
from raptor.spatial.orders import early
from raptor.spatial.placed import Partition, PlacedGraph
from raptor.spatial.schedule import Problem
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target
from raptor.target.element import ElementType
from raptor.target.timing import message_ns

if TYPE_CHECKING:
    from raptor.spatial.schedule_kernel import Work

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WORTH = 2.0
"""Times that the longest span of a core must fall for values to be relayed: spans are estimates."""

FEWEST = 4
"""The least number of idle cores with which it is tried."""

MEMORY = 0.5
"""Share of the memory of a core that relayed values may fill."""


def relay_values(partition: Partition, decision: Decision, arch: Target) -> Partition:
    """Returns the partition with values that are kept for long on idle cores, if no core has to keep a sample as long.

    That is if the longest span of a core, from its first to its last work of a sample, falls to less than half.
    """
    flow = decision.flow
    if not isinstance(flow, ByLine) or not flow.streamed or not partition.cores:
        return partition
    idle = sorted(set(range(len(usable(arch)))).difference(partition.cores))
    if len(idle) < FEWEST:
        return partition
    times = Times.of(partition, flow.patience_ns, arch)
    span_ns = times.span_ns()
    if span_ns < WORTH * times.busiest_ns:
        return partition
    kept = times.kept()
    slots = min(_ways(times, len(idle)), key=lambda slots: slots.interval_ns(kept, arch))
    relayed = [each for members in slots.groups(kept).values() for each in members]
    if span_ns < WORTH * max(times.span_ns(relayed), slots.interval_ns(kept, arch)):
        return partition
    return _Relays(partition, times.problem, slots, idle).relayed(kept)


def _ways(times: "Times", cores: int) -> list["Slots"]:
    """Returns the ways to divide the time of a sample, and the idle cores, among slots."""
    first_ns, last_ns = float(times.at_ns.min()), float(times.end_ns.max())
    return [Slots(n, cores // n, first_ns, (last_ns - first_ns) / n) for n in range(2, cores + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When the work of a sample has to be done at the latest, without making any of its results later.

    problem: the work, in steps. core, peer: see `Work`. at_ns, end_ns: when each step begins and ends.
    """

    problem: Problem
    core: Ints
    peer: Ints
    at_ns: Floats
    end_ns: Floats

    @classmethod
    def of(cls, partition: Partition, patience_ns: float, arch: Target) -> "Times":
        """Finds the times in a schedule of one sample: those of its results, and back from there to its beginning."""
        placed = PlacedGraph(partition.graph, partition.cores, partition.positions)
        problem = Problem.of(arch, placed, range(len(partition.cores)))
        work = problem.work()
        cost_ns = work.request_ns + work.grant_ns + work.receiver_ns + work.memory_ns + work.work_ns
        order, early_ns = early(work, patience_ns)
        at_ns = late(work, order, early_ns, cost_ns)
        return cls(problem, work.core, work.peer, at_ns, at_ns + cost_ns)

    def span_ns(self, relayed: Sequence["Kept"] = ()) -> float:
        """Returns the longest time between the first and the last work of a core, sending included.

        What is `relayed` is sent as soon as it is made.
        """
        steps = [each.step for each in relayed]
        sent_ns = self.at_ns.copy()
        sent_ns[steps] = [each.made_ns for each in relayed]
        sends = self.peer >= 0
        core = np.concatenate([self.core, self.core, self.peer[sends]])
        at_ns = np.concatenate([self.at_ns, self.end_ns, sent_ns[sends]])
        first, last = np.full(int(core.max()) + 1, np.inf), np.full(int(core.max()) + 1, -np.inf)
        np.minimum.at(first, core, at_ns)
        np.maximum.at(last, core, at_ns)
        return float((last - first).max())

    @property
    def busiest_ns(self) -> float:
        """The work of the core that works most."""
        return float(np.bincount(self.core, self.end_ns - self.at_ns).max())

    def kept(self) -> list["Kept"]:
        """Returns what steps take from other cores."""
        needs = self.problem.needs
        made_ns = np.zeros(len(needs.flow.tiles))
        np.maximum.at(made_ns, needs.flow.result_tile, self.end_ns[needs.flow.result_compute])
        steps: list[int] = np.flatnonzero(self.peer >= 0).tolist()
        taken: list[int] = needs.taken.tolist()
        return [Kept(i, needs.flow.tiles[taken[i]], made_ns[taken[i]], float(self.at_ns[i])) for i in steps]


def late(work: "Work", order: Ints, early_ns: Floats, cost_ns: Floats) -> Floats:
    """Returns the latest time for each step at which nothing comes later, if cores keep the order.

    early_ns: when each could begin at first. cost_ns: for how long it occupies its core.
    """
    core, first, users = work.core.tolist(), work.first_user.tolist(), work.users.tolist()
    found, cost = early_ns.tolist(), cost_ns.tolist()
    next_ns = [float("inf")] * (max(core) + 1)
    for i in reversed(order.tolist()):
        read = users[first[i] : first[i + 1]]
        limit = min([found[j] for j in read], default=found[i] + cost[i])
        found[i] = next_ns[core[i]] = max(found[i], min(limit, next_ns[core[i]]) - cost[i])
    return np.array(found)


@dataclass(frozen=True, slots=True)
class Kept:
    """A tile that waits for another core: the number of the step that takes it, and when it is made and taken."""

    step: int
    tile: Tile
    made_ns: float
    read_ns: float


_Group = tuple[int, int, int, ElementType]
"""Values that travel together: the slots in which they are made and read, their channels and type."""


@dataclass(frozen=True, slots=True)
class Slots:
    """`count` slots of `length_ns` each from `first_ns` on, each with `wide` cores."""

    count: int
    wide: int
    first_ns: float
    length_ns: float

    def groups(self, kept: Sequence[Kept]) -> dict[_Group, list[Kept]]:
        """Returns what waits for longer than a slot, in groups."""
        found: dict[_Group, list[Kept]] = {}
        for each in kept:
            if each.read_ns - each.made_ns > self.length_ns:
                ends = self.number(each.made_ns), self.number(each.read_ns)
                found.setdefault((*ends, each.tile.channels, each.tile.element), []).append(each)
        return found

    def number(self, at_ns: float) -> int:
        """Returns the number of the slot of a time."""
        return min(int((at_ns - self.first_ns) / self.length_ns), self.count - 1)

    def interval_ns(self, kept: Sequence[Kept], arch: Target) -> float:
        """Estimates the time for which a sample occupies a core of a slot; infinite if its memory is too small."""
        busy_ns, held = np.zeros(self.count), np.zeros(self.count)
        for (made, read, _, element), members in self.groups(kept).items():
            chip, tiles = arch.holding(element), {each.tile.name: each.tile for each in members}.values()
            one_ns = sum(message_ns(chip, tile.elements) for tile in tiles)
            elements = sum(tile.elements for tile in tiles)
            busy_ns[made : read + 1] += 2 * message_ns(chip, elements)
            busy_ns[[made, read]] += one_ns
            held[made : read + 1] += elements * arch.bytes_of(element)
        if held.max() > MEMORY * self.wide * arch.core.memory.size_bytes:
            return float("inf")
        return self.length_ns + float(busy_ns.max()) / self.wide


@dataclass(slots=True)
class _Relays:
    """Relays to add to a partition.

    idle: the cores for them, those of a slot side by side. added: new computes, with core, position and the number of
    the compute that wants them. changed: computes that take something from a relay, by number.
    """

    partition: Partition
    problem: Problem
    slots: Slots
    idle: Sequence[int]
    added: list[tuple[Compute, int, float, int]] = field(default_factory=list[tuple[Compute, int, float, int]])
    changed: dict[int, Compute] = field(default_factory=dict[int, Compute])

    def relayed(self, kept: Sequence[Kept]) -> Partition:
        """Returns the partition in which everything that is kept for longer than a slot passes through relays."""
        loads = self.loads()
        for number, (group, members) in enumerate(self.slots.groups(kept).items()):
            made, read, *_ = group
            waiting = [each for each in members if each.tile.name not in loads]
            for each in members:
                if each.tile.name in loads:
                    op = loads[each.tile.name]
                    self.take(each, op.source, op.first)
            if waiting:
                self.pass_on(number, range(made, read + 1), waiting)
        return self.in_order()

    def loads(self) -> Mapping[str, Copy[Tile]]:
        """Returns the copies of parts of model inputs, by name of the tile: who needs one later loads it, too."""
        graph = self.partition.graph
        given = {part.tile.name for name in graph.inputs for part in graph.tensors[name].parts}
        ops = [op for compute in graph.computes for op in compute.body]
        return {
            op.result.name: op
            for op in ops
            if isinstance(op, Copy) and op.source.name in given and op.elements == op.result.elements
        }

    def pass_on(self, number: int, slots: range, members: Sequence[Kept]) -> None:
        """Adds the relays of a group: its tiles become one, side by side, which goes from slot to slot."""
        tiles = {each.tile.name: each.tile for each in members}
        first = min(self.reader(each) for each in members)
        firsts = dict(zip(tiles, np.cumsum([0, *(t.elements for t in tiles.values())]).tolist(), strict=False))
        pixels, lead = sum(t.pixels for t in tiles.values()), members[0].tile
        held: Tile | None = None
        for slot in slots:
            core = self.idle[slot * self.slots.wide + number % self.slots.wide]
            tile = Tile(f"{lead.name}.kept{number}@{core}", 1, pixels, lead.channels, lead.element)
            if held is None:
                for name, t in tiles.items():
                    self.add(first, core, Copy(tile, t, 0, firsts[name], t.elements))
            else:
                self.add(first, core, Copy(tile, held, 0, 0, held.elements))
            held = tile
        assert held is not None
        for each in members:
            self.take(each, held, firsts[each.tile.name])

    def reader(self, kept: Kept) -> int:
        """Returns the number of the first compute that reads what is kept."""
        computes = self.problem.computes
        return kept.step if kept.step < computes else int(self.problem.needs.fetch_user[kept.step - computes])

    def add(self, reader: int, core: int, op: Copy[Tile]) -> None:
        """Adds a compute for another one, `reader`."""
        wanted = self.partition.graph.computes[reader]
        compute = Compute(wanted.node, wanted.op_type, "", (), (op,), (op.result,))
        self.added.append((compute, core, self.partition.positions[reader], reader))

    def take(self, kept: Kept, source: Tile, first: int) -> None:
        """Lets the step that takes a tile take it from another one, from element `first` on."""
        tile, reader = kept.tile, self.reader(kept)
        if kept.step == reader:
            compute = self.partition.graph.computes[reader]
            op = compute.body[0]
            assert isinstance(op, Copy)
            taken = Copy(op.result, source, first + op.first, op.at, op.elements)
            self.changed[reader] = replace(compute, body=(taken, *compute.body[1:]))
            return
        core = self.partition.cores[reader]
        own = replace(tile, name=f"{tile.name}.kept@{core}")
        self.add(reader, core, Copy(own, source, first, 0, tile.elements))
        for i in self.readers(tile, core):
            compute = self.changed.get(i, self.partition.graph.computes[i])
            self.changed[i] = replace(compute, body=tuple([_reading(op, tile, own) for op in compute.body]))

    def readers(self, tile: Tile, core: int) -> list[int]:
        """Returns the computes on a core that read a tile, and are no copies of it."""
        needs, cores = self.problem.needs, self.problem.core
        read = needs.reader[needs.read == needs.flow.number[tile.name]]
        return read[(cores[read] == core) & (needs.taken[read] < 0)].tolist()

    def in_order(self) -> Partition:
        """Returns the partition with all computes, each behind those that make what it reads."""
        old = zip(self.partition.graph.computes, self.partition.cores, self.partition.positions, strict=True)
        found = [(self.changed.get(i, compute), core, at, i) for i, (compute, core, at) in enumerate(old)]
        found += self.added
        order = _sorted([compute for compute, *_ in found], [key for *_, key in found])
        computes, cores, positions, _ = zip(*[found[i] for i in order], strict=True)
        return Partition(replace(self.partition.graph, computes=computes), cores, positions)


def _reading(op: BodyOp, tile: Tile, own: Tile) -> BodyOp:
    """Returns an operation that reads one tile in place of another."""
    found = op.map_operands(lambda t: own if t.name == tile.name else t)
    assert isinstance(found, OneResult)
    return found


def _sorted(computes: Sequence[Compute], keys: Sequence[int]) -> list[int]:
    """Returns the numbers of computes in an order in which each comes after the makers of what it reads.

    Of those that may come next, the one with the least key is first.
    """
    makers: dict[str, list[int]] = {}
    for i, compute in enumerate(computes):
        for tile in compute.results:
            makers.setdefault(tile.name, []).append(i)
    users: list[list[int]] = [[] for _ in computes]
    left = [0] * len(computes)
    for i, compute in enumerate(computes):
        for maker in {maker for tile in compute.inputs for maker in makers.get(tile.name, ())}:
            users[maker].append(i)
            left[i] += 1
    ready = [(keys[i], i) for i, count in enumerate(left) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heappop(ready)
        order.append(i)
        for user in users[i]:
            left[user] -= 1
            if not left[user]:
                heappush(ready, (keys[user], user))
    return order
