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

from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import MovedComputes, RefinementError, Relay, RelayedTile
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy
from raptor.spatial.mesh_placement import usable_cores
from raptor.spatial.operations import OneResult
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, move_computes, moves_to
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, WaitingTile, compute_dependences, has_distant_chains
from raptor.spatial.scheduling.dependences import StepDependences
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target
from raptor.target.chip_elements import ElementType
from raptor.target.timing import message_ns

RELAY_GAIN = 2
"""Factor by which the longest occupancy of a core must fall for values to be relayed, because times are estimates."""

RELAY_MEMORY_SHARE = 0.5
"""Share of a core's local memory that relayed values may fill; its buffers need the rest."""


def choose_relays(partition: Partition, arch: Target) -> tuple[tuple[MovedComputes, ...], tuple[Relay, ...]]:
    """Returns moves to first readers, and then relays through idle cores, if they halve the longest occupancy.

    The occupancy of a core lasts from its first to its last work of a sample.
    """
    idle = sorted(set(range(len(usable_cores(arch)))).difference(partition.cores))
    if len(idle) <= RELAY_GAIN or not has_distant_chains(partition, RELAY_GAIN):
        return (), ()
    found = [_relays_by(partition, idle, beside, arch) for beside in (False, True)]
    best = min((each for each in found if each is not None), key=lambda each: each.reached_ns, default=None)
    return ((), ()) if best is None else (best.near, best.relays(idle))


@dataclass(frozen=True, slots=True)
class _FoundRelays:
    """Moves to first readers, and the `values` that relays pass on through slots of idle cores.

    reached_ns: estimated interval of the program with these relays.
    """

    near: tuple[MovedComputes, ...]
    slots: "TimeSlots"
    values: Sequence[WaitingTile]
    reached_ns: float

    def relays(self, idle: Sequence[int]) -> tuple[Relay, ...]:
        groups = self.slots.groups(self.values)
        return tuple(_relay(self.slots, idle, number, *group) for number, group in enumerate(groups.items()))


def _relays_by(partition: Partition, idle: Sequence[int], beside: bool, arch: Target) -> _FoundRelays | None:
    """Returns relays through `idle` cores by the times of one ALAP schedule; None if they do not halve the occupancy.

    beside: whether work stays beside its operands (`AlapSchedule.beside_operands`).
    """
    times = _alap_times(partition, beside, arch)
    span_ns = times.longest_occupancy_ns()
    if span_ns < RELAY_GAIN * times.busiest_ns:
        return None
    near = move_to_first_readers(partition, times)
    if near:
        times = _alap_times(move_computes(partition, near), beside, arch)
    slots, reached_ns = _best_slots(times, len(idle), arch)
    return _FoundRelays(near, slots, times.waiting_tiles(), reached_ns) if span_ns >= RELAY_GAIN * reached_ns else None


def _alap_times(partition: Partition, beside: bool, arch: Target) -> AlapSchedule:
    times = AlapSchedule.from_partition(partition, chip_patience_ns(arch), arch)
    return times.beside_operands() if beside else times


def _relay(
    slots: "TimeSlots", idle: Sequence[int], number: int, group: "_Group", members: Sequence[WaitingTile]
) -> Relay:
    """Returns the relay of a group of values, through a core of each of its slots; groups of a slot take turns."""
    made, read, *_ = group
    cores = tuple(idle[slot * slots.wide + number % slots.wide] for slot in range(made, read + 1))
    return Relay(cores, tuple(RelayedTile(each.tile.name, each.reader) for each in members))


