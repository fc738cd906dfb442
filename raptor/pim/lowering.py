"""SpatialIR to PimIR: computes go to cores, values that cross cores become channels, operands become buffers.

The programs cannot deadlock: computes are visited in one global order, and the send and the receive of a channel are
appended together. They are neighbours in that order, and the program of each core is a part of it, in the same order.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.pim import ir
from raptor.pim.global_memory import GlobalMemory
from raptor.pim.operations import Buffer, LoadRows, Repeat
from raptor.pim.slots import Slot, Slots
from raptor.pim.steps import LOAD, RECEIVE, SEND, STORE, TRANSFERS, WHOLE, Buffers, Form, Forms, Steps
from raptor.spatial.ir import BodyOp, Compute, Copy, SpatialGraph, TakeRows, TensorParts
from raptor.spatial.operations import Move, Operation
from raptor.spatial.placed import Schedule
from raptor.spatial.tiles import ConstantTile, Tile, Value
from raptor.target.arch import Target
from raptor.target.element import MODELLED


def lower(schedule: Schedule, memory: GlobalMemory, arch: Target) -> ir.PimProgram:
    """Returns the programs of all cores.

    Visits computes and fetches in the order of the schedule, and appends operations to the programs of their cores.
    """
    lowering = _Lowering(schedule.placed.graph, memory, arch)
    computes, cores = schedule.placed.graph.computes, schedule.placed.cores
    for i in schedule.order:
        if i < len(computes):
            lowering.visit(i, computes[i], cores[i])
        else:
            fetch = schedule.fetches[i - len(computes)]
            lowering.local(fetch.tile, fetch.core, lowering.node(fetch.node))
    lowering.store_inputs()
    return lowering.program()


@dataclass(slots=True)
class _Core:
    """Program of a core so far: `buffers`, and columns as in `Steps`. `here`: buffers by name of what they hold."""

    groups: list[ir.Group] = field(default_factory=list[ir.Group])
    here: dict[str, int] = field(default_factory=dict[str, int])
    buffers: list[Value] = field(default_factory=list[Value])
    rows: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    used: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])

    def new(self, value: Value) -> int:
        """Returns the number of a new buffer for a value."""
        self.buffers.append(value)
        return len(self.buffers) - 1

    def holds(self, value: Value) -> int:
        """Returns the number of a new buffer which holds a value from now on."""
        number = self.here[value.name] = self.new(value)
        return number

    def add(self, node: int, form: int, used: Sequence[int], number: int = 0) -> None:
        """Appends an operation on the buffers `used`."""
        self.rows.append((form, node, number, 0, WHOLE, 0))
        self.used += used
        self.counts.append(len(used))

    def transfer(self, node: int, form: int, buffer: int, number: int, peer: int, span: tuple[int, int]) -> None:
        """Appends a transfer."""
        self.rows.append((form, node, number, peer, *span))
        self.used.append(buffer)
        self.counts.append(1)

    def steps(self, forms: Forms, nodes: tuple[str, ...]) -> Steps:
        """Returns the columns."""
        form, node, number, peer, *span = np.array(self.rows, np.int64).reshape(-1, 6).T
        start = np.cumsum([0, *self.counts])
        used = np.array(self.used, np.int64)
        spans = np.stack(span, axis=1)
        return Steps(forms, nodes, Buffers(tuple(self.buffers)), form, node, number, peer, spans, start, used)


_ALL = WHOLE, 0


@dataclass(slots=True)
class _Lowering:
    """Appends computes and fetches to the programs of their cores, and knows what is on each core so far."""

    graph: SpatialGraph
    memory: GlobalMemory
    arch: Target
    cores: defaultdict[int, _Core] = field(default_factory=lambda: defaultdict(_Core))
    forms: list[Form] = field(default_factory=lambda: list(TRANSFERS))
    form_of: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    """Number of each form that the graph does not have."""
    slots: dict[int, tuple[int, Slots]] = field(default_factory=dict[int, tuple[int, Slots]])
    """Number of the form, and the slots, for each form of the graph."""
    first_op: list[int] = field(init=False)
    op_form: list[int] = field(init=False)
    """The number of the first operation of each compute, and the form of each operation."""
    nodes: dict[str, int] = field(default_factory=dict[str, int])
    made: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """For each tile computed so far: its core, and the number of steps of that core up to then."""
    stored: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Name and core of the tiles of ids that are in global memory."""
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    """Global address of each tile of a model input or constant."""
    outputs: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Global addresses where each tile is a model output."""
    first_group: dict[tuple[int, object], int] = field(default_factory=dict[tuple[int, object], int])
    """(core, first group of a compute, or identity of its matrices) -> number of this group on the core."""
    channels: int = 0

    def __post_init__(self) -> None:
        flow = self.graph.dataflow
        self.first_op = np.searchsorted(flow.op_compute, np.arange(len(self.graph.computes))).tolist()
        self.op_form = flow.op_form.tolist()
        for name, address in _tile_addresses(self.graph, self.memory.inputs):
            self.inputs[name] = address
        for name, address in _tile_addresses(self.graph, self.memory.outputs):
            self.outputs[name].append(address)
        for name in self.graph.literals:
            self.inputs[name] = self.memory.constants[name]

    def node(self, name: str) -> int:
        """Returns the number of an ONNX node."""
        return self.nodes.setdefault(name, len(self.nodes))

    def visit(self, number: int, compute: Compute, core: int) -> None:
        """Appends the operations of a compute to the program of `core`, and what they need to others."""
        node, program = self.node(compute.node), self.cores[core]
        first_group = self.groups_of(compute, core) if compute.matrices else 0
        for k, op in enumerate(compute.body, self.first_op[number]):
            if isinstance(op, Copy):
                self.copy(op, core, node)
            elif isinstance(op, TakeRows):
                self.take(op, core, node)
            else:
                form, slots = self.slots_of(self.op_form[k], op, compute)
                program.add(node, form, self.fill(slots, op, core, node), first_group)
            self.made[op.result.name] = (core, len(program.rows))
        for tile in compute.results:
            if tile.name in self.outputs:
                self.store(tile, core, node)

    def groups_of(self, compute: Compute, core: int) -> int:
        """Returns the number of the compute's first array group on its core. Equal matrices share their groups."""
        same = core, id(compute.matrices)
        if same not in self.first_group:
            bits = self.graph.filters[compute.layer].weight_bits
            wanted = [ir.Group(compute.layer, m, bits) for m in compute.matrices]
            groups = self.cores[core].groups
            if (core, wanted[0]) not in self.first_group:
                self.first_group[core, wanted[0]] = len(groups)
                groups += wanted
            self.first_group[same] = self.first_group[core, wanted[0]]
        return self.first_group[same]

    def slots_of(self, number: int, op: BodyOp, compute: Compute) -> tuple[int, Slots]:
        """Returns the number of an operation's form, and its slots. `number`: that of its form in the graph."""
        if number not in self.slots:
            bits = self.graph.filters[compute.layer].weight_bits if compute.matrices else 0
            slots = Slots.of(op, bits)
            self.forms.append(slots.form)
            self.slots[number] = len(self.forms) - 1, slots
        return self.slots[number]

    def form_of_op(self, op: Operation[Buffer]) -> int:
        """Returns the number of the form of an operation on slots, which equal operations share."""
        number = self.form_of.setdefault(op.form, len(self.forms))
        if number == len(self.forms):
            self.forms.append(Form.of(op))
        return number

    def fill(self, slots: Slots, op: BodyOp, core: int, node: int) -> list[int]:
        """Returns the buffers of an operation. Operands that are not on the core are brought there first."""
        program, reads = self.cores[core], op.reads
        for tile in reads:
            if tile.name not in program.here:
                self.local(tile, core, node)
        result = program.holds(op.result)
        constants = [tile for tile in op.operands if isinstance(tile, ConstantTile)] if slots.constants else []
        used: list[int] = []
        for slot in slots.operands:
            tile = constants[slot.place] if slot.constant else reads[slot.place]
            buffer = self.constant(constants[slot.place], core, node) if slot.constant else program.here[tile.name]
            used.append(self.repeated(slot, buffer, tile, op.result, core, node) if slot.repeated else buffer)
        used.append(result)
        used += [program.new(replace(value, name=op.result.name + end)) for end, value in slots.scratch]
        return used

    def local(self, tile: Tile, core: int, node: int) -> int:
        """Returns the buffer of a tile on this core; loads or receives it if it is not there yet."""
        program = self.cores[core]
        if tile.name in program.here:
            return program.here[tile.name]
        buffer = program.holds(tile)
        if tile.name in self.inputs:
            program.transfer(node, LOAD, buffer, self.inputs[tile.name], 0, _ALL)
        else:
            source, _ = self.made[tile.name]
            self.message(source, self.cores[source].here[tile.name], _ALL, core, buffer, _ALL, node)
        return buffer

    def message(
        self, source: int, given: int, taken: tuple[int, int], core: int, buffer: int, into: tuple[int, int], node: int
    ) -> None:
        """Sends a buffer over a new channel. The send and the receive are neighbours in the global order."""
        self.cores[source].transfer(node, SEND, given, self.channels, core, taken)
        self.cores[core].transfer(node, RECEIVE, buffer, self.channels, source, into)
        self.channels += 1

    def copy(self, op: Copy[Tile], core: int, node: int) -> None:
        """Puts elements of a tile into a buffer of this core: loads, receives or copies them."""
        program, name = self.cores[core], op.result.name
        out = program.here[name] if name in program.here else program.holds(op.result)
        into, taken = (op.at, op.elements), (op.first, op.elements)
        if op.source.name in self.inputs:
            first_byte = op.first * self.arch.bytes_of(op.source.element)
            program.transfer(node, LOAD, out, self.inputs[op.source.name] + first_byte, 0, into)
            return
        source, _ = self.made[op.source.name]
        given = self.cores[source].here[op.source.name]
        if source != core:
            self.message(source, given, taken, core, out, into, node)
            return
        runs = np.array([[op.at, 0, op.first, 1, op.elements]])
        program.add(node, self.form_of_op(Move(_slot(1, op.result), (_slot(0, op.source),), runs)), (given, out))

    def take(self, op: TakeRows[Tile], core: int, node: int) -> None:
        """Loads rows of a table. Their ids are read in global memory, where computed ids are stored first."""
        addresses = np.array([self.ids_address(tile, core, node) for tile in op.ids])
        sizes = np.array([self.arch.bytes_of(tile.element) for tile in op.ids])
        which, element = op.places.T
        stride = op.table.channels * self.arch.bytes_of(op.table.element)
        table = self.memory.constants[op.table.name]
        ids = addresses[which] + element * sizes[which]
        self.forms.append(Form.of(LoadRows(_slot(0, op.result), table, stride, op.table.pixels, ids)))
        program = self.cores[core]
        program.add(node, len(self.forms) - 1, (program.holds(op.result),))

    def ids_address(self, tile: Tile, core: int, node: int) -> int:
        """Returns the global address of ids; stores them for this core if they are computed."""
        if tile.name in self.inputs:
            return self.inputs[tile.name]
        address = self.memory.ids[tile.name, core]
        if (tile.name, core) not in self.stored:
            self.stored.add((tile.name, core))
            self.cores[core].transfer(node, STORE, self.local(tile, core, node), address, 0, _ALL)
        return address

    def repeated(self, slot: Slot, buffer: int, tile: Tile, result: Tile, core: int, node: int) -> int:
        """Returns the buffer that is filled with copies of `buffer`, which holds an operand `tile`.

        Copies of a constant stay on the core, and are made at the first call.
        """
        program, shape = self.cores[core], slot.shape
        stem = program.buffers[buffer].name
        name = f"{stem}.x{slot.times}" if slot.times else f"{stem}.row{shape.elements}"
        name = name if slot.constant else f"{result.name}.{tile.name}.row"
        if slot.constant and name in program.here:
            return program.here[name]
        wide = replace(shape, name=name)
        copies = program.holds(wide) if slot.constant else program.new(wide)
        program.add(node, self.form_of_op(Repeat(_slot(1, wide), _slot(0, tile))), (buffer, copies))
        return copies

    def constant(self, tile: ConstantTile, core: int, node: int) -> int:
        """Returns the buffer of a constant, which equal constants share; loads it if it is not there yet."""
        address, program = self.memory.constants[tile.name], self.cores[core]
        name = _constant_name(address, tile)
        if name in program.here:
            return program.here[name]
        buffer = program.holds(replace(_slot(0, tile), name=name))
        program.transfer(node, LOAD, buffer, address, 0, _ALL)
        return buffer

    def store(self, tile: Tile, core: int, node: int) -> None:
        """Stores a tile at each address where it is a model output."""
        program = self.cores[core]
        for address in self.outputs.pop(tile.name, ()):
            program.transfer(node, STORE, program.here[tile.name], address, 0, _ALL)

    def store_inputs(self) -> None:
        """Stores the outputs that no compute makes, such as model inputs. They pass through the first core."""
        tiles = {p.tile.name: p.tile for t in self.graph.tensors.values() for p in t.parts}
        for name in list(self.outputs):
            self.local(tiles[name], self.arch.first_core, self.node(""))
            self.store(tiles[name], self.arch.first_core, self.node(""))

    def program(self) -> ir.PimProgram:
        forms, nodes = Forms(tuple(self.forms)), tuple(self.nodes)
        cores = {
            i: ir.CoreProgram(i, tuple(core.groups), core.steps(forms, nodes)) for i, core in sorted(self.cores.items())
        }
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


def _slot(number: int, tile: Value) -> Buffer:
    """Returns the slot of a form for a value of this shape."""
    return Buffer(f"{number}", tile.rows, tile.width, tile.channels, tile.element)


def _constant_name(address: int, tile: ConstantTile) -> str:
    """Names the buffer of a constant. Equal bytes may be constants of different types and lengths."""
    stem = f"const@{address}"
    return stem if tile.element == MODELLED else f"{stem}.{tile.elements}x{tile.element}"


def _tile_addresses(graph: SpatialGraph, places: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """Yields name and global address of each tile of some tensors."""
    for name, addresses in places.items():
        for part, address in zip(graph.tensors[name].parts, addresses, strict=True):
            yield part.tile.name, address
