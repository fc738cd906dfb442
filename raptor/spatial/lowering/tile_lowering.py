"""Lowering of the Graph to SpatialIR by channel tiles: layers become computes that fit a core (thesis, 4.2 to 4.5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
    ConstantTensor,
    Dot,
    Filter,
    Graph,
    Lookup,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Requantise,
    Softmax,
    Stencil,
    Take,
)
from raptor.graph.layers import filter_key
from raptor.graph.run_encoding import find_runs
from raptor.mapping.decision import Decision, KernelUnfolding, LineFlow
from raptor.mapping.packed_runs import pack_runs
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import ProductUse, TakeRows, TensorPart, TensorParts, ViewUse
from raptor.spatial.lowering.integer_lowering import MakeTileOp
from raptor.spatial.lowering.kernel_cascade import KernelCascade
from raptor.spatial.lowering.tile_ops import broadcast_op, tile_op_maker
from raptor.spatial.lowering.tile_residency import TileResidency
from raptor.spatial.operations import Average, ChannelPiece, Gather, Vector
from raptor.spatial.operations import Dot as DotTile
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.operations import Softmax as SoftmaxTile
from raptor.spatial.tiles import ConstantTile, Tile, tile_name
from raptor.target.arch import Target
from raptor.target.chip_elements import ElementType
from raptor.target.tensor_layout import Image, TensorRegion, cut_channel_tiles

Ints = npt.NDArray[np.int64]


class PlacedCompute(NamedTuple):
    """A compute, its virtual core and its position (see `raptor.spatial.placed_graph.Partition`)."""

    compute: Compute
    core: int
    position: float


@dataclass(slots=True)
class TileLowering:
    """Lowers nodes in topological order on tiles of all rows; base class of the finer lowerings, which fall back to it.

    tensors: tiles of the tensors so far. computes: computes so far. literals: constant tiles. residency: core of each
    tile.
    """

    graph: Graph
    decision: Decision
    arch: Target
    tensors: dict[str, TensorParts] = field(default_factory=dict[str, TensorParts])
    computes: list[PlacedCompute] = field(default_factory=list[PlacedCompute])
    literals: dict[str, ConstantTile] = field(default_factory=dict[str, ConstantTile])
    residency: TileResidency = field(default_factory=TileResidency)

    @property
    def view_uses(self) -> dict[str, ViewUse]:
        """Tensors of which only regions were made, by name."""
        return {}

    @property
    def product_uses(self) -> dict[str, ProductUse]:
        """Operands of the products of two tensors that were lowered line by line, by name of the result."""
        return {}

    def bind_input(self, name: str) -> None:
        """Creates the tiles of a model input."""
        self.bind_input_tiles(name)

    def lower(self, node: Node) -> None:
        """Emits the computes of a node, and records the tiles of its output."""
        self.lower_by_tile(node)

    def finish(self) -> None:
        """Completes the program after the last node; does nothing by default."""

    def lower_by_tile(self, node: Node) -> None:
        """Lowers a node on tiles of all rows."""
        match node.operator:
            case Filter() as operator:
                self.lower_filter(node, operator)
            case Dot() as operator:
                self.lower_dot(node, operator)
            case Stencil() | Pool() | Map() | Requantise() | Bound() | Lookup() as operator:
                self.lower_tiles(node, tile_op_maker(operator))
            case Concat():
                self.lower_concat(node)
            case Move() as operator:
                self.lower_move(node, operator)
            case Take() as operator:
                self.lower_take(node, operator)
            case Softmax() | ChannelSum() as operator:
                self.lower_over_channels(node, operator)
            case Rename():
                self.lower_rename(node)
            case ConstantTensor() as operator:
                self.lower_constant(node, operator)

    def emit(self, compute: Compute, core: int | None = None, position: float = 1.0) -> None:
        """Appends a compute; all computes pass through here. core: None for the default, `core_for`.

        A move from many tiles packs them first if this is faster.
        """
        core = self.core_for(compute) if core is None else core
        compute = pack_sources(compute, self.arch)
        self.residency.add(compute, core)
        self.computes.append(PlacedCompute(compute, core, position))

    def core_for(self, compute: Compute) -> int:
        """Returns the default core of a compute: the core of its first operand."""
        return self.residency.core_for(compute.inputs)

    def add(self, node: Node, body: list[BodyOp], core: int | None = None) -> None:
        """Emits a compute without matrices, whose result is the result of the last operation. core: as for `emit`."""
        self.emit(Compute(node.name, node.op_type, node.output, (), tuple(body), (body[-1].result,)), core)

    def regions(self, image: Image) -> list[tuple[int, TensorRegion]]:
        """Returns the channel tiles of an image with their numbers."""
        return list(enumerate(cut_channel_tiles(image, self.decision.tile)))

    def element(self, name: str) -> ElementType:
        return self.graph.tensors[name].element

    def tile(self, name: str, index: int, region: TensorRegion, image: Image) -> Tile:
        """Makes tile `index` of a tensor."""
        return Tile(tile_name(name, index), region.row_count, image.width, region.channel_count, self.element(name))

    def bind(self, name: str, node: str, parts: list[tuple[TensorRegion, Tile]]) -> None:
        """Records the tiles that hold a tensor."""
        tensor = self.graph.tensors[name]
        shown = tuple(TensorPart(region, tile) for region, tile in parts)
        self.tensors[name] = TensorParts(
            name, node, tensor.shape, tensor.image, tensor.in_model, shown, coding=tensor.coding
        )

    def bind_input_tiles(self, name: str) -> None:
        image = self.graph.tensors[name].image
        self.bind(name, "", [(r, self.tile(name, i, r, image)) for i, r in self.regions(image)])

    def parts(self, name: str) -> tuple[TensorPart, ...]:
        """Returns the tiles of all rows of a tensor."""
        return self.tensors[name].parts

    def lower_rename(self, node: Node) -> None:
        """Binds the output to the tiles of the input, whose elements stay in place."""
        image = self.graph.tensors[node.output].image
        parts = self.parts(node.inputs[0])
        self.bind(node.output, node.name, [(TensorRegion(p.region.channels, (0, image.rows)), p.tile) for p in parts])

    def lower_tiles(self, node: Node, make: MakeTileOp) -> None:
        """Emits one compute for each tile of the result, from operand tiles of the same channels."""
        image = self.graph.tensors[node.output].image
        parts: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            operands = [self.aligned(node, name, i, region) for name in node.inputs]
            self.add(node, [make(result, operands, region)])
            parts.append((region, result))
        self.bind(node.output, node.name, parts)

    def aligned(self, node: Node, name: str, index: int, region: TensorRegion) -> Tile:
        """Returns a tile of tensor `name` with the channels of `region`: tile `index`, or one that is gathered.

        Tiles are gathered if the tensor is cut at other channels; the result of a softmax, for instance, is one wide
        tile.
        """
        parts = self.parts(name)
        if index < len(parts) and parts[index].region.channels == region.channels:
            return parts[index].tile
        stem, channels = f"{tile_name(node.output, index)}.{name}", region.channel_count
        result = structs.replace(parts[0].tile, name=stem, channels=channels)
        self.add(node, [Gather(result, tuple(_pieces(parts, region.channels)))])
        return result

    def lower_concat(self, node: Node) -> None:
        """Lowers a concatenation of channels: sources at tile boundaries are renamed, all others are gathered."""
        image = self.graph.tensors[node.output].image
        sources: list[TensorPart] = []
        base = 0
        for name in node.inputs:
            for part in self.parts(name):
                start, stop = part.region.channels
                sources.append(TensorPart(TensorRegion((base + start, base + stop), part.region.rows), part.tile))
            base += self.graph.tensors[name].image.channels
        bound = [(r, self.gather_sources(node, i, r, image, sources)) for i, r in self.regions(image)]
        self.bind(node.output, node.name, bound)

    def gather_sources(
        self, node: Node, index: int, region: TensorRegion, image: Image, sources: list[TensorPart]
    ) -> Tile:
        """Returns the source with exactly the channels of `region`, or emits a tile gathered from several sources."""
        same = next((p.tile for p in sources if p.region.channels == region.channels), None)
        if same is not None:
            return same
        result = self.tile(node.output, index, region, image)
        self.add(node, [Gather(result, tuple(_pieces(sources, region.channels)))])
        return result

    def lower_dot(self, node: Node, operator: Dot) -> None:
        """Emits, for each output tile, dot products over each tile of the shared channels, and their sum."""
        image = self.graph.tensors[node.output].image
        shared = self.regions(self.graph.tensors[node.inputs[0]].image)
        names = dict.fromkeys(node.inputs)
        aligned = {(name, k): self.aligned(node, name, k, channels) for k, channels in shared for name in names}
        parts: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            total: Tile | None = None
            for k, channels in shared:
                left, right = (aligned[name, k] for name in node.inputs)
                part = structs.replace(result, name=f"{result.name}.{k}") if len(shared) > 1 else result
                body: list[BodyOp] = [DotTile(part, left, right, operator.batch, operator.cols, region.channels[0])]
                if total is not None:
                    last = channels is shared[-1][1]
                    added = result if last else structs.replace(result, name=f"{result.name}.{k}.sum")
                    body.append(Vector(added, "add", (total, part)))
                self.add(node, body)
                total = body[-1].result
            parts.append((region, result))
        self.bind(node.output, node.name, parts)

    def lower_sum(self, node: Node, operator: ChannelSum) -> None:
        """Emits the sum over the channels of each pixel, broadcast to the channels of the result."""
        image = self.graph.tensors[node.output].image
        total = self.summed(node, f"{node.output}.sum", [p.tile for p in self.parts(node.inputs[0])], operator.factor)
        parts: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            compute = Compute(node.name, node.op_type, node.output, (), (broadcast_op(result, total),), (result,))
            self.emit(compute, self.core_for_sum(node, i))
            parts.append((region, result))
        self.bind(node.output, node.name, parts)

    def core_for_pixels(self, _pixels: Sequence[Tile]) -> int | None:
        """Returns the core where tiles of one pixel are put together; None for the default, `core_for`."""
        return None

    def core_for_sum(self, _node: Node, _index: int) -> int | None:
        """Returns the core for tile `_index` of a broadcast sum over channels; None for the default, `core_for`."""
        return None

    def summed(self, node: Node, name: str, tiles: Sequence[Tile], factor: float, position: float = 1.0) -> Tile:
        """Emits `factor` times the sum over the channels of some tiles of the same pixels; returns its tile.

        Each tile is reduced on its core, and the sums are added on the core of the first one.
        """
        total: Tile | None = None
        for k, tile in enumerate(tiles):
            part = structs.replace(tile, name=f"{name}.{k}", channels=1)
            body: list[BodyOp] = [Average(part, tile)]
            share = np.float32(factor * tile.channels)
            if share != 1:
                part = structs.replace(part, name=f"{part.name}.scaled")
                weight = ConstantTile.from_pixels(f"{part.name}.weight", np.full((1, 1, 1), share), tile.element)
                body.append(Vector(part, "mul", (body[0].result, weight)))
            self.emit_body(node, body, position)
            if total is not None:
                added = structs.replace(part, name=f"{part.name}.added")
                self.emit_body(node, [Vector(added, "add", (total, part))], position)
                part = added
            total = part
        assert total is not None, "every image has channels"
        return total

    def emit_body(self, node: Node, body: list[BodyOp], position: float) -> None:
        """Emits a compute without matrices at a position, whose result is the result of the last operation."""
        self.emit(Compute(node.name, node.op_type, node.output, (), tuple(body), (body[-1].result,)), None, position)

    def lower_move(self, node: Node, operator: Move) -> None:
        """Emits a `Move` for each tile of the result: one list of runs from the tiles of the inputs.

        A result tile that equals an input tile completely is bound to that tile instead.
        """
        image = self.graph.tensors[node.output].image
        sources = [p for name in node.inputs for p in self.parts(name)]
        firsts = np.cumsum([0, *(self.graph.tensors[name].image.elements for name in node.inputs)])
        bound: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            wanted = operator.sources[:, slice(*region.channels)].reshape(-1)
            where, offset = np.full(len(wanted), -1), np.zeros(len(wanted), np.int64)
            base = 0
            for name, first in zip(node.inputs, firsts, strict=False):
                self._locate(name, wanted - first, base, where, offset)
                base += len(self.parts(name))
            runs = find_runs(where, offset)
            whole = equal_source_tile(runs, [part.tile for part in sources], result)
            if whole is not None:
                bound.append((region, whole))
                continue
            used = np.unique(runs[:, 1][runs[:, 1] >= 0])
            runs[:, 1] = np.where(runs[:, 1] < 0, -1, np.searchsorted(used, runs[:, 1]))
            tiles = tuple(sources[int(k)].tile for k in used)
            core = self.core_for_pixels(tiles) if all(tile.pixels == 1 for tile in tiles) else None
            self.add(node, [MoveTile(result, tiles, runs)], core)
            bound.append((region, result))
        self.bind(node.output, node.name, bound)

    def _locate(self, name: str, element: Ints, base: int, where: Ints, offset: Ints) -> None:
        """Writes tile number and offset of the elements that lie in tensor `name` into `where` and `offset`.

        element: indices in the tensor, pixel by pixel; some lie outside of it. base: number of the tensor's first tile.
        """
        image = self.graph.tensors[name].image
        inside = np.flatnonzero((element >= 0) & (element < image.elements))
        pixel, channel = np.divmod(element[inside], image.channels)
        for k, part in enumerate(self.parts(name)):
            low, high = part.region.channels
            chosen = (channel >= low) & (channel < high)
            where[inside[chosen]] = base + k
            offset[inside[chosen]] = pixel[chosen] * part.tile.channels + channel[chosen] - low

    def lower_take(self, node: Node, operator: Take) -> None:
        """Emits an embedding lookup for each tile of the result, in the table's columns of these channels."""
        image = self.graph.tensors[node.output].image
        parts: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            result = self.tile(node.output, i, region, image)
            table = embedding_table(node.output, operator, region, result.element)
            self.add(node, [self.embedding_lookup(node, table, result, np.arange(image.pixels))])
            parts.append((region, result))
        self.bind(node.output, node.name, parts)

    def embedding_lookup(self, node: Node, table: ConstantTile, result: Tile, pixels: Ints) -> TakeRows[Tile]:
        """Returns the embedding lookup of some pixels of a tile."""
        given = self.tensors[node.inputs[0]]
        places = locate_ids(given)[pixels]
        used, index = np.unique(places[:, 0], return_inverse=True)
        ids = tuple(given.parts[int(k)].tile for k in used)
        return TakeRows(result, table, ids, np.column_stack([index.reshape(-1), places[:, 1]]))

    def lower_constant(self, node: Node, operator: ConstantTensor) -> None:
        """Adds a literal for each tile of a constant tensor."""
        image = self.graph.tensors[node.output].image
        parts: list[tuple[TensorRegion, Tile]] = []
        for i, region in self.regions(image):
            tile = self.tile(node.output, i, region, image)
            self.literals[tile.name] = ConstantTile.from_pixels(
                tile.name, operator.pixels[:, :, slice(*region.channels)], tile.element
            )
            parts.append((region, tile))
        self.bind(node.output, node.name, parts)

    def lower_over_channels(self, node: Node, operator: Softmax | ChannelSum) -> None:
        """Lowers an operator that reduces over all channels of a pixel."""
        if isinstance(operator, ChannelSum):
            self.lower_sum(node, operator)
        else:
            self.lower_softmax(node)

    def lower_softmax(self, node: Node) -> None:
        """Emits a softmax. It needs all channels of a pixel side by side, so the result is one wide tile."""
        image = self.graph.tensors[node.output].image
        region = TensorRegion((0, image.channels), (0, image.rows))
        parts = self.parts(node.inputs[0])
        body: list[BodyOp] = []
        source = parts[0].tile
        if len(parts) > 1:
            source = structs.replace(source, name=f"{node.output}.gathered", channels=image.channels)
            body.append(Gather(source, tuple(_pieces(parts, region.channels))))
        result = self.tile(node.output, 0, region, image)
        self.add(node, [*body, SoftmaxTile(result, source)])
        self.bind(node.output, node.name, [(region, result)])

    def lower_filter(self, node: Node, operator: Filter) -> None:
        """Emits a layer with kernel unfolding: a matrix per kernel position; partial sums pass from core to core."""
        image = self.graph.tensors[node.output].image
        chosen, flow = self.decision.layers[filter_key(node)], self.decision.flow
        assert isinstance(chosen, KernelUnfolding), "the other unfoldings are of other lowerings"
        element = self.element(node.output)
        xbar_rows = flow.xbar[0] if isinstance(flow, LineFlow) else None
        source, tile = self.parts(node.inputs[0]), self.decision.tile
        layer = KernelCascade(node, operator, chosen, source, image, element, tile, xbar_rows)
        for compute, core in layer.computes():
            self.emit(compute, core)
        self.bind(node.output, node.name, [(r, layer.partial[r.channels]) for _, r in self.regions(image)])


