"""Finds the buffers that operations need on their cores: operands, constants, repeated operands and scratch memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.pim.buffer_requests import MADE_BY_OPERATION, UNUSED, BufferRequests, RequestCollector
from raptor.pim.form_collector import FormCollector, OperandSlot
from raptor.pim.global_order import GlobalOrder
from raptor.pim.operations import LoadRows, Repeat, make_slot
from raptor.pim.sample_versions import SampleVersions
from raptor.pim.step_columns import LOAD, OperationForm
from raptor.pim.value_numbering import ValueNumbering
from raptor.spatial.dataflow import Dataflow, GroupedLists
from raptor.spatial.ir import Copy, SpatialGraph, TakeRows
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value that its core stores at a global address, in slot `within` of a turn."""

    turn: int
    within: int
    value: int
    address: int


@dataclass(slots=True)
class BufferDemand:
    """Collects the buffer requests of all operations.

    stores: computed ids of embedding lookups, which are stored in global memory. ids: (tile, core) of these. takes: the
    form of each embedding lookup, by its turn.
    """

    graph: SpatialGraph
    arch: Target
    values: ValueNumbering
    kinds: FormCollector
    wanting: RequestCollector
    versions: SampleVersions | None = None
    stores: list[StoredValue] = field(default_factory=list[StoredValue])
    ids: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    takes: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def flow(self) -> Dataflow:
        return self.graph.dataflow

    @property
    def turns(self) -> GlobalOrder:
        return self.wanting.turns

    def collect_requests(self) -> BufferRequests:
        """Returns the requests of all operations. Also numbers forms and values that the graph does not have."""
        flow, turns, wanting = self.flow, self.turns, self.wanting
        reads, plain = np.zeros((2, len(flow.forms)), np.bool_)
        result = np.array([0 if isinstance(op, TakeRows) else UNUSED for op, _ in flow.forms], np.int64)
        for number, (_, slots) in self.kinds.of_graph.items():
            reads[number], plain[number], result[number] = True, slots.plain, len(slots.operands)
        form = flow.op_form[flow.read_op]
        turn, place = turns.of_op[flow.read_op], np.arange(len(form)) - np.searchsorted(flow.read_op, flow.read_op)
        columns = turn, place, flow.read_tile, np.where(plain[form], place, UNUSED)
        turn, place, value, used = (column[reads[form]] for column in columns)
        wanting.add(turn, wanting.times.operands + place, value, used, fill=LOAD)
        turn = np.flatnonzero(turns.tile >= 0)
        wanting.add(turn, wanting.times.operands, turns.tile[turn], fill=LOAD)
        # A copy of a state takes it from local memory.
        kept = np.isin(flow.read_tile, [*self.values.states]) & flow.is_op_class(Copy)[flow.read_op]
        wanting.add(turns.of_op[flow.read_op[kept]], wanting.times.operands, flow.read_tile[kept], fill=LOAD)
        wanting.add(turns.of_op, wanting.times.result, flow.op_result, result[flow.op_form])
        self.request_slots()
        takes = np.flatnonzero(flow.is_op_class(TakeRows))
        for k in takes[np.argsort(turns.of_op[takes])].tolist():
            self.request_lookup(k)
        return wanting.sort_requests(self.versions, self.values)

    def request_slots(self) -> None:
        """Adds requests besides operands that are used as they are: constants, repeated operands, scratch memory."""
        flow = self.flow
        ops = GroupedLists.group_by(flow.op_form, np.arange(len(flow.op_form)), len(flow.forms))
        for number, (_, slots) in self.kinds.of_graph.items():
            if slots.plain and not slots.scratch:
                continue
            own = ops.values[ops.first[number] : ops.first[number + 1]]
            if not slots.plain:
                for place, slot in enumerate(slots.operands):
                    self.request_operand(own, number, slot, place)
            results: list[int] = flow.op_result[own].tolist()
            names = [flow.tiles[tile].name for tile in results]
            for i, (end, shape) in enumerate(slots.scratch):
                values = np.array([self.values.new(structs.replace(shape, name=name + end)) for name in names])
                self.request_value(own, self.wanting.times.scratch + i, values, len(slots.operands) + 1 + i)

    def request_value(
        self, ops: Ints, within: int, values: Ints, place: int, *, fill: int = MADE_BY_OPERATION, base: Ints | int = 0
    ) -> None:
        """Adds a request of each operation for one value. See `RequestCollector.add`."""
        self.wanting.add(self.turns.of_op[ops], within, values, place, fill=fill, base=base)

    def request_operand(self, ops: Ints, form: int, slot: OperandSlot, place: int) -> None:
        """Adds the requests of the operations of a form for one operand."""
        flow, within = self.flow, self.wanting.times.slots + 2 * place
        if slot.constant:
            constants = flow.use_constant[np.searchsorted(flow.use_op, ops) + slot.place]
            different: list[int] = np.unique(constants).tolist()
            known = {i: self.values.constant(flow.constants[i]) for i in different}
            values = np.array([known[i] for i in constants.tolist()])
            self.request_value(ops, within, values, UNUSED if slot.repeated else place, fill=LOAD)
        else:
            values = flow.read_tile[np.searchsorted(flow.read_op, ops) + slot.place]
            if not slot.repeated:
                self.request_value(ops, within, values, place)
        if slot.repeated:
            operand = tuple(dict.fromkeys(flow.forms[form][0].operands))[place]
            fill = self.kinds.of_op(Repeat(make_slot(slot.shape, 1), make_slot(operand, 0)))
            copies = self.repeated(slot, values, flow.op_result[ops])
            self.request_value(ops, within + 1, copies, place, fill=fill, base=values)

    def repeated(self, slot: OperandSlot, values: Ints, results: Ints) -> Ints:
        """Returns the values that hold repeated operands: one for all operations on a core that need the same.

        If samples overlap, each operation repeats computed operands anew, as others may work on an older sample.
        """
        given, shape, tiles = self.values.all, slot.shape, self.flow.tiles
        end = f".{shape.rows}x{shape.width}x{shape.channels}"
        if self.versions is not None and not slot.constant:
            pairs: Iterator[tuple[int, int]] = zip(values.tolist(), results.tolist(), strict=True)
            names = (f"{tiles[result].name}.{tiles[value].name}{end}" for value, result in pairs)
            return np.array([self.values.new(structs.replace(shape, name=name)) for name in names])
        different: list[int] = np.unique(values).tolist()
        known = {i: self.values.shared(structs.replace(shape, name=given[i].name + end)) for i in different}
        return np.array([known[i] for i in values.tolist()])

    def request_lookup(self, k: int) -> None:
        """Adds the requests of embedding lookup `k`. Must be called in the order of turns.

        Ids are read from global memory, so computed ids are stored there first.
        """
        (op,), turn = self.graph.computes[int(self.flow.op_compute[k])].body, int(self.turns.of_op[k])
        assert isinstance(op, TakeRows)
        addresses = np.array([self.ids_address(tile, turn, j) for j, tile in enumerate(op.ids)])
        sizes = np.array([self.arch.bytes_of(tile.element) for tile in op.ids])
        which, element = op.places.T
        stride = op.table.channels * self.arch.bytes_of(op.table.element)
        table = self.values.memory.constants[op.table.name]
        ids = addresses[which] + element * sizes[which]
        self.takes[turn] = self.kinds.add(
            OperationForm.from_operation(LoadRows(make_slot(op.result, 0), table, stride, op.table.pixels, ids))
        )

    def ids_address(self, tile: Tile, turn: int, j: int) -> int:
        """Returns the global address of the ids in operand `j` of a turn; adds a store if they are computed."""
        number, core = self.values.tile(tile), int(self.turns.core[turn])
        if number in self.values.address and number not in self.values.states:
            return self.values.address[number]
        address = self.values.memory.ids[tile.name, core]
        if (number, core) not in self.ids:
            self.ids.add((number, core))
            within = self.wanting.times.operands + 2 * j
            self.wanting.add(np.array([turn]), within, np.array([number]), fill=LOAD)
            self.stores.append(StoredValue(turn, within + 1, number, address))
        return address
