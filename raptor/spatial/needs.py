"""The needs of computes before they can start: what comes first, and what is fetched from other cores."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.sorting import different
from raptor.spatial.dataflow import Dataflow, Ints, Lists
from raptor.spatial.ir import Copy


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The work of some computes, in steps: the computes, numbered from 0, then the fetches.

    A compute that begins with a `Copy` is a transfer itself. Any other one has a fetch for each tile that is made on
    another core, before the first use there.

    flow: that of the computes. reader, read: its `inputs`. makers: the computes that make each tile, by its number.
    fetch_tile, fetch_user: the tile of each fetch, and the compute that uses it first. taken, elements: for each step
    that is a transfer its tile and how much of it; -1 and 0 for others. edges: [edges, 2], pairs of steps (earlier,
    later), sorted.
    """

    flow: Dataflow
    reader: Ints
    read: Ints
    makers: Lists
    fetch_tile: Ints
    fetch_user: Ints
    taken: Ints
    elements: Ints
    edges: Ints

    @classmethod
    def of(cls, flow: Dataflow, core: Ints) -> "Needs":
        """Finds what each compute needs. `core`: that of each compute."""
        makers = Lists.of(flow.result_tile, flow.result_compute, len(flow.tiles))
        taken, elements = _copied(flow, len(core))
        reader, tile = flow.inputs()
        made = makers.some(tile)
        away = made & (taken[reader] < 0)
        away[away] = core[_first(makers, tile[away])] != core[reader[away]]
        key = tile[away] * (core.max() + 1) + core[reader[away]]
        number, first = _in_order(key)
        fetch_tile, fetch_user = tile[away][first], reader[away][first]
        before, index = makers.of_keys(tile[made & ~away])
        early, fetch = makers.of_keys(fetch_tile)
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
        """Returns for each step the core that made what it takes; -1 for none. `core`: that of each compute."""
        found = np.full(len(self.taken), -1)
        found[self.transfers] = core[_first(self.makers, self.taken[self.transfers])]
        return found

    @property
    def transfers(self) -> npt.NDArray[np.bool_]:
        """Tells for each step whether it takes a tile that one of the computes makes."""
        return (self.taken >= 0) & self.makers.some(self.taken)


def _copied(flow: Dataflow, count: int) -> tuple[Ints, Ints]:
    """Returns for each compute the tile that it begins to copy, and how many elements; -1 and 0 for others."""
    first = np.flatnonzero(np.diff(flow.op_compute, prepend=-1))
    first = first[flow.is_form(Copy)[first]]
    compute = flow.op_compute[first]
    taken, elements = np.full(count, -1), np.zeros(count, np.int64)
    taken[compute] = flow.read_tile[np.searchsorted(flow.read_op, first)]
    sizes = np.array([op.elements if isinstance(op, Copy) else 0 for op, _ in flow.forms], np.int64)
    elements[compute] = sizes[flow.op_form[first]]
    return taken, elements


def _first(makers: Lists, tile: Ints) -> Ints:
    """Returns the first maker of each tile; all have one."""
    return makers.values[makers.first[tile]]


def _in_order(keys: Ints) -> tuple[Ints, Ints]:
    """Numbers keys as they occur first. Returns the number of each, and where each number occurs first."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[inverse.reshape(-1)], first[order]


def _unique(edges: Ints, count: int) -> Ints:
    """Returns the different edges between `count` steps, sorted."""
    return np.stack(np.divmod(different(edges[:, 0] * count + edges[:, 1]), count), axis=1)
