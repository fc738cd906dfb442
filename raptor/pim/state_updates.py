"""The elements of a state and where their next values come from, as runs of elements of the tiles that hold both."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.pim.value_numbering import ValueNumbering
from raptor.spatial.ir import SpatialGraph, TensorParts

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StateRuns:
    """Runs of consecutive elements, as columns: `elements` elements of tile `state` from element `into` on.

    Their next values are those of tile `source` from element `first` on.
    """

    state: Ints
    into: Ints
    source: Ints
    first: Ints
    elements: Ints

    @classmethod
    def from_graph(cls, graph: SpatialGraph, values: ValueNumbering) -> "StateRuns":
        """Finds the runs of all states of a graph; both tensors of a state have equal elements in C order."""
        found = [np.zeros((0, 5), np.int64)]
        for pair in graph.residency.states:
            source, first = _locate(graph.tensors[pair.output], values)
            for tile, numbers in _tiles(graph.tensors[pair.input], values):
                found.append(_runs(tile, source[numbers], first[numbers]))
        return cls(*np.concatenate(found).T)


def _tiles(tensor: TensorParts, values: ValueNumbering) -> list[tuple[int, Ints]]:
    """Returns each tile of a tensor with the C-order numbers of its elements, in the order of the tile."""
    numbers = tensor.image.to_pixels(np.arange(tensor.image.elements))
    return [(values.tile(part.tile), numbers[part.region.index()].ravel()) for part in tensor.parts]


def _locate(tensor: TensorParts, values: ValueNumbering) -> tuple[Ints, Ints]:
    """Returns the tile of each element of a tensor, and its place there, by number in C order."""
    tile, place = np.full((2, tensor.image.elements), -1)
    for number, elements in _tiles(tensor, values):
        tile[elements], place[elements] = number, np.arange(len(elements))
    assert (tile >= 0).all(), "the parts of a tensor cover it"
    return tile, place


def _runs(state: int, source: Ints, first: Ints) -> Ints:
    """Returns [runs, 5], the columns of `StateRuns`, of one tile. source, first: where each of its elements is made."""
    ends = (np.diff(source) != 0) | (np.diff(first) != 1)
    into = np.append(0, np.flatnonzero(ends) + 1)
    elements = np.diff(np.append(into, len(source)))
    return np.stack([np.full(len(into), state), into, source[into], first[into], elements], axis=1)
