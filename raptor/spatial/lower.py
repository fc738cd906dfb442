"""Graph to SpatialIR: tensors become channel tiles, layers become computes that fit a core (thesis, 4.2 to 4.5)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from raptor.frontend.graph import Concat, Constant, Filter, Graph, Map, Node, Pool, Rename, Softmax
from raptor.layout import Image, Region, channel_tiles
from raptor.mapping import Mapping, Matrix
from raptor.spatial.ir import (
    ApplyFilters,
    BodyOp,
    Compute,
    ConstantTile,
    Gather,
    Part,
    Piece,
    PoolTile,
    SoftmaxTile,
    SpatialGraph,
    TensorParts,
    Tile,
    Vector,
)

_MakeOp = Callable[[Tile, list[Tile], Region], BodyOp]
"""Makes the operation that computes one tile from the operand tiles that meet it."""


def partition(graph: Graph, mapping: Mapping) -> SpatialGraph:
    """Cuts every tensor into tiles and every layer into computes, as the mapping says."""
    lowering = _Lowering(graph, mapping)
    for name in graph.inputs:
        image = graph.tensors[name].image
        lowering.bind(name, "", [(r, lowering.tile(name, i, r, image)) for i, r in lowering.regions(image)])
    for node in graph.nodes:
        lowering.lower(node)
    filters = {n.output: n.operator for n in graph.nodes if isinstance(n.operator, Filter)}
    return SpatialGraph(
        graph.name, graph.inputs, graph.outputs, lowering.tensors, filters, tuple(lowering.computes)
    )


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    mapping: Mapping
    tensors: dict[str, TensorParts] = field(default_factory=dict[str, TensorParts])
    computes: list[Compute] = field(default_factory=list[Compute])

    def regions(self, image: Image) -> list[tuple[int, Region]]:
        return list(enumerate(channel_tiles(image, self.mapping.tile)))

    @staticmethod
    def tile(name: str, index: int, region: Region, image: Image) -> Tile:
        return Tile(f"{name}.{index}", region.row_count, image.width, region.channel_count)

    def bind(self, name: str, node: str, parts: list[tuple[Region, Tile]]) -> None:
        tensor = self.graph.tensors[name]
        shown = tuple(Part(region, tile) for region, tile in parts)
        self.tensors[name] = TensorParts(name, node, tensor.shape, tensor.image, tensor.in_model, shown)

    def parts(self, name: str) -> tuple[Part, ...]:
        return self.tensors[name].parts

    def lower(self, node: Node) -> None:
        match node.operator:
            case Filter():
                self.lower_filter(node, node.operator)
            case Map():
                self.lower_tiles(node, _map_op(node.operator))
            case Pool():
                self.lower_tiles(node, _pool_op(node.operator))
            case Concat():
                self.lower_concat(node)
            case Softmax():
                self.lower_softmax(node)
            case Rename():
                self.bind(node.output, node.name, [(p.region, p.tile) for p in self.parts(node.inputs[0])])

    def add(self, node: Node, body: list[BodyOp]) -> None:
        """A compute without matrices that yields its last result."""
        results = (body[-1].result,)
        self.computes.append(Compute(node.name, node.op_type, node.output, (), None, tuple(body), results))

    def lower_tiles(self, node: Node, make: _MakeOp) -> None:
        """One compute for each tile of the result; the operands are tiled alike."""
        image = self.graph.tensors[node.output].image
        parts: list[tuple[Region, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            operands = [self.aligned(node, name, i, region) for name in node.inputs]
            self.add(node, [make(result, operands, region)])
            parts.append((region, result))
        self.bind(node.output, node.name, parts)

    def aligned(self, node: Node, name: str, index: int, region: Region) -> Tile:
        """Tile `index` of a tensor; tensors are always cut at the same channels, but for a wide softmax result."""
        parts = self.parts(name)
        if index < len(parts) and parts[index].region.channels == region.channels:
            return parts[index].tile
        result = Tile(f"{node.output}.{index}.{name}", parts[0].tile.rows, parts[0].tile.width, region.channel_count)
        self.add(node, [Gather(result, tuple(_pieces(parts, region.channels)))])
        return result

    def lower_concat(self, node: Node) -> None:
        """Tiles that fall on tile boundaries are renamed; the others are gathered."""
        image = self.graph.tensors[node.output].image
        sources: list[Part] = []
        base = 0
        for name in node.inputs:
            for part in self.parts(name):
                start, stop = part.region.channels
                sources.append(Part(Region((base + start, base + stop), part.region.rows), part.tile))
            base += self.graph.tensors[name].image.channels
        bound = [(r, self.gathered(node, i, r, image, sources)) for i, r in self.regions(image)]
        self.bind(node.output, node.name, bound)

    def gathered(self, node: Node, index: int, region: Region, image: Image, sources: list[Part]) -> Tile:
        same = next((p.tile for p in sources if p.region.channels == region.channels), None)
        if same is not None:
            return same
        result = self.tile(node.output, index, region, image)
        self.add(node, [Gather(result, tuple(_pieces(sources, region.channels)))])
        return result

    def lower_softmax(self, node: Node) -> None:
        """Needs all channels of a pixel side by side: the result is one wide tile."""
        image = self.graph.tensors[node.output].image
        region = Region((0, image.channels), (0, image.rows))
        parts = self.parts(node.inputs[0])
        body: list[BodyOp] = []
        source = parts[0].tile
        if len(parts) > 1:
            source = Tile(f"{node.output}.gathered", image.rows, image.width, image.channels)
            body.append(Gather(source, tuple(_pieces(parts, region.channels))))
        result = self.tile(node.output, 0, region, image)
        self.add(node, [*body, SoftmaxTile(result, source)])
        self.bind(node.output, node.name, [(region, result)])

    def lower_filter(self, node: Node, operator: Filter) -> None:
        """The layer's matrices, cut where the core changes, become computes that cascade their partial sums."""
        layer = _FilterLayer(node, operator, self)
        chosen = self.mapping.filters[node.output]
        placed = zip(chosen.matrices, chosen.cores, strict=True)
        for core, run in groupby(placed, key=lambda pair: pair[1]):
            self.computes.append(layer.compute(tuple(matrix for matrix, _ in run), core))
        image = self.graph.tensors[node.output].image
        regions = [r for _, r in self.regions(image)]
        self.bind(node.output, node.name, [(r, layer.partial[r.channels]) for r in regions])


