"""Lowering of products with caches: cores that share a line of a product keep their part of the other operand.

That operand is a state, whose next value is a view: each core makes the region that it multiplies by, and keeps it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from raptor.graph.ir import Dot, Node
from raptor.mapping.decision import SharedDot
from raptor.mapping.modes.line_streaming import Range
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy, ProductUse
from raptor.spatial.lowering.cell_grid import LineCell, MadeCells, cell_name
from raptor.spatial.lowering.line_lowering import LineLowering
from raptor.spatial.lowering.state_cells import cut_state
from raptor.spatial.lowering.token_lowering import TokenLowering
from raptor.spatial.operations import Dot as DotTile
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import TensorRegion


@dataclass(frozen=True, slots=True)
class _SharedPart:
    """Channels of some pixels of a line of a product, which one core computes."""

    cols: Range
    channels: Range
    tile: Tile


@dataclass(slots=True)
class CacheLowering(TokenLowering):
    """Lowers products that cores share as the decision says, and all others like `TokenLowering`.

    late: views that wait for the other operand of their product, so that other work comes before them.
    """

    late: set[str] = field(default_factory=set[str])

    def bind_input(self, name: str) -> None:
        """Creates the lines of a model input. A state is cut where another core reads it."""
        LineLowering.bind_input(self, name)
        kept = name in self.graph.residency.state_inputs and name not in self.flow.loaders
        if kept and name in self.grids:
            self.bind_grid(name, "", cut_state(self.graph, name, self.flow, self.grids[name]))

    def lower(self, node: Node) -> None:
        chosen = self.flow.products.get(node.output)
        if isinstance(node.operator, Dot) and isinstance(chosen, SharedDot):
            self.dot_shared(node, chosen)
        else:
            TokenLowering.lower(self, node)

    def finish(self) -> None:
        """Binds states to the regions that were made of them, and completes the program."""
        for name in self.graph.residency.state_outputs:
            if self.is_open(name) and self.shown_once(name):
                self.bind(name, self.views[name].name, [(part.region, part.tile) for part in self.shown[name]])
        TokenLowering.finish(self)

    def view_position(self, name: str, region: TensorRegion) -> float:
        return 1.0 if name in self.late else TokenLowering.view_position(self, name, region)

    def shown_once(self, name: str) -> bool:
        """True if the regions that were made of a view are the whole view, and each element is in one tile."""
        image, parts = self.image(name), self.shown.get(name, [])
        times = np.zeros((image.rows, image.width, image.channels), np.int64)
        for part in parts:
            times[part.region.index()] += 1
        return bool((times == 1).all()) and len({part.tile.name for part in parts}) == len(parts)

    def dot_shared(self, node: Node, chosen: SharedDot) -> None:
        """Emits a product of which cores compute some channels of each line, which are then collected by pixel."""
        (left, right), image = node.inputs, self.image(node.output)
        channels = self.image(left).channels
        self.products[node.output] = ProductUse(left, right, self.image(right).width)
        made: MadeCells = {}
        if self.born[left][0] > self.born[right][0]:
            self.late.add(right)
        for rows, shares in chosen.shares():
            for y in range(*rows):
                shared: list[_SharedPart] = []
                for cols, given in self.passed_around(node, left, y, [core for _, core in shares]):
                    for part, core in shares:
                        other = self.view(node, right, y, (0, channels), part, core)
                        stem, width = cell_name(node.output, y, 0, cols), part[1] - part[0]
                        tile = Tile(
                            f"{stem}.k{part[0]}-{part[1]}", 1, cols[1] - cols[0], width, self.element(node.output)
                        )
                        op = DotTile(tile, given[core], other, 1, width, 0)
                        self.emit(Compute(node.name, node.op_type, "", (), (op,), (tile,)), core, y / image.rows)
                        shared.append(_SharedPart(cols, part, tile))
                for own, cols, core in chosen.collectors(image.width):
                    if own == rows:
                        self.collect(node, (y, cols), shared, core, made)
        self.bind_cells(node, self.parts_of[node.output], made)

    def passed_around(
        self, node: Node, name: str, y: int, cores: Sequence[int]
    ) -> Iterator[tuple[Range, dict[int, Tile]]]:
        """Yields the cells of a line, with a copy of each on all cores: one passes it on to others, and these to more.

        A line that is cut by channels, or a view, is gathered on the first core.
        """
        image = self.image(name)
        if self.is_open(name) or name not in self.parts_of or len(self.grid(name).parts) > 1:
            whole = (0, image.channels), (0, image.width)
            cells: Sequence[LineCell] = (LineCell(whole[1], self.view(node, name, y, *whole, cores[0])),)
        else:
            cells = self.grid(name).lines[y][0]
        for cell in cells:
            home = self.residency.core_of(cell.tile)
            if home is None:
                home, cell = cores[0], self.line_on(node, name, y, 0, cell.cols, cores[0])
            order = [home, *(core for core in dict.fromkeys(cores) if core != home)]
            held = {home: cell.tile}
            for k, core in enumerate(order[1:], 1):
                before, stem = held[order[k - (1 << (k.bit_length() - 1))]], f"{cell.tile.name}.to.{node.output}"
                held[core] = self.copied_tile(node, before, f"{stem}@{core}", y, core)
            yield cell.cols, held

    def collect(
        self, node: Node, place: tuple[int, Range], shared: "Sequence[_SharedPart]", core: int, made: MadeCells
    ) -> None:
        """Emits copies of the channels of a pixel to one core, where they make its cells. `shared`: of its line."""
        (y, cols), rows = place, self.image(node.output).rows
        for p, (low, high) in enumerate(self.parts_of[node.output]):
            tile = Tile(cell_name(node.output, y, p, cols), 1, 1, high - low, self.element(node.output))
            for part in shared:
                begin, end = max(low, part.channels[0]), min(high, part.channels[1])
                if begin < end and part.cols[0] <= cols[0] < part.cols[1]:
                    first = (cols[0] - part.cols[0]) * part.tile.channels + begin - part.channels[0]
                    self.emit_token(node, Copy(tile, part.tile, first, begin - low, end - begin), core, y / rows)
            made.setdefault((y, p), []).append(LineCell(cols, tile))
