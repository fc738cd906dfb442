"""Pass from PlacedGraph to Schedule: a list schedule of all computes on a chip with blocking messages.

A compute starts when its core is free and its inputs are there; a message keeps both cores busy. `pim.lower` keeps this
order, so it decides which core waits for which, never what is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.options.option_values import MOST_STAGES
from raptor.common.sorted_sets import distinct_rows, sorted_unique
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.scheduling.order_selection import StepOrder, named_order
from raptor.mapping.scheduling.sample_stages import StageOrder, StageRules, named_stages
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy, SpatialGraph, TakeRows
from raptor.spatial.operation_costs import operation_times_ns
from raptor.spatial.operations import ApplyFilters, ApplyLine, Move
from raptor.spatial.placed_graph import Fetch, PlacedGraph, Schedule
from raptor.spatial.repeated_operands import repetition_ns
from raptor.spatial.scheduling.dependences import StepDependences
from raptor.spatial.scheduling.idle_gaps import delay_moves
from raptor.spatial.tiles import ConstantTile
from raptor.target.arch import Target
from raptor.target.timing import (
    ISSUE_NS,
    copy_ns,
    global_port_ns,
    load_ns,
    message_times,
    store_ns,
    store_port_ns,
)

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Ints, SampleWork

Floats = npt.NDArray[np.float64]


def schedule(placed: PlacedGraph, decision: Decision, arch: Target) -> Schedule:
    """Returns the computes in a global order: the list schedule that the decision names if it is by line, else as is.

    Ties are broken by `ScheduleProblem.rank`.
    """
    count, flow = len(placed.graph.computes), decision.flow
    if not isinstance(flow, LineFlow) or not count:
        return Schedule(placed, (), tuple(range(count)))
    order: list[int] = []
    fetches: list[Fetch] = []
    name = StepOrder(flow.patience_ns, flow.sample)
    stages: list[int] = []
    for together in _together(placed, flow):
        problem = ScheduleProblem.from_graph(arch, placed, together)
        if flow.stages is None:
            local = problem.finished(named_order(problem.sample_work(), name))
        else:
            inside = StepOrder(flow.stages.patience_ns, flow.stages.sample)
            split = StageOrder(flow.stages.interval_ns, inside, flow.stages.method)
            local, stage = named_stages(problem.sample_work(), name, problem.stage_rules(), split)
            if (most := int(stage.max()) + 1) > MOST_STAGES:
                more = f"{most} stages, more than {MOST_STAGES}; a longer interval has fewer"
                raise UserError(f"decision.flow.stages: {more}")
            stages = stage.tolist()
        first = count + len(fetches)
        numbers = np.concatenate([together, np.arange(first, first + len(problem.fetched))])
        order += numbers[local].tolist()
        fetches += problem.fetched
    return Schedule(placed, tuple(fetches), tuple(order), tuple(stages))


def _together(placed: PlacedGraph, flow: LineFlow) -> list[range]:
    """Returns ranges of computes that are scheduled together: all, or one range per node if not streamed."""
    computes = placed.graph.computes
    if flow.streamed:
        return [range(len(computes))]
    ends = accumulate((len(list(run)) for _, run in groupby(computes, key=lambda c: c.node)), initial=0)
    return [range(first, last) for first, last in pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleProblem:
    """A range of computes to schedule, with the fetches of tiles that they read from other cores.

    Steps are the computes, numbered from 0, then the fetches; `core` and `position` have an entry for each step.
    outputs, output_of: pairs of a tile that is stored in global memory and its output, by number; outputs may share a
    tile. inputs: numbers of the tiles of inputs. pinned: tiles of outputs that have parts which no compute makes.
    resident: numbers of values that are on their cores before the first step; numbered as by `loads`. operation_ns:
    time of each operation in ns. is_decoder: whether products read states of the next step. is_single: whether each
    layer makes one pixel. contents: see `_contents`.
    """

    arch: Target
    needs: StepDependences
    fetched: tuple[Fetch, ...]
    core: "Ints"
    position: Floats
    outputs: "Ints"
    output_of: "Ints"
    pinned: "Ints"
    inputs: "Ints"
    resident: "Ints"
    operation_ns: Floats
    is_decoder: bool
    is_single: bool
    contents: "Ints"

    @classmethod
    def from_graph(cls, arch: Target, placed: PlacedGraph, together: range) -> "ScheduleProblem":
        """Makes the problem of the computes `together` of a graph."""
        graph, chosen = placed.graph, slice(together.start, together.stop)
        core = np.array(placed.cores[chosen], np.int64)
        position = np.array(placed.positions[chosen], np.float64)
        needs = StepDependences.from_dataflow(graph.dataflow.part(together), core)
        user, tiles, nodes = needs.fetch_user, needs.flow.tiles, needs.flow.nodes
        rows: list[list[int]] = np.stack([needs.fetch_tile, core[user], user], axis=1).tolist()
        fetched = tuple(Fetch(tiles[t], c, nodes[i]) for t, c, i in rows)
        leaving = [name for name in graph.outputs if name not in graph.residency.state_outputs]
        stored = [(part.tile.name, k) for k, name in enumerate(leaving) for part in graph.tensors[name].parts]
        number = needs.flow.number
        pairs = [(number[name], k) for name, k in stored if name in number]
        outputs, output_of = np.array(pairs, np.int64).reshape(-1, 2).T
        made = needs.makers.is_nonempty(np.arange(len(tiles)))
        partly = {k for name, k in stored if name not in number or not made[number[name]]}
        pinned = outputs[np.isin(output_of, sorted(partly))]
        core, position = np.append(core, core[user]), np.append(position, position[user])
        given = (part.tile.name for name in graph.inputs for part in graph.tensors[name].parts)
        inputs = np.array([number[name] for name in given if name in number], np.int64)
        is_decoder = any(use.right in graph.residency.state_outputs for use in graph.product_of.values())
        return cls(
            arch,
            needs,
            fetched,
            core,
            position,
            outputs,
            output_of,
            pinned,
            inputs,
            _resident(graph, needs.flow),
            operation_times_ns(needs.flow, graph.filters, arch),
            is_decoder,
            all(layer.window.out_pixels == 1 for layer in graph.filters.values()),
            _contents(needs.flow),
        )

    @property
    def computes(self) -> int:
        """Number of computes among the steps."""
        return len(self.core) - len(self.fetched)

    @property
    def copies_state(self) -> npt.NDArray[np.bool_]:
        """True for each step that copies a tile of a state, or another value that is on its core before the sample."""
        taken = self.needs.taken
        return (taken >= 0) & ~self.needs.transfers & np.isin(taken, self.resident)

    def sample_work(self) -> "SampleWork":
        """Returns all steps as columns for the list scheduler."""
        from raptor.mapping.scheduling.schedule_kernel import SampleWork  # compiled code is loaded only where it runs

        count, edges, core = len(self.core), self.needs.edges, self.core
        peer, sizes, local_ns = self.messages()
        times = message_times(self.arch, peer, core, sizes)
        memory_ns, around_ns = self.memory()
        return SampleWork(
            core,
            peer,
            times.request_ns,
            times.grant_ns,
            times.sender_ns + ISSUE_NS,
            times.wire_ns,
            np.where(peer >= 0, times.receiver_ns + ISSUE_NS, local_ns),
            memory_ns,
            around_ns + self.work_ns(),
            self.rank(),
            np.bincount(edges[:, 1], minlength=count),
            np.searchsorted(edges[:, 0], np.arange(count + 1)).astype(np.int64),
            np.ascontiguousarray(edges[:, 1]),
        )

    def finished(self, order: "Ints") -> "Ints":
        """Returns an order of all steps, in which the moves of a decoder's states are where their cores wait."""
        return delay_moves(self.sample_work(), self.moves_state, order) if self.is_decoder else order

    @property
    def moves_state(self) -> npt.NDArray[np.bool_]:
        """True for each step that only moves elements of states, so that it could be first on its core."""
        flow, found = self.needs.flow, np.zeros(len(self.core), np.bool_)
        found[flow.op_compute[flow.is_op_class(Copy) | flow.is_op_class(Move)]] = True
        found[flow.op_compute[~(flow.is_op_class(Copy) | flow.is_op_class(Move))]] = False
        found[self.computes :] = False
        found[self.needs.reader[~np.isin(self.needs.read, self.resident)]] = False
        return found

    def rank(self) -> "Ints":
        """Returns the priority of each step among steps that can start at the same time; the lowest comes first.

        Rows higher up in the image come first, then messages before other work, then steps nearer to the end. Steps of
        a decoder come in the order in which they are needed instead, as a layer needs all outputs of the one before.
        Where each layer makes one pixel, as for one token, those come first after which most nodes follow one another.
        """
        number = np.arange(len(self.core))
        rank = np.empty_like(number)
        if self.is_decoder:
            order = np.lexsort((self.turns(), self.needed(), self.moves_state))
        elif self.is_single:
            order = np.lexsort((-number, self.needs.taken < 0, -self.following()))
        else:
            order = np.lexsort((-number, self.needs.taken < 0, self.position))
        rank[order] = number
        return rank

    def turns(self) -> Floats:
        """Returns a number for each step, in the order of the computes; a fetch comes just before its first user."""
        return np.append(np.arange(self.computes), self.needs.fetch_user - 0.5).astype(np.float64)

    def needed(self) -> Floats:
        """Returns the turn at which the result of each step is needed, see `turns`.

        For results of products, and of what reads them, it is the turn of the step. Other steps, such as lookups of
        masks, could all be first; they are needed when a step that depends on products reads them.
        """
        flow, turns = self.needs.flow, self.turns()
        late = np.zeros(len(turns), np.bool_)
        late[flow.op_compute[flow.is_op_class(ApplyLine) | flow.is_op_class(ApplyFilters)]] = True
        edges = self.needs.edges[np.argsort(turns[self.needs.edges[:, 0]], kind="stable")].tolist()
        for before, after in edges:
            late[after] |= late[before]
        found = np.where(late, turns, np.inf).tolist()
        for before, after in reversed(edges):
            if not late[before]:
                found[before] = min(found[before], found[after])
        return np.minimum(found, len(turns))

    def following(self) -> "Ints":
        """Returns the number of nodes on the longest path from each step to an end."""
        nodes = self.needs.flow.nodes
        user: list[int] = self.needs.fetch_user.tolist()
        node = [*nodes, *(nodes[step] for step in user)]
        found: list[int] = [0] * len(self.core)
        by_turn = np.argsort(self.turns()[self.needs.edges[:, 0]], kind="stable")
        edges: list[list[int]] = self.needs.edges[by_turn].tolist()
        for before, after in reversed(edges):
            found[before] = max(found[before], found[after] + (node[before] != node[after]))
        return np.array(found)

    def messages(self) -> tuple["Ints", "Ints", Floats]:
        """Returns the transfer of each step: sending core (-1: none), bytes, and ns of a copy inside the core."""
        taken, elements, moved = self.needs.taken, self.needs.elements, self.needs.transfers
        source = self.needs.source(self.core)
        inside = moved & (source == self.core) | self.copies_state
        element_bytes = np.array([self.arch.bytes_of(element) for element in self.needs.flow.types], np.int64)
        sizes, local_ns = np.zeros(len(taken), np.int64), np.zeros(len(taken))
        sizes[moved] = elements[moved] * element_bytes[self.needs.flow.tile_type[taken[moved]]]
        local_ns[inside] = self.each(self.needs.flow.tile_type[taken[inside]], elements[inside], copy_ns)
        return np.where(inside, -1, source), sizes, local_ns

    def memory(self) -> tuple[Floats, Floats]:
        """Returns the ns for which transfers of each step occupy the global memory port, and the rest of their time."""
        step, kind, elements, stored = self.memory_transfers()
        at_port = [self.each(kind, elements, port_ns) for port_ns in (global_port_ns, store_port_ns)]
        whole = [self.each(kind, elements, ns, self.core[step]) for ns in (load_ns, store_ns)]
        busy_ns, whole_ns = np.where(stored, at_port[1], at_port[0]), np.where(stored, whole[1], whole[0])
        return _summed(step, busy_ns, len(self.core)), _summed(step, whole_ns - busy_ns, len(self.core))

    def memory_transfers(self) -> "tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]":
        """Returns (step, element type, number of elements, is a store) of each load and store of global memory.

        A transfer step loads tiles that no compute makes, unless they stay on the chip. Any other compute loads what it
        is the first on its core to use, and stores its results that are outputs of the model.
        """
        flow, taken = self.needs.flow, self.needs.taken
        copies = np.flatnonzero((taken >= 0) & ~self.needs.transfers & ~self.copies_state)
        loads, loaded = self.loads()
        stores = np.isin(flow.result_tile, self.outputs) & (taken[flow.result_compute] < 0)
        value = np.concatenate([loaded, flow.result_tile[stores]])
        kinds = [flow.types.index(constant.element) for constant in flow.constants]
        kind = np.concatenate([flow.tile_type, np.array(kinds, np.int64)])
        size = np.concatenate([flow.tile_elements, np.array([c.elements for c in flow.constants], np.int64)])
        step = np.concatenate([copies, loads, flow.result_compute[stores]])
        return (
            step,
            np.concatenate([kind[taken[copies]], kind[value]]),
            np.concatenate([self.needs.elements[copies], size[value]]),
            np.arange(len(step)) >= len(copies) + len(loads),
        )

    def loads(self) -> "tuple[Ints, Ints]":
        """Returns (compute, value) pairs: the first use of each value that is loaded to a core.

        Constants are numbered after tiles, equal ones are loaded once. Rows of tables and resident values are excluded.
        """
        flow, taken = self.needs.flow, self.needs.taken
        reader, tile = self.needs.reader, self.needs.read
        given = ~self.needs.makers.is_nonempty(tile)
        whole = ~flow.is_op_class(TakeRows)[flow.use_op]
        user = np.concatenate([reader[given], flow.op_compute[flow.use_op[whole]]])
        value = np.concatenate([tile[given], len(flow.tiles) + flow.use_constant[whole]])
        order = np.argsort(user, kind="stable")
        order = order[(taken[user[order]] < 0) & ~np.isin(value[order], self.resident)]
        user, value = user[order], value[order]
        there = self.contents[value] * (self.core.max() + 1) + self.core[user]
        _, first, number = np.unique(there, return_index=True, return_inverse=True)
        chosen = user == user[first][number.reshape(-1)]
        return user[chosen], value[chosen]

    def each(self, kind: "Ints", elements: "Ints", cost: Callable[..., float], *of: "Ints") -> Floats:
        """Returns `cost` of each row (element type, elements, further arguments), called once per distinct row."""
        first, index = distinct_rows(kind, elements, *of)
        targets = [self.arch.with_element(element) for element in self.needs.flow.types]
        rows = np.stack([kind, elements, *of], axis=1)[first].tolist()
        asked = [cost(targets[k], *arguments) for k, *arguments in rows]
        return np.array(asked, np.float64)[index]

    def stage_rules(self) -> StageRules:
        """Returns what stages must be for each value to be of one sample.

        Embedding lookups share the stage of their ids in global memory, so all have one.
        """
        flow, inputs = self.needs.flow, np.isin(self.needs.read, self.inputs)
        several = np.bincount(flow.result_tile, minlength=len(flow.tiles))[flow.result_tile] > 1
        stored, index = self.needs.makers.select_keys(self.outputs)
        lookups = np.array(flow.computes_with_class(TakeRows), np.int64)
        member = np.concatenate([flow.result_compute[several], stored, lookups])
        of_outputs, of_lookups = -2 - self.output_of[index], np.full(len(lookups), -1)
        key = np.concatenate([flow.result_tile[several], of_outputs, of_lookups])
        group = np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)
        pinned = flow.result_compute[np.isin(flow.result_tile, self.pinned)]
        return StageRules(sorted_unique(np.concatenate([self.needs.reader[inputs], pinned])), member, group)

    def version_ns(self) -> Floats:
        """Returns the ns of a copy, inside a core, of all that each step makes or fetches."""
        flow = self.needs.flow
        fetches = np.arange(self.computes, len(self.core))
        first, _ = distinct_rows(flow.result_compute, flow.result_tile)
        step, tile = flow.result_compute[first], flow.result_tile[first]
        step, tile = np.append(step, fetches), np.append(tile, self.needs.taken[fetches])
        return _summed(step, self.each(flow.tile_type[tile], flow.tile_elements[tile], copy_ns), len(self.core))

    def work_ns(self) -> Floats:
        """Returns the estimated ns of each step on its core, without transfers."""
        flow, there = self.needs.flow, self.contents.copy()
        there[self.resident] = -1
        work_ns = _summed(flow.op_compute, self.operation_ns, len(self.core))
        work_ns[: self.computes] += repetition_ns(flow, self.core[: self.computes], there, self.arch)
        return work_ns


def _resident(graph: SpatialGraph, flow: Dataflow) -> "Ints":
    """Returns the numbers of the values that stay on their cores between samples, constants after tiles."""
    kept = {part.tile.name for name in graph.residency.state_inputs for part in graph.tensors[name].parts}
    constants = range(0)
    if graph.residency.constants:
        kept |= graph.literals.keys()
        constants = range(len(flow.tiles), len(flow.tiles) + len(flow.constants))
    tiles = [number for number, tile in enumerate(flow.tiles) if tile.name in kept] if kept else []
    return np.array([*tiles, *constants], np.int64)


def _summed(step: "Ints", times_ns: Floats, count: int) -> Floats:
    return np.bincount(step, times_ns, count).astype(np.float64)


def _contents(flow: Dataflow) -> "Ints":
    """Returns a number for each tile and, after these, for each constant; constants of equal contents share one."""
    content = np.arange(len(flow.tiles) + len(flow.constants))
    first: dict[bytes, int] = {}
    for number, value in enumerate((*flow.tiles, *flow.constants)):
        if isinstance(value, ConstantTile):
            content[number] = first.setdefault(value.values.tobytes(), number)
    return content
