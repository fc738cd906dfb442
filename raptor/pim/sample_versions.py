"""Values of older samples: a step that stands later in the order than its sample needs reads a copy of the older value.

In pass k, a step of stage s works on sample k - s. A value is made once in each pass. A reader of a later stage that
stands before the maker finds the value of the pass before; for one that stands after it, or is more stages later, the
value is copied before the maker overwrites it, as often as it is late.
"""

from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from raptor.pim.global_order import GlobalOrder
from raptor.pim.ir import CoreProgram
from raptor.pim.operations import make_slot
from raptor.pim.step_columns import OPERAND, WHOLE_BUFFER, FormTable, Ints, OperationForm, StepColumns
from raptor.pim.value_numbering import ValueNumbering
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy
from raptor.spatial.operations import Move


@dataclass(slots=True, eq=False)
class SampleVersions:
    """The turns that write values on cores, and the numbers of older values.

    keys: value * `cores` + core of each value that a turn writes, sorted; turn, stage: of the first such turn. copies:
    largest lateness by position in `keys`. older: number of the value that is `late` passes older, by (value, late).
    """

    flow: Dataflow
    turns: GlobalOrder
    cores: int
    keys: Ints
    turn: Ints
    stage: Ints
    copies: Ints
    older: dict[tuple[int, int], int]

    @classmethod
    def from_order(cls, flow: Dataflow, turns: GlobalOrder) -> "SampleVersions":
        """Finds the writers: operations, and the fetches of values that operations make."""
        turn = np.arange(len(turns.op))
        value = np.where(turns.op >= 0, flow.op_result[turns.op], turns.tile)
        made = np.zeros(max(len(flow.tiles), int(value.max(initial=0)) + 1), np.bool_)
        made[flow.op_result] = True
        cores = int(turns.core.max(initial=0)) + 1
        turn = turn[made[value]]
        keys, first = np.unique(value[turn] * cores + turns.core[turn], return_index=True)
        return cls(flow, turns, cores, keys, turn[first], turns.stage[turn[first]], np.zeros(len(keys), np.int64), {})

    @property
    def written(self) -> Ints:
        """The value that each turn writes on its core; -1 for none."""
        turn = np.arange(len(self.turns.op))
        value = np.where(self.turns.op >= 0, self.flow.op_result[self.turns.op], self.turns.tile)
        _, there = self._find(value, self.turns.core[turn])
        return np.where(there, value, -1)

    def lateness(self, value: Ints, core: Ints, turn: Ints) -> Ints:
        """Returns how many passes older the values must be that turns read on cores than those that are there."""
        at, there = self._find(value, core)
        late = self.turns.stage[turn] - self.stage[at] - (turn < self.turn[at])
        assert (late[there] >= 0).all(), "a value is read before the pass that makes it"
        return np.where(there, late, 0)

    def request(self, values: ValueNumbering, value: Ints, core: Ints, turn: Ints) -> Ints:
        """Returns the numbers of the values that turns read; adds older values as they are needed."""
        late = self.lateness(value, core, turn)
        at, _ = self._find(value, core)
        np.maximum.at(self.copies, at[late > 0], late[late > 0])
        pairs: list[list[int]] = np.unique(np.stack([value[late > 0], late[late > 0]]), axis=1).T.tolist()
        for v, most in pairs:
            for k in range(1, most + 1):
                if (v, k) not in self.older:
                    shape = values.all[v]
                    self.older[v, k] = values.new(structs.replace(shape, name=f"{shape.name}.older{k}"))
        return self.read(value, core, turn)

    def request_sent(self, values: ValueNumbering) -> None:
        """Adds the older values that fetches and copies take from the cores that made them."""
        flow, turns = self.flow, self.turns
        home = np.full(max(len(flow.tiles), int(turns.tile.max(initial=0)) + 1), -1)
        home[flow.op_result] = turns.core[turns.of_op]
        copies = np.flatnonzero(flow.is_op_class(Copy))
        fetches = np.flatnonzero(turns.tile >= 0)
        tile = np.concatenate([flow.read_tile[np.searchsorted(flow.read_op, copies)], turns.tile[fetches]])
        turn = np.concatenate([turns.of_op[copies], fetches])
        made = home[tile] >= 0
        self.request(values, tile[made], home[tile[made]], turn[made])

    def read(self, value: Ints, core: Ints, turn: Ints) -> Ints:
        """Returns the numbers of the values that turns read on cores, in place of the newest ones."""
        late, found = self.lateness(value, core, turn), value.copy()
        for i in np.flatnonzero(late > 0).tolist():
            found[i] = self.older[int(value[i]), int(late[i])]
        return found

    def moves(self) -> list[tuple[int, int, int, int]]:
        """Returns the copies of older values: turn before which it happens, lateness, value read, value written."""
        found: list[tuple[int, int, int, int]] = []
        for at in np.flatnonzero(self.copies).tolist():
            value = int(self.keys[at]) // self.cores
            for k in range(1, int(self.copies[at]) + 1):
                source = value if k == 1 else self.older[value, k - 1]
                found.append((int(self.turn[at]), k, source, self.older[value, k]))
        return found

    def _find(self, value: Ints, core: Ints) -> tuple[Ints, Ints]:
        key = value * self.cores + core
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return at, self.keys[at] == key


def clear_carried(cores: dict[int, CoreProgram]) -> dict[int, CoreProgram]:
    """Returns programs that write zeros after power-up into all buffers that a pass reads before it writes them."""
    carried = {i: _carried(core.steps) for i, core in cores.items()}
    table = next(iter(cores.values())).steps.forms
    forms, known = list(table.forms), dict[tuple[int, int, int, str], int]()
    zeros = dict[int, list[int]]()
    for i, buffers in carried.items():
        numbers: list[int] = buffers.tolist()
        zeros[i] = []
        for buffer in numbers:
            shape = cores[i].steps.buffers.values[buffer]
            key = shape.rows, shape.width, shape.channels, str(shape.element)
            if key not in known:
                known[key] = len(forms)
                runs = np.array([[0, -1, 0, 1, shape.elements]])
                forms.append(OperationForm.from_operation(Move(make_slot(shape, 0), (), runs)))
            zeros[i].append(known[key])
    shared = FormTable(tuple(forms))
    return {i: _cleared(core, shared, carried[i], np.array(zeros[i], np.int64)) for i, core in cores.items()}


def _carried(steps: StepColumns) -> Ints:
    """Returns the buffers that a pass reads first and writes then."""
    uses = steps.uses()
    buffer, first = np.unique(uses.buffer, return_index=True)
    return buffer[uses.role[first] == OPERAND]


def _cleared(core: CoreProgram, forms: FormTable, carried: Ints, zeros: Ints) -> CoreProgram:
    steps = replace(core.steps, forms=forms)
    if not len(carried):
        return replace(core, steps=steps)
    count, nothing = len(carried), np.zeros(len(carried), np.int64)
    buffer, first = np.unique(steps.used, return_index=True)
    user = np.searchsorted(steps.start, first[np.searchsorted(buffer, carried)], side="right") - 1
    span = np.tile([WHOLE_BUFFER, 0], (count, 1))
    init = replace(
        steps,
        form=zeros,
        node=steps.node[user],
        number=nothing,
        peer=nothing,
        span=span,
        start=np.arange(count + 1),
        used=carried,
    )
    return replace(core, steps=steps, init=init, carried=carried)
