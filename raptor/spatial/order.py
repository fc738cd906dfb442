"""SpatialIR to SpatialIR: computes in the order in which a chip of blocking messages would start them.

A list schedule: a compute starts when its core is free and its inputs are there; a message keeps both cores busy. The
order is the global one of `pim.place`, so it decides who waits for whom, never what is computed.
"""

import heapq
from dataclasses import dataclass, field, replace

from raptor.arch import Arch
from raptor.cost import copy_ns, load_ns, message_ns, mvmul_ns, vector_ns
from raptor.mapping import Mapping
from raptor.spatial.ir import (
    ApplyFilters,
    ApplyLine,
    BodyOp,
    Bring,
    Compute,
    Overlap,
    PoolTile,
    SpatialGraph,
    Tile,
    Vector,
)

ISSUE_NS = 4


def order_computes(graph: SpatialGraph, mapping: Mapping, arch: Arch) -> SpatialGraph:
    """Layer after layer, as they are; or, for a mapping by lines, by start. Every tie is broken by `urgency`."""
    if not mapping.xbar:
        return graph
    schedule = _Schedule(graph, arch)
    return replace(graph, computes=tuple(schedule.run()))


@dataclass(slots=True)
class _Schedule:
    graph: SpatialGraph
    arch: Arch
    free_ns: dict[int, float] = field(default_factory=dict[int, float])
    done: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """Of each tile computed: its core, and when."""
    products: dict[int, float] = field(default_factory=dict[int, float])
    """Time of a product by crossbars."""

    def run(self) -> list[Compute]:
        """The computes of the graph, and a fetch ahead of each first use of a tile on another core."""
        computes = list(self.graph.computes)
        makers: dict[str, list[int]] = {}
        for i, c in enumerate(computes):
            for t in c.results:
                makers.setdefault(t.name, []).append(i)
        fetches: dict[tuple[str, int], int] = {}
        needs: list[set[int]] = []
        for c in list(computes):
            bring = any(isinstance(op, Bring) for op in c.body)
            need: set[int] = set()
            for tile in c.inputs:
                made = makers.get(tile.name, [])
                if bring or not made or computes[made[0]].core == c.core:
                    need |= set(made)
                else:
                    need.add(self.fetch(computes, fetches, tile, c))
            needs.append(need)
        needs += [set(makers[c.fetch.name]) for c in computes[len(needs) :] if c.fetch]
        return self.schedule(computes, needs)

    @staticmethod
    def fetch(computes: list[Compute], fetches: dict[tuple[str, int], int], tile: Tile, user: Compute) -> int:
        """The compute that brings a tile to the core of its user."""
        assert user.core is not None, "computes of a mapping by lines have their cores"
        if (tile.name, user.core) not in fetches:
            fetches[tile.name, user.core] = len(computes)
            computes.append(replace(user, matrices=(), body=(), results=(), fetch=tile))
        return fetches[tile.name, user.core]

    def schedule(self, computes: list[Compute], needs: list[set[int]]) -> list[Compute]:
        users: list[list[int]] = [[] for _ in computes]
        for i, need in enumerate(needs):
            for j in need:
                users[j].append(i)
        waiting = [len(need) for need in needs]
        ready = [(0.0, *self.urgency(computes, i), i) for i, count in enumerate(waiting) if count == 0]
        heapq.heapify(ready)
        ordered: list[Compute] = []
        while ready:
            start, *_, i = heapq.heappop(ready)
            compute = computes[i]
            now = self.start_ns(compute)
            if now > start:
                heapq.heappush(ready, (now, *self.urgency(computes, i), i))
                continue
            self.execute(compute)
            ordered.append(compute)
            for j in users[i]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    heapq.heappush(ready, (self.start_ns(computes[j]), *self.urgency(computes, j), j))
        return ordered

    @staticmethod
    def urgency(computes: list[Compute], i: int) -> tuple[bool, float, int]:
        """Among what could start now: messages, then what is higher up in the image, then what is nearer the end."""
        compute = computes[i]
        return compute.fetch is None and not isinstance(compute.body[0], Bring), compute.position, -i

    def core_of(self, compute: Compute) -> int:
        assert compute.core is not None, "computes of a mapping by lines have their cores"
        return compute.core

    def messages(self, compute: Compute) -> list[tuple[Tile, int]]:
        """Tiles that come from other cores to this compute, and how many elements of them."""
        if compute.fetch is not None:
            return [(compute.fetch, compute.fetch.elements)]
        return [(op.source, op.elements) for op in compute.body if isinstance(op, Bring)]

    def start_ns(self, compute: Compute) -> float:
        core = self.core_of(compute)
        now = self.free_ns.get(core, 0.0)
        for tile in compute.inputs:
            if tile.name in self.done:
                now = max(now, self.done[tile.name][1])
        for tile, _ in self.messages(compute):
            if tile.name in self.done:
                now = max(now, self.free_ns.get(self.done[tile.name][0], 0.0))
        return now

    def execute(self, compute: Compute) -> None:
        core = self.core_of(compute)
        now = self.free_ns.get(core, 0.0)
        for tile, elements in self.messages(compute):
            if tile.name not in self.done:
                now += load_ns(self.arch, elements)
            elif self.done[tile.name][0] == core:
                now += copy_ns(self.arch, elements)
            else:
                source, ready = self.done[tile.name]
                now = max(now, ready, self.free_ns.get(source, 0.0)) + message_ns(self.arch, elements)
                self.free_ns[source] = now
        now = max([now, *(self.done[t.name][1] for t in compute.inputs if t.name in self.done)])
        now += sum(self.op_ns(op, compute) for op in compute.body)
        self.free_ns[core] = now
        for op in compute.body:
            self.done[op.result.name] = (core, now)

    def product_ns(self, xbars: int) -> float:
        if xbars not in self.products:
            self.products[xbars] = mvmul_ns(self.arch, xbars) + ISSUE_NS
        return self.products[xbars]

    def op_ns(self, op: BodyOp, compute: Compute) -> float:
        """What an operation takes on its core; rough where it hardly matters."""
        match op:
            case ApplyLine():
                return sum(self.product_ns(compute.matrices[w].xbars) for w in op.products[:, 0].tolist())
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
            case PoolTile():
                return op.result.pixels * op.window.tap_count * (vector_ns(self.arch, op.result.channels, 2) + ISSUE_NS)
            case _:
                return copy_ns(self.arch, op.result.elements)
