"""SpatialIR to PimIR: computes go to cores, values that cross cores become channels, operands become buffers.

The programs cannot deadlock: computes are visited in one global order, and the send and the receive of a channel are
appended together. They are neighbours in that order, and the program of each core is a part of it, in the same order.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.pim import ir
from raptor.pim.global_memory import GlobalMemory
from raptor.pim.operations import Buffer, LoadRows, Repeat
from raptor.pim.slots import Slot, Slots
from raptor.pim.steps import LOAD, RECEIVE, SEND, STORE, TRANSFERS, WHOLE, Buffers, Form, Forms, Steps
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy, SpatialGraph, TakeRows, TensorParts
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
    cores = schedule.placed.cores
    for i in schedule.order:
        if i < len(cores):
            lowering.visit(i, cores[i])
        else:
            fetch = schedule.fetches[i - len(cores)]
            lowering.local(lowering.number(fetch.tile), fetch.tile, fetch.core, lowering.node(fetch.node))
    lowering.store_inputs()
    return lowering.program()


@dataclass(slots=True)
class _Core:
    """Program of a core so far: `buffers`, and columns as in `Steps`, those of a step side by side in `rows`.

    here: the buffer of each tile, by its number. named: those of constants and of what is repeated, by name.
    """

    groups: list[ir.Group] = field(default_factory=list[ir.Group])
    here: dict[int, int] = field(default_factory=dict[int, int])
    named: dict[str, int] = field(default_factory=dict[str, int])
    buffers: list[Value] = field(default_factory=list[Value])
    rows: list[int] = field(default_factory=list[int])
    used: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])

    def new(self, value: Value) -> int:
        """Returns the number of a new buffer for a value."""
        self.buffers.append(value)
        return len(self.buffers) - 1

    def holds(self, number: int, tile: Tile) -> int:
        """Returns the number of a new buffer, which holds tile `number` from now on."""
        self.buffers.append(tile)
        buffer = self.here[number] = len(self.buffers) - 1
        return buffer

    def names(self, value: Value) -> int:
        """Returns the number of a new buffer, which is found by its name from now on."""
        buffer = self.named[value.name] = self.new(value)
        return buffer

    def add(self, node: int, form: int, used: Sequence[int], number: int = 0) -> None:
        """Appends an operation on the buffers `used`."""
        self.rows += (form, node, number, 0, WHOLE, 0)
        self.used += used
        self.counts.append(len(used))

    def transfer(self, node: int, form: int, buffer: int, number: int, peer: int, span: tuple[int, int]) -> None:
        """Appends a transfer."""
        self.rows += (form, node, number, peer, *span)
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
_NOWHERE = -1, 0


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
    ops: "_Ops" = field(init=False)
    tiles: dict[str, int] = field(init=False)
    """Number of each tile, by name: those of the dataflow, and then those that no operation has."""
    made: list[tuple[int, int]] = field(init=False)
    """For each tile computed so far: its core, and the number of steps of that core up to then; else `_NOWHERE`."""
    nodes: dict[str, int] = field(default_factory=dict[str, int])
    stored: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Number and core of the tiles of ids that are in global memory."""
    inputs: dict[int, int] = field(default_factory=dict[int, int])
    """Global address of each tile of a model input or constant."""
    outputs: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Global addresses where each tile is a model output."""
    first_group: dict[tuple[int, object], int] = field(default_factory=dict[tuple[int, object], int])
    """(core, first group of a compute, or identity of its matrices) -> number of this group on the core."""
    channels: int = 0

    def __post_init__(self) -> None:
        flow = self.graph.dataflow
        self.tiles = dict(flow.number)
        for tile, address in _tile_addresses(self.graph, self.memory.inputs):
            self.inputs[self.number(tile)] = address
        for tile, address in _tile_addresses(self.graph, self.memory.outputs):
            self.outputs[self.number(tile)].append(address)
        for tile in self.graph.literals.values():
            self.inputs[self.number(tile)] = self.memory.constants[tile.name]
        self.made = [_NOWHERE] * len(self.tiles)
        self.ops = _Ops.of(flow, self.outputs)

    def number(self, tile: Tile) -> int:
        """Returns the number of a tile."""
        return self.tiles.setdefault(tile.name, len(self.tiles))

    def node(self, name: str) -> int:
        """Returns the number of an ONNX node."""
        return self.nodes.setdefault(name, len(self.nodes))

    def visit(self, number: int, core: int) -> None:
        """Appends the operations of a compute to the program of `core`, and what they need to others.

        NOTE: it looks at the columns and at one operation of each form. Looking at each compute would take longer than
        the rest, because there are too many for the caches of the processor.
        """
        ops, program = self.ops, self.cores[core]
        node = self.node(ops.flow.nodes[number])
        for k in range(ops.first[number], ops.first[number + 1]):
            (op, one), result = ops.flow.forms[ops.form[k]], ops.result[k]
            if isinstance(op, Copy):
                self.copy(op, ops.reads[ops.first_read[k]], result, core, node)
            elif isinstance(op, TakeRows):
                self.take(number, result, core, node)
            else:
                form, slots = self.slots_of(ops.form[k])
                first_group = self.groups_of(ops.form[k], core) if one.matrices else 0
                program.add(node, form, self.fill(slots, k, core, node), first_group)
            self.made[result] = (core, len(program.counts))
        if number in ops.stores:
            for tile in self.graph.computes[number].results:
                self.store(self.number(tile), core, node)

    def groups_of(self, number: int, core: int) -> int:
        """Returns the number of the first array group, on a core, of form `number`. Equal matrices share their groups.

        A form with matrices is that of one layer and tuple of matrices.
        """
        same = core, number
        if same not in self.first_group:
            _, compute = self.ops.flow.forms[number]
            bits = self.graph.filters[compute.layer].weight_bits
            wanted = [ir.Group(compute.layer, m, bits) for m in compute.matrices]
            groups = self.cores[core].groups
            if (core, wanted[0]) not in self.first_group:
                self.first_group[core, wanted[0]] = len(groups)
                groups += wanted
            self.first_group[same] = self.first_group[core, wanted[0]]
        return self.first_group[same]

    def slots_of(self, number: int) -> tuple[int, Slots]:
        """Returns the number of a form, and its slots. `number`: that of the form in the graph."""
        if number not in self.slots:
            op, compute = self.ops.flow.forms[number]
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

    def fill(self, slots: Slots, k: int, core: int, node: int) -> list[int]:
        """Returns the buffers of operation `k`. Operands that are not on the core are brought there first."""
        program, ops, tiles = self.cores[core], self.ops, self.ops.flow.tiles
        here, reads = program.here, ops.reads[ops.first_read[k] : ops.first_read[k + 1]]
        for number in reads:
            if number not in here:
                self.local(number, tiles[number], core, node)
        result = tiles[ops.result[k]]
        made = program.holds(ops.result[k], result)
        used = [here[number] for number in reads] if slots.plain else self.operands(slots, k, core, node)
        used.append(made)
        used += [program.new(replace(value, name=result.name + end)) for end, value in slots.scratch]
        return used

    def operands(self, slots: Slots, k: int, core: int, node: int) -> list[int]:
        """Returns the buffers of the operands of operation `k`, some of which are constants or repeated."""
        ops, flow, here = self.ops, self.ops.flow, self.cores[core].here
        used: list[int] = []
        for slot in slots.operands:
            if slot.constant:
                tile: Tile = (constant := flow.constants[ops.uses[ops.first_use[k] + slot.place]])
                buffer = self.constant(constant, core, node)
            else:
                number = ops.reads[ops.first_read[k] + slot.place]
                tile, buffer = flow.tiles[number], here[number]
            result = flow.tiles[ops.result[k]]
            used.append(self.repeated(slot, buffer, tile, result, core, node) if slot.repeated else buffer)
        return used

    def local(self, number: int, tile: Tile, core: int, node: int) -> int:
        """Returns the buffer of a tile on this core; loads or receives it if it is not there yet."""
        program = self.cores[core]
        if number in program.here:
            return program.here[number]
        buffer = program.holds(number, tile)
        if number in self.inputs:
            program.transfer(node, LOAD, buffer, self.inputs[number], 0, _ALL)
        else:
            source, _ = self.made[number]
            self.message(source, self.cores[source].here[number], _ALL, core, buffer, _ALL, node)
        return buffer

    def message(
        self, source: int, given: int, taken: tuple[int, int], core: int, buffer: int, into: tuple[int, int], node: int
    ) -> None:
        """Sends a buffer over a new channel. The send and the receive are neighbours in the global order."""
        self.cores[source].transfer(node, SEND, given, self.channels, core, taken)
        self.cores[core].transfer(node, RECEIVE, buffer, self.channels, source, into)
        self.channels += 1

    def copy(self, op: Copy[Tile], read: int, result: int, core: int, node: int) -> None:
        """Puts elements of tile `read` into a buffer of this core: loads, receives or copies them.

        op: an operation of the same form.
        """
        program = self.cores[core]
        out = program.here.get(result)
        if out is None:
            out = program.holds(result, self.ops.flow.tiles[result])
        into, taken = (op.at, op.elements), (op.first, op.elements)
        if read in self.inputs:
            first_byte = op.first * self.arch.bytes_of(op.source.element)
            program.transfer(node, LOAD, out, self.inputs[read] + first_byte, 0, into)
            return
        source, _ = self.made[read]
        given = self.cores[source].here[read]
        if source != core:
            self.message(source, given, taken, core, out, into, node)
            return
        runs = np.array([[op.at, 0, op.first, 1, op.elements]])
        program.add(node, self.form_of_op(Move(_slot(1, op.result), (_slot(0, op.source),), runs)), (given, out))

    def take(self, number: int, result: int, core: int, node: int) -> None:
        """Loads the rows of a table that compute `number` takes.

        Their ids are read in global memory, where computed ids are stored first.
        """
        (op,) = self.graph.computes[number].body
        assert isinstance(op, TakeRows)
        addresses = np.array([self.ids_address(tile, core, node) for tile in op.ids])
        sizes = np.array([self.arch.bytes_of(tile.element) for tile in op.ids])
        which, element = op.places.T
        stride = op.table.channels * self.arch.bytes_of(op.table.element)
        table = self.memory.constants[op.table.name]
        ids = addresses[which] + element * sizes[which]
        self.forms.append(Form.of(LoadRows(_slot(0, op.result), table, stride, op.table.pixels, ids)))
        program = self.cores[core]
        program.add(node, len(self.forms) - 1, (program.holds(result, op.result),))

    def ids_address(self, tile: Tile, core: int, node: int) -> int:
        """Returns the global address of ids; stores them for this core if they are computed."""
        number = self.number(tile)
        if number in self.inputs:
            return self.inputs[number]
        address = self.memory.ids[tile.name, core]
        if (number, core) not in self.stored:
            self.stored.add((number, core))
            self.cores[core].transfer(node, STORE, self.local(number, tile, core, node), address, 0, _ALL)
        return address

    def repeated(self, slot: Slot, buffer: int, tile: Tile, result: Tile, core: int, node: int) -> int:
        """Returns the buffer that is filled with copies of `buffer`, which holds an operand `tile`.

        Copies of a constant stay on the core, and are made at the first call.
        """
        program, shape = self.cores[core], slot.shape
        stem = program.buffers[buffer].name
        name = f"{stem}.x{slot.times}" if slot.times else f"{stem}.row{shape.elements}"
        name = name if slot.constant else f"{result.name}.{tile.name}.row"
        if slot.constant and name in program.named:
            return program.named[name]
        wide = replace(shape, name=name)
        copies = program.names(wide) if slot.constant else program.new(wide)
        program.add(node, self.form_of_op(Repeat(_slot(1, wide), _slot(0, tile))), (buffer, copies))
        return copies

    def constant(self, tile: ConstantTile, core: int, node: int) -> int:
        """Returns the buffer of a constant, which equal constants share; loads it if it is not there yet."""
        address, program = self.memory.constants[tile.name], self.cores[core]
        name = _constant_name(address, tile)
        if name in program.named:
            return program.named[name]
        buffer = program.names(replace(_slot(0, tile), name=name))
        program.transfer(node, LOAD, buffer, address, 0, _ALL)
        return buffer

    def store(self, number: int, core: int, node: int) -> None:
        """Stores a tile at each address where it is a model output."""
        program = self.cores[core]
        for address in self.outputs.pop(number, ()):
            program.transfer(node, STORE, program.here[number], address, 0, _ALL)

    def store_inputs(self) -> None:
        """Stores the outputs that no compute makes, such as model inputs. They pass through the first core."""
        tiles = {self.number(p.tile): p.tile for t in self.graph.tensors.values() for p in t.parts}
        for number in list(self.outputs):
            self.local(number, tiles[number], self.arch.first_core, self.node(""))
            self.store(number, self.arch.first_core, self.node(""))

    def program(self) -> ir.PimProgram:
        forms, nodes = Forms(tuple(self.forms)), tuple(self.nodes)
        cores = {
            i: ir.CoreProgram(i, tuple(core.groups), core.steps(forms, nodes)) for i, core in sorted(self.cores.items())
        }
        traces = tuple(self.trace(t) for t in self.graph.tensors.values() if t.in_model and self.is_made(t))
        return ir.PimProgram(self.graph.name, cores, self.channels, traces)

    def is_made(self, tensor: TensorParts) -> bool:
        return all(self.place(p.tile) != _NOWHERE for p in tensor.parts)

    def place(self, tile: Tile) -> tuple[int, int]:
        """Returns where a tile was computed; see `made`."""
        number = self.number(tile)
        return self.made[number] if number < len(self.made) else _NOWHERE

    def trace(self, tensor: TensorParts) -> ir.Trace:
        """Returns the places where the parts of a tensor can be seen."""
        spots = (ir.Spot(p.region, *self.place(p.tile)) for p in tensor.parts)
        element = tensor.parts[0].tile.element
        coding = tensor.coding and tensor.coding.seen_as(tensor.shape, tensor.image.shape)
        return ir.Trace(tensor.name, tensor.node, tensor.image, tuple(spots), element, coding)


@dataclass(frozen=True, slots=True, eq=False)
class _Ops:
    """The operations of a graph, as lists: quicker than arrays where each is looked at by itself.

    first: number of the first operation of each compute. form, result: those of each operation. reads: the tiles that
    operation k reads are `reads[first_read[k] : first_read[k + 1]]`. uses, first_use: the same of constants. stores:
    the computes that make model outputs.
    """

    flow: Dataflow
    first: list[int]
    form: list[int]
    result: list[int]
    first_read: list[int]
    reads: list[int]
    first_use: list[int]
    uses: list[int]
    stores: frozenset[int]

    @classmethod
    def of(cls, flow: Dataflow, outputs: Collection[int]) -> "_Ops":
        """Makes the lists. `outputs`: numbers of the tiles that are model outputs."""
        stores = flow.result_compute[np.isin(flow.result_tile, np.array([*outputs], np.int64))]
        numbers = np.arange(len(flow.op_form) + 1)
        return cls(
            flow,
            np.searchsorted(flow.op_compute, np.arange(len(flow.nodes) + 1)).tolist(),
            flow.op_form.tolist(),
            flow.op_result.tolist(),
            np.searchsorted(flow.read_op, numbers).tolist(),
            flow.read_tile.tolist(),
            np.searchsorted(flow.use_op, numbers).tolist(),
            flow.use_constant.tolist(),
            frozenset(stores.tolist()),
        )


def _slot(number: int, tile: Value) -> Buffer:
    """Returns the slot of a form for a value of this shape."""
    return Buffer(f"{number}", tile.rows, tile.width, tile.channels, tile.element)


def _constant_name(address: int, tile: ConstantTile) -> str:
    """Names the buffer of a constant. Equal bytes may be constants of different types and lengths."""
    stem = f"const@{address}"
    return stem if tile.element == MODELLED else f"{stem}.{tile.elements}x{tile.element}"


def _tile_addresses(graph: SpatialGraph, places: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[Tile, int]]:
    """Yields each tile of some tensors, and its global address."""
    for name, addresses in places.items():
        for part, address in zip(graph.tensors[name].parts, addresses, strict=True):
            yield part.tile, address
