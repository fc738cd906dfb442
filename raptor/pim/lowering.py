"""SpatialIR to PimIR: computes go to cores, values that cross cores become channels, operands become buffers.

The programs cannot deadlock: computes are visited in one global order, and the send and the receive of a channel are
appended together. They are neighbours in that order, and the program of each core is a part of it, in the same order.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.pim import ir
from raptor.pim.global_memory import GlobalMemory
from raptor.spatial.integer_operations import Requantise, RequantiseAtOnce
from raptor.spatial.ir import BodyOp, Compute, Copy, SpatialGraph, TakeRows, TensorParts
from raptor.spatial.operations import Move, Operation, Stencil, Vector
from raptor.spatial.placed import Fetch, Schedule
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.element import MODELLED


def lower(schedule: Schedule, memory: GlobalMemory, arch: Target) -> ir.PimProgram:
    """Returns the programs of all cores.

    Visits computes and fetches in the order of the schedule, and appends operations to the programs of their cores.
    """
    lowering = _Lowering(schedule.placed.graph, memory, arch)
    for core, step in schedule.steps():
        lowering.visit(step, core)
    lowering.store_inputs()
    return lowering.program()


@dataclass(slots=True)
class _Core:
    """Program of a core so far. `here`: buffers by name of the tile or constant that they hold."""

    groups: list[ir.Group] = field(default_factory=list[ir.Group])
    steps: list[ir.Step] = field(default_factory=list[ir.Step])
    here: dict[str, ir.Buffer] = field(default_factory=dict[str, ir.Buffer])

    def add(self, operation: Operation[ir.Buffer], node: str) -> None:
        self.steps.append(ir.Step(operation, node))


@dataclass(slots=True)
class _Lowering:
    """Appends computes and fetches to the programs of their cores, and knows what is on each core so far."""

    graph: SpatialGraph
    memory: GlobalMemory
    arch: Target
    cores: defaultdict[int, _Core] = field(default_factory=lambda: defaultdict(_Core))
    made: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """For each tile computed so far: its core, and the number of steps of that core up to then."""
    stored: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Name and core of the tiles of ids that are in global memory."""
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    """Global address of each tile of a model input or constant."""
    outputs: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Global addresses where each tile is a model output."""
    first_group: dict[tuple[int, ir.Group], int] = field(default_factory=dict[tuple[int, ir.Group], int])
    """(core, first group of a compute) -> its number on the core."""
    channels: int = 0

    def __post_init__(self) -> None:
        for name, address in _tile_addresses(self.graph, self.memory.inputs):
            self.inputs[name] = address
        for name, address in _tile_addresses(self.graph, self.memory.outputs):
            self.outputs[name].append(address)
        for name in self.graph.literals:
            self.inputs[name] = self.memory.constants[name]

    def visit(self, compute: Compute | Fetch, core: int) -> None:
        """Appends the operations of a compute or a fetch to the program of `core`, and what they need to others."""
        if isinstance(compute, Fetch):
            self.local(compute.tile, core, compute.node)
            return
        first_group = self.groups_of(compute, core)
        for op in compute.body:
            if isinstance(op, Copy):
                self.copy(op, core, compute.node)
            elif isinstance(op, TakeRows):
                self.take(op, core, compute.node)
            else:
                self.cores[core].add(self.lower(op, core, first_group, compute.node), compute.node)
            self.made[op.result.name] = (core, len(self.cores[core].steps))
        for tile in compute.results:
            self.store(tile, core, compute.node)

    def groups_of(self, compute: Compute, core: int) -> int:
        """Returns the number of the compute's first array group on its core. Equal matrices share their groups."""
        groups = self.cores[core].groups
        if not compute.matrices:
            return 0
        bits = self.graph.filters[compute.layer].weight_bits
        wanted = [ir.Group(compute.layer, m, bits) for m in compute.matrices]
        key = (core, wanted[0])
        if key not in self.first_group:
            self.first_group[key] = len(groups)
            groups += wanted
        return self.first_group[key]

    def lower(self, op: BodyOp, core: int, first_group: int, node: str) -> Operation[ir.Buffer]:
        """Returns the operation on buffers. Operands that are not on the core are brought there first."""
        for tile in op.reads:
            self.local(tile, core, node)
        here = self.cores[core].here
        here[op.result.name] = _buffer(op.result)

        def buffer_of(tile: Tile) -> ir.Buffer:
            return self.constant(tile, core, node) if isinstance(tile, ConstantTile) else here[tile.name]

        def row_of(tile: Tile) -> ir.Buffer:
            return self.repeated(buffer_of(tile), tile, op.result, core, node)

        def vectors_of(tile: Tile) -> ir.Buffer:
            assert isinstance(op, Stencil)
            return (
                self.side_by_side(buffer_of(tile), op.together, core, node) if tile is op.vectors else buffer_of(tile)
            )

        if isinstance(op, Vector | Requantise | RequantiseAtOnce):
            lowered = op.map_operands(row_of)
        else:
            lowered = op.map_operands(vectors_of if isinstance(op, Stencil) else buffer_of)
        return lowered.shift_matrices(first_group) if first_group else lowered

    def local(self, tile: Tile, core: int, node: str) -> ir.Buffer:
        """Returns the buffer of a tile on this core; loads or receives it if it is not there yet."""
        here = self.cores[core].here
        if tile.name not in here:
            buffer = _buffer(tile)
            if tile.name in self.inputs:
                self.cores[core].add(ir.Load(buffer, self.inputs[tile.name]), node)
            else:
                self.transfer(tile, buffer, core, node)
            here[tile.name] = buffer
        return here[tile.name]

    def transfer(self, tile: Tile, buffer: ir.Buffer, core: int, node: str) -> None:
        """Sends a tile over a new channel. The send and the receive are neighbours in the global order."""
        source, _ = self.made[tile.name]
        self.cores[source].add(ir.Send(self.cores[source].here[tile.name], core, self.channels), node)
        self.cores[core].add(ir.Receive(buffer, source, self.channels), node)
        self.channels += 1

    def copy(self, op: Copy[Tile], core: int, node: str) -> None:
        """Puts elements of a tile into a buffer of this core: loads, receives or copies them."""
        out = self.cores[core].here.setdefault(op.result.name, _buffer(op.result))
        into, taken = (op.at, op.elements), (op.first, op.elements)
        if op.source.name in self.inputs:
            first_byte = op.first * self.arch.bytes_of(op.source.element)
            self.cores[core].add(ir.Load(out, self.inputs[op.source.name] + first_byte, into), node)
            return
        source, _ = self.made[op.source.name]
        given = self.cores[source].here[op.source.name]
        if source == core:
            self.cores[core].add(Move(out, (given,), np.array([[op.at, 0, op.first, 1, op.elements]])), node)
            return
        self.cores[source].add(ir.Send(given, core, self.channels, taken), node)
        self.cores[core].add(ir.Receive(out, source, self.channels, into), node)
        self.channels += 1

    def take(self, op: TakeRows[Tile], core: int, node: str) -> None:
        """Loads rows of a table. Their ids are read in global memory, where computed ids are stored first."""
        addresses = np.array([self.ids_address(tile, core, node) for tile in op.ids])
        sizes = np.array([self.arch.bytes_of(tile.element) for tile in op.ids])
        which, element = op.places.T
        out = self.cores[core].here[op.result.name] = _buffer(op.result)
        stride = op.table.channels * self.arch.bytes_of(op.table.element)
        table = self.memory.constants[op.table.name]
        ids = addresses[which] + element * sizes[which]
        self.cores[core].add(ir.LoadRows(out, table, stride, op.table.pixels, ids), node)

    def ids_address(self, tile: Tile, core: int, node: str) -> int:
        """Returns the global address of ids; stores them for this core if they are computed."""
        if tile.name in self.inputs:
            return self.inputs[tile.name]
        address = self.memory.ids[tile.name, core]
        if (tile.name, core) not in self.stored:
            self.stored.add((tile.name, core))
            self.cores[core].add(ir.Store(self.local(tile, core, node), address), node)
        return address

    def repeated(self, buffer: ir.Buffer, tile: Tile, result: Tile, core: int, node: str) -> ir.Buffer:
        """Returns the buffer of an operand `tile`; fills a row of the result with it if it is shorter than that."""
        # Parameters of a requantisation have more than one element for each of the result.
        channels = max(result.channels, tile.channels)
        row_elements = result.width * channels
        if buffer.elements >= row_elements:
            return buffer
        here = self.cores[core].here
        constant = isinstance(tile, ConstantTile)
        name = f"{buffer.name}.row{row_elements}" if constant else f"{result.name}.{tile.name}.row"
        row = ir.Buffer(name, 1, result.width, channels, tile.element)
        if constant and name in here:
            return row
        if constant:
            here[name] = row
        self.cores[core].add(ir.Repeat(row, buffer), node)
        return row

    def side_by_side(self, vectors: ir.Buffer, times: int, core: int, node: str) -> ir.Buffer:
        """Returns a buffer with each of some vectors so many times; makes it if it is not there yet."""
        if times == 1:
            return vectors
        wide = replace(vectors, name=f"{vectors.name}.x{times}", rows=vectors.pixels, width=times)
        here = self.cores[core].here
        if wide.name not in here:
            here[wide.name] = wide
            self.cores[core].add(ir.Repeat(wide, vectors), node)
        return wide

    def constant(self, tile: ConstantTile, core: int, node: str) -> ir.Buffer:
        """Returns the buffer of a constant, which equal constants share; loads it if it is not there yet."""
        address = self.memory.constants[tile.name]
        buffer = replace(_buffer(tile), name=_constant_name(address, tile))
        here = self.cores[core].here
        if buffer.name not in here:
            here[buffer.name] = buffer
            self.cores[core].add(ir.Load(buffer, address), node)
        return buffer

    def store(self, tile: Tile, core: int, node: str) -> None:
        """Stores a tile at each address where it is a model output."""
        for address in self.outputs.pop(tile.name, ()):
            self.cores[core].add(ir.Store(self.cores[core].here[tile.name], address), node)

    def store_inputs(self) -> None:
        """Stores the outputs that no compute makes, such as model inputs. They pass through the first core."""
        tiles = {p.tile.name: p.tile for t in self.graph.tensors.values() for p in t.parts}
        for name in list(self.outputs):
            self.local(tiles[name], self.arch.first_core, "")
            self.store(tiles[name], self.arch.first_core, "")

    def program(self) -> ir.PimProgram:
        cores = {i: ir.CoreProgram(i, tuple(core.groups), tuple(core.steps)) for i, core in sorted(self.cores.items())}
        traces = tuple(self.trace(t) for t in self.graph.tensors.values() if t.in_model and self.is_made(t))
        return ir.PimProgram(self.graph.name, cores, self.channels, traces)

    def is_made(self, tensor: TensorParts) -> bool:
        return all(p.tile.name in self.made for p in tensor.parts)

    def trace(self, tensor: TensorParts) -> ir.Trace:
        """Returns the places where the parts of a tensor can be seen."""
        spots = (ir.Spot(p.region, *self.made[p.tile.name]) for p in tensor.parts)
        element = tensor.parts[0].tile.element
        coding = tensor.coding and tensor.coding.seen_as(tensor.shape, tensor.image.shape)
        return ir.Trace(tensor.name, tensor.node, tensor.image, tuple(spots), element, coding)


def _buffer(tile: Tile) -> ir.Buffer:
    return ir.Buffer(tile.name, tile.rows, tile.width, tile.channels, tile.element)


def _constant_name(address: int, tile: ConstantTile) -> str:
    """Names the buffer of a constant. Equal bytes may be constants of different types and lengths."""
    stem = f"const@{address}"
    return stem if tile.element == MODELLED else f"{stem}.{tile.elements}x{tile.element}"


def _tile_addresses(graph: SpatialGraph, places: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """Yields name and global address of each tile of some tensors."""
    for name, addresses in places.items():
        for part, address in zip(graph.tensors[name].parts, addresses, strict=True):
            yield part.tile.name, address
