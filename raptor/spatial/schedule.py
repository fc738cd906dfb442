"""SpatialIR to SpatialIR: computes in the order in which a chip of blocking messages would start them.

A list schedule: a compute starts when its core is free and its inputs are there; a message keeps both cores busy. The
order is the global one of `pim.place`, so it decides who waits for whom, never what is computed.
"""

from dataclasses import dataclass, field, replace
from itertools import chain, groupby

import numpy as np

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.ir import (
    ApplyFilters,
    ApplyLine,
    BodyOp,
    Bring,
    Compute,
    Overlap,
    PoolTile,
    SpatialGraph,
    StencilTile,
    Tile,
    Vector,
)
from raptor.target.arch import Arch
from raptor.target.timing import (
    copy_ns,
    load_ns,
    message_times,
    mvmul_ns,
    vector_ns,
)

ISSUE_NS = 5


def order_computes(graph: SpatialGraph, decision: Decision, arch: Arch) -> SpatialGraph:
    """Layer after layer, as they are; or, for a mapping by lines, by start. Every tie is broken by `urgency`."""
    flow = decision.flow
    if not isinstance(flow, ByLine) or not graph.computes:
        return graph
    ordered = (_Schedule(arch, flow.patience_ns, computes).run() for computes in _together(graph, flow))
    return replace(graph, computes=tuple(chain.from_iterable(ordered)))


def _together(graph: SpatialGraph, flow: ByLine) -> list[list[Compute]]:
    """What is scheduled together: all, or one node after another."""
    if flow.streamed:
        return [list(graph.computes)]
    return [list(computes) for _, computes in groupby(graph.computes, key=lambda c: c.node)]


@dataclass(slots=True)
class _Schedule:
    """`makers`: the computes that make each tile. `fetches`: those that bring a tile to a core."""

    arch: Arch
    patience_ns: float
    computes: list[Compute]
    makers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fetches: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    products: dict[int, float] = field(default_factory=dict[int, float])
    """Time of a product by crossbars."""

    def run(self) -> list[Compute]:
        """The computes, and a fetch ahead of each first use of a tile on another core."""
        from raptor.spatial.schedule_kernel import list_schedule  # compiled code is loaded only where it runs

        for i, compute in enumerate(self.computes):
            for tile in compute.results:
                self.makers.setdefault(tile.name, []).append(i)
        needs = [self.needs(compute) for compute in list(self.computes)]
        needs += [set(self.makers[c.fetch.name]) for c in self.computes[len(needs) :] if c.fetch]
        count = len(self.computes)
        pairs = np.array([(j, i) for i, need in enumerate(needs) for j in need], np.int64).reshape(-1, 2)
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        by_rank = np.array(sorted(range(count), key=self.urgency), np.int64)
        rank = np.empty(count, np.int64)
        rank[by_rank] = np.arange(count)
        core = np.array([c.core for c in self.computes], np.int64)
        peer, elements, local_ns = (np.array(column) for column in zip(*map(self.message, self.computes), strict=True))
        times = message_times(self.arch, peer, core, elements)
        order, _ = list_schedule(
            int(core.max()) + 1,
            core,
            peer,
            times.request_ns,
            times.grant_ns,
            times.sender_ns + ISSUE_NS,
            times.wire_ns,
            np.where(peer >= 0, times.receiver_ns + ISSUE_NS, local_ns),
            np.array([sum(self.op_ns(op, c) for op in c.body) for c in self.computes], np.float64),
            rank,
            by_rank,
            np.array([len(need) for need in needs], np.int64),
            np.searchsorted(pairs[:, 0], np.arange(count + 1)).astype(np.int64),
            np.ascontiguousarray(pairs[:, 1]),
            np.where(peer >= 0, self.patience_ns, 0.0),
        )
        return [self.computes[i] for i in order.tolist()]

    def needs(self, compute: Compute) -> set[int]:
        """What must have been done before a compute."""
        assert compute.core is not None, "computes of a mapping by lines have their cores"
        need: set[int] = set()
        for tile in compute.inputs:
            made = self.makers.get(tile.name, [])
            if _brings(compute) or not made or self.computes[made[0]].core == compute.core:
                need |= set(made)
            else:
                need.add(self.fetch(tile, compute, compute.core))
        return need

    def fetch(self, tile: Tile, user: Compute, core: int) -> int:
        """The compute that brings a whole tile to a core."""
        if (tile.name, core) not in self.fetches:
            self.fetches[tile.name, core] = len(self.computes)
            self.computes.append(replace(user, matrices=(), body=(), results=(), fetch=tile))
        return self.fetches[tile.name, core]

    def urgency(self, i: int) -> tuple[float, bool, int]:
        """Among what could start now: messages, then what is higher up in the image, then what is nearer the end."""
        compute = self.computes[i]
        return compute.position, compute.fetch is None and not _brings(compute), -i

    def message(self, compute: Compute) -> tuple[int, int, float]:
        """What a compute takes: from which core, -1 for none, how many elements, and how long if from none."""
        op = compute.body[0] if compute.body else None
        tile = op.source if isinstance(op, Bring) else compute.fetch
        if tile is None:
            return -1, 0, 0.0
        elements = op.elements if isinstance(op, Bring) else tile.elements
        made = self.makers.get(tile.name)
        if made is None:
            return -1, elements, load_ns(self.arch, elements, compute.core)
        source = self.computes[made[0]].core
        if source is None or source == compute.core:
            return -1, elements, copy_ns(self.arch, elements)
        return source, elements, 0.0

    def product_ns(self, xbars: int) -> float:
        if xbars not in self.products:
            self.products[xbars] = mvmul_ns(self.arch, xbars) + ISSUE_NS
        return self.products[xbars]

    def op_ns(self, op: BodyOp, compute: Compute) -> float:
        """What an operation takes on its core; rough where it hardly matters."""
        match op:
            case ApplyLine():
                weights: list[int] = op.products[:, 0].tolist()
                return sum(self.product_ns(compute.matrices[w].xbars) for w in weights)
            case Overlap():
                added = max(int(op.runs[:, 3].sum()) - op.result.elements, 1)
                return vector_ns(self.arch, added, 2) + len(op.runs) * ISSUE_NS
            case Bring():
                return 0.0
            case ApplyFilters():
                product = mvmul_ns(self.arch, compute.matrices[0].xbars) + vector_ns(self.arch, op.result.channels, 2)
                return op.result.pixels * len(op.weights) * product
            case Vector():
                return vector_ns(self.arch, op.result.elements, 2)
            case StencilTile():
                taps = 2 * op.window.tap_count
                return op.result.pixels * taps * (vector_ns(self.arch, op.result.channels, 2) + ISSUE_NS)
            case PoolTile():
                return op.result.pixels * op.window.tap_count * (vector_ns(self.arch, op.result.channels, 2) + ISSUE_NS)
            case _:
                return copy_ns(self.arch, op.result.elements)


def _brings(compute: Compute) -> bool:
    return bool(compute.body) and isinstance(compute.body[0], Bring)
