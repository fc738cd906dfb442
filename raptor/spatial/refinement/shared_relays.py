"""Routes long-lived values through cores that have other work, where that shortens the longest occupancy of a core.

A core starts a sample only after it has finished the previous one. The skip of a U-Net is made early and read late, so
it occupies its maker or its reader for nearly the whole latency. Cores of the layers between have their work between,
too: such a core takes the value before its own work, and passes it on after it. If a sample may occupy a core for T ns,
a value that waits for W ns needs about W / T cores on its way.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import Relay, RelayedTile
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, compare_times
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.value_relays import RELAY_MEMORY_SHARE, relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, WaitingTile, partition_work
from raptor.target.arch import Target
from raptor.target.chip_elements import ElementType
from raptor.target.timing import message_ns

Floats = npt.NDArray[np.float64]

WORTH_RELAYING = 1.25
"""Factor by which the longest occupancy of a core must fall for shared relays to be tried."""

LEAST_GAIN = 0.95
"""Largest latency x interval with shared relays, or with late work moved, relative to the program without them."""

WORTH_SEARCHING = 1.2
"""Factor of the longest occupancy over the interval that could be reached for limits of makers and relays to be tried.

A detector of text in phases, with 1.19, would be compiled for 60 % longer, and no relays are found.
"""

SLACK_SHARE = 0.85
"""The least limit of makers and relays, relative to the interval that could be reached if no value had to wait.

