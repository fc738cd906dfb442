"""Resolves copied tiles, such as the tiles of relays, to the original tile whose elements they hold."""

from collections.abc import Container
from dataclasses import dataclass

from raptor.spatial.ir import Copy, SpatialGraph
from raptor.spatial.tiles import Tile


@dataclass(frozen=True, slots=True)
class CopySources:
    """The copies of a graph by name of the tile that they fill, each with its index among all operations."""

    filling: dict[str, list[tuple[int, Copy[Tile]]]]

    @classmethod
    def from_graph(cls, graph: SpatialGraph) -> "CopySources":
        """Collects the copies of a graph."""
        filling: dict[str, list[tuple[int, Copy[Tile]]]] = {}
        for step, op in enumerate(op for compute in graph.computes for op in compute.body):
            if isinstance(op, Copy):
                filling.setdefault(op.result.name, []).append((step, op))
        return cls(filling)

    def source(self, tile: Tile, known: Container[Tile], before: int) -> Tile | None:
        """Returns the tile of `known` whose elements `tile` holds when operation `before` reads it.

        A known tile is its own source. None if several tiles fill `tile`, or only a part of a known tile, or if a copy
        comes after `before`.
        """
        found, first, step = tile, 0, before
        while found not in known:
            end = first + tile.elements
            some = [
                (at, op) for at, op in self.filling.get(found.name, ()) if op.at < end and first < op.at + op.elements
            ]
            if len(some) != 1:
                return None
            at, op = some[0]
            if at >= step or op.at > first or op.at + op.elements < end:
                return None
            found, first, step = op.source, op.first + first - op.at, at
        alike = (found.pixels, found.channels, first) == (tile.pixels, tile.channels, 0)
        return found if alike else None
