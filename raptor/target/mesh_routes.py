"""Routes of messages on the mesh, and the pairs of cores between which dead links cut them.

A message goes along the row of its sender to the column of its receiver, then along this column; the receiver answers
before there are data. So two cores exchange messages only if the links of both routes work, which are the four sides of
a rectangle. Routers of dead cores work. The global memory has no place on the mesh; its paths cross no links.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class CutRoutes:
    """Dead links of a mesh. `across` and `down` [rows, columns]: dead links to the west of a place, and to the north.

    They count along its row from column 0, and along its column from row 0. `links`: pairs of neighbouring places.
    """

    links: tuple[tuple[int, int], ...]
    across: Ints
    down: Ints

    @classmethod
    def from_links(cls, links: Iterable[tuple[int, int]], places: int, columns: int) -> Self:
        """Returns the dead links between places, whose numbers count row by row."""
        found = tuple(links)
        across = np.zeros((-(-places // columns), columns), np.int64)
        down = np.zeros_like(across)
        for first, second in found:
            (down if second - first == columns else across)[divmod(max(first, second), columns)] += 1
        return cls(found, np.cumsum(across, axis=1), np.cumsum(down, axis=0))

    def cut(self, a: Ints, b: Ints) -> Bools:
        """Returns for pairs of cores, as arrays of one shape or of shapes that broadcast, whether a route is cut."""
        (row_a, col_a), (row_b, col_b) = (np.divmod(core, self.across.shape[1]) for core in (a, b))
        found: Bools = (
            (self.across[row_a, col_a] != self.across[row_a, col_b])
            | (self.across[row_b, col_a] != self.across[row_b, col_b])
            | (self.down[row_a, col_a] != self.down[row_b, col_a])
            | (self.down[row_a, col_b] != self.down[row_b, col_b])
        )
        return found

    def cut_pairs(self, cores: Ints) -> Bools:
        """Returns [cores, cores]: whether a route between two of some cores is cut."""
        return self.cut(cores[:, None], cores)
