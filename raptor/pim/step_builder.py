"""Collects the steps of all cores in any order, and sorts them into the columns of each core."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.pim.buffer_requests import BufferRequests
from raptor.pim.step_columns import WHOLE_BUFFER, BufferTable, FormTable, StepColumns
from raptor.spatial.tiles import ShapedValue

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class StepBuilder:
    """Rows so far: the time in the global order and the core, then the columns of `Steps`.

    used: buffers of rows, as columns: number of the row, index among its buffers, number of the buffer.
    """

    count: int = 0
    columns: list[tuple[Ints, ...]] = field(default_factory=list[tuple[Ints, ...]])
    used: list[tuple[Ints, ...]] = field(default_factory=list[tuple[Ints, ...]])

    def add(
        self,
        at: Ints,
        core: Ints,
        form: Ints | int,
        node: Ints,
        *buffers: Ints,
        number: Ints | int = 0,
        peer: Ints | int = 0,
        first: Ints | int = WHOLE_BUFFER,
        elements: Ints | int = 0,
    ) -> Ints:
        """Adds rows that use `buffers` in this order. Returns their numbers."""
        columns = [np.asarray(column) for column in (at, core, form, node, number, peer, first, elements)]
        rows = np.arange(self.count, self.count + len(at))
        self.columns.append(tuple(np.broadcast_arrays(*columns)))
        self.count += len(at)
        for place, buffer in enumerate(buffers):
            self.use(rows, place, buffer)
        return rows

    def use(self, rows: Ints, place: Ints | int, buffer: Ints) -> None:
        """Adds a buffer to each of some rows."""
        self.used.append(tuple(np.broadcast_arrays(rows, np.asarray(place), buffer)))

    def steps(
        self, forms: FormTable, nodes: tuple[str, ...], values: list[ShapedValue], wants: BufferRequests
    ) -> tuple[dict[int, StepColumns], dict[int, int], Ints]:
        """Returns the steps of each core, the number of those before time 0, and the index of each row. Drops the rows.

        The index counts the other steps of the core.
        """
        columns, self.columns = list(zip(*self.columns, strict=True)), []
        order = np.lexsort([np.concatenate(column) for column in columns[:2]])
        at, core, form, node, number, peer, first, elements = (np.concatenate(columns.pop(0))[order] for _ in range(8))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        row, place, buffer = (np.concatenate(column) for column in zip(*self.used, strict=True))
        self.used, row = [], rank[row]
        used, start = buffer[np.lexsort((place, row))], np.append(0, np.cumsum(np.bincount(row, minlength=len(order))))
        span = np.stack([first, elements], axis=1)
        made = _buffers(values, wants)
        by_core, once = dict[int, StepColumns](), dict[int, int]()
        for i, low, high in _runs(core):
            once[i] = int((at[low:high] < 0).sum())
            within = slice(low, high)
            begin = start[low : high + 1]
            by_core[i] = StepColumns(
                forms,
                nodes,
                made[i],
                form[within],
                node[within],
                number[within],
                peer[within],
                span[within],
                begin - begin[0],
                used[begin[0] : begin[-1]],
            )
        counted = np.cumsum(at >= 0) - 1
        before = np.append(0, np.cumsum(at >= 0))[np.searchsorted(core, core)]
        return by_core, once, (counted - before)[rank]


def _buffers(values: list[ShapedValue], wants: BufferRequests) -> dict[int, BufferTable]:
    """Returns the buffers of each core, in order of creation."""
    value: list[int] = wants.value[wants.new].tolist()
    runs = _runs(wants.core[wants.new])
    return {core: BufferTable(tuple([values[i] for i in value[low:high]])) for core, low, high in runs}


def _runs(cores: Ints) -> Iterator[tuple[int, int, int]]:
    """Yields each core with its first row and the row after its last. `cores`: the core of each row, sorted."""
    different, first = np.unique(cores, return_index=True)
    bounds: list[int] = [*first.tolist(), len(cores)]
    yield from zip(different.tolist(), bounds, bounds[1:], strict=False)
