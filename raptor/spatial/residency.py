"""Which tiles are on which core while a graph is lowered."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raptor.mapping.streaming import Range
from raptor.spatial.ir import Compute, Tile
from raptor.spatial.line_grid import Cell

Emit = Callable[[Compute, int | None, float], None]
"""(compute, core, position): appends a compute that runs on this core, None for where its first operand is."""

LinePlace = tuple[str, int, int, int]
"""A line of some channels on a core: name of the grid, line, number of the channel range, core."""


@dataclass(slots=True)
class Residency:
    """Caches which tile, and which copy of pixels of which line, is on which core, so that nothing is copied twice.

    homes: by name of a tile, the core that computed it or that it was copied to; model inputs and constants, which are
    in global memory, have none. copies: what was copied of each line to each core.
    """

    homes: dict[str, int] = field(default_factory=dict[str, int])
    copies: dict[LinePlace, list[Cell]] = field(default_factory=dict[LinePlace, list[Cell]])

    def core_of(self, tile: Tile) -> int | None:
        """The core that holds the tile; None for one in global memory."""
        return self.homes.get(tile.name)

    def core_for(self, operands: Iterable[Tile]) -> int:
        """The core for work without matrices: where the first operand is that a core holds, or core 0."""
        return next((self.homes[t.name] for t in operands if t.name in self.homes), 0)

    def add(self, tiles: Iterable[Tile], core: int) -> None:
        for tile in tiles:
            self.homes[tile.name] = core

    def find(self, place: LinePlace, line: Iterable[Cell], cols: Range, *, exact: bool) -> Cell | None:
        """A cell on the core that holds pixels `cols` of a line: one of the `line` itself, or a copy."""
        own = (cell for cell in line if cell.holds(cols, exact=exact) and self.core_of(cell.tile) == place[-1])
        copied = (cell for cell in self.copies.get(place, ()) if cell.holds(cols, exact=exact))
        return next(own, None) or next(copied, None)

    def copied(self, place: LinePlace, cell: Cell) -> Cell:
        """Remembers a copy, and returns it."""
        self.copies.setdefault(place, []).append(cell)
        return cell
