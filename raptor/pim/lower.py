"""SpatialIR to PimIR: computes go to cores, values that cross cores become channels, operands become buffers.

Deadlock-free by construction: computes are visited in one global order, and the send and the receive of a channel are
appended in the same step, so every core's program is a projection of that order in which they are neighbours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raptor.pim import ir
from raptor.pim.global_memory import GlobalMemory
from raptor.spatial.ir import (
    ApplyFilters,
    ApplyLine,
    BodyOp,
    Compute,
    ConstantTile,
    Copy,
    DotTile,
    Gather,
    MoveTile,
    Overlap,
    PoolTile,
    SoftmaxTile,
    SpatialGraph,
    StencilTile,
    TensorParts,
    Tile,
    Vector,
)
from raptor.spatial.placed import Fetch, Schedule


def place(schedule: Schedule, memory: GlobalMemory) -> ir.PimProgram:
    """Visits computes and fetches in the order of the schedule, and appends to the programs of their cores."""
    placer = _Placer(schedule.placed.graph, memory)
    for core, step in schedule.steps():
        placer.place(step, core)
    placer.store_inputs()
    return placer.program()


@dataclass(slots=True)
class _Core:
    """A core's program so far. `here`: buffers by name of the tile or constant they hold."""

    groups: list[ir.Group] = field(default_factory=list[ir.Group])
    steps: list[ir.Step] = field(default_factory=list[ir.Step])
    here: dict[str, ir.Buffer] = field(default_factory=dict[str, ir.Buffer])

    def add(self, operation: ir.Operation, node: str) -> None:
        self.steps.append(ir.Step(operation, node))


