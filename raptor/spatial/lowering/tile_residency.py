"""Residency of tiles on cores while a graph is lowered."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from raptor.mapping.modes.line_streaming import Range
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Tile
from raptor.spatial.lowering.cell_grid import LineCell

EmitCompute = Callable[[Compute, int | None, float], None]
"""(compute, core, position): appends a compute to a core; None means the core of its first operand."""

LineOnCore = tuple[str, int, int, int]
"""A line of some channels on a core: name of the tensor's grid, line, number of the channel range, core."""

_OnCores = dict[int | None, list[LineCell]]
"""Cells by core; None: in global memory."""


@dataclass(slots=True)
class TileResidency:
    """Records the core of each tile and the copies of lines, so that nothing is copied to a core twice.

    homes: core of each tile that was computed or copied, by name. Model inputs and constants are in global memory and
    have no entry. made: computes in order of emission. positions: for the results of the first `counted` of them,
    the largest number of products in a row that they depend on, and the number of the compute that made them.
    copies, copy_names: the copies of parts of a line on a core, and the names of their tiles. found: memo of `find`.
    lines: cells of a line by core, keyed by name of the grid, line and number of the channel range. keepers: the core
    that reads a tile of a state as it is, by name of the tile.
    """

    homes: dict[str, int] = field(default_factory=dict[str, int])
    made: list[Compute] = field(default_factory=list[Compute])
    positions: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    copies: dict[LineOnCore, list[LineCell]] = field(default_factory=dict[LineOnCore, list[LineCell]])
    copy_names: set[str] = field(default_factory=set[str])
    found: dict[tuple[LineOnCore, Range, bool], LineCell] = field(
        default_factory=dict[tuple[LineOnCore, Range, bool], LineCell]
    )
    lines: dict[tuple[str, int, int], _OnCores] = field(default_factory=dict[tuple[str, int, int], _OnCores])
    keepers: dict[str, int] = field(default_factory=dict[str, int])
    counted: int = 0

    def core_of(self, tile: Tile) -> int | None:
        """Returns the core that holds the tile; None if it is in global memory."""
        return self.homes.get(tile.name)

    def core_for(self, operands: Iterable[Tile]) -> int:
        """Returns the core of the first operand that is on a core, else core 0."""
        return next((self.homes[t.name] for t in operands if t.name in self.homes), 0)

    def core_of_last(self, operands: Iterable[Tile]) -> int:
        """Returns the core of the operand that was made last, else core 0.

        Operands that depend on model inputs only, such as the cosines of a token's position, can be made anywhere at
        any time, so they do not count. Nor does the state of a step before, which may be scaled before the product of
        the step is there or afterwards: on the cores of the state, all steps would follow one another. So the operand
        depends on one product, such as that of the input, or on most products in a row.
        """
        made = [t.name for t in operands if t.name in self.homes]
        if len(made) < 2:
            return self.homes[made[0]] if made else 0
        self._find_positions()
        longest = max(self.positions[name][0] for name in made)
        return self.homes[max(made, key=lambda name: self._turn(name, longest))]

    def _turn(self, name: str, longest: int) -> tuple[bool, int]:
        """Returns whether a tile counts for `core_of_last`, and its turn. longest: most products in a row."""
        products, turn = self.positions[name]
        return products in (1, longest), turn

    def _find_positions(self) -> None:
        """Brings `positions` up to date; on demand, because few tiles are looked up."""
        for number, compute in enumerate(self.made[self.counted :], self.counted):
            for op in compute.body:
                name = op.result.name
                read = (self.positions[t.name][0] for t in (*op.reads, op.result) if t.name in self.positions)
                self.positions[name] = max(read, default=0) + bool(compute.matrices), number
        self.counted = len(self.made)

    def add(self, compute: Compute, core: int) -> None:
        """Records the results of a compute on its core."""
        self.made.append(compute)
        for op in compute.body:
            self.homes[op.result.name] = core

    def find_cell(self, place: LineOnCore, line: Sequence[LineCell], cols: Range, *, exact: bool) -> LineCell | None:
        """Returns a cell on the core of `place` that contains pixels `cols`, or None.

        It is a cell of `line` or a copy. With `exact`, the cell contains no other pixels.
        """
        key = place, cols, exact
        cell = self.found.get(key)
        if cell is None:
            held = (*self._of_line(place, line), *self.copies.get(place, ()))
            cell = next((cell for cell in held if cell.holds(cols, exact=exact)), None)
            # NOTE: neither lines nor cores of tiles change, and copies are added at the end, so the result stays valid.
            if cell is not None:
                self.found[key] = cell
        return cell

    def _of_line(self, place: LineOnCore, line: Sequence[LineCell]) -> Sequence[LineCell]:
        """Returns the cells of a line that are on the core."""
        if not line:
            return ()
        key, core = place[:3], place[3]
        on_cores = self.lines.get(key)
        if on_cores is None:
            on_cores = self.lines[key] = _OnCores()
            for cell in line:
                on_cores.setdefault(self.core_of(cell.tile), []).append(cell)
        return on_cores.get(core, ())

    def is_copy(self, tile: Tile) -> bool:
        """Returns whether a tile is a copy of parts of a line, which several computes may fill."""
        return tile.name in self.copy_names

    def record_copy(self, place: LineOnCore, cell: LineCell) -> LineCell:
        """Records a copy, and returns it."""
        self.copies.setdefault(place, []).append(cell)
        self.copy_names.add(cell.tile.name)
        return cell
