"""Partition to PlacedGraph: cores that exchange messages get places close to each other.

A strategy numbers its cores layer by layer, and a message takes longer the farther it goes. The cores of a chip are
alike, so two of them can swap places: each core in turn makes the swap that shortens the way of all flits most.
"""

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
    from raptor.spatial.mesh_placement_kernel import swap_places  # compiled code is loaded only where it runs

    count = arch.usable_cores
    a, b, flits = messages.T
    pairs, index = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    weights = np.bincount(index, np.concatenate([flits, flits])).astype(np.int64)
    first = np.searchsorted(pairs, np.arange(count + 1) * count)
    places = np.arange(count)
    rows, cols, rows_apart, cols_apart = _distances(arch)
    slack = _ROUNDING * float(weights.sum()) * float(rows_apart.max() + cols_apart.max())
    swap_places(places, rows, cols, rows_apart, cols_apart, first, pairs % count, weights, slack, SWEEPS)
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