def pack_sources(compute: Compute, arch: Target) -> Compute:
    """Returns a compute whose moves pack their sources into one tile first where that is faster (`pack_runs`)."""
    if not any(isinstance(op, MoveTile) for op in compute.body):
        return compute
    body: list[BodyOp] = []
    for op in compute.body:
        packed = pack_runs(op.runs, arch.with_element(op.result.element)) if isinstance(op, MoveTile) else None
        if packed is None or not isinstance(op, MoveTile):
            body.append(op)
            continue
        tile = Tile(f"{op.result.name}.packed", 1, 1, packed.elements, op.result.element)
        body += [MoveTile(tile, op.sources, packed.packing), MoveTile(op.result, (tile,), packed.unpacking)]
    return structs.replace(compute, body=tuple(body))


def embedding_table(name: str, operator: Take, region: TensorRegion, element: ElementType) -> ConstantTile:
    """Returns the embedding table of lookup result `name` for a range of channels; each row is a pixel."""
    rows = operator.table[None, :, slice(*region.channels)]
    return ConstantTile.from_pixels(f"{name}.table{region.channels[0]}", rows, element)


def locate_ids(given: TensorParts) -> Ints:
    """Returns [elements, 2], pixel by pixel: the part that holds an element of a tensor, and its offset in the tile."""
    places = np.zeros((given.image.rows, given.image.width, given.image.channels, 2), np.int64)
    for k, part in enumerate(given.parts):
        place = places[part.region.index()]
        place[..., 0], place[..., 1] = k, np.arange(place[..., 1].size).reshape(place.shape[:-1])
    return places.reshape(-1, 2)


def equal_source_tile(runs: Ints, sources: Sequence[Tile], result: Tile) -> Tile | None:
    """Returns the source tile that equals `result` completely, or None."""
    run: list[int] = runs[0].tolist()
    _, source, first, stride, elements = run
    if source < 0 or (first, stride, elements) != (0, 1, result.elements):
        return None
    tile = sources[source]
    return tile if (tile.pixels, tile.channels) == (result.pixels, result.channels) else None


def _pieces(parts: Sequence[TensorPart], channels: tuple[int, int]) -> Iterator[ChannelPiece[Tile]]:
    """Yields the pieces that make up a range of channels."""
    start, stop = channels
    for part in parts:
        low, high = part.region.channels
        first, last = max(low, start), min(high, stop)
        if first < last:
            yield ChannelPiece(part.tile, first - low, first - start, last - first)
