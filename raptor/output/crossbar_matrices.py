"""Matrices of crossbars, which are cut from the weights of the layers lazily.

Stored, all of them would take up to twice the memory of the weights: copies of a matrix are equal, and line matrices
repeat weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raptor.graph.ir import Filter, Numbers
from raptor.pim import ArrayGroup


@dataclass(frozen=True, slots=True, eq=False)
class CrossbarMatrices:
    """The matrices of the array groups of a core, in order. `filters`: the weights of the layers, by key.

    Each iteration cuts the matrices anew, one at a time.
    """

    groups: Sequence[ArrayGroup]
    filters: Mapping[str, Filter]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of each matrix."""
        return [(g.matrix.rows[1] - g.matrix.rows[0], g.matrix.cols[1] - g.matrix.cols[0]) for g in self.groups]

    def __iter__(self) -> Iterator[Numbers]:
        """Yields each matrix in the type of its file: integers of up to 8 bits as int8."""
        for group in self.groups:
            values = group.matrix.values(self.filters[group.layer])
            yield values.astype(np.int8) if 0 < group.weight_bits <= 8 else values
