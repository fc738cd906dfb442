"""Routes long-lived values through idle cores, so that they do not prolong the occupancy of their producer or consumer.

A core starts a sample only after it has finished the previous one. A value that is made early and read late occupies
the core of its maker or reader during all the time between: in a bidirectional recurrent layer, for instance, half of
the results of each direction wait for the other direction. Here the time of a sample is cut into slots of equal length,
each with some otherwise idle cores. A waiting value is copied to a core of the slot in which it is made, from there to
a core of the next slot, and so on until it is read, so each core keeps it for one slot. Values that are made in the
same slot and read in the same slot travel together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np
from msgspec import structs

from raptor.mapping.decision import ByLine, Decision
from raptor.mapping.knobs import patience_on
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.even_out import movable
from raptor.spatial.ir import Copy
from raptor.spatial.mesh_placement import usable
from raptor.spatial.needs import Needs
from raptor.spatial.operations import OneResult
from raptor.spatial.placed import Partition
from raptor.spatial.spans import Kept, Times, chains_lie_apart, reads
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target
from raptor.target.element import ElementType
from raptor.target.timing import message_ns

WORTH = 2
"""Factor by which the longest occupancy of a core must fall for values to be relayed, because times are estimates."""

MEMORY = 0.5
"""Share of a core's local memory that relayed values may fill; its buffers need the rest."""


def relay_values(partition: Partition, decision: Decision, arch: Target) -> Partition:
    """Returns the partition with long-lived values relayed through idle cores, if that halves the longest occupancy.

    The occupancy of a core lasts from its first to its last work of a sample. Only streamed flows are changed.
    """
    flow = decision.flow
    if not isinstance(flow, ByLine) or not flow.streamed or not partition.cores:
        return partition
    idle = sorted(set(range(len(usable(arch)))).difference(partition.cores))
    if len(idle) <= WORTH or not chains_lie_apart(partition, WORTH):
        return partition
    # NOTE: the decision's patience identifies an order that is chosen later, so it is not used here.
    patience_ns = patience_on(arch)
    times = Times.of(partition, patience_ns, arch)
    span_ns = times.span_ns()
    if span_ns < WORTH * times.busiest_ns:
        return partition
    near = to_first_readers(partition, times)
    if near.cores != partition.cores:
        times = Times.of(near, patience_ns, arch)
    slots, reached_ns = _best_slots(times, len(idle), arch)
    if span_ns < WORTH * reached_ns:
        return partition
    groups = slots.groups(times.kept())
    relays = _Relays(near, times.problem.needs, slots, idle)
    for number, (group, members) in enumerate(groups.items()):
        relays.pass_on(number, group, members)
    return relays.in_order()


def to_first_readers(partition: Partition, times: Times) -> Partition:
    """Returns the partition with some computes on the core that reads their result first.

    These can run on any core, and their own core reads the result only much later, which would occupy it until then.
    """
    cores = np.array(partition.cores, np.int64)
    made, reader = reads(partition)
    at_ns, own = times.at_ns[reader], cores[made] == cores[reader]
    first_ns, own_ns = np.full(len(cores), np.inf), np.full(len(cores), -np.inf)
    np.minimum.at(first_ns, made, at_ns)
    own_ns[made[own]] = np.inf
    np.minimum.at(own_ns, made[own], at_ns[own])
    far = movable(partition) & (own_ns > first_ns + WORTH * times.busiest_ns)
    first = np.flatnonzero(far[made] & (at_ns == first_ns[made]))
    cores[made[first]] = cores[reader[first]]
    return replace(partition, cores=tuple(cores.tolist()))