@dataclass(slots=True)
class _FilterLayer:
    """State of one layer's cascade: the partial sum so far of each output tile, and its matrices still to come."""

    node: Node
    operator: Filter
    lowering: _Lowering
    partial: dict[tuple[int, int], Tile] = field(default_factory=dict[tuple[int, int], Tile])
    remaining: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    stages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def __post_init__(self) -> None:
        for matrix in self.lowering.mapping.filters[self.node.output].matrices:
            self.remaining[matrix.cols] = self.remaining.get(matrix.cols, 0) + 1

    def compute(self, matrices: tuple[Matrix, ...], core: int) -> Compute:
        body: list[BodyOp] = []
        touched: dict[tuple[int, int], None] = {}
        numbered = list(enumerate(matrices))
        for (rows, cols), run in groupby(numbered, key=lambda pair: (pair[1].rows, pair[1].cols)):
            indices, group = zip(*run, strict=True)
            self.remaining[cols] -= len(group)
            self.apply(body, rows, cols, indices, tuple(m.tap for m in group))
            touched[cols] = None
        results = tuple(self.partial[cols] for cols in touched)
        return Compute(
            self.node.name, self.node.op_type, self.node.output, matrices, core, tuple(body), results
        )

    def apply(
        self,
        body: list[BodyOp],
        rows: tuple[int, int],
        cols: tuple[int, int],
        indices: tuple[int, ...],
        taps: tuple[int, ...],
    ) -> None:
        """Products with the input tile that holds `rows`, then the sum with what came before."""
        source = next(
            p for p in self.lowering.parts(self.node.inputs[0]) if p.region.channels[0] <= rows[0] < p.region.channels[1]
        )
        channel = rows[0] - source.region.channels[0]
        before = self.partial.get(cols)
        product = self.value(cols, last=before is None and self.remaining[cols] == 0)
        body.append(
            ApplyFilters(product, source.tile, indices, taps, channel, self.operator.window, self.operator.relu)
        )
        self.partial[cols] = product
        if before is not None:
            total = self.value(cols, last=self.remaining[cols] == 0)
            body.append(Vector(total, "add", (before, product)))
            self.partial[cols] = total

    def value(self, cols: tuple[int, int], *, last: bool) -> Tile:
        """A new value for an output tile; the last one carries the tile's own name."""
        image = self.lowering.graph.tensors[self.node.output].image
        index = cols[0] // self.lowering.mapping.tile
        stage = self.stages.get(cols, 0)
        self.stages[cols] = stage + 1
        name = f"{self.node.output}.{index}" + ("" if last else f".{stage}")
        return Tile(name, image.rows, image.width, cols[1] - cols[0])


def _map_op(operator: Map) -> _MakeOp:
    def make(result: Tile, operands: list[Tile], region: Region) -> BodyOp:
        chosen = tuple(
            _constant_tile(f"{result.name}.const{i}", o, result, region) if isinstance(o, Constant) else operands[o]
            for i, o in enumerate(operator.operands)
        )
        return Vector(result, operator.function, chosen)

    return make


def _pool_op(operator: Pool) -> _MakeOp:
    def make(result: Tile, operands: list[Tile], region: Region) -> BodyOp:
        return PoolTile(result, operands[0], operator.function, operator.window)

    return make


def _constant_tile(name: str, constant: Constant, result: Tile, region: Region) -> ConstantTile:
    """The part of a constant that meets one tile, repeating with the shortest of: a pixel, a row, the tile."""
    rows, width, channels = constant.pixels.shape
    values = constant.pixels[:, :, slice(*region.channels)] if channels > 1 else constant.pixels
    if rows > 1:
        shape = (result.rows, result.width, result.channels)
        values = values[slice(*region.rows)]
    else:
        shape = (1, result.width if width > 1 else 1, result.channels)
    return ConstantTile(name, np.ascontiguousarray(np.broadcast_to(values, shape), np.float32).reshape(-1))


def _pieces(parts: Sequence[Part], channels: tuple[int, int]) -> Iterator[Piece]:
    """The channels `start` to `stop` of a tensor, taken from the tiles that hold them."""
    start, stop = channels
    for part in parts:
        low, high = part.region.channels
        first, last = max(low, start), min(high, stop)
        if first < last:
            yield Piece(part.tile, first - low, first - start, last - first)