def move_to_first_readers(partition: Partition, times: AlapSchedule) -> tuple[MovedComputes, ...]:
    """Returns moves of some computes to the core that reads their result first.

    These can run on any core, and their own core reads the result only much later, which would occupy it until then.
    """
    cores = np.array(partition.cores, np.int64)
    made, reader = compute_dependences(partition)
    at_ns, own = times.at_ns[reader], cores[made] == cores[reader]
    first_ns, own_ns = np.full(len(cores), np.inf), np.full(len(cores), -np.inf)
    np.minimum.at(first_ns, made, at_ns)
    own_ns[made[own]] = np.inf
    np.minimum.at(own_ns, made[own], at_ns[own])
    far = find_movable(partition) & (own_ns > first_ns + RELAY_GAIN * times.busiest_ns)
    first = np.flatnonzero(far[made] & (at_ns == first_ns[made]))
    cores[made[first]] = cores[reader[first]]
    return moves_to(cores, partition)


def _best_slots(times: AlapSchedule, cores: int, arch: Target) -> tuple["TimeSlots", float]:
    """Returns the division of time and idle cores into slots with the least interval, and this interval in ns.

    On ties the fewest slots are taken, because each slot adds messages.
    """
    kept, port_ns = times.waiting_tiles(), float(times.work.memory_ns.sum())
    first_ns, last_ns = float(times.at_ns.min()), float(times.end_ns.max())

    def reached_ns(slots: TimeSlots) -> float:
        groups = slots.groups(kept)
        relayed = [each for members in groups.values() for each in members]
        return max(slots.interval_ns(groups, arch), times.longest_occupancy_ns(relayed), port_ns)

    ways = [TimeSlots(n, cores // n, first_ns, (last_ns - first_ns) / n) for n in range(2, cores + 1)]
    times_ns = [reached_ns(slots) for slots in ways]
    return ways[times_ns.index(min(times_ns))], min(times_ns)


_Group = tuple[int, int, int, ElementType]
"""Values that travel together: slot in which they are made, slot in which they are read, channels, element type."""


@dataclass(frozen=True, slots=True)
class TimeSlots:
    """`count` consecutive slots of `length_ns` each, starting at `first_ns`, with `wide` cores per slot."""

    count: int
    wide: int
    first_ns: float
    length_ns: float

    def groups(self, kept: Sequence[WaitingTile]) -> dict[_Group, list[WaitingTile]]:
        """Groups the values that wait for longer than a slot."""
        groups: dict[_Group, list[WaitingTile]] = {}
        for each in kept:
            if each.read_ns - each.made_ns > self.length_ns:
                ends = self.number(each.made_ns), self.number(each.read_ns)
                groups.setdefault((*ends, each.tile.channels, each.tile.element), []).append(each)
        return groups

    def number(self, at_ns: float) -> int:
        """Returns the number of the slot that contains a time."""
        return min(int((at_ns - self.first_ns) / self.length_ns), self.count - 1)

    def interval_ns(self, groups: Mapping[_Group, Sequence[WaitingTile]], arch: Target) -> float:
        """Estimates the occupancy of a core of the fullest slot; infinite if its memory is too small."""
        busy_ns, held = np.zeros(self.count), np.zeros(self.count)
        for (made, read, _, element), members in groups.items():
            chip, tiles = arch.with_element(element), {each.tile.name: each.tile for each in members}.values()
            one_ns = sum(message_ns(chip, tile.elements) for tile in tiles)
            elements = sum(tile.elements for tile in tiles)
            busy_ns[made : read + 1] += 2 * message_ns(chip, elements)
            busy_ns[[made, read]] += one_ns
            held[made : read + 1] += elements * arch.bytes_of(element)
        if held.max() > RELAY_MEMORY_SHARE * self.wide * arch.core.memory.size_bytes:
            return float("inf")
        return self.length_ns + float(busy_ns.max()) / self.wide


def relay_values(partition: Partition, relays: Sequence[Relay]) -> Partition:
    """Returns the partition with the relays; the partition itself if there are none.

    Raises `RefinementError` if a value would have to be relayed before it is made.
    """
    if not relays:
        return partition
    added = _Relays(partition, _needs(partition))
    for number, relay in enumerate(relays):
        added.pass_on(number, relay)
    return added.in_order()


def check_relays(partition: Partition, relays: Sequence[Relay], arch: Target) -> None:
    """Raises `RefinementError` for a relay through no cores, of tiles that cannot travel so, or to wrong readers."""
    if not relays:
        return
    needs, seen = _needs(partition), set[tuple[str, int]]()
    pairs = set(zip(needs.reader.tolist(), needs.read.tolist(), strict=True))
    for i, relay in enumerate(relays):
        cores = [core for core in relay.cores if 0 <= core < arch.usable_cores]
        if not cores or len(set(cores)) < len(relay.cores):
            raise RefinementError(f"relays[{i}].cores: {relay.cores}, expected some of {arch.usable_cores}, each once")
        kinds = set[tuple[int, ElementType]]()
        for k, each in enumerate(relay.tiles):
            at, number = f"relays[{i}].tiles[{k}]", needs.flow.number.get(each.tile, -1)
            if number < 0 or not needs.makers.is_nonempty(np.array([number])).any():
                raise RefinementError(f"{at}.tile: no compute makes {each.tile}")
            if (each.reader, number) not in pairs or needs.taken[each.reader] not in (-1, number):
                raise RefinementError(f"{at}.reader: compute {each.reader} does not take {each.tile}")
            copies = needs.taken[each.reader] == number
            way = each.tile, -1 - each.reader if copies else partition.cores[each.reader]
            if way in seen:
                raise RefinementError(f"{at}: {each.tile} is relayed to the core of compute {each.reader} twice")
            seen.add(way)
            kinds.add((needs.flow.tiles[number].channels, needs.flow.tiles[number].element))
        if len(kinds) != 1:
            raise RefinementError(f"relays[{i}].tiles: expected tiles of equal channels and types")


def _needs(partition: Partition) -> StepDependences:
    return StepDependences.from_dataflow(partition.graph.dataflow, np.array(partition.cores, np.int64))


@dataclass(slots=True)
class _Relays:
    """Relays to add to a partition.

    needs: dependences of its computes. added: new computes, with core, position and the number of the compute that they
    serve. changed: computes that read from a relay, by number.
    """

    partition: Partition
    needs: StepDependences
    added: list[tuple[Compute, int, float, int]] = field(default_factory=list[tuple[Compute, int, float, int]])
    changed: dict[int, Compute] = field(default_factory=dict[int, Compute])

    def pass_on(self, number: int, relay: Relay) -> None:
        """Packs the tiles of a relay into one buffer, and copies it from core to core. `number`: of the relay."""
        flow = self.needs.flow
        tiles = {each.tile: flow.tiles[flow.number[each.tile]] for each in relay.tiles}
        *firsts, elements = np.cumsum([0, *(tile.elements for tile in tiles.values())]).tolist()
        at = dict(zip(tiles, firsts, strict=True))
        wanted = min(each.reader for each in relay.tiles)
        sources = [(tile, at[name]) for name, tile in tiles.items()]
        first = sources[0][0]
        for core in relay.cores:
            name = f"{first.name}.kept{number}@{core}"
            held = Tile(name, 1, elements // first.channels, first.channels, first.element)
            for tile, begin in sources:
                self.add(wanted, core, Copy(held, tile, 0, begin, tile.elements))
            sources = [(held, 0)]
        for each in relay.tiles:
            self.take(each.reader, tiles[each.tile], sources[0][0], at[each.tile])

    def take(self, reader: int, tile: Tile, source: Tile, first: int) -> None:
        """Redirects all reads of a tile on the core of a reader to another tile, from element `first` on."""
        if self.needs.taken[reader] >= 0:
            compute = self.partition.graph.computes[reader]
            op = compute.body[0]
            assert isinstance(op, Copy)
            taken = Copy(op.result, source, first + op.first, op.at, op.elements)
            self.changed[reader] = structs.replace(compute, body=(taken, *compute.body[1:]))
            return
        core = self.partition.cores[reader]
        own = structs.replace(tile, name=f"{tile.name}.kept@{core}")
        self.add(reader, core, Copy(own, source, first, 0, tile.elements))
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
        if len(order) < len(rows):
            raise RefinementError("relays: a value would have to be relayed before it is made")
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
