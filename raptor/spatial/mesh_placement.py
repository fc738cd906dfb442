"""Partition to PlacedGraph: cores that exchange messages get places close to each other.

A strategy numbers its cores layer by layer, and a message takes longer the farther it goes. The cores of a chip are
alike, so two of them can swap places: each core in turn makes the swap that shortens the way of all flits most.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.ir import Copy
from raptor.spatial.placed import Partition, PlacedGraph
from raptor.target.arch import Target
from raptor.target.timing import message_flits

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SWEEPS = 10
"""Largest number of rounds over all cores. Four are enough for 144 cores; for 1000, the tenth still gains 1 %."""

_ROUNDING = 1e-9
"""Bound of the rounding error of a sum of distances, as a share of the largest sum. (Whole numbers are exact.)"""


def place_cores(partition: Partition, decision: Decision, arch: Target) -> PlacedGraph:
    """Returns the graph with a core of the chip for each virtual core.

    The two have the same number, unless the flow is by line: then cores are swapped. Where the program may use only
    some cores, virtual core k is the k-th of them.
    """
    graph, cores = partition.graph, partition.cores
    places = usable(arch).tolist()
    if isinstance(decision.flow, ByLine) and graph.computes:
        places = places_of(traffic(partition, arch), arch).tolist()
    return PlacedGraph(graph, tuple(places[core] for core in cores), partition.positions)


def usable(arch: Target) -> Ints:
    """Returns the cores that the program may use, in their order."""
    return np.arange(arch.core_count) if arch.places is None else np.array(arch.places, np.int64)


def traffic(placed: Partition | PlacedGraph, arch: Target) -> Ints:
    """Returns [messages, 3]: core of the sender, core of the receiver, flits.

    A tile that is not copied in pieces goes to a core once.
    """
    flow = placed.graph.dataflow
    core = np.array(placed.cores, np.int64)[flow.op_compute]
    home = np.full(len(flow.tiles), -1)
    home[flow.op_result] = core
    copied = np.array([op.elements if isinstance(op, Copy) else -1 for op, _ in flow.forms], np.int64)
    to, sent = core[flow.read_op], copied[flow.op_form[flow.read_op]]
    away = (home[flow.read_tile] >= 0) & (home[flow.read_tile] != to)
    once = np.zeros(len(away), np.bool_)
    once[np.unique(np.where(sent < 0, flow.read_tile * arch.core_count + to, -1), return_index=True)[1]] = True
    chosen = np.flatnonzero(away & (once | (sent >= 0)))
    tile = flow.read_tile[chosen]
    element_bytes = np.array([arch.bytes_of(element) for element in flow.types], np.int64)[flow.tile_type]
    elements = np.where(sent[chosen] < 0, flow.tile_elements[tile], sent[chosen])
    flits = message_flits(arch, elements * element_bytes[tile])
    return np.stack([home[tile], to[chosen], flits], axis=1)


def places_of(messages: Ints, arch: Target) -> Ints:
    """Returns [cores]: the place of each virtual core. `messages`: as `traffic` returns them."""
    count = arch.usable_cores
    a, b, flits = messages.T
    pairs, index = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    weights = np.bincount(index, np.concatenate([flits, flits])).astype(np.int64)
    first = np.searchsorted(pairs, np.arange(1, count) * count)
    peers, flits = np.split(pairs % count, first), np.split(weights, first)
    ways = _Ways(list(zip(peers, flits, strict=True)), *_distances(arch))
    for _ in range(SWEEPS):
        if not ways.sweep():
            break
    return usable(arch)[ways.places]


class _Ways:
    """Ways of all flits while cores swap places. A place is a row and a column, each a line of the chip.

    The distance of two places is that of their rows and of their columns. Flits times distance of each core are kept up
    to date for every line that it could be in, so that the gains of a core's swaps with all others are a few sums of
    arrays. Rounding may change such a gain, and with it which of two equal swaps is taken. So gains that are equal but
    for that are computed again, peer by peer.
    """

    def __init__(self, flits: Sequence[tuple[Ints, Ints]], at: Ints, apart: Floats) -> None:
        """Begins with core i at place i.

        flits: peers of each core, ascending, and its flits with each. at: [2, places], row and column of each place.
        apart: [lines, lines], 0 between a row and a column.
        """
        self.places = np.arange(len(flits))
        self._flits, self._at, self._apart = flits, at.copy(), apart
        self._if_in = np.zeros((len(apart), len(flits)))
        for core in range(len(flits)):
            self._add(core, self._from(core))
        self._here = self._if_in[at, self.places].sum(axis=0)
        is_exact = np.array_equal(apart, np.floor(apart))
        total = sum(float(count.sum()) for _, count in flits)
        self._error = 0.0 if is_exact else _ROUNDING * total * float(apart[at].max(axis=(1, 2)).sum())

    def _from(self, core: int) -> Floats:
        """Returns the distance of a core from each line: from rows by its own row, from columns by its own column."""
        return self._apart[self._at[:, core]].sum(axis=0)

    def _add(self, core: int, farther: Floats) -> None:
        """Adds what a core is farther from each line to the ways of its peers."""
        peers, flits = self._flits[core]
        self._if_in[:, peers] += farther[:, None] * flits

    def sweep(self) -> bool:
        """Makes the best swap of each core in turn. Tells whether there was one."""
        swapped = False
        for core, (peers, _) in enumerate(self._flits):
            other = self._best_swap(core) if len(peers) else None
            if other is not None:
                self._swap(core, other)
                swapped = True
        return swapped

    def _best_swap(self, core: int) -> int | None:
        """Returns the first of the cores with which a core gains most by a swap; None if it gains with none."""
        peers, flits = self._flits[core]
        row, col = self._at[:, core].tolist()
        there = self._if_in[:, core]
        gains = self._here - self._if_in[row]
        gains -= self._if_in[col]
        gains -= there[self._at[0]]
        gains -= there[self._at[1]]
        gains += self._here[core]
        rows, cols = self._at[:, peers]
        # Flits between the two are in both sums, and go as far after the swap as before.
        gains[peers] -= 2 * flits * (self._apart[row][rows] + self._apart[col][cols])
        if not self._error:
            best = int(gains.argmax())
            return best if gains[best] > 0 else None
        close = np.flatnonzero(gains > gains.max() - 2 * self._error).tolist()
        exact = [self._gain(core, other) + self._gain(other, core) for other in close]
        best = int(np.argmax(exact))
        return close[best] if exact[best] > 0 else None

    def _gain(self, core: int, other: int) -> float:
        """Returns by how much the way of a core's flits, but for those with another, gets shorter at its place."""
        peers, flits = self._flits[core]
        here, there = (self._apart[self._at[:, at, None], self._at[:, peers]].sum(axis=0) for at in (core, other))
        shorter = np.where(peers == other, 0.0, flits * (here - there))
        return float(np.add.accumulate(shorter)[-1]) if len(shorter) else 0.0

    def _swap(self, core: int, other: int) -> None:
        """Swaps the places of two cores."""
        pair = [core, other]
        here, there = self._from(core), self._from(other)
        self.places[pair], self._at[:, pair] = self.places[pair[::-1]], self._at[:, pair[::-1]]
        self._add(core, there - here)
        self._add(other, here - there)
        moved = np.concatenate([pair, self._flits[core][0], self._flits[other][0]])
        self._here[moved] = self._if_in[self._at[:, moved], moved].sum(axis=0)


def _distances(arch: Target) -> tuple[Ints, Floats]:
    """Returns [2, places], row and column of each place, and [lines, lines], the distances of rows and of columns.

    Distances are hops of a mesh. If the chip has a table of latencies, each place is a row of it, there is one column,
    and distances are ns there and back. (A table of all pairs of a large mesh might not fit into memory.)
    """
    places = usable(arch)
    if arch.table is None:
        rows, cols = np.divmod(places, arch.mesh_cols)
        rows_apart, cols_apart = _apart(rows), _apart(cols)
    else:
        latency_ns = arch.table.latency_ns[:-1, :-1]
        rows, cols = places, np.zeros_like(places)
        rows_apart, cols_apart = latency_ns + latency_ns.T, np.zeros((1, 1))
    lines = len(rows_apart)
    apart = np.zeros((lines + len(cols_apart),) * 2)
    apart[:lines, :lines], apart[lines:, lines:] = rows_apart, cols_apart
    return np.stack([rows, lines + cols]), apart


def _apart(lines: Ints) -> Floats:
    """Returns the distance of each two lines in hops; a line is a row or a column."""
    line = np.arange(lines.max() + 1, dtype=np.float64)
    return np.abs(line - line[:, None])