The times are estimates: with slack, a core that passes on a value does not wait for the next one on the way.
"""

STEPS = 12
"""Number of limits that are tried, up to the longest occupancy."""

COMPARED = 2
"""Number of limits of makers and relays that are compared by the list schedule: a higher one needs fewer messages."""

BUNDLE_SHARE = 0.125
"""Share of the occupancy in which values may be made, and be read, to travel together, and that their messages take."""


def choose_shared_relays(partition: Partition, times: AlapSchedule, arch: Target) -> tuple[Relay, ...]:
    """Returns relays through cores with other work; none if latency x interval is no better by the list schedule.

    Compared are those with the least limit of the occupancy of all cores for which each value finds a way. If there is
    no such limit, as layers with many lines have work for as long, those with the least limits of makers and relays.
    """
    found = _search_limits(times, arch, of_all=True) or _search_limits(times.beside_operands(), arch, of_all=False)
    if not found:
        return ()
    costs = [LEAST_GAIN * compared_cost(partition, arch)]
    costs += [compared_cost(relay_values(partition, relays), arch) for relays in found]
    return ((), *found)[costs.index(min(costs))]


def _search_limits(times: AlapSchedule, arch: Target, *, of_all: bool) -> list[tuple[Relay, ...]]:
    """Returns relays for the smallest limits of occupancy for which `_find_relays` finds any; none if it finds none."""
    waiting, longest_ns = times.waiting_tiles(), times.longest_occupancy_ns()
    least_ns = max(times.busiest_ns, float(times.work.memory_ns.sum()))
    if not of_all:
        reached_ns = max(least_ns, times.longest_occupancy_ns(waiting))
        least_ns = SLACK_SHARE * reached_ns if longest_ns > WORTH_SEARCHING * reached_ns else np.inf
    most_ns = longest_ns / WORTH_RELAYING
    if most_ns < least_ns:
        return []
    limits_ns = np.geomspace(least_ns, most_ns, STEPS).tolist()
    ways = (_find_relays(times, waiting, limit_ns, arch, of_all=of_all) for limit_ns in limits_ns)
    return list(islice((relays for relays in ways if relays), 1 if of_all else COMPARED))


def compared_cost(partition: Partition, arch: Target) -> float:
    """Schedules a partition by the list schedule and returns its latency x interval in ns2."""
    work = partition_work(partition, arch)
    latency_ns, interval_ns = compare_times(work, chip_patience_ns(arch), BALANCED_OBJECTIVE.patiences)
    return latency_ns * interval_ns


def _find_relays(
    times: AlapSchedule, waiting: Sequence[WaitingTile], limit_ns: float, arch: Target, *, of_all: bool
) -> tuple[Relay, ...]:
    """Returns relays of the values that would occupy the cores of their makers for longer than `limit_ns`.

    By these times, no relay occupies a core for longer, and no core is occupied for longer if the limit is `of_all`.
    Else, a maker is occupied at least until its own work ends, and makers and readers keep values only while they have
    other work. There are no relays if one of the values finds no way.
    """
    cores, core, peer = arch.usable_cores, times.work.core, times.work.peer
    first_ns, last_ns = times.occupied_ns(cores, waiting)
    until_ns = first_ns + limit_ns if of_all else np.maximum(first_ns + limit_ns, last_ns)
    long = [w for w in waiting if w.read_ns > until_ns[peer[w.step]]]
    first_ns, last_ns = times.occupied_ns(cores, long)
    if of_all and (last_ns - first_ns).max() > limit_ns:
        return ()
    work_ns = np.bincount(core, times.end_ns - times.at_ns, cores).astype(np.float64)
    ways = _SharedWays(limit_ns, of_all, first_ns, last_ns, work_ns, np.zeros(cores), arch)
    relays: list[Relay] = []
    for bundle in ways.make_bundles(long):
        makers, readers = {int(peer[w.step]) for w in bundle}, {int(core[w.step]) for w in bundle}
        way = ways.find_way(bundle, makers, readers)
        if way is None:
            return ()
        if way:
            tiles = {(w.tile.name, int(core[w.step])): RelayedTile(w.tile.name, w.reader) for w in bundle}
            relays.append(Relay(tuple(way), tuple(tiles.values())))
    return tuple(relays)


@dataclass(slots=True, eq=False)
class _SharedWays:
    """The occupancy of each core with the values that it passes on so far.

    first_ns, last_ns, work_ns: begin, end and work of a sample. held: bytes of values that wait. limit_ns, of_all: the
    longest occupancy, see `_find_relays`.
    """

    limit_ns: float
    of_all: bool
    first_ns: Floats
    last_ns: Floats
    work_ns: Floats
    held: Floats
    arch: Target

    def make_bundles(self, long: Sequence[WaitingTile]) -> Iterator[list[WaitingTile]]:
        """Yields values that travel together: made and read at about the same times, with few enough messages."""
        window_ns = BUNDLE_SHARE * self.limit_ns
        groups: defaultdict[tuple[int, int, int, ElementType], list[WaitingTile]] = defaultdict(list)
        for each in long:
            made, read = int(each.made_ns / window_ns), int(each.read_ns / window_ns)
            groups[made, read, each.tile.channels, each.tile.element].append(each)
        for members in groups.values():
            bundle, sent_ns = list[WaitingTile](), 0.0
            for each in members:
                one_ns = self.message_ns(each)
                if bundle and sent_ns + one_ns > window_ns:
                    yield bundle
                    bundle, sent_ns = [], 0.0
                bundle.append(each)
                sent_ns += one_ns
            yield bundle

    def message_ns(self, each: WaitingTile) -> float:
        return message_ns(self.arch.with_element(each.tile.element), each.tile.elements)

    def find_way(self, bundle: Sequence[WaitingTile], makers: set[int], readers: set[int]) -> list[int] | None:
        """Returns the cores on the way of a bundle, and occupies them; None if there is no way within the limit."""
        made_ns = max(each.made_ns for each in bundle)
        kept_ns = self.first_ns + self.limit_ns if self.of_all else self.last_ns
        sent_ns = max(made_ns, min(kept_ns[c] for c in makers))
        taken_ns = min(each.read_ns for each in bundle)
        if self.of_all:
            taken_ns = min(taken_ns, max(self.last_ns[c] for c in readers) - self.limit_ns)
        way: list[int] = []
        able = self.has_room(bundle)
        able[[*makers, *readers]] = False
        while taken_ns > sent_ns:
            end_ns = np.maximum(self.last_ns, taken_ns)
            begin_ns = np.maximum(end_ns - self.limit_ns, made_ns)
            within = np.minimum(self.first_ns, begin_ns) >= end_ns - self.limit_ns
            begin_ns[~(able & within)] = np.inf
            if begin_ns.min() >= taken_ns:
                return None
            near = np.flatnonzero(begin_ns <= begin_ns.min() + BUNDLE_SHARE * self.limit_ns)
            hop = int(near[np.argmin(self.work_ns[near])])
            self.occupy_core(hop, float(begin_ns[hop]), taken_ns, bundle)
            able[hop] = False
            way.append(hop)
            taken_ns = float(begin_ns[hop])
        return way[::-1]

    def has_room(self, bundle: Sequence[WaitingTile]) -> npt.NDArray[np.bool_]:
        """Checks which cores have time for the messages of a bundle, and local memory for its values."""
        room = self.work_ns + self.bundle_ns(bundle) <= self.limit_ns
        return room & (self.held + self.bundle_bytes(bundle) <= RELAY_MEMORY_SHARE * self.arch.core.memory.size_bytes)

    def bundle_ns(self, bundle: Sequence[WaitingTile]) -> float:
        """Returns the time in ns to take the values of a bundle and to pass them on."""
        return 2 * sum(map(self.message_ns, bundle))

    def bundle_bytes(self, bundle: Sequence[WaitingTile]) -> float:
        tiles = {each.tile.name: each.tile for each in bundle}.values()
        return sum(tile.elements * self.arch.bytes_of(tile.element) for tile in tiles)

    def occupy_core(self, core: int, begin_ns: float, end_ns: float, bundle: Sequence[WaitingTile]) -> None:
        self.first_ns[core] = min(self.first_ns[core], begin_ns)
        self.last_ns[core] = max(self.last_ns[core], end_ns)
        self.work_ns[core] += self.bundle_ns(bundle)
        self.held[core] += self.bundle_bytes(bundle)
