"""Placement on the mesh: assigns virtual cores to places, the cores of the chip, so that messages travel few hops.

A strategy numbers its virtual cores layer by layer. The cores of a chip are alike, so any two can swap places. A local
search visits the cores in turn and makes the swap that reduces flits x distance most. On a chip with dead links, it
begins with places where no message crosses one, and makes no swap after which one would.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import Decision
from raptor.spatial.ir import Copy
from raptor.spatial.placed_graph import Partition, PlacedGraph
from raptor.target.arch import Target
from raptor.target.avoid_links import find_uncut_places
from raptor.target.timing import message_flits

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_SWEEPS = 10
"""Largest number of passes over all cores. 144 cores need four; with 1000, the tenth still gains 1 %."""

_ROUNDING = 1e-9
"""Bound of the relative rounding error of a sum of distances. (Sums of integers are exact.)"""


def place_cores(partition: Partition, decision: Decision, arch: Target) -> PlacedGraph:
    """Returns the graph with the core of the chip for each compute, by the placement of a complete decision."""
    assert decision.placement is not None, "the decision is complete"
    places = decision.placement.places or range(arch.usable_cores)
    cores = usable_cores(arch)[list(places)].tolist()
    return PlacedGraph(partition.graph, tuple(cores[core] for core in partition.cores), partition.positions)


def usable_cores(arch: Target) -> Ints:
    """Returns the cores of the chip that the program may use: place k is the k-th of them."""
    return np.arange(arch.core_count) if arch.places is None else np.array(arch.places, np.int64)


def list_messages(placed: Partition | PlacedGraph, arch: Target) -> Ints:
    """Returns the messages of a program: [messages, 3], core of the sender, core of the receiver, flits.

    A tile that is not copied in parts is sent to each core once.
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


def find_placement(messages: Ints, arch: Target) -> Ints:
    """Returns [cores]: the place of each virtual core, a permutation. `messages`: see `list_messages`.

    If links are dead, as few pairs of cores exchange messages over them as the search finds, at best none.
    """
    count = arch.usable_cores
    a, b, flits = messages.T
    pairs, index = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    weights = np.bincount(index, np.concatenate([flits, flits])).astype(np.int64)
    first = np.searchsorted(pairs, np.arange(1, count) * count)
    peers, flits = np.split(pairs % count, first), np.split(weights, first)
    exchanged, start, clashes = list(zip(peers, flits, strict=True)), np.arange(count), None
    cut = _find_cut_places(arch)
    if cut is not None:
        start = find_uncut_places(peers, cut, None, start)
        lines = _join_lines(np.arange(count), np.zeros(count, np.int64), cut.astype(np.float64), np.zeros((1, 1)))
        clashes = _Ways([(others, np.ones_like(others)) for others in peers], *lines, start)
    ways = _Ways(exchanged, *_distances(arch), start)
    for _ in range(MOST_SWEEPS):
        if not ways.sweep(clashes):
            break
    return ways.places


def find_cut_pairs(pairs: Ints, arch: Target) -> Ints:
    """Returns those of some pairs of cores of the chip, [pairs, 2], that cannot exchange messages: links are dead."""
    return pairs[:0] if arch.cut_routes is None else pairs[arch.cut_routes.cut(*pairs.T)]


def _find_cut_places(arch: Target) -> Bools | None:
    """Returns [places, places]: whether dead links cut the two; None if no links are dead."""
    return None if arch.cut_routes is None else arch.cut_routes.cut_pairs(usable_cores(arch))


def flit_distance(messages: Ints, placement: Ints, arch: Target) -> float:
    """Returns the distance of all flits together, in the unit of `_distances`. `placement`: place of each core."""
    at, apart = _distances(arch)
    a, b, flits = messages.T
    return float(flits @ apart[at[:, placement[a]], at[:, placement[b]]].sum(axis=0))


