"""The global order of operations and fetches, before messages are inserted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.spatial.dataflow import Dataflow
from raptor.spatial.placed_graph import Schedule

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GlobalOrder:
    """Operations and fetches in the global order, as columns. Model outputs that no compute makes come last.

    op: number of the operation in the dataflow; -1 for a fetch or such an output. tile: the tile of a fetch or such an
    output; -1 for an operation. core: core of the turn. node: index of its ONNX node in `nodes`. of_op: turn of each
    operation. last: last turn of each compute. last_of_steps: last turn of each step of the schedule, in order. stage:
    of each turn (`Schedule.stages`).
    """

    op: Ints
    tile: Ints
    core: Ints
    node: Ints
    nodes: tuple[str, ...]
    of_op: Ints
    last: Ints
    last_of_steps: Ints
    stage: Ints

    @classmethod
    def from_schedule(cls, flow: Dataflow, schedule: Schedule, unmade: Sequence[int], first_core: int) -> "GlobalOrder":
        """Builds the turns. unmade: tiles of outputs that no compute makes; they are copied through `first_core`."""
        count, order = len(flow.nodes), np.array(schedule.order, np.int64)
        computed, fetches = order < count, schedule.fetches
        bounds = np.searchsorted(flow.op_compute, np.arange(count + 1))
        compute = np.where(computed, order, 0)
        lengths = np.where(computed, np.diff(bounds)[compute] if count else 0, 1)
        entry = np.repeat(np.arange(len(order)), lengths)
        within = np.arange(len(entry)) - (np.cumsum(lengths) - lengths)[entry]
        op = np.where(computed[entry], bounds[compute[entry]] + within, -1)
        fetched = np.array([flow.number[fetch.tile.name] for fetch in fetches], np.int64)
        tile = np.full(len(order), -1)
        tile[~computed] = fetched[order[~computed] - count]
        cores = np.array((*schedule.placed.cores, *(fetch.core for fetch in fetches)), np.int64)[order]
        names = (*flow.nodes, *(fetch.node for fetch in fetches))
        node, nodes = _numbered([names[i] for i in schedule.order] + [""] * bool(unmade))
        end = np.full(len(unmade), -1)
        stages = np.array(schedule.stages, np.int64) if schedule.stages else np.zeros(len(order), np.int64)
        of_op, last = np.full(len(flow.op_form), -1), np.full(count, -1)
        turn = np.flatnonzero(op >= 0)
        of_op[op[turn]] = turn
        last[flow.op_compute[op[turn]]] = turn  # the last assignment stays
        return cls(
            np.concatenate([op, end]),
            np.concatenate([tile[entry], np.array(unmade, np.int64)]),
            np.concatenate([cores[entry], np.full(len(unmade), first_core)]),
            np.concatenate([node[entry], np.repeat(node[len(order) :], len(unmade))]),
            nodes,
            of_op,
            last,
            np.cumsum(lengths) - 1,
            np.concatenate([stages[order][entry], np.zeros(len(unmade), np.int64)]),
        )


def _numbered(names: Iterable[str]) -> tuple[Ints, tuple[str, ...]]:
    """Numbers names by first occurrence. Returns the number of each name, and the distinct names."""
    numbers: dict[str, int] = {}
    column = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(column, np.int64), tuple(numbers)


@dataclass(frozen=True, slots=True)
class TurnLayout:
    """Division of each turn into `each` time slots: turn t begins at time t * `each`.

    In order: values of older samples are copied; from `operands` on, operands arrive on the core (every second slot
    stores ids); the `result` gets its buffer; from `slots` on, constants arrive and operands are repeated, two slots
    each; from `scratch` on, scratch buffers are made; `own`: the operation itself; from `store` on, outputs are stored;
    from `update` on, states get their next value.
    """

    operands: int
    result: int
    slots: int
    scratch: int
    own: int
    store: int
    update: int
    each: int

    @classmethod
    def for_sizes(cls, reads: int, slots: int, scratch: int, stores: int, updates: int, older: int = 0) -> "TurnLayout":
        """Makes the division for the given largest numbers of operands, slots and so on of a turn."""
        result = older + 2 * reads
        first_slot = result + 1
        first_scratch = first_slot + 2 * slots
        own = first_scratch + scratch
        update = own + 1 + stores
        return cls(older, result, first_slot, first_scratch, own, own + 1, update, update + updates)

    def slot_time(self, turn: Ints, within: Ints | int) -> Ints:
        """Returns the time in the global order of slot `within` of a turn."""
        return turn * self.each + within
