"""SpatialIR to SpatialIR: computes in the order in which a chip of blocking messages would start them.

A list schedule: a compute starts when its core is free and its inputs are there; a message keeps both cores busy. The
order is the global one of `pim.place`, so it decides who waits for whom, never what is computed.
"""

import heapq
from collections.abc import Mapping as Mapping_
from dataclasses import dataclass, field, replace

from raptor.arch import Arch
from raptor.cost import copy_ns, load_ns, message_ns, mvmul_ns, vector_ns
from raptor.mapping import Mapping
from raptor.spatial.ir import ApplyFilters, ApplyRow, BodyOp, Compute, PoolTile, SpatialGraph, Tile, Vector

ISSUE_NS = 4


def order_computes(graph: SpatialGraph, mapping: Mapping, arch: Arch) -> SpatialGraph:
    """Layer after layer, as they are; or, for a mapping by rows, by start. Every tie is broken by `urgency`."""
    if not mapping.by_row:
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
    here: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])

    def run(self) -> list[Compute]:
        """The computes of the graph, and a fetch ahead of each first use of a tile on another core."""
        computes = self.with_cores()
        maker = {t.name: i for i, c in enumerate(computes) for t in c.results}
        fetches: dict[tuple[str, int], int] = {}
        needs: list[set[int]] = []
        begun: dict[str, int] = {}
        for i, c in enumerate(list(computes)):
            need: set[int] = set()
            for op in c.body:
                if isinstance(op, ApplyRow):
                    need |= {begun[op.result.name]} if op.result.name in begun else set()
                    begun[op.result.name] = i
            for tile in c.inputs:
                if tile.name in maker:
                    need.add(self.source(computes, maker, fetches, tile, c))
            needs.append(need)
        needs += [{maker[c.fetch.name]} for c in computes[len(needs) :] if c.fetch]
        return self.schedule(computes, needs)

    def with_cores(self) -> list[Compute]:
        """Computes without matrices run where their first input is, as in `pim.place`."""
        core_of: dict[str, int] = {}
        placed: list[Compute] = []
        for compute in self.graph.computes:
            first = next((core_of[t.name] for t in compute.inputs if t.name in core_of), 0)
            core = first if compute.core is None else compute.core
            core_of |= dict.fromkeys((t.name for t in compute.results), core)
            placed.append(replace(compute, core=core))
        return placed

    def source(
        self,
        computes: list[Compute],
        maker: Mapping_[str, int],
        fetches: dict[tuple[str, int], int],
        tile: Tile,
        user: Compute,
    ) -> int:
        """What `user` waits for to read `tile`: its maker, or a fetch if both cores are known and differ."""
        made = maker[tile.name]
        core = user.core
        if core is None or computes[made].core in (None, core):
            return made
        if (tile.name, core) not in fetches:
            fetches[tile.name, core] = len(computes)
            computes.append(replace(user, matrices=(), body=(), results=(), fetch=tile))
        return fetches[tile.name, core]

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
        """Among what could start now: fetches, then what is higher up in the image, then what is nearer the end."""
        return computes[i].fetch is None, computes[i].position, -i

    def core_of(self, compute: Compute) -> int:
        if compute.core is not None:
            return compute.core
        return next((self.done[t.name][0] for t in compute.inputs if t.name in self.done), 0)

    def start_ns(self, compute: Compute) -> float:
        inputs = (self.done[t.name][1] for t in compute.inputs if t.name in self.done)
        sources = [self.done[compute.fetch.name][0]] if compute.fetch else []
        free = (self.free_ns.get(core, 0.0) for core in [self.core_of(compute), *sources])
        return max([*free, *inputs])

    def execute(self, compute: Compute) -> None:
        core = self.core_of(compute)
        now = self.free_ns.get(core, 0.0)
        for tile in compute.inputs:
            if (core, tile.name) in self.here:
                continue
            self.here.add((core, tile.name))
            if tile.name not in self.done:
                now += load_ns(self.arch, tile.elements)
            elif self.done[tile.name][0] != core:
                source, ready = self.done[tile.name]
                now = max(now, ready, self.free_ns.get(source, 0.0)) + message_ns(self.arch, tile.elements)
                self.free_ns[source] = now
        now += sum(self.op_ns(op, compute) for op in compute.body)
        self.free_ns[core] = now
        for op in compute.body:
            self.done[op.result.name] = (core, now)
            self.here.add((core, op.result.name))

    def op_ns(self, op: BodyOp, compute: Compute) -> float:
        """What an operation takes on its core; rough where it hardly matters."""
        match op:
            case ApplyRow():
                windows = op.windows[1] - op.windows[0]
                product = mvmul_ns(self.arch, compute.matrices[0].xbars) + ISSUE_NS
                added = vector_ns(self.arch, op.shape.outputs * op.result.channels, 2) + ISSUE_NS
                return windows * len(op.weights) * (product + added)
            case ApplyFilters():
                product = mvmul_ns(self.arch, compute.matrices[0].xbars) + vector_ns(self.arch, op.result.channels, 2)
                return op.result.pixels * len(op.weights) * product
            case Vector():
                return vector_ns(self.arch, op.result.elements, 2)
            case PoolTile():
                return op.result.pixels * op.window.tap_count * (vector_ns(self.arch, op.result.channels, 2) + ISSUE_NS)
            case _:
                return copy_ns(self.arch, op.result.elements)
