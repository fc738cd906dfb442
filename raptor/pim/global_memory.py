"""Lays out global memory: inputs, constants and outputs, one after another."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.spatial.ir import SpatialGraph
from raptor.spatial.placed import Schedule
from raptor.spatial.tiles import ConstantTile

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class GlobalMemory:
    """Map of global memory. Addresses and sizes are in elements.

    inputs, outputs: by tensor, an address for each of its parts. constants: an address by name of the ConstantTile.
    constant_values: the values of all constants, which lie from `constants_address` on.
    """

    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int]
    constant_values: Floats
    constants_address: int
    elements: int

    def __str__(self) -> str:
        places = [("input", self.inputs), ("output", self.outputs), ("constant", self.constants)]
        lines = (f"  {kind} %{name}: {address}\n" for kind, table in places for name, address in table.items())
        return f"global memory of {self.elements} elements\n{''.join(lines)}"


def map_global_memory(schedule: Schedule) -> GlobalMemory:
    """Returns a map with an address for every input tile, constant and output tile; constants in order of first use."""
    graph = schedule.graph
    inputs, position = _place_tensors(graph, graph.inputs, 0)
    pool = _Pool(position)
    constants = {c.name: pool.place(c.values) for c in _constants(graph)}
    outputs, end = _place_tensors(graph, graph.outputs, position + pool.size)
    values = np.concatenate(pool.chunks) if pool.chunks else np.zeros(0, np.float32)
    return GlobalMemory(inputs, outputs, constants, values, position, end)


@dataclass(slots=True)
class _Pool:
    """Constants in global memory; equal ones are stored once.

    base: address of the first. known: bytes of a constant -> its address.
    """

    base: int
    chunks: list[Floats] = field(default_factory=list[Floats])
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])
    size: int = 0

    def place(self, values: Floats) -> int:
        """Returns the address of a constant; adds it if no equal one is there."""
        key = values.tobytes()
        if key not in self.known:
            self.known[key] = self.base + self.size
            self.chunks.append(values)
            self.size += values.size
        return self.known[key]


def _constants(graph: SpatialGraph) -> Iterator[ConstantTile]:
    yield from graph.literals.values()
    for compute in graph.computes:
        for op in compute.body:
            for operand in op.operands:
                if isinstance(operand, ConstantTile):
                    yield operand


def _place_tensors(
    graph: SpatialGraph, names: tuple[str, ...], position: int
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Places tensors from `position` on. Returns the addresses of their parts, and the first free address."""
    places: dict[str, tuple[int, ...]] = {}
    for name in names:
        sizes = [part.tile.elements for part in graph.tensors[name].parts]
        starts = np.cumsum([position, *sizes]).tolist()
        places[name], position = tuple(starts[:-1]), starts[-1]
    return places, position
