"""The compiled loop of `raptor.spatial.mesh_placement`; import only where it runs (see `raptor.common.jit`)."""

from typing import Any

from raptor.common.jit import helper, kernel


@kernel
def swap_places(
    places: Any, rows: Any, cols: Any, table_ns: Any, first: Any, peers: Any, weights: Any, sweeps: int
) -> None:
    """Changes `places` until no core gains by a swap with any other, or for `sweeps` rounds.

    Place p is in row `rows[p]` and column `cols[p]` of the mesh; unless `table_ns` is empty, the way from place p to q
    takes `table_ns[p, q]`.
    Core i exchanges `weights[k]` flits with core `peers[k]`, for k from `first[i]` to `first[i + 1]`.
    """
    for _ in range(sweeps):
        swapped = False
        for i in range(len(places)):
            best, other = 0.0, -1
            for j in range(len(places) if first[i] < first[i + 1] else 0):
                gain = _gain(places, rows, cols, table_ns, first, peers, weights, i, j)
                gain += _gain(places, rows, cols, table_ns, first, peers, weights, j, i)
                if gain > best:
                    best, other = gain, j
            if other >= 0:
                places[i], places[other] = places[other], places[i]
                swapped = True
        if not swapped:
            break


@helper
def _gain(
    places: Any, rows: Any, cols: Any, table_ns: Any, first: Any, peers: Any, weights: Any, i: int, j: int
) -> float:
    """By how much the messages of core i get shorter at the place of core j; those between the two stay as they are."""
    here, there = places[i], places[j]
    gain = 0.0
    for k in range(first[i], first[i + 1]):
        peer = places[peers[k]]
        if peers[k] != j and len(table_ns):
            gain += weights[k] * (table_ns[here, peer] - table_ns[there, peer])
        elif peers[k] != j:
            hops = abs(rows[here] - rows[peer]) + abs(cols[here] - cols[peer])
            gain += weights[k] * (hops - abs(rows[there] - rows[peer]) - abs(cols[there] - cols[peer]))
    return gain