@dataclass(slots=True)
class _Placer:
    graph: SpatialGraph
    memory: GlobalMemory
    cores: defaultdict[int, _Core] = field(default_factory=lambda: defaultdict(_Core))
    made: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Of each tile computed: its core and how many steps that core had done then."""
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    """Global address of each tile of a model input or constant."""
    outputs: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Global addresses where each tile is a model output."""
    first_group: dict[tuple[int, ir.Group], int] = field(default_factory=dict[tuple[int, ir.Group], int])
    channels: int = 0

    def __post_init__(self) -> None:
        for name, address in _tile_addresses(self.graph, self.memory.inputs):
            self.inputs[name] = address
        for name, address in _tile_addresses(self.graph, self.memory.outputs):
            self.outputs[name].append(address)
        for name in self.graph.literals:
            self.inputs[name] = self.memory.constants[name]

    def place(self, compute: Compute | Fetch, core: int) -> None:
        if isinstance(compute, Fetch):
            self.local(compute.tile, core, compute.node)
            return
        first_group = self.groups_of(compute, core)
        for op in compute.body:
            if isinstance(op, Copy):
                self.copy(op, core, compute.node)
            else:
                self.cores[core].add(self.lower(op, core, first_group, compute.node), compute.node)
            self.made[op.result.name] = (core, len(self.cores[core].steps))
        for tile in compute.results:
            self.store(tile, core, compute.node)

    def groups_of(self, compute: Compute, core: int) -> int:
        """Number of the compute's first array group on its core; computes of equal matrices share their groups."""
        groups = self.cores[core].groups
        wanted = [ir.Group(compute.layer, m) for m in compute.matrices]
        if not wanted:
            return 0
        key = (core, wanted[0])
        if key not in self.first_group:
            self.first_group[key] = len(groups)
            groups += wanted
        return self.first_group[key]

    def lower(self, op: BodyOp, core: int, first_group: int, node: str) -> ir.Operation:
        site = _Site(self, core, node, first_group)
        for tile in op.reads:
            self.local(tile, core, node)
        out = self.cores[core].here[op.result.name] = ir.Buffer(op.result.name, op.result.elements)
        return _LOWER[type(op)](op, out, site)

    def local(self, tile: Tile, core: int, node: str) -> ir.Buffer:
        """The tile's buffer on this core; loaded or received now if it is not there yet."""
        here = self.cores[core].here
        if tile.name not in here:
            buffer = ir.Buffer(tile.name, tile.elements)
            if tile.name in self.inputs:
                self.cores[core].add(ir.Load(buffer, self.inputs[tile.name]), node)
            else:
                self.transfer(tile, buffer, core, node)
            here[tile.name] = buffer
        return here[tile.name]

    def transfer(self, tile: Tile, buffer: ir.Buffer, core: int, node: str) -> None:
        """A new channel: its send and its receive are neighbours in the global order."""
        source, _ = self.made[tile.name]
        self.cores[source].add(ir.Send(self.cores[source].here[tile.name], core, self.channels), node)
        self.cores[core].add(ir.Receive(buffer, source, self.channels), node)
        self.channels += 1

    def copy(self, op: Copy, core: int, node: str) -> None:
        """Elements of a tile into a buffer of this core: loaded, received, or copied."""
        out = self.cores[core].here.setdefault(op.result.name, ir.Buffer(op.result.name, op.result.elements))
        into, taken = (op.at, op.elements), (op.first, op.elements)
        if op.source.name in self.inputs:
            self.cores[core].add(ir.Load(out, self.inputs[op.source.name] + op.first, into), node)
            return
        source, _ = self.made[op.source.name]
        given = self.cores[source].here[op.source.name]
        if source == core:
            self.cores[core].add(ir.Move(out, (given,), np.array([[op.at, 0, op.first, 1, op.elements]])), node)
            return
        self.cores[source].add(ir.Send(given, core, self.channels, taken), node)
        self.cores[core].add(ir.Receive(out, source, self.channels, into), node)
        self.channels += 1

    def operand(self, operand: Tile | ConstantTile, op: Vector, core: int, node: str) -> ir.Buffer:
        """An operand's buffer; one that repeats pixel by pixel is first repeated to a row."""
        if isinstance(operand, Tile):
            buffer = self.cores[core].here[operand.name]
        else:
            buffer = self.constant(operand, core, node)
        row_elements = op.result.width * op.result.channels
        if buffer.elements >= row_elements:
            return buffer
        if isinstance(operand, Tile):
            row = ir.Buffer(f"{op.result.name}.{operand.name}.row", row_elements)
        else:
            row = ir.Buffer(f"{buffer.name}.row{row_elements}", row_elements)
            if row.name in self.cores[core].here:
                return row
            self.cores[core].here[row.name] = row
        self.cores[core].add(ir.Repeat(row, buffer), node)
        return row

    def constant(self, tile: ConstantTile, core: int, node: str) -> ir.Buffer:
        address = self.memory.constants[tile.name]
        key = f"const@{address}"
        here = self.cores[core].here
        if key not in here:
            here[key] = ir.Buffer(key, tile.period)
            self.cores[core].add(ir.Load(here[key], address), node)
        return here[key]

    def store(self, tile: Tile, core: int, node: str) -> None:
        for address in self.outputs.pop(tile.name, ()):
            self.cores[core].add(ir.Store(self.cores[core].here[tile.name], address), node)

    def store_inputs(self) -> None:
        """Model outputs that are model inputs pass through core 0."""
        tiles = {p.tile.name: p.tile for t in self.graph.tensors.values() for p in t.parts}
        for name in list(self.outputs):
            self.local(tiles[name], 0, "")
            self.store(tiles[name], 0, "")

    def program(self) -> ir.PimProgram:
        cores = {i: ir.CoreProgram(i, tuple(core.groups), tuple(core.steps)) for i, core in sorted(self.cores.items())}
        traces = tuple(self.trace(t) for t in self.graph.tensors.values() if t.in_model and self.is_made(t))
        return ir.PimProgram(self.graph.name, cores, self.channels, traces)

    def is_made(self, tensor: TensorParts) -> bool:
        return all(p.tile.name in self.made for p in tensor.parts)

    def trace(self, tensor: TensorParts) -> ir.Trace:
        spots = (ir.Spot(p.region, *self.made[p.tile.name]) for p in tensor.parts)
        return ir.Trace(tensor.name, tensor.node, tensor.image, tuple(spots))