class _Ways:
    """Total distance of all flits, kept up to date while cores swap places.

    A place has a row and a column of the mesh; both kinds are numbered together as *lines*. The distance of two places
    is the distance of their rows plus the distance of their columns. A table holds, for each core and line, flits times
    distance if the core were in that line. So the gains of all swaps of a core are a few sums of arrays. Rounding could
    change which of two equal swaps is taken, so gains that are equal within the error are recomputed exactly.
    """

    def __init__(self, flits: Sequence[tuple[Ints, Ints]], at: Ints, apart: Floats, start: Ints) -> None:
        """Starts with core i at place `start[i]`.

        flits: peers of each core in ascending order, and the number of flits exchanged with each. at: [2, places], row
        and column line of each place. apart: [lines, lines], distances; 0 between a row and a column.
        """
        self.places = start.copy()
        self._flits, self._at, self._apart = flits, at[:, start], apart
        self._if_in = np.zeros((len(apart), len(flits)))
        for core in range(len(flits)):
            self._add(core, self._from(core))
        self._here = self._if_in[self._at, np.arange(len(flits))].sum(axis=0)
        is_exact = np.array_equal(apart, np.floor(apart))
        total = sum(float(count.sum()) for _, count in flits)
        self._error = 0.0 if is_exact else _ROUNDING * total * float(apart[at].max(axis=(1, 2)).sum())

    def _from(self, core: int) -> Floats:
        """Returns the distance of a core from each line: from rows by its own row, from columns by its own column."""
        return self._apart[self._at[:, core]].sum(axis=0)

    def _add(self, core: int, farther: Floats) -> None:
        """Updates the table of a core's peers, after the core moved `farther` from each line."""
        peers, flits = self._flits[core]
        self._if_in[:, peers] += farther[:, None] * flits

    def sweep(self, clashes: "_Ways | None") -> bool:
        """Makes the best swap of each core in turn. Returns whether there was one.

        `clashes`: the same places, with the pairs that dead links cut as distances, which no swap may increase.
        """
        swapped = False
        for core, (peers, _) in enumerate(self._flits):
            other = self._best_swap(core, clashes) if len(peers) else None
            if other is not None:
                for ways in (self,) if clashes is None else (self, clashes):
                    ways._swap(core, other)
                swapped = True
        return swapped

    def _best_swap(self, core: int, clashes: "_Ways | None") -> int | None:
        """Returns the core whose swap with `core` gains most (the lowest on ties); None if no swap gains."""
        gains = self._gains(core)
        if clashes is not None:
            gains = np.where(clashes._gains(core) < 0, -np.inf, gains)
        if not self._error:
            best = int(gains.argmax())
            return best if gains[best] > 0 else None
        close = np.flatnonzero(gains > gains.max() - 2 * self._error).tolist()
        exact = [self._gain(core, other) + self._gain(other, core) for other in close]
        best = int(np.argmax(exact))
        return close[best] if exact[best] > 0 else None

    def _gains(self, core: int) -> Floats:
        """Returns [cores]: by how much the total falls if `core` swaps its place with each other."""
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
        return gains

    def _gain(self, core: int, other: int) -> float:
        """Returns by how much flits x distance of `core` falls at the place of `other`, without flits between them."""
        peers, flits = self._flits[core]
        here, there = (self._apart[self._at[:, at, None], self._at[:, peers]].sum(axis=0) for at in (core, other))
        shorter = np.where(peers == other, 0.0, flits * (here - there))
        return float(np.add.accumulate(shorter)[-1]) if len(shorter) else 0.0

    def _swap(self, core: int, other: int) -> None:
        pair = [core, other]
        here, there = self._from(core), self._from(other)
        self.places[pair], self._at[:, pair] = self.places[pair[::-1]], self._at[:, pair[::-1]]
        self._add(core, there - here)
        self._add(other, here - there)
        moved = np.concatenate([pair, self._flits[core][0], self._flits[other][0]])
        self._here[moved] = self._if_in[self._at[:, moved], moved].sum(axis=0)


def _distances(arch: Target) -> tuple[Ints, Floats]:
    """Returns [2, places], row and column line of each place, and [lines, lines], distances between lines.

    Distances are hops on a mesh. If the chip has a latency table, each place is a row of its own, there is one column,
    and distances are the ns of both directions. (A table of all pairs of a large mesh might not fit into memory.)
    """
    places = usable_cores(arch)
    if arch.table is None:
        rows, cols = np.divmod(places, arch.mesh_cols)
        return _join_lines(rows, cols, _apart(rows), _apart(cols))
    latency_ns = arch.table.latency_ns[:-1, :-1]
    return _join_lines(places, np.zeros_like(places), latency_ns + latency_ns.T, np.zeros((1, 1)))


def _join_lines(rows: Ints, cols: Ints, rows_apart: Floats, cols_apart: Floats) -> tuple[Ints, Floats]:
    """Returns the lines of each place and all distances, as `_distances`, for the row and the column of each place."""
    lines = len(rows_apart)
    distance = np.zeros((lines + len(cols_apart),) * 2)
    distance[:lines, :lines], distance[lines:, lines:] = rows_apart, cols_apart
    return np.stack([rows, lines + cols]), distance


def _apart(lines: Ints) -> Floats:
    """Returns the distances in hops between rows, or between columns, of the mesh."""
    line = np.arange(lines.max() + 1, dtype=np.float64)
    return np.abs(line - line[:, None])
