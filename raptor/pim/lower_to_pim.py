"""Pass from SpatialIR to PimIR: values that cross cores become channels, operands become buffers.

The programs cannot deadlock: there is one global order of all steps, in which the send and the receive of a channel are
neighbours, and the program of each core is a subsequence of it.

All operations of a kind are lowered together, as columns: `GlobalOrder` has the global order, `BufferDemand` finds the
buffers that operations need, and `Rows` collects the resulting steps."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.common.index_ranges import concatenate_ranges
from raptor.pim import ir
from raptor.pim.buffer_demand import BufferDemand, StoredValue
from raptor.pim.buffer_requests import UNUSED, BufferRequests, RequestCollector
from raptor.pim.form_collector import FormCollector
from raptor.pim.global_memory import GlobalMemory
from raptor.pim.global_order import GlobalOrder, TurnLayout
from raptor.pim.operations import make_slot
from raptor.pim.sample_versions import SampleVersions, clear_carried
from raptor.pim.state_updates import StateRuns, WaitingCores
from raptor.pim.step_builder import StepBuilder
from raptor.pim.step_columns import LOAD, RECEIVE, SEND, STORE, TRANSFERS, WHOLE_BUFFER, FormTable, StepColumns
from raptor.pim.value_numbering import ValueNumbering
from raptor.spatial.dataflow import Dataflow, GroupedLists
from raptor.spatial.ir import Copy, SpatialGraph, TensorParts
from raptor.spatial.operations import Move, shape_key
from raptor.spatial.placed_graph import Schedule
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]


def lower(schedule: Schedule, memory: GlobalMemory, arch: Target) -> ir.PimProgram:
    """Returns the programs of all cores."""
    graph = schedule.placed.graph
    flow, values, kinds = (
        graph.dataflow,
        ValueNumbering.from_graph(graph, memory),
        FormCollector.from_dataflow(graph.dataflow, graph.filters),
    )
    made = set(flow.result_tile.tolist())
    unmade = [tile for tile in values.outputs if tile not in made]
    turns = GlobalOrder.from_schedule(flow, schedule, unmade, arch.first_core)
    runs = StateRuns.from_graph(graph, values)
    versions = SampleVersions.from_order(flow, turns) if schedule.stages else None
    times = _times(flow, kinds, values, len(runs.state) * arch.core_count, max(schedule.stages, default=0))
    demand = BufferDemand(graph, arch, values, kinds, RequestCollector(turns, times), versions)
    return _Lowering(
        schedule, graph, arch, values, kinds, turns, times, demand, demand.collect_requests(), runs
    ).program()


def _times(flow: Dataflow, kinds: FormCollector, values: ValueNumbering, updates: int, older: int) -> TurnLayout:
    """Returns a division of turns that has room for the largest turn. `updates`: most copies of runs of states."""
    slots = [slots for _, slots in kinds.of_graph.values()]
    return TurnLayout.for_sizes(
        reads=int(np.bincount(flow.read_op).max(initial=0)),
        slots=max((len(s.operands) for s in slots), default=0),
        scratch=max((len(s.scratch) for s in slots), default=0),
        stores=sum(map(len, values.outputs.values())),
        updates=updates,
        older=older,
    )


@dataclass(slots=True)
class _Lowering:
    """Makes the steps of all cores from the buffer requests of their operations.

    state_runs: where the next values of states come from. rows: steps so far; those before time 0 run once after
    power-up.
    """

    schedule: Schedule
    graph: SpatialGraph
    arch: Target
    values: ValueNumbering
    kinds: FormCollector
    turns: GlobalOrder
    times: TurnLayout
    demand: BufferDemand
    wants: BufferRequests
    state_runs: StateRuns
    rows: StepBuilder = field(default_factory=StepBuilder)

    @property
    def flow(self) -> Dataflow:
        return self.graph.dataflow

    def program(self) -> ir.PimProgram:
        groups, first_group = self.groups()
        row = self.work(first_group)
        messages = [self.fill(), self.copy(row)]
        if self.values.states:
            messages.append(self.update())
        if self.demand.versions is not None:
            self.copy_older(self.demand.versions)
        channels = self.exchange(messages, row)
        self.store([*self.demand.stores, *self.stored_outputs()])
        forms = FormTable(tuple(self.kinds.forms))
        steps, once, place = self.rows.steps(forms, self.turns.nodes, self.values.all, self.wants)
        states = self.state_buffers()
        cores = {i: _core_program(i, tuple(groups[i]), core_steps, once[i]) for i, core_steps in steps.items()}
        cores |= {i: replace(cores[i], states=buffers) for i, buffers in states.items()}
        if self.demand.versions is not None:
            return ir.PimProgram(self.graph.name, clear_carried(cores), channels, (), self.delays())
        core, step = self.made(place[row])
        traces = (self.trace(tensor, core, step) for tensor in self.graph.tensors.values() if tensor.in_model)
        return ir.PimProgram(self.graph.name, cores, channels, tuple(trace for trace in traces if trace))

    def groups(self) -> tuple[Mapping[int, list[ir.ArrayGroup]], Ints]:
        """Returns the array groups of each core, and the number of the first group of each operation on its core.

        Equal matrices share a group. A form with matrices belongs to one layer and one tuple of matrices.
        """
        flow, turns = self.flow, self.turns
        has = np.array([bool(compute.matrices) for _, compute in flow.forms], np.bool_)[flow.op_form]
        ops = np.flatnonzero(has)
        ops = ops[np.argsort(turns.of_op[ops])]
        key = turns.core[turns.of_op[ops]] * len(flow.forms) + flow.op_form[ops]
        keys, first, which = np.unique(key, return_index=True, return_inverse=True)
        groups: defaultdict[int, list[ir.ArrayGroup]] = defaultdict(list)
        begins: dict[tuple[int, ir.ArrayGroup], int] = {}
        numbers = np.zeros(len(keys), np.int64)
        for k in np.argsort(first).tolist():
            core, form = divmod(int(keys[k]), len(flow.forms))
            _, compute = flow.forms[form]
            bits = self.graph.filters[compute.layer].weight_bits
            wanted = [ir.ArrayGroup(compute.layer, m, bits) for m in compute.matrices]
            if (core, wanted[0]) not in begins:
                begins[core, wanted[0]] = len(groups[core])
                groups[core] += wanted
            numbers[k] = begins[core, wanted[0]]
        first_group = np.zeros(len(flow.op_form), np.int64)
        first_group[ops] = numbers[which.reshape(-1)]
        return groups, first_group

    def work(self, first_group: Ints) -> Ints:
        """Adds the rows of all operations but copies. Returns the row of each operation; -1 for copies."""
        turns, wants, form = self.turns, self.wants, np.full(len(self.flow.forms), -1)
        for number, (kind, _) in self.kinds.of_graph.items():
            form[number] = kind
        forms = form[self.flow.op_form]
        for turn, number in self.demand.takes.items():
            forms[turns.op[turn]] = number
        ops = np.flatnonzero(forms >= 0)
        turn = turns.of_op[ops]
        row = np.full(len(forms), -1)
        at = self.times.slot_time(turn, self.times.own)
        row[ops] = self.rows.add(at, turns.core[turn], forms[ops], turns.node[turn], number=first_group[ops])
        used = wants.place != UNUSED
        self.rows.use(row[turns.op[wants.turn[used]]], wants.place[used], wants.buffer[used])
        return row

    def fill(self) -> "_Messages":
        """Adds the rows that fill new buffers from global memory or on the core. Returns messages for other buffers."""
        rows, wants, address = self.rows, self.wants, self.values.addresses()
        node = self.turns.node[wants.turn]
        brought, loaded = wants.new & (wants.fill == LOAD), address[wants.value] >= 0
        kept = np.isin(wants.value, [*self.values.states])
        w = np.flatnonzero(brought & loaded)
        at = np.where(kept[w], np.arange(len(w)) - len(w), wants.at[w])
        rows.add(at, wants.core[w], LOAD, node[w], wants.buffer[w], number=address[wants.value[w]])
        w = np.flatnonzero(wants.new & (wants.fill >= len(TRANSFERS)))
        base = wants.buffer_of(self.read(wants.base[w], wants.core[w], wants.turn[w]), wants.core[w])
        rows.add(wants.at[w], wants.core[w], wants.fill[w], node[w], base, wants.buffer[w])
        w = np.flatnonzero(brought & ~loaded)
        home = self.homes()[wants.value[w]]
        given = wants.buffer_of(self.read(wants.value[w], home, wants.turn[w]), home)
        every = np.full((len(w), 2), (WHOLE_BUFFER, 0))
        return _Messages(wants.at[w], node[w], home, given, every, wants.core[w], wants.buffer[w], every)

    def copy(self, row: Ints) -> "_Messages":
        """Adds rows of copies that need no message, with their numbers in `row`. Returns messages for other copies."""
        flow, turns, wants, rows = self.flow, self.turns, self.wants, self.rows
        ops = np.flatnonzero(flow.is_op_class(Copy))
        sizes = (
            (op.first, op.at, op.elements, self.arch.bytes_of(op.source.element)) if isinstance(op, Copy) else (0,) * 4
            for op, _ in flow.forms
        )
        first, into, elements, each_bytes = np.array([*sizes], np.int64).reshape(-1, 4)[flow.op_form[ops]].T
        turn, tile = turns.of_op[ops], flow.read_tile[np.searchsorted(flow.read_op, ops)]
        at, core, node = self.times.slot_time(turn, self.times.own), turns.core[turn], turns.node[turn]
        out = wants.buffer_of(flow.op_result[ops], core)
        kept = np.isin(tile, [*self.values.states])
        home = np.where(kept, core, self.homes()[tile])
        address = np.where(kept, -1, self.values.addresses()[tile])
        c = np.flatnonzero(address >= 0)
        number = address[c] + first[c] * each_bytes[c]
        row[ops[c]] = rows.add(
            at[c], core[c], LOAD, node[c], out[c], number=number, first=into[c], elements=elements[c]
        )
        c = np.flatnonzero((address < 0) & (home == core))
        forms = self.moves(flow.op_form[ops[c]])
        row[ops[c]] = rows.add(
            at[c], core[c], forms, node[c], wants.buffer_of(self.read(tile[c], home[c], turn[c]), home[c]), out[c]
        )
        c = np.flatnonzero((address < 0) & (home != core))
        given = wants.buffer_of(self.read(tile[c], home[c], turn[c]), home[c])
        taken = np.stack([first[c], elements[c]], axis=1)
        span = np.stack([into[c], elements[c]], axis=1)
        return _Messages(at[c], node[c], home[c], given, taken, core[c], out[c], span, ops[c])

    def moves(self, forms: Ints) -> Ints:
        """Returns the form of a local copy for each form in `forms`, which are copies of the graph."""
        different: list[int] = np.unique(forms).tolist()
        kind_of: dict[int, int] = {}
        for number in different:
            op, _ = self.flow.forms[number]
            assert isinstance(op, Copy)
            runs = np.array([[op.at, 0, op.first, 1, op.elements]])
            kind_of[number] = self.kinds.of_op(Move(make_slot(op.result, 1), (make_slot(op.source, 0),), runs))
        return np.array([kind_of[number] for number in forms.tolist()], np.int64)

    def update(self) -> "_Messages":
        """Adds rows that give states their next values, on each core that reads them. Returns messages for the others.

        A run of elements follows when it is made, and the state has been read for the last time on that core; for
        caches, see `cache_turns`.
        """
        wants, times, runs, rows = self.wants, self.times, self.state_runs, self.rows
        kept = np.flatnonzero(np.isin(wants.value, [*self.values.states]))
        pairs, which = np.unique(np.stack([wants.value[kept], wants.core[kept]], axis=1), axis=0, return_inverse=True)
        read = np.full(len(pairs), -1)
        np.maximum.at(read, which.reshape(-1), wants.turn[kept])
        pair, run = _matches(pairs[:, 0], runs.state)
        core, source = pairs[pair, 1], runs.source[run]
        turn = np.maximum(read[pair], self.last_turns()[source])
        home = self.homes()[source]
        turn = np.where(np.isin(runs.state[run], self.caches()), self.cache_turns(run, core, turn), turn)
        at = times.slot_time(turn, times.update) + _number_equal(turn)
        into, out, node = wants.buffer_of(runs.state[run], core), np.zeros_like(core), self.turns.node[turn]
        span = np.stack([runs.into[run], runs.elements[run]], axis=1)
        taken = np.stack([runs.first[run], runs.elements[run]], axis=1)
        address = self.values.addresses()[source]
        c = np.flatnonzero(address >= 0)
        loaded: list[int] = source[c].tolist()
        each = np.array([self.arch.bytes_of(self.values.all[tile].element) for tile in loaded], np.int64)
        number = address[c] + taken[c, 0] * each
        rows.add(at[c], core[c], LOAD, node[c], into[c], number=number, first=span[c, 0], elements=span[c, 1])
        made = np.flatnonzero(address < 0)
        out[made] = wants.buffer_of(source[made], home[made])
        c = np.flatnonzero((address < 0) & (home == core))
        rows.add(at[c], core[c], self.run_moves(run[c]), node[c], out[c], into[c])
        c = np.flatnonzero((address < 0) & (home != core))
        return _Messages(at[c], node[c], home[c], out[c], taken[c], core[c], into[c], span[c])

    def cache_turns(self, run: Ints, core: Ints, ready: Ints) -> Ints:
        """Returns the turn after which each run of a cache gets its next value; `ready`: the first one possible.

        On one core, this is when it waits for others. Rows of another core follow after all other work of both: an
        older row that one core waits for is still in use on another.
        """
        runs, last = self.state_runs, self.last_of_cores()
        home = self.homes()[runs.source[run]]
        turns = np.maximum(ready, np.maximum(last[core], np.where(home >= 0, last[home], -1)))
        own = np.flatnonzero(np.isin(runs.state[run], self.caches()) & (home == core))
        if len(own):
            waiting = WaitingCores.from_schedule(self.schedule, self.turns, self.arch)
            chosen = runs.state[run[own]], runs.elements[run[own]]
            turns[own] = waiting.choose_turns(core[own], *chosen, ready[own], turns[own])
        return turns

    def state_buffers(self) -> dict[int, Ints]:
        """Returns the buffers of states on each core that has some."""
        wants = self.wants
        kept = np.isin(wants.value, [*self.values.states])
        core, buffer = wants.core[kept], wants.buffer[kept]
        return {i: np.unique(buffer[core == i]) for i in np.unique(core).tolist()}

    def last_turns(self) -> Ints:
        """Returns the last turn that makes a part of each value; -1 for values that no operation makes."""
        last = np.full(len(self.values.all), -1)
        np.maximum.at(last, self.flow.op_result, self.turns.of_op)
        return last

    def caches(self) -> Ints:
        """Returns the tiles of the states whose next values products read."""
        multiplied = {use.right for use in self.graph.product_of.values()}
        names = (pair.input for pair in self.graph.residency.states if pair.output in multiplied)
        return np.array([self.values.tile(part.tile) for n in names for part in self.graph.tensors[n].parts], np.int64)

    def last_of_cores(self) -> Ints:
        """Returns the last turn of each core, and of those to which it sends."""
        turns, flow, homes = self.turns, self.flow, self.homes()
        number, last = np.arange(len(turns.core)), np.full(self.arch.core_count, -1)
        np.maximum.at(last, turns.core, number)
        fetches = np.flatnonzero(turns.tile >= 0)
        copies = np.flatnonzero(flow.is_op_class(Copy))
        copied = flow.read_tile[np.searchsorted(flow.read_op, copies)]
        for turn, tile in ((number[fetches], turns.tile[fetches]), (turns.of_op[copies], copied)):
            made = homes[tile] >= 0
            np.maximum.at(last, homes[tile[made]], turn[made])
        return last

    def run_moves(self, runs: Ints) -> Ints:
        """Returns the form of a local copy for each of some runs of states. Equal tiles and runs share one."""
        given, known = self.state_runs, dict[Hashable, int]()
        columns = (given.state, given.source, given.into, given.first, given.elements)
        rows: list[list[int]] = np.stack([column[runs] for column in columns], axis=1).tolist()
        forms: list[int] = []
        for tile, made, into, first, elements in rows:
            state, source = self.values.all[tile], self.values.all[made]
            key = shape_key(state), shape_key(source), into, first, elements
            if key not in known:
                moved = np.array([[into, 0, first, 1, elements]])
                known[key] = self.kinds.of_op(Move(make_slot(state, 1), (make_slot(source, 0),), moved))
            forms.append(known[key])
        return np.array(forms, np.int64)

    def read(self, value: Ints, core: Ints, turn: Ints) -> Ints:
        """Returns the numbers of the values that turns read on cores: of the sample that each turn works on."""
        versions = self.demand.versions
        return value if versions is None else versions.read(value, core, turn)

    def copy_older(self, versions: SampleVersions) -> None:
        """Adds the copies of values that a later turn reads for an older sample."""
        moves = versions.moves()
        most = max((late for _, late, *_ in moves), default=0)
        for turn, late, source, target in moves:
            core, shape = self.turns.core[[turn]], self.values.all[source]
            runs = np.array([[0, 0, 0, 1, shape.elements]])
            form = self.kinds.of_op(Move(make_slot(shape, 1), (make_slot(shape, 0),), runs))
            at = self.times.slot_time(np.array([turn]), most - late)
            given, older = (self.wants.buffer_of(np.array([value]), core) for value in (source, target))
            self.rows.add(at, core, form, self.turns.node[[turn]], given, older)

    def delays(self) -> dict[str, int]:
        """Returns the number of passes from the load of a sample to the store of each output."""
        stage = np.zeros(len(self.values.all), np.int64)
        stage[self.flow.op_result] = self.turns.stage[self.turns.of_op]
        tiles = {
            name: [self.values.tiles[part.tile.name] for part in self.graph.tensors[name].parts]
            for name in self.graph.outputs
        }
        return {name: int(stage[numbers].max()) for name, numbers in tiles.items()}

    def exchange(self, parts: "Sequence[_Messages]", row: Ints) -> int:
        """Adds the sends and receives of messages, and the receives of copies to `row`. Returns the number of channels.

        The send and the receive of a message have the same time, so they are neighbours in the global order; channels
        are numbered in that order.
        """
        channel = np.argsort(np.argsort(np.concatenate([m.at for m in parts])))
        ends = np.cumsum([len(m.at) for m in parts])
        for m, numbers in zip(parts, np.split(channel, ends[:-1]), strict=True):
            (first, elements), (into, received) = m.taken.T, m.into.T
            self.rows.add(
                m.at, m.home, SEND, m.node, m.given, number=numbers, peer=m.core, first=first, elements=elements
            )
            rows = self.rows.add(
                m.at, m.core, RECEIVE, m.node, m.buffer, number=numbers, peer=m.home, first=into, elements=received
            )
            if m.op is not None:
                row[m.op] = rows
        return len(channel)

    def store(self, stores: Sequence[StoredValue]) -> None:
        columns = [(s.turn, s.within, s.value, s.address) for s in stores]
        turn, within, value, address = np.array(columns, np.int64).reshape(-1, 4).T
        at, core = self.times.slot_time(turn, within), self.turns.core[turn]
        given = self.wants.buffer_of(self.read(value, core, turn), core)
        self.rows.add(at, core, STORE, self.turns.node[turn], given, number=address)

    def homes(self) -> Ints:
        """Returns the core that makes each value; -1 for values that no operation makes."""
        core = np.full(len(self.values.all), -1)
        core[self.flow.op_result] = self.turns.core[self.turns.of_op]
        return core

    def made(self, place: Ints) -> tuple[Ints, Ints]:
        """Returns the core of each computed value, and the number of steps there after which it is complete; else -1.

        place: the number of the step of each operation.
        """
        flow, turns = self.flow, self.turns
        ops = turns.op[turns.op >= 0]  # in order, so that the last one that fills a tile stays
        step = np.full(len(self.values.all), -1)
        step[flow.op_result[ops]] = place[ops] + 1
        return self.homes(), step

    def trace(self, tensor: TensorParts, core: Ints, step: Ints) -> ir.TensorTrace | None:
        """Returns where the parts of a tensor can be observed; None if some part is not computed."""
        tiles = [self.values.tiles.get(part.tile.name) for part in tensor.parts]
        value = np.array([tile for tile in tiles if tile is not None], np.int64)
        if len(value) < len(tiles) or (step[value] < 0).any():
            return None
        element = tensor.parts[0].tile.element
        coding = tensor.coding and tensor.coding.reshape_to(tensor.shape, tensor.image.shape)
        regions = tuple([part.region for part in tensor.parts])
        return ir.TensorTrace(
            tensor.name, tensor.node, tensor.image, regions, core[value], step[value], element, coding
        )

    def stored_outputs(self) -> Iterator[StoredValue]:
        """Yields the stores of model outputs: after the first compute that makes the tile, else at the end."""
        flow, turns, outputs = self.flow, self.turns, self.values.outputs
        makers = GroupedLists.group_by(flow.result_tile, flow.result_compute, len(self.values.all))
        end = {tile: turn for turn, tile in enumerate(turns.tile.tolist()) if turns.op[turn] < 0}
        first: dict[int, int] = {}
        for tile in outputs:
            maker_turns = turns.last[makers.values[makers.first[tile] : makers.first[tile + 1]]]
            first[tile] = int(maker_turns.min()) if len(maker_turns) else end[tile]
        results: list[int] = flow.result_tile.tolist()
        place = {tile: i for i, tile in enumerate(results)}
        count: dict[int, int] = {}
        for tile in sorted(outputs, key=lambda tile: place.get(tile, tile)):
            for address in outputs[tile]:
                turn = first[tile]
                count[turn] = count.get(turn, 0) + 1
                yield StoredValue(turn, self.times.store + count[turn] - 1, tile, address)


def _core_program(core: int, groups: tuple[ir.ArrayGroup, ...], steps: StepColumns, once: int) -> ir.CoreProgram:
    """Returns the program of a core whose first `once` steps run once after power-up."""
    if not once:
        return ir.CoreProgram(core, groups, steps)
    numbers = np.arange(len(steps))
    return ir.CoreProgram(core, groups, steps.select(numbers[once:]), init=steps.select(numbers[:once]))


def _matches(values: Ints, among: Ints) -> tuple[Ints, Ints]:
    """Returns all pairs of an index of `values` and one of `among` with equal elements, sorted."""
    order = np.argsort(among, kind="stable")
    begin, end = (np.searchsorted(among[order], values, side=side) for side in ("left", "right"))
    within, index = concatenate_ranges(end - begin)
    return index, order[begin[index] + within]


def _number_equal(values: Ints) -> Ints:
    """Numbers equal values from 0, in order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    number = np.empty_like(values)
    number[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return number


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """Messages as columns: time and node; sending core and buffer (`home`, `given`); receiving core and buffer.

    taken, into: [messages, 2], spans of both buffers. op: the copies that these messages implement, or None.
    """

    at: Ints
    node: Ints
    home: Ints
    given: Ints
    taken: Ints
    core: Ints
    buffer: Ints
    into: Ints
    op: Ints | None = None
