"""Partition to PlacedGraph: cores that exchange messages get places close to each other.

A strategy numbers its cores layer by layer, and a message takes longer the farther it goes. The cores of a chip are
alike, so two of them can swap places: each core in turn makes the swap that shortens the way of all flits most.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.ir import Copy
from raptor.spatial.placed import Partition, PlacedGraph
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target
from raptor.target.timing import message_flits

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SWEEPS = 10
"""Largest number of rounds over all cores. Four are enough for 144 cores; for 1000, the tenth still gains 1 %."""


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
    """Returns [messages, 3]: core of the sender, core of the receiver, flits."""
    found = np.array(list(_messages(placed, arch)), np.int64).reshape(-1, 3)
    found[:, 2] = message_flits(arch, found[:, 2])
    return found


def _messages(placed: Partition | PlacedGraph, arch: Target) -> Iterator[tuple[int, int, int]]:
    """Yields sender, receiver and bytes of each message. A tile that is not copied in pieces goes to a core once."""
    homes: dict[str, int] = {}
    there: set[tuple[int, Tile]] = set()
    for core, compute in zip(placed.cores, placed.graph.computes, strict=True):
        for op in compute.body:
            for tile in op.reads:
                home = homes.get(tile.name, core)
                if home == core or (core, tile) in there:
                    continue
                if isinstance(op, Copy):
                    yield home, core, op.elements * arch.bytes_of(op.source.element)
                else:
                    there.add((core, tile))
                    yield home, core, tile.elements * arch.bytes_of(tile.element)
            homes[op.result.name] = core


def places_of(messages: Ints, arch: Target) -> Ints:
    """Returns [cores]: the place of each virtual core. `messages`: as `traffic` returns them."""
    from raptor.spatial.mesh_placement_kernel import swap_places  # compiled code is loaded only where it runs

    count = arch.usable_cores
    a, b, flits = messages.T
    pairs, index = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    weights = np.bincount(index, np.concatenate([flits, flits])).astype(np.int64)
    first = np.searchsorted(pairs, np.arange(count + 1) * count)
    places = np.arange(count)
    rows, cols, rows_apart, cols_apart = _distances(arch)
    swap_places(places, rows, cols, rows_apart, cols_apart, first, pairs % count, weights, SWEEPS)
    return usable(arch)[places]


def _distances(arch: Target) -> tuple[Ints, Ints, Floats, Floats]:
    """Returns row and column of each place, and the distances between rows and between columns.

    Distances are hops of a mesh. If the chip has a table of latencies, each place is a row of it, and distances are ns
    there and back. (A table of all pairs of a large mesh might not fit into memory.)
    """
    places = usable(arch)
    if arch.table is None:
        rows, cols = np.divmod(places, arch.mesh_cols)
        return rows, cols, _apart(rows), _apart(cols)
    latency_ns = arch.table.latency_ns[:-1, :-1]
    return places, np.zeros_like(places), latency_ns + latency_ns.T, np.zeros((1, 1))


def _apart(lines: Ints) -> Floats:
    """Returns the distance of each two lines in hops; a line is a row or a column."""
    line = np.arange(lines.max() + 1, dtype=np.float64)
    return np.abs(line - line[:, None])
