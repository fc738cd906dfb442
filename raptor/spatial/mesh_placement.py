"""SpatialIR to SpatialIR: cores that talk get places close to each other.

A mapping numbers its cores layer by layer, and a message takes longer the farther it goes. The cores of a
chip are alike, so they may swap places: each core in turn swaps with the one that shortens the way of all flits most.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.ir import Bring, SpatialGraph, Tile
from raptor.target.arch import Arch
from raptor.target.timing import message_flits

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SWEEPS = 10
"""Rounds over all cores at most. Four are enough for 144 cores; for 1000 the tenth gains a hundredth, in 0.1 s."""


def arrange_cores(graph: SpatialGraph, decision: Decision, arch: Arch) -> SpatialGraph:
    """The computes of a mapping by lines on other cores; for any other mapping the graph as it is."""
    if not isinstance(decision.flow, ByLine) or not graph.computes:
        return graph
    places: list[int] = places_of(traffic(graph, arch), arch).tolist()
    return replace(graph, computes=tuple(replace(c, core=places[c.core or 0]) for c in graph.computes))


def traffic(graph: SpatialGraph, arch: Arch) -> Ints:
    """[messages, 3]: core of the sender, core of the receiver, flits."""
    found = np.array(list(_messages(graph)), np.int64).reshape(-1, 3)
    found[:, 2] = message_flits(arch, found[:, 2])
    return found


def _messages(graph: SpatialGraph) -> Iterator[tuple[int, int, int]]:
    """Sender, receiver and elements; a tile that is not brought piece by piece is sent to a core once."""
    homes: dict[str, int] = {}
    there: set[tuple[int, Tile]] = set()
    for compute in graph.computes:
        core = compute.core or 0
        for op in compute.body:
            for tile in op.reads:
                home = homes.get(tile.name, core)
                if home == core or (core, tile) in there:
                    continue
                if isinstance(op, Bring):
                    yield home, core, op.elements
                else:
                    there.add((core, tile))
                    yield home, core, tile.elements
            homes[op.result.name] = core


def places_of(messages: Ints, arch: Arch) -> Ints:
    """[cores]: where each core of a mapping goes. `messages`: as `traffic` returns them."""
    from raptor.spatial.mesh_placement_kernel import swap_places  # compiled code is loaded only where it runs

    count = arch.core_count
    a, b, flits = messages.T
    pairs, index = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    weights = np.bincount(index, np.concatenate([flits, flits])).astype(np.int64)
    first = np.searchsorted(pairs, np.arange(count + 1) * count)
    places = np.arange(count)
    # On a mesh a flit takes as much longer as there are rows and columns between; a table of all pairs may not fit.
    rows, cols = np.divmod(places, arch.mesh_cols)
    swap_places(places, rows, cols, _both_ways_ns(arch), first, pairs % count, weights, SWEEPS)
    return places


def _both_ways_ns(arch: Arch) -> Floats:
    """[cores, cores]: there and back, as every message is asked for; empty for a mesh."""
    if arch.table is None:
        return np.zeros((0, 0))
    latency_ns = arch.table.latency_ns[:-1, :-1]
    return latency_ns + latency_ns.T
