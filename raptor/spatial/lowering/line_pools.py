"""Lowering of pooling line by line: separable pools reduce over kernel rows first, then along the line."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from raptor.graph.ir import Node
from raptor.graph.window import Window
from raptor.mapping.modes.sum_trees import combines_in_tree, tree_sums
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.lowering.tile_residency import EmitCompute
from raptor.spatial.operations import MOST_SEQUENTIAL_TERMS, SUM_BLOCK_TERMS, Pool, Vector
from raptor.spatial.tiles import Tile


def split_pool(pool: Pool[Tile]) -> Iterator[Pool[Tile]]:
    """Splits a 2-D pool into a vertical and a horizontal one. A kernel of one row or column is left unchanged.

    An output pixel then costs kernel rows + kernel columns instead of rows x columns. The vertical pool works on whole
    lines, whatever the horizontal stride.
    """
    window, (_, first) = pool.window, pool.inputs[0]
    if 1 in window.kernel:
        yield pool
        return
    column = structs.replace(pool.result, name=f"{pool.result.name}.columns", rows=1, width=first.width)
    down = replace(
        window,
        out_dims=(window.out_dims[0], window.in_dims[1]),
        kernel=(window.kernel[0], 1),
        strides=(window.strides[0], 1),
        pads=(window.pads[0], 0),
        dilations=(window.dilations[0], 1),
    )
    yield structs.replace(pool, result=column, window=down)
    along = replace(
        window,
        in_dims=(window.out_dims[0], window.in_dims[1]),
        kernel=(1, window.kernel[1]),
        strides=(1, window.strides[1]),
        pads=(0, window.pads[1]),
        dilations=(1, window.dilations[1]),
    )
    yield structs.replace(pool, inputs=((pool.row, column),), window=along)


def is_global_pool(window: Window) -> bool:
    """True if the window has one output pixel, which reads each pixel of an image or a volume."""
    return window.is_global and set(window.dilations) == {1} and len(window.kernel) >= 2


@dataclass(frozen=True, slots=True)
class GlobalPool:
    """A global pool of a channel range: each core reduces some columns, then their results are combined.

    name: prefix of tile names. number: of the channel range.
    """

    node: Node
    function: Literal["max", "sum"]
    name: str
    number: int

    def lower(self, emit: EmitCompute, columns: list[tuple[list[Tile], int | None]]) -> Tile:
        """Emits the pool, and returns the tile of the output pixel, on the core of the first columns.

        The results of many cores are combined in a tree (`combines_in_tree`).

        columns: for each group of neighbouring columns its lines, and the core that reduces them (None: the core of the
        first line).
        """
        pixels = [self.along(emit, self.down(emit, f"x{i}", *given), *given) for i, given in enumerate(columns)]
        if not combines_in_tree(len(pixels)):
            return self.down(emit, "all", pixels, columns[0][1])
        partial = {(i, i + 1): pixel for i, pixel in enumerate(pixels)}
        for each in tree_sums(len(pixels), 0, self.number):
            given = [partial[each.begin, each.middle], partial[each.middle, each.end]]
            own = self.down(emit, f"x{each.begin}-{each.end}", given, columns[each.place][1])
            partial[each.begin, each.end] = own
        return partial[0, len(pixels)]

    def down(self, emit: EmitCompute, stem: str, tiles: list[Tile], core: int | None) -> Tile:
        """Combines tiles of equal shape element by element, each as soon as it is ready."""
        return self._total(emit, stem, [(tile, n / len(tiles)) for n, tile in enumerate(tiles)], core)[0]

    def _total(
        self, emit: EmitCompute, stem: str, terms: list[tuple[Tile, float]], core: int | None
    ) -> tuple[Tile, float]:
        """Combines (tile, position) terms in blocks, as `Pool` does. Returns the result and its position."""
        if self.function == "sum" and len(terms) > MOST_SEQUENTIAL_TERMS:
            starts = range(0, len(terms), SUM_BLOCK_TERMS)
            blocks = [self._total(emit, f"{stem}.block{k}", terms[k : k + SUM_BLOCK_TERMS], core) for k in starts]
            return self._total(emit, f"{stem}.blocks", blocks, core)
        total, end = terms[0]
        for n, (tile, end) in enumerate(terms[1:], 1):
            result = structs.replace(tile, name=f"{self.name}.{stem}.{n}")
            op = Vector(result, "add" if self.function == "sum" else "max", (total, tile))
            emit(self.compute(op), core, end)
            total = result
        return total, end

    def along(self, emit: EmitCompute, line: Tile, tiles: list[Tile], core: int | None) -> Tile:
        """Combines the pixels of a line into one."""
        if line.width == 1:
            return line
        result = structs.replace(line, name=f"{tiles[0].name}.{self.name}.pixel", width=1)
        ones, none = (1, 1), (0, 0)
        window = Window((1, line.width), ones, (1, line.width), ones, none, ones)
        emit(self.compute(Pool(result, ((0, line),), self.function, window)), core, 1.0)
        return result

    def compute(self, op: BodyOp) -> Compute:
        return Compute(self.node.name, self.node.op_type, self.node.output, (), (op,), (op.result,))
