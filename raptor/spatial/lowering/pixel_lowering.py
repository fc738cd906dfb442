"""Lowering of the Graph to SpatialIR pixel by pixel, as in the thesis before `applyFilters` (4.1).

A value is one pixel of a channel tile, and so is every product, addition, load, store and message. Operators without a
rule for pixels work on tiles of all rows: their inputs are stacked first, and the result is cut into pixels again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from msgspec import structs

from raptor.graph.ir import (
    Bound,
    ConstantTensor,
    Elementwise,
    Filter,
    Lookup,
    Map,
    Node,
    Pool,
    Rename,
    Requantise,
    Take,
)
from raptor.graph.layers import filter_key
from raptor.graph.window import Window, WindowTable
from raptor.mapping.decision import KernelUnfolding, Matrix, Range
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import TensorPart
from raptor.spatial.lowering.tile_lowering import TileLowering, embedding_table
from raptor.spatial.lowering.tile_ops import tile_op_maker
from raptor.spatial.operations import ApplyFilters, Vector
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.operations import Pool as PoolTile
from raptor.spatial.tiles import ConstantTile, Tile, tile_name
from raptor.target.tensor_layout import Image, TensorRegion

PixelTiles = dict[Range, list[Tile]]
"""The tiles of all pixels of a tensor, keyed by channel range."""


@dataclass(slots=True)
class PixelLowering(TileLowering):
    """Lowers nodes pixel by pixel if possible, else on tiles of all rows.

    pixels: the pixel tiles of the tensors so far. whole: tiles of all rows of the tensors that a node needed as such.
    """

    pixels: dict[str, PixelTiles] = field(default_factory=dict[str, PixelTiles])
    whole: dict[str, tuple[TensorPart, ...]] = field(default_factory=dict[str, tuple[TensorPart, ...]])

    def bind_input(self, name: str) -> None:
        image = self.graph.tensors[name].image
        self.bind_pixels(name, "", {r.channels: self.tiles(name, i, r, image) for i, r in self.regions(image)})

    def tiles(self, name: str, index: int, region: TensorRegion, image: Image) -> list[Tile]:
        """Makes a tile for each pixel of a channel tile."""
        whole = self.tile(name, index, region, image)
        return [structs.replace(whole, name=f"{whole.name}@{p}", rows=1, width=1) for p in range(whole.pixels)]

    def bind_pixels(self, name: str, node: str, pixels: PixelTiles) -> None:
        """Records that a tensor consists of these pixels.

        The channel tiles of a pixel are adjacent in memory (thesis, figure 6.1).
        """
        image = one_pixel_rows(self.graph.tensors[name].image)
        self.pixels[name] = pixels
        regions = ((channels, p) for p in range(image.rows) for channels in pixels)
        self.bind(name, node, [(TensorRegion(c, (p, p + 1)), pixels[c][p]) for c, p in regions])
        self.tensors[name] = replace(self.tensors[name], image=image)

    def parts(self, name: str) -> tuple[TensorPart, ...]:
        """Returns the tiles of all rows of a tensor. The first call stacks its pixels."""
        if name not in self.whole:
            image = self.graph.tensors[name].image
            self.whole[name] = tuple(
                TensorPart(TensorRegion(channels, (0, image.rows)), self.stacked(name, i, image, tiles))
                for i, (channels, tiles) in enumerate(self.pixels[name].items())
            )
            self.tensors[name] = replace(self.tensors[name], whole=self.whole[name])
        return self.whole[name]

    def stacked(self, name: str, index: int, image: Image, tiles: list[Tile]) -> Tile:
        """Emits the assembly of pixels into one tile."""
        if len(tiles) == 1:
            return tiles[0]
        result = structs.replace(tiles[0], name=f"{tile_name(name, index)}.whole", rows=image.rows, width=image.width)
        size = tiles[0].channels
        runs = np.array([[i * size, i, 0, 1, size] for i in range(len(tiles))])
        op = MoveTile(result, tuple(tiles), runs)
        self.emit(Compute(self.tensors[name].node, "Move", name, (), (op,), (result,)))
        return result

    def cut(self, node: Node, whole: Tile) -> list[Tile]:
        """Emits the pixels of a tile."""
        if whole.pixels == 1:
            return [whole]
        stem = f"{whole.name}@{node.output}"
        tiles = [structs.replace(whole, name=f"{stem}@{p}", rows=1, width=1) for p in range(whole.pixels)]
        for p, tile in enumerate(tiles):
            self.add(node, [MoveTile(tile, (whole,), np.array([[0, 0, p * tile.channels, 1, tile.channels]]))])
        return tiles

    def lower(self, node: Node) -> None:
        """Lowers a node by pixel if possible, else on tiles of all rows, which are cut into pixels afterwards."""
        match node.operator:
            case Filter() as operator:
                pixels = self.filter_pixels(node, operator)
            case Map() | Requantise() | Bound() | Lookup() as operator if self.maps_pixels(node):
                pixels = self.map_pixels(node, operator)
            case Pool() as operator if all(_pixels_read(operator.window)):
                pixels = self.pool_pixels(node, operator)
            case Take() as operator:
                pixels = self.take_pixels(node, operator)
            case Rename():
                pixels = self.pixels[node.inputs[0]]
            case ConstantTensor() as operator:
                pixels = self.constant_pixels(node, operator)
            case _:
                pixels = self.lower_whole(node)
        self.bind_pixels(node.output, node.name, pixels)

    def lower_whole(self, node: Node) -> PixelTiles:
        """Lowers a node on tiles of all rows. Returns its output cut into pixels."""
        self.lower_by_tile(node)
        parts = self.whole[node.output] = self.tensors[node.output].parts
        cut = {
            tile: self.cut(node, tile) for tile in dict.fromkeys(p.tile for p in parts)
        }  # a tile occurs twice in x ++ x
        return {p.region.channels: cut[p.tile] for p in parts}

    def filter_pixels(self, node: Node, operator: Filter) -> PixelTiles:
        """Emits a layer with weights, one output pixel after another."""
        image, chosen = self.graph.tensors[node.output].image, self.decision.layers[filter_key(node)]
        assert isinstance(chosen, KernelUnfolding), "by pixel there is no other unfolding"
        results = {r.channels: self.tiles(node.output, i, r, image) for i, r in self.regions(image)}
        placed = groupby(zip(chosen.matrices, chosen.cores, strict=True), key=lambda pair: pair[1])
        stages = [(core, tuple(matrix for matrix, _ in run)) for core, run in placed]
        window = WindowTable(np.zeros((1, operator.window.tap_count), np.int32), in_pixels=1)
        for p, inputs in enumerate(operator.window.input_pixels().tolist()):
            tiles = {channels: tiles[p] for channels, tiles in results.items()}
            pixel = _Pixel(operator, window, self.pixels[node.inputs[0]], inputs, tiles)
            self.filter_pixel(node, pixel, stages)
        return results

    def filter_pixel(self, node: Node, pixel: "_Pixel", stages: Sequence[tuple[int, tuple[Matrix, ...]]]) -> None:
        """Emits one output pixel of a layer: a chain of cores adds up the products.

        `stages`: each core and its matrices. Output tiles without a product are set to zero.
        """
        pixel.left.update(m.cols for _, matrices in stages for m in matrices if pixel.reads(m))
        for core, matrices in stages:
            used = [(i, m) for i, m in enumerate(matrices) if pixel.reads(m)]
            body = tuple(op for i, m in used for op in pixel.product(i, m))
            results = tuple(pixel.sums[cols] for cols in dict.fromkeys(m.cols for _, m in used))
            if body:
                key = filter_key(node)
                self.emit(Compute(node.name, node.op_type, key, matrices, body, results), core)
        for zero in (tile for cols, tile in pixel.results.items() if cols not in pixel.sums):
            self.add(node, [MoveTile(zero, (), np.array([[0, -1, 0, 1, zero.elements]]))])

    def maps_pixels(self, node: Node) -> bool:
        """True if all operands are cut at the same channels as the result."""
        wanted = {r.channels for _, r in self.regions(self.graph.tensors[node.output].image)}
        return all(set(self.pixels[name]) == wanted for name in node.inputs)

    def map_pixels(self, node: Node, operator: Elementwise) -> PixelTiles:
        """Emits an element-wise function of each pixel. An operand of one pixel is broadcast."""
        image = self.graph.tensors[node.output].image
        make = tile_op_maker(operator)
        results: PixelTiles = {}
        for i, region in self.regions(image):
            results[region.channels] = self.tiles(node.output, i, region, image)
            sources = [self.pixels[name][region.channels] for name in node.inputs]
            for p, tile in enumerate(results[region.channels]):
                operands = [source[p % len(source)] for source in sources]
                y, x = divmod(p, image.width)
                self.add(node, [make(tile, operands, TensorRegion(region.channels, (y, y + 1), (x, x + 1)))])
        return results

    def pool_pixels(self, node: Node, operator: Pool) -> PixelTiles:
        """Emits a pool of each output pixel."""
        image, window = self.graph.tensors[node.output].image, operator.window
        taps = _pixels_read(window)
        results: PixelTiles = {}
        for i, (channels, source) in enumerate(self.pixels[node.inputs[0]].items()):
            results[channels] = self.tiles(node.output, i, TensorRegion(channels, (0, image.rows)), image)
            for p, tile in enumerate(results[channels]):
                self.add(node, [PoolTile(tile, tuple((k, source[k]) for k in taps[p]), operator.function, window, p)])
        return results

    def take_pixels(self, node: Node, operator: Take) -> PixelTiles:
        """Emits an embedding lookup for each output pixel and channel tile."""
        image = self.graph.tensors[node.output].image
        results: PixelTiles = {}
        for i, region in self.regions(image):
            results[region.channels] = self.tiles(node.output, i, region, image)
            table = embedding_table(node.output, operator, region, self.element(node.output))
            for p, tile in enumerate(results[region.channels]):
                self.add(node, [self.embedding_lookup(node, table, tile, np.array([p]))])
        return results

    def constant_pixels(self, node: Node, operator: ConstantTensor) -> PixelTiles:
        """Adds a literal for each pixel of a constant tensor."""
        image = self.graph.tensors[node.output].image
        results = {r.channels: self.tiles(node.output, i, r, image) for i, r in self.regions(image)}
        for channels, tiles in results.items():
            values = operator.pixels.reshape(image.pixels, -1)[:, slice(*channels)]
            constants = (
                ConstantTile.from_pixels(t.name, v[None, None], t.element) for t, v in zip(tiles, values, strict=True)
            )
            self.literals |= {c.name: c for c in constants}
        return results


def _pixels_read(window: Window) -> list[list[int]]:
    """Returns, for each output pixel, the sorted input pixels under its window, without padding."""
    pixels: list[list[int]] = window.input_pixels().tolist()
    return [sorted(set(inputs) - {-1}) for inputs in pixels]


@dataclass(slots=True)
class _Pixel:
    """Accumulation of one output pixel of a layer.

    window: a window of one pixel that every kernel position reads. source: the input of the layer. inputs: for each
    kernel position its input pixel, -1 for padding. results: tile of each complete sum, by output channels. left:
    products still to add. sums: the partial sums. values: number of tiles made for each sum.
    """

    operator: Filter
    window: WindowTable
    source: PixelTiles
    inputs: Sequence[int]
    results: dict[Range, Tile]
    left: Counter[Range] = field(default_factory=Counter[Range])
    sums: dict[Range, Tile] = field(default_factory=dict[Range, Tile])
    values: Counter[Range] = field(default_factory=Counter[Range])

    def reads(self, matrix: Matrix) -> bool:
        """True if the kernel position of the matrix reads a pixel that is not padding."""
        return self.inputs[matrix.tap] >= 0

    def product(self, number: int, matrix: Matrix) -> Iterator[BodyOp]:
        """Yields the product with matrix `number` of the compute, then its addition to the partial sum."""
        channels = next(c for c in self.source if c[0] <= matrix.rows[0] < c[1])
        tile = self.source[channels][self.inputs[matrix.tap]]
        before = self.sums.get(matrix.cols)
        self.left[matrix.cols] -= 1
        product = self.value(matrix.cols, last=before is None and self.left[matrix.cols] == 0)
        first = matrix.rows[0] - channels[0]
        yield ApplyFilters(product, tile, (number,), (matrix.tap,), first, self.window, self.operator.relu)
        self.sums[matrix.cols] = product
        if before is not None:
            self.sums[matrix.cols] = self.value(matrix.cols, last=self.left[matrix.cols] == 0)
            yield Vector(self.sums[matrix.cols], "add", (before, product))

    def value(self, cols: Range, *, last: bool) -> Tile:
        """Makes the next value of a partial sum; the last one is the result tile."""
        result = self.results[cols]
        self.values[cols] += 1
        return result if last else structs.replace(result, name=f"{result.name}.{self.values[cols] - 1}")


def one_pixel_rows(image: Image) -> Image:
    """Returns an image in which each pixel of `image` is a row of width 1.

    A dimension of size 1 is inserted after the last dimension that is not the channels.
    """
    if len(image.shape) == 1:
        return image
    axis = image.channel_axis
    at = axis if axis == len(image.shape) - 1 else len(image.shape)
    return Image((*image.shape[:at], 1, *image.shape[at:]), axis + (at <= axis))
