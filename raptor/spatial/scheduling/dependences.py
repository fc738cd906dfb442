"""Dependences between computes, and the tile transfers between cores that they require."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.sorted_sets import sorted_unique
from raptor.spatial.dataflow import Dataflow, GroupedLists, Ints
from raptor.spatial.ir import Copy


@dataclass(frozen=True, slots=True, eq=False)
class StepDependences:
    """Dependences of a range of computes. A *step* is a compute, numbered from 0, or a fetch, numbered after them.

    A compute that begins with a `Copy` transfers its tile itself. For any other compute, each tile from another core is
    fetched once per core, before its first use there.

    flow: tables of the computes. reader, read: `flow.inputs()`. makers: computes that write each tile. fetch_tile,
    fetch_user: tile of each fetch, and the compute that uses it first. taken, elements: tile that each step transfers,
    and the number of elements; -1 and 0 for steps without a transfer. edges: [edges, 2], pairs (earlier step, later
    step), sorted.
    """

    flow: Dataflow
    reader: Ints
    read: Ints
    makers: GroupedLists
    fetch_tile: Ints
    fetch_user: Ints
    taken: Ints
    elements: Ints
    edges: Ints

    @classmethod
    def from_dataflow(cls, flow: Dataflow, core: Ints) -> "StepDependences":
        """Finds the dependences of computes. `core`: the core of each compute."""
        makers = GroupedLists.group_by(flow.result_tile, flow.result_compute, len(flow.tiles))
        taken, elements = _copied(flow, len(core))
        reader, tile = flow.inputs()
        made = makers.is_nonempty(tile)
        away = made & (taken[reader] < 0)
        away[away] = core[_first(makers, tile[away])] != core[reader[away]]
        key = tile[away] * (core.max() + 1) + core[reader[away]]
        number, first = _in_order(key)
        fetch_tile, fetch_user = tile[away][first], reader[away][first]
        before, index = makers.select_keys(tile[made & ~away])
        early, fetch = makers.select_keys(fetch_tile)
        edges = np.concatenate(
            [
                np.stack([before, reader[made & ~away][index]], axis=1),
                np.stack([len(core) + number, reader[away]], axis=1),
                np.stack([early, len(core) + fetch], axis=1),
            ]
        )
        taken = np.append(taken, fetch_tile)
        elements = np.append(elements, flow.tile_elements[fetch_tile])
        return cls(flow, reader, tile, makers, fetch_tile, fetch_user, taken, elements, _unique(edges, len(taken)))

    def source(self, core: Ints) -> Ints:
        """Returns, for each step, the core that made the tile it transfers; -1 without one. `core`: of each step."""
        maker_core = np.full(len(self.taken), -1)
        maker_core[self.transfers] = core[_first(self.makers, self.taken[self.transfers])]
        return maker_core

    @property
    def transfers(self) -> npt.NDArray[np.bool_]:
        """True for each step that transfers a tile which one of the computes makes."""
        return (self.taken >= 0) & self.makers.is_nonempty(self.taken)


def _copied(flow: Dataflow, count: int) -> tuple[Ints, Ints]:
    """Returns, for each compute that begins with a copy, its source tile and elements; -1 and 0 for other computes."""
    first = np.flatnonzero(np.diff(flow.op_compute, prepend=-1))
    first = first[flow.is_op_class(Copy)[first]]
    compute = flow.op_compute[first]
    taken, elements = np.full(count, -1), np.zeros(count, np.int64)
    taken[compute] = flow.read_tile[np.searchsorted(flow.read_op, first)]
    sizes = np.array([op.elements if isinstance(op, Copy) else 0 for op, _ in flow.forms], np.int64)
    elements[compute] = sizes[flow.op_form[first]]
    return taken, elements


def _first(makers: GroupedLists, tile: Ints) -> Ints:
    """Returns the first maker of each tile; each tile must have one."""
    return makers.values[makers.first[tile]]


def _in_order(keys: Ints) -> tuple[Ints, Ints]:
    """Numbers keys by first occurrence. Returns the number of each key, and where each number first occurs."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[inverse.reshape(-1)], first[order]


def _unique(edges: Ints, count: int) -> Ints:
    """Returns the distinct edges between `count` steps, sorted."""
    return np.stack(np.divmod(sorted_unique(edges[:, 0] * count + edges[:, 1]), count), axis=1)
