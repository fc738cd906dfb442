"""Numbering of the values of a program while it is lowered: tiles, constants, repeated operands and scratch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.pim.global_memory import GlobalMemory
from raptor.pim.operations import make_slot
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.tiles import ConstantTile, ShapedValue, Tile
from raptor.target.chip_elements import MODELLED_FLOAT

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class ValueNumbering:
    """Values by number: first the tiles of the dataflow, then all others in order of creation.

    all: value of each number. tiles: number of each tile, by name. named: number of each shared other value, by name.
    address: global address of each value that is in global memory from the start. outputs: global addresses of each
    tile that is a model output; a state does not leave the chip. states: the tiles that hold states.
    """

    memory: GlobalMemory
    all: list[ShapedValue]
    tiles: dict[str, int]
    shared_numbers: dict[str, int] = field(default_factory=dict[str, int])
    address: dict[int, int] = field(default_factory=dict[int, int])
    outputs: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    states: set[int] = field(default_factory=set[int])

    @classmethod
    def from_graph(cls, graph: SpatialGraph, memory: GlobalMemory) -> "ValueNumbering":
        """Numbers the tiles of a graph."""
        values = cls(memory, list(graph.dataflow.tiles), dict(graph.dataflow.number))
        for tile, address in _tile_addresses(graph, memory.inputs):
            values.address[values.tile(tile)] = address
        for tile, address in _tile_addresses(graph, memory.outputs):
            values.outputs.setdefault(values.tile(tile), []).append(address)
        for name in graph.residency.state_inputs:
            values.states.update(values.tile(part.tile) for part in graph.tensors[name].parts)
        for tile in graph.literals.values():
            values.address[values.tile(tile)] = memory.constants[tile.name]
        return values

    def new(self, value: ShapedValue) -> int:
        """Adds a value. Returns its number."""
        self.all.append(value)
        return len(self.all) - 1

    def tile(self, tile: Tile) -> int:
        """Returns the number of a tile; adds it if it is new."""
        if tile.name not in self.tiles:
            self.tiles[tile.name] = self.new(tile)
        return self.tiles[tile.name]

    def shared(self, value: ShapedValue) -> int:
        """Returns the number of the value of this name; adds it if it is new."""
        if value.name not in self.shared_numbers:
            self.shared_numbers[value.name] = self.new(value)
        return self.shared_numbers[value.name]

    def constant(self, tile: ConstantTile) -> int:
        """Returns the number of a constant. Equal constants share one."""
        address = self.memory.constants[tile.name]
        number = self.shared(structs.replace(make_slot(tile, 0), name=constant_name(address, tile)))
        self.address[number] = address
        return number

    def addresses(self) -> Ints:
        """Returns the global address of each value; -1 for values that are computed."""
        addresses = np.full(len(self.all), -1)
        addresses[[*self.address]] = [*self.address.values()]
        return addresses


def constant_name(address: int, tile: ConstantTile) -> str:
    """Returns the name of a constant's buffer. Equal bytes may be constants of different types and lengths."""
    stem = f"const@{address}"
    return stem if tile.element == MODELLED_FLOAT else f"{stem}.{tile.elements}x{tile.element}"


def _tile_addresses(graph: SpatialGraph, places: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[Tile, int]]:
    """Yields each tile of some tensors, and its global address."""
    for name, addresses in places.items():
        for part, address in zip(graph.tensors[name].parts, addresses, strict=True):
            yield part.tile, address