@dataclass(frozen=True, slots=True)
class _Site:
    """Where an operation of a compute is placed."""

    placer: _Placer
    core: int
    node: str
    first_group: int

    def at(self, tile: Tile) -> ir.Buffer:
        """The tile's buffer, which is there by now."""
        return self.placer.cores[self.core].here[tile.name]

    def group(self, weight: int) -> ir.Group:
        return self.placer.cores[self.core].groups[self.first_group + weight]


def _apply_filters(op: ApplyFilters, out: ir.Buffer, site: _Site) -> ir.ApplyFilters:
    accum = ir.Buffer(f"{op.result.name}.accum", op.result.channels) if len(op.taps) > 1 else None
    return ir.ApplyFilters(
        out,
        site.at(op.input),
        accum,
        groups=tuple(site.first_group + i for i in op.weights),
        taps=op.taps,
        channel=op.channel,
        in_channels=op.input.channels,
        out_channels=op.result.channels,
        window=op.window,
        relu=op.relu,
    )


def _apply_line(op: ApplyLine, out: ir.Buffer, site: _Site) -> ir.ApplyLine:
    return ir.ApplyLine(out, tuple(map(site.at, op.lines)), op.products + np.array([site.first_group, 0, 0, 0]))


def _overlap(op: Overlap, out: ir.Buffer, site: _Site) -> ir.Overlap:
    return ir.Overlap(out, tuple(map(site.at, op.sources)), op.runs)


def _vector(op: Vector, out: ir.Buffer, site: _Site) -> ir.Vector:
    operands = (site.placer.operand(o, op, site.core, site.node) for o in op.operands)
    return ir.Vector(out, op.function, tuple(operands))


def _pool(op: PoolTile, out: ir.Buffer, site: _Site) -> ir.Pool:
    inputs = tuple((row, site.at(t)) for row, t in op.inputs)
    widths = (op.inputs[0][1].width, op.result.width)
    return ir.Pool(out, inputs, op.function, op.result.channels, op.window, op.row, widths)


def _stencil(op: StencilTile, out: ir.Buffer, site: _Site) -> ir.Stencil:
    vectors = site.placer.constant(op.vectors, site.core, site.node) if op.vectors.period else None
    accum = ir.Buffer(f"{op.result.name}.accum", op.result.channels)
    return ir.Stencil(out, site.at(op.input), vectors, accum, op.index, op.result.channels, op.window)


def _dot(op: DotTile, out: ir.Buffer, site: _Site) -> ir.Dot:
    rows, count = op.result.pixels // op.batch, op.result.channels
    return ir.Dot(out, site.at(op.left), site.at(op.right), op.batch, rows, op.cols, op.first, count, op.left.channels)


def _move(op: MoveTile, out: ir.Buffer, site: _Site) -> ir.Move:
    return ir.Move(out, tuple(map(site.at, op.sources)), op.runs)


def _gather(op: Gather, out: ir.Buffer, site: _Site) -> ir.Gather:
    copies = (ir.Copy(site.at(p.tile), p.source, p.tile.channels, p.target, p.channels) for p in op.pieces)
    return ir.Gather(out, op.result.channels, tuple(copies))


def _softmax(op: SoftmaxTile, out: ir.Buffer, site: _Site) -> ir.Softmax:
    return ir.Softmax(out, site.at(op.input), op.result.channels)


_LOWER: dict[type[BodyOp], Callable[[Any, ir.Buffer, _Site], ir.Operation]] = {
    ApplyFilters: _apply_filters,
    ApplyLine: _apply_line,
    Overlap: _overlap,
    Vector: _vector,
    PoolTile: _pool,
    StencilTile: _stencil,
    DotTile: _dot,
    MoveTile: _move,
    Gather: _gather,
    SoftmaxTile: _softmax,
}


def _tile_addresses(graph: SpatialGraph, places: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    for name, addresses in places.items():
        for part, address in zip(graph.tensors[name].parts, addresses, strict=True):
            yield part.tile.name, address
