"""Graph to SpatialIR row by row: a layer starts when the rows that it needs are there (cross-layer, CLSA-CIM).

Values are image rows with all their channels. What cannot work on rows works on the whole tensor: its rows are stacked
first, and cut again where a row is asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raptor.frontend.graph import Concat, Filter, Map, Node, Operator, Pool, Rename
from raptor.layout import Image, Region
from raptor.mapping import RowMapping, filter_key
from raptor.spatial.ir import (
    ApplyRow,
    BodyOp,
    Compute,
    Gather,
    MoveTile,
    Part,
    Piece,
    PoolTile,
    Stack,
    Tile,
    Vector,
)
from raptor.spatial.lower import Lowering, map_op
from raptor.unfold import RowWindow


@dataclass(slots=True)
class RowLowering(Lowering):
    """`whole`: tiles of all rows; `lines`: tiles of each row; both by tensor, made when first asked for."""

    whole: dict[str, Tile] = field(default_factory=dict[str, Tile])
    lines: dict[str, list[Tile]] = field(default_factory=dict[str, list[Tile]])

    def bind_input(self, name: str) -> None:
        image = self.graph.tensors[name].image
        if is_streamed(image):
            self.bind_rows(name, "", [Tile(f"{name}.r{y}", 1, image.width, image.channels) for y in range(image.rows)])
        else:
            Lowering.bind_input(self, name)

    def bind_rows(self, name: str, node: str, rows: list[Tile]) -> None:
        channels = (0, self.graph.tensors[name].image.channels)
        self.lines[name] = rows
        self.bind(name, node, [(Region(channels, (y, y + 1)), tile) for y, tile in enumerate(rows)])

    def parts(self, name: str) -> tuple[Part, ...]:
        """The tensor as one tile."""
        parts = self.tensors[name].parts
        if len(parts) == 1:
            return parts
        image = self.graph.tensors[name].image
        if name not in self.whole:
            tile = Tile(f"{name}.whole", image.rows, image.width, image.channels)
            rows = tuple(p.tile for p in parts)
            self.computes.append(
                Compute(self.tensors[name].node, "Stack", name, (), None, (Stack(tile, rows),), (tile,))
            )
            self.whole[name] = tile
        return (Part(Region((0, image.channels), (0, image.rows)), self.whole[name]),)

    def rows(self, name: str) -> list[Tile]:
        """The tensor as one tile for each row."""
        if name not in self.lines:
            self.lines[name] = self.cut(name)
        return self.lines[name]

    def cut(self, name: str) -> list[Tile]:
        (part,) = self.tensors[name].parts
        image, node = self.graph.tensors[name].image, self.tensors[name].node
        if image.rows == 1:
            return [part.tile]
        size = image.width * image.channels
        tiles: list[Tile] = []
        for y in range(image.rows):
            tile = Tile(f"{name}.r{y}", 1, image.width, image.channels)
            op = MoveTile(tile, (part.tile,), np.array([[0, 0, y * size, 1, size]]))
            self.computes.append(Compute(node, "Cut", name, (), None, (op,), (tile,)))
            tiles.append(tile)
        return tiles

    def is_cut(self, name: str) -> bool:
        return len(self.tensors[name].parts) > 1

    def lower(self, node: Node) -> None:
        by_row = _BY_ROW.get(type(node.operator))
        if by_row is None or not by_row(self, node, node.operator):
            Lowering.lower(self, node)

    def filter_rows(self, node: Node, operator: Filter) -> bool:
        chosen = self.mapping.rows.get(filter_key(node))
        if chosen is None:
            return False
        source = self.rows(node.inputs[0])
        image = self.graph.tensors[node.output].image
        self.bind_rows(
            node.output, node.name, [self.filter_row(node, operator, chosen, source, y) for y in range(image.rows)]
        )
        return True

    def filter_row(self, node: Node, operator: Filter, chosen: RowMapping, source: list[Tile], y: int) -> Tile:
        """One row of the output: the cores of its copy add their products one after another."""
        window = operator.window
        image, shape = self.graph.tensors[node.output].image, RowWindow.of(window, chosen.outputs)
        above = (y * window.strides[0] - window.pads[0] + k * window.dilations[0] for k in range(window.kernel[0]))
        lines = [source[at] if 0 <= at < len(source) else None for at in above]
        run = shape.patch_width * operator.in_channels
        stages = chosen.replicas[y % len(chosen.replicas)]
        total: Tile | None = None
        first = 0
        for k, (core, count) in enumerate(stages):
            matrices = chosen.matrices[first : first + count]
            first += count
            used = {m.rows[0] // run for m in matrices} if not chosen.gather else set(range(len(lines)))
            name = f"{node.output}.r{y}"
            product = Tile(name if len(stages) == 1 else f"{name}.p{k}", 1, image.width, image.channels)
            needed = tuple(t if i in used else None for i, t in enumerate(lines))
            op = ApplyRow(product, needed, operator.in_channels, tuple(range(count)), shape, chosen.gather, (0, 0))
            key, position = filter_key(node), y / image.rows
            *steps, last = (replace(op, windows=w) for w in _steps(len(shape.first_outputs()), chosen.step))
            for step in steps:
                self.computes.append(
                    Compute(node.name, node.op_type, key, matrices, core, (step,), (product,), position)
                )
            body: list[BodyOp] = [last]
            if total is not None:
                added = Tile(name if k == len(stages) - 1 else f"{name}.s{k}", 1, image.width, image.channels)
                body.append(Vector(added, "add", (total, product)))
            total = body[-1].result
            self.computes.append(Compute(node.name, node.op_type, key, matrices, core, tuple(body), (total,), position))
        assert total is not None, "a copy has at least one core"
        return total

    def map_rows(self, node: Node, operator: Map) -> bool:
        image = self.graph.tensors[node.output].image
        cut = [name for name in node.inputs if self.is_cut(name)]
        if not cut or any(self.graph.tensors[n].image.pixels > 1 and n not in cut for n in node.inputs):
            return False
        make = map_op(operator)
        rows: list[Tile] = []
        for y in range(image.rows):
            tile = Tile(f"{node.output}.r{y}", 1, image.width, image.channels)
            operands = [self.rows(n)[y if n in cut else 0] for n in node.inputs]
            self.add(node, [make(tile, operands, Region((0, image.channels), (y, y + 1)))], y / image.rows)
            rows.append(tile)
        self.bind_rows(node.output, node.name, rows)
        return True

    def pool_rows(self, node: Node, operator: Pool) -> bool:
        window, image = operator.window, self.graph.tensors[node.output].image
        if not self.is_cut(node.inputs[0]) or not is_streamed(image) or len(window.kernel) != 2:
            return False
        source = self.rows(node.inputs[0])
        rows: list[Tile] = []
        for y in range(image.rows):
            at = (y * window.strides[0] - window.pads[0] + k * window.dilations[0] for k in range(window.kernel[0]))
            inputs = tuple((i, source[i]) for i in at if 0 <= i < len(source))
            tile = Tile(f"{node.output}.r{y}", 1, image.width, image.channels)
            self.add(node, [PoolTile(tile, inputs, operator.function, window, y)], y / image.rows)
            rows.append(tile)
        self.bind_rows(node.output, node.name, rows)
        return True

    def concat_rows(self, node: Node, _: Concat) -> bool:
        if not all(self.is_cut(name) for name in node.inputs):
            return False
        image = self.graph.tensors[node.output].image
        rows: list[Tile] = []
        for y in range(image.rows):
            tile = Tile(f"{node.output}.r{y}", 1, image.width, image.channels)
            sources = [self.rows(name)[y] for name in node.inputs]
            starts = np.cumsum([0, *(t.channels for t in sources)]).tolist()
            pieces = tuple(Piece(t, 0, at, t.channels) for t, at in zip(sources, starts, strict=False))
            self.add(node, [Gather(tile, pieces)], y / image.rows)
            rows.append(tile)
        self.bind_rows(node.output, node.name, rows)
        return True

    def rename_rows(self, node: Node, _: Rename) -> bool:
        before, after = (self.graph.tensors[n].image for n in (node.inputs[0], node.output))
        if not self.is_cut(node.inputs[0]) or (before.rows, before.width) != (after.rows, after.width):
            return False
        self.bind_rows(node.output, node.name, self.rows(node.inputs[0]))
        return True


_BY_ROW: dict[type[Operator], Callable[[RowLowering, Node, Any], bool]] = {
    Filter: RowLowering.filter_rows,
    Map: RowLowering.map_rows,
    Pool: RowLowering.pool_rows,
    Concat: RowLowering.concat_rows,
    Rename: RowLowering.rename_rows,
}
"""Each returns False where it cannot work on rows."""


def _steps(windows: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, windows)) for first in range(0, windows, step))


def is_streamed(image: Image) -> bool:
    """One image of two dimensions and channels, with several rows."""
    return len(image.shape) == 4 and image.shape[0] == 1 and image.channel_axis == 1 and image.rows > 1