def _best_slots(times: Times, cores: int, arch: Target) -> tuple["Slots", float]:
    """Returns the division of time and idle cores into slots with the least interval, and this interval in ns.

    On ties the fewest slots are taken, because each slot adds messages.
    """
    kept, port_ns = times.kept(), float(times.work.memory_ns.sum())
    first_ns, last_ns = float(times.at_ns.min()), float(times.end_ns.max())

    def reached_ns(slots: Slots) -> float:
        groups = slots.groups(kept)
        relayed = [each for members in groups.values() for each in members]
        return max(slots.interval_ns(groups, arch), times.span_ns(relayed), port_ns)

    ways = [Slots(n, cores // n, first_ns, (last_ns - first_ns) / n) for n in range(2, cores + 1)]
    times_ns = [reached_ns(slots) for slots in ways]
    return ways[times_ns.index(min(times_ns))], min(times_ns)


_Group = tuple[int, int, int, ElementType]
"""Values that travel together: slot in which they are made, slot in which they are read, channels, element type."""


@dataclass(frozen=True, slots=True)
class Slots:
    """`count` consecutive slots of `length_ns` each, starting at `first_ns`, with `wide` cores per slot."""

    count: int
    wide: int
    first_ns: float
    length_ns: float

    def groups(self, kept: Sequence[Kept]) -> dict[_Group, list[Kept]]:
        """Groups the values that wait for longer than a slot."""
        groups: dict[_Group, list[Kept]] = {}
        for each in kept:
            if each.read_ns - each.made_ns > self.length_ns:
                ends = self.number(each.made_ns), self.number(each.read_ns)
                groups.setdefault((*ends, each.tile.channels, each.tile.element), []).append(each)
        return groups

    def number(self, at_ns: float) -> int:
        """Returns the number of the slot that contains a time."""
        return min(int((at_ns - self.first_ns) / self.length_ns), self.count - 1)

    def interval_ns(self, groups: Mapping[_Group, Sequence[Kept]], arch: Target) -> float:
        """Estimates the occupancy of a core of the fullest slot; infinite if its memory is too small."""
        busy_ns, held = np.zeros(self.count), np.zeros(self.count)
        for (made, read, _, element), members in groups.items():
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

    needs: dependences of its computes. idle: cores for relays; the cores of a slot are consecutive. added: new
    computes, with core, position and the number of the compute that they serve. changed: computes that read from a
    relay, by number.
    """

    partition: Partition
    needs: Needs
    slots: Slots
    idle: Sequence[int]
    added: list[tuple[Compute, int, float, int]] = field(default_factory=list[tuple[Compute, int, float, int]])
    changed: dict[int, Compute] = field(default_factory=dict[int, Compute])

    def pass_on(self, number: int, group: _Group, members: Sequence[Kept]) -> None:
        """Packs the tiles of a group into one buffer, and copies it through a core of each slot."""
        made, read, channels, element = group
        tiles = {each.tile.name: each.tile for each in members}
        *firsts, elements = np.cumsum([0, *(tile.elements for tile in tiles.values())]).tolist()
        at = dict(zip(tiles, firsts, strict=True))
        wanted = min(each.reader for each in members)
        sources = [(tile, at[name]) for name, tile in tiles.items()]
        for slot in range(made, read + 1):
            core = self.idle[slot * self.slots.wide + number % self.slots.wide]
            held = Tile(f"{members[0].tile.name}.kept{number}@{core}", 1, elements // channels, channels, element)
            for tile, first in sources:
                self.add(wanted, core, Copy(held, tile, 0, first, tile.elements))
            sources = [(held, 0)]
        for each in members:
            self.take(each, sources[0][0], at[each.tile.name])

    def take(self, kept: Kept, source: Tile, first: int) -> None:
        """Redirects all reads of a tile on a core to another tile, from element `first` on."""
        if kept.step == kept.reader:
            compute = self.partition.graph.computes[kept.reader]
            op = compute.body[0]
            assert isinstance(op, Copy)
            taken = Copy(op.result, source, first + op.first, op.at, op.elements)
            self.changed[kept.reader] = structs.replace(compute, body=(taken, *compute.body[1:]))
            return
        tile, core = kept.tile, self.partition.cores[kept.reader]
        own = structs.replace(tile, name=f"{tile.name}.kept@{core}")
        self.add(kept.reader, core, Copy(own, source, first, 0, tile.elements))
        for i in self.readers(tile, core):
            compute = self.changed.get(i, self.partition.graph.computes[i])
            self.changed[i] = structs.replace(compute, body=tuple([_reading(op, tile, own) for op in compute.body]))

    def add(self, reader: int, core: int, op: Copy[Tile]) -> None:
        """Adds a copy that serves compute `reader`."""
        wanted = self.partition.graph.computes[reader]
        compute = Compute(wanted.node, wanted.op_type, "", (), (op,), (op.result,))
        self.added.append((compute, core, self.partition.positions[reader], reader))

    def readers(self, tile: Tile, core: int) -> list[int]:
        """Returns the computes on a core that read a tile and are no copies of it."""
        read = self.needs.reader[self.needs.read == self.needs.flow.number[tile.name]].tolist()
        return [i for i in read if self.partition.cores[i] == core and self.needs.taken[i] < 0]

    def in_order(self) -> Partition:
        """Returns the partition with all computes, each after the makers of its operands."""
        old = zip(self.partition.graph.computes, self.partition.cores, self.partition.positions, strict=True)
        rows = [(self.changed.get(i, compute), core, at, i) for i, (compute, core, at) in enumerate(old)]
        rows += self.added
        order = _sorted([compute for compute, *_ in rows], [key for *_, key in rows])
        computes, cores, positions, _ = zip(*[rows[i] for i in order], strict=True)
        return Partition(replace(self.partition.graph, computes=computes), cores, positions)


def _reading(op: BodyOp, tile: Tile, own: Tile) -> BodyOp:
    changed = op.map_operands(lambda t: own if t.name == tile.name else t)
    assert isinstance(changed, OneResult)
    return changed


def _sorted(computes: Sequence[Compute], keys: Sequence[int]) -> list[int]:
    """Topological sort: returns the numbers of computes, each after the makers of its operands.

    Among computes that may come next, the one with the least key is first.
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
