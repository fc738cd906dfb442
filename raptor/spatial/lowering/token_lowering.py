"""Lowering of the Graph to SpatialIR by token: sequences stream as lines of tokens, attention has cores of its own.

A `Move` between such tensors is a view: nothing is moved until an operation on some core reads elements of it. Then the
operand tiles with these elements are copied there and put into order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.ir import ChannelSum, Dot, Elementwise, Move, Node, Pool, Softmax, Stencil
from raptor.graph.run_encoding import find_runs
from raptor.graph.streaming_layout import is_token_layout
from raptor.graph.window import Window, WindowTable
from raptor.mapping.decision import DotGrid
from raptor.mapping.modes.line_readers import find_line_reader
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, can_stream_product, find_views, readers_are_placed
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy, ProductUse, TensorPart, ViewUse
from raptor.spatial.lowering.cell_grid import CellGrid, LineCell, MadeCells, cell_name
from raptor.spatial.lowering.line_lowering import LineLowering
from raptor.spatial.lowering.line_pools import is_global_pool
from raptor.spatial.lowering.tile_lowering import equal_source_tile
from raptor.spatial.lowering.tile_ops import broadcast_op
from raptor.spatial.operations import Dot as DotTile
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.operations import Softmax as SoftmaxTile
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import Image, TensorRegion

Ints = npt.NDArray[np.int64]
CoreSegments = list[tuple[Range, int]]
"""Column ranges of a line with the core of each, from left to right."""


@dataclass(slots=True)
class TokenLowering(LineLowering):
    """Lowers operators on sequences token by token, and all others like `LineLowering`.

    lazy: results of moves that are views. views: views so far, with their nodes. shown: regions that were made of each
    view. seen: tiles of views so far, by name. reused: (view, tile) where a tile of another tensor is part of a view.
    products: operands of the products that were lowered, by name of the result. readers: the nodes that read each
    tensor.
    """

    lazy: set[str] = field(default_factory=set[str])
    views: dict[str, Node] = field(default_factory=dict[str, Node])
    shown: dict[str, list[TensorPart]] = field(default_factory=dict[str, list[TensorPart]])
    seen: dict[str, Tile] = field(default_factory=dict[str, Tile])
    reused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    products: dict[str, ProductUse] = field(default_factory=dict[str, ProductUse])
    readers: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])

    def __post_init__(self) -> None:
        LineLowering.__post_init__(self)
        self.lazy = find_views(self.graph, self.parts_of)
        self.readers = self.graph.readers()

    def lower(self, node: Node) -> None:
        match node.operator:
            case Move() as operator if self.has_cores(node):
                self.move_lines(node, operator)
            case Move() if node.output in self.lazy:
                self.views[node.output] = node
            case Move() as operator if (rows := self.stacked(node, operator)) is not None:
                self.bind(node.output, node.name, rows)
            case ChannelSum() as operator if self.sums_tokens(node):
                self.sum_tokens(node, operator)
            case Softmax() if node.output in self.parts_of and node.inputs[0] in self.parts_of:
                self.softmax_tokens(node)
            case Dot() if can_stream_product(self.graph, node, self.parts_of, self.views):
                self.dot_tokens(node)
            case Pool(window=window) | Stencil(window=window) if self.moves_over_tokens(node, window):
                self.lower_by_tile(node)
            case _:
                self.make_views(node)
                LineLowering.lower(self, node)

    def has_cores(self, node: Node) -> bool:
        """Checks whether a move is made on cores of its own; else it is a view, which its readers make."""
        placed = readers_are_placed(self.lazy, self.readers.get(node.output, ()))
        return node.output in self.flow.loaders and placed and self.grids.keys() >= {*node.inputs}

    def finish(self) -> None:
        for name in self.graph.outputs:
            self.parts(name)
        LineLowering.finish(self)

    @property
    def view_uses(self) -> dict[str, ViewUse]:
        if not self.shown:
            return {}
        made = {op.result.name for placed in self.computes for op in placed.compute.body}
        uses: dict[str, ViewUse] = {}
        for name, parts in self.shown.items():
            node, kept = self.views[name], tuple(part for part in parts if part.tile.name in made)
            assert isinstance(node.operator, Move)
            uses[name] = ViewUse(node.name, self.image(name), node.inputs, node.operator.sources, kept)
        return uses

    @property
    def product_uses(self) -> dict[str, ProductUse]:
        return self.products

    # Views

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def is_open(self, name: str) -> bool:
        """True if a tensor is a view that has not been materialised completely."""
        return name in self.views and name not in self.tensors

    def make_views(self, node: Node) -> None:
        """Materialises the views that a node reads, unless it can read regions of them."""
        for name in node.inputs:
            if self.is_open(name) and (not isinstance(node.operator, Elementwise) or self.lead(node) is None):
                self.parts(name)

    def grid(self, name: str) -> CellGrid:
        if self.is_open(name):
            self.make_whole(name)
        return LineLowering.grid(self, name)

    def parts(self, name: str):
        if self.is_open(name):
            self.make_whole(name)
        return LineLowering.parts(self, name)

    def make_whole(self, name: str) -> None:
        """Materialises a view completely: on the cores that will read it if known, else on the operands' cores."""
        node, image = self.views[name], self.image(name)
        if name not in self.parts_of:
            reader = self.decision.find_dense_reader(self.readers.get(name, ()))
            made: list[tuple[TensorRegion, Tile]] = []
            for i, region in self.regions(image):
                core = (
                    self.owners(name, 0)[0][1]
                    if reader is None or image.pixels > 1
                    else reader.reading_core(region.channels)
                )
                made.append((region, self.gathered_view(name, f"{name}.{i}", region, core, whole=True)))
            self.bind(name, node.name, made)
            return
        own = [*self.flow.loaders.get(name, ())]
        found = (find_line_reader(self.graph, self.decision, self.readers, name, p) for p in self.parts_of[name])
        # If several cores read the channels, each receives some of their ranges and passes them on.
        wanted = [None for _ in self.parts_of[name]] if own else [*found]
        cells: MadeCells = {}
        for y in range(image.rows):
            owners = own or (self.owners(name, y) if None in wanted else [])
            for p, part in enumerate(self.parts_of[name]):
                reader = wanted[p]
                for cols, core in reader.cells(image, y) if reader else owners:
                    region = TensorRegion(part, (y, y + 1), cols)
                    tile = self.gathered_view(name, cell_name(name, y, p, cols), region, core, whole=True)
                    cells.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, self.parts_of[name], cells)

    def owners(self, name: str, y: int) -> CoreSegments:
        """Splits a line of a view into runs of pixels whose first element is on the same core."""
        node, image = self.views[name], self.image(name)
        operator = node.operator
        assert isinstance(operator, Move)
        first = operator.sources.reshape(image.rows, image.width, -1)[y, :, 0]
        pixels = [(self.owner(node, int(element)), x) for x, element in enumerate(first)]
        runs = [(core, [x for _, x in run]) for core, run in groupby(pixels, key=lambda pair: pair[0])]
        return [((xs[0], xs[-1] + 1), core) for core, xs in runs]

    def owner(self, node: Node, element: int) -> int:
        """Returns the core of element `element` of a move's operands; 0 for zeros and for global memory."""
        for name in node.inputs:
            image = self.image(name)
            if 0 <= element < image.elements:
                pixel, channel = divmod(element, image.channels)
                if name not in self.parts_of:
                    return self.residency.core_of(self.part(name, channel).tile) or 0
                y, x = divmod(pixel, image.width)
                p = next(i for i, part in enumerate(self.grid(name).parts) if channel < part[1])
                cell = next(c for c in self.grid(name).lines[y][p] if x < c.cols[1])
                return self.residency.core_of(cell.tile) or 0
            element -= image.elements
        return 0

    def part(self, name: str, channel: int) -> TensorPart:
        """Returns the part of a one-pixel tensor that contains a channel."""
        return next(part for part in self.parts(name) if channel < part.region.channels[1])

    def stacked(self, node: Node, operator: Move) -> list[tuple[TensorRegion, Tile]] | None:
        """Returns the regions and tiles of an unread result whose rows are one-pixel tensors; None for other moves.

        Rows stay where they are: a core that collected them would be occupied from the first row to the last.
        """
        image = self.image(node.output)
        if node.output in self.readers or any(self.image(name).pixels > 1 for name in node.inputs):
            return None
        firsts = dict(zip(np.cumsum([0, *(self.image(n).elements for n in node.inputs)]), node.inputs, strict=False))
        names = [firsts.get(first) for first in operator.sources[:, 0]]
        rows: list[tuple[TensorRegion, Tile]] = []
        if image.width > 1 or (np.diff(operator.sources, axis=1) != 1).any():
            return None
        for y, name in enumerate(names):
            if name is None or self.image(name).channels != image.channels:
                return None
            rows += [(TensorRegion(part.region.channels, (y, y + 1)), part.tile) for part in self.parts(name)]
        return rows

    def view(self, node: Node, name: str, y: int, part: Range, cols: Range, core: int) -> Tile:
        """Returns a tile on a core with some channels and pixels of a line of a tensor, which may be a view.

        A view that was materialised, but not as lines, is gathered again.
        """
        if not self.is_open(name) and name in self.parts_of:
            parts = self.with_channel_ranges(name, (part,)) if part == (0, self.image(name).channels) else name
            p = self.grid(parts).parts.index(part)
            return LineLowering.line_on(self, node, parts, y, p, cols, core, exact=True).tile
        stem = f"{name}.r{y}.c{part[0]}-{part[1]}.x{cols[0]}-{cols[1]}@{core}"
        if stem not in self.seen:
            self.seen[stem] = self.gathered_view(name, stem, TensorRegion(part, (y, y + 1), cols), core)
        return self.seen[stem]

    def gathered_view(self, name: str, stem: str, region: TensorRegion, core: int, *, whole: bool = False) -> Tile:
        """Emits a region of a view on a core as a tile called `stem`, or returns an existing tile that equals it.

        With `whole`, one compute makes the tile, and it holds no other region, as is required of a part of a tensor.
        """
        node, image = self.views[name], self.image(name)
        operator = node.operator
        assert isinstance(operator, Move)
        wanted = operator.sources.reshape(image.rows, image.width, image.channels)[region.index()].reshape(-1)
        sources: list[Tile] = []
        where, offset = np.full(len(wanted), -1), np.zeros(len(wanted), np.int64)
        first = 0
        for operand in node.inputs:
            for chosen, tile, at in self.pieces(node, operand, wanted - first, core):
                where[chosen], offset[chosen] = len(sources), at
                sources.append(tile)
            first += self.image(operand).elements
        tile = Tile(stem, region.row_count, region.width(image), region.channel_count, self.element(name))
        runs = find_runs(where, offset)
        same = equal_source_tile(runs, sources, tile)
        if whole and same is not None:
            same = None if self.residency.is_copy(same) or (name, same.name) in self.reused else same
            self.reused.add((name, (same or tile).name))
        self.shown.setdefault(name, []).append(TensorPart(region, same or tile))
        if same is not None:
            self.residency.keepers.setdefault(same.name, core)
            return same
        op = MoveTile(tile, tuple(sources), runs)
        self.emit(Compute(node.name, node.op_type, name, (), (op,), (tile,)), core, self.view_position(name, region))
        return tile

    def view_position(self, name: str, region: TensorRegion) -> float:
        """Returns the position, see `emit`, of the gathering of a region of a view."""
        return region.rows[0] / self.image(name).rows

    def pieces(self, node: Node, name: str, wanted: Ints, core: int) -> Iterator[tuple[Ints, Tile, Ints]]:
        """Yields the tiles on a core that hold some elements of a tensor; copies them there if necessary.

        wanted: element indices; some lie outside the tensor. Each item is (indices in `wanted`, tile, offsets in the
        tile).
        """
        image = self.image(name)
        inside = np.flatnonzero((wanted >= 0) & (wanted < image.elements))
        pixel, channel = np.divmod(wanted[inside], image.channels)
        if name not in self.parts_of:
            yield from self.pieces_of_pixel(node, name, inside, channel, core)
            return
        parts = self.grid(name).parts
        y, x = np.divmod(pixel, image.width)
        p = np.searchsorted([stop for _, stop in parts], channel, side="right")
        lines = y * len(parts) + p
        numbers: list[int] = np.unique(lines).tolist()
        for line in numbers:
            own = np.flatnonzero(lines == line)
            cols = int(x[own].min()), int(x[own].max()) + 1
            low, first = parts[line % len(parts)][0], int(channel[own].min())
            asked = first - low, int(channel[own].max()) + 1 - low
            cell, at = self.slice_on(node, name, divmod(line, len(parts)), asked, cols, core)
            yield inside[own], cell.tile, (x[own] - cell.cols[0]) * cell.tile.channels + channel[own] - low - at

    def pieces_of_pixel(
        self, node: Node, name: str, inside: Ints, channel: Ints, core: int
    ) -> Iterator[tuple[Ints, Tile, Ints]]:
        """Yields the items of `pieces` for a one-pixel tensor, whose tiles are fetched completely.

        Of a tensor that is appended to a state, each core fetches its channels alone. channel: channel of the tensor
        for each of the indices `inside`.
        """
        appended = not {*self.graph.residency.state_inputs}.isdisjoint(node.inputs)
        for part in self.parts(name):
            low, high = part.region.channels
            own = (channel >= low) & (channel < high)
            if not own.any():
                continue
            first, last = int(channel[own].min()), int(channel[own].max()) + 1
            home = self.residency.core_of(part.tile)
            if appended and home not in (None, core) and last - first < high - low:
                stem = f"{part.tile.name}.{first - low}-{last - low}@{core}"
                if stem not in self.seen:
                    self.seen[stem] = Tile(stem, 1, 1, last - first, part.tile.element)
                    op = Copy(self.seen[stem], part.tile, first - low, 0, last - first)
                    self.emit(Compute(node.name, node.op_type, "", (), (op,), (self.seen[stem],)), core, 1.0)
                yield inside[own], self.seen[stem], channel[own] - first
            else:
                yield inside[own], part.tile, channel[own] - low

    def slice_on(
        self, node: Node, name: str, line: tuple[int, int], channels: Range, cols: Range, core: int
    ) -> tuple[LineCell, int]:
        """Returns a cell on a core with some channels of a line, and the first channel that the cell has.

        line: number of the line and of the channel range. channels: relative to that range. Channels are cut out on the
        core that holds them, so that only they are sent. A cell that is already on the core is used as it is.
        """
        (y, p), grid = line, self.grid(name)
        own = grid.cells_under(y, p, cols)
        if len(own) == 1 and name in self.graph.residency.state_inputs:
            return own[0], 0  # each core that reads a part of a state keeps it
        cores = {self.residency.core_of(cell.tile) for cell in own}
        whole = channels == (0, own[0].tile.channels)
        if whole or None in cores or cores == {core}:
            return self.line_on(node, name, y, p, cols, core), 0
        sliced = f"{name}.{channels[0]}-{channels[1]}"
        place = (sliced, y, p, core)
        copied = self.residency.find_cell(place, (), cols, exact=False)
        if copied is None:
            copied = self.residency.record_copy(
                place, LineCell(cols, self.assembled(node, sliced, (y, p), channels, own, cols, core))
            )
        return copied, channels[0]

    def assembled(
        self,
        node: Node,
        name: str,
        line: tuple[int, int],
        channels: Range,
        cells: Sequence[LineCell],
        cols: Range,
        core: int,
    ) -> Tile:
        """Emits copies of some channels of cells, side by side in one tile of tensor `name` on a core."""
        (y, p), width = line, channels[1] - channels[0]
        stem = f"{cell_name(name, y, p, cols)}-{cols[1]}@{core}"
        tile = Tile(stem, 1, cols[1] - cols[0], width, cells[0].tile.element)
        sources = [self.cut_channels(node, cell_name(name, y, p, c.cols), c.tile, channels) for c in cells]
        for cell, source in zip(cells, sources, strict=True):
            low, high = max(cols[0], cell.cols[0]), min(cols[1], cell.cols[1])
            at = (low - cell.cols[0]) * width, (low - cols[0]) * width
            op = Copy(tile, source, *at, (high - low) * width)
            self.emit(Compute(node.name, node.op_type, "", (), (op,), (tile,)), core, 0.0)
        return tile

    def cut_channels(self, node: Node, stem: str, tile: Tile, channels: Range) -> Tile:
        """Returns some channels of a tile as a tile called `stem` on the same core. The first call emits it."""
        if stem not in self.seen:
            made = structs.replace(tile, name=stem, channels=channels[1] - channels[0])
            pixel = np.arange(tile.pixels)
            first = pixel * tile.channels + channels[0]
            runs = np.stack(np.broadcast_arrays(pixel * made.channels, 0, first, 1, made.channels), axis=1)
            self.emit_token(node, MoveTile(made, (tile,), runs), self.residency.core_of(tile), 0.0)
            self.seen[stem] = made
        return self.seen[stem]

    def operand(
        self, node: Node, name: str, y: int, p: int, cell: LineCell, core: int | None, parts: ChannelRanges
    ) -> Tile:
        if self.is_open(name) and self.same_pixels(name, node.output):
            return self.view(node, name, y, parts[p], cell.cols, core or 0)
        grids = (grid for grid in self.flow.products.values() if isinstance(grid, DotGrid))
        relay = next((grid for grid in grids if name in grid.relays), None)
        if relay is not None and core is not None and self.same_pixels(name, node.output):
            return self.relayed(
                node, self.with_channel_ranges(name, parts), y, p, cell.cols, (relay.relay_core(cell.cols[0], p), core)
            )
        return LineLowering.operand(self, node, name, y, p, cell, core, parts)

    def relayed(self, node: Node, name: str, y: int, p: int, cols: Range, cores: tuple[int, int]) -> Tile:
        """Returns pixels of a line on core `cores[1]`, copied there through `cores[0]`."""
        held = self.line_on(node, name, y, p, cols, cores[0], exact=True).tile
        return self.copied_tile(node, held, f"{held.name}.passed@{cores[1]}", y, cores[1])

    def copied_tile(self, node: Node, tile: Tile, name: str, y: int, core: int) -> Tile:
        """Emits a copy of a whole tile to a core, for line `y` of the result of a node; returns the copy."""
        copied = structs.replace(tile, name=name)
        op = Copy(copied, tile, 0, 0, tile.elements)
        self.emit(Compute(node.name, node.op_type, "", (), (op,), (copied,)), core, y / self.image(node.output).rows)
        return copied

    # Operators of tokens

    def moves_over_tokens(self, node: Node, window: Window | WindowTable) -> bool:
        """True if a window slides over a sequence, whose lines are not rows of the window's image."""
        return any(is_token_layout(self.image(n)) for n in (*node.inputs, node.output)) and not (
            isinstance(window, Window) and is_global_pool(window)
        )

    def sums_tokens(self, node: Node) -> bool:
        """True if operand and result are lines, and the operand is cut alike for all channel ranges."""
        (name,) = node.inputs
        if node.output not in self.parts_of or name not in self.parts_of or not self.same_pixels(name, node.output):
            return False
        if len(self.parts_of[node.output]) > 1 and self.parts_of[node.output] != self.parts_of[name]:
            return False
        return self.grid(name).is_uniformly_cut

    def sum_tokens(self, node: Node, operator: ChannelSum) -> None:
        """Emits the sum over the channels of each pixel, on the core that holds the pixel."""
        image, parts = self.image(node.output), self.parts_of[node.output]
        made: MadeCells = {}
        for y, line in enumerate(self.grid(node.inputs[0]).lines):
            for cells in zip(*line, strict=True):
                cols, stem = cells[0].cols, f"{cell_name(node.output, y, 0, cells[0].cols)}.sum"
                total = self.summed(node, stem, [cell.tile for cell in cells], operator.factor, y / image.rows)
                if image.channels == 1:
                    made.setdefault((y, 0), []).append(LineCell(cols, total))
                    continue
                for p, (low, high) in enumerate(parts):
                    stem = cell_name(node.output, y, p, cols)
                    tile = Tile(stem, 1, cols[1] - cols[0], high - low, self.element(node.output))
                    core = self.residency.core_of(cells[min(p, len(cells) - 1)].tile)
                    self.emit_token(node, broadcast_op(tile, total), core, y / image.rows)
                    made.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, parts, made)

    def softmax_tokens(self, node: Node) -> None:
        """Emits a softmax over all channels on the cores of the operand, which also cut it into channel ranges."""
        (name,), parts = node.inputs, self.parts_of[node.output]
        made: MadeCells = {}
        for y, _, cell in self.grids[self.with_channel_ranges(name, ((0, self.image(name).channels),))].cells():
            stems = [cell_name(node.output, y, p, cell.cols) for p in range(len(parts))]
            shape = 1, cell.tile.width, cell.tile.channels
            tile = Tile(stems[0] if len(parts) == 1 else f"{stems[0]}.all", *shape, self.element(node.output))
            self.emit_token(node, SoftmaxTile(tile, cell.tile), self.residency.core_of(cell.tile), 0.0)
            for p, stem in enumerate(stems):
                part = tile if len(parts) == 1 else self.cut_channels(node, stem, tile, parts[p])
                made.setdefault((y, p), []).append(LineCell(cell.cols, part))
        self.bind_cells(node, parts, made)

    def dot_tokens(self, node: Node) -> None:
        """Emits a product of two tensors: each core multiplies some pixels of the first with all of the second."""
        (left, right), parts = node.inputs, self.parts_of[node.output]
        channels, cols = self.image(left).channels, self.image(right).width
        made: MadeCells = {}
        self.products[node.output] = ProductUse(left, right, cols)
        chosen = self.flow.products.get(node.output)
        chain = chosen.chain if isinstance(chosen, DotGrid) else 1
        held: dict[int, dict[int, Tile]] = {}
        for y, pixels, core in self.product_places(node):
            given = self.view(node, left, y, (0, channels), pixels, core)
            line = held.setdefault(y, {})
            if core not in line and len(line) % chain:
                before, name = [*line.values()][-1], f"{node.output}.r{y}.passed@{core}"
                line[core] = self.copied_tile(node, before, name, y, core)
            elif core not in line:
                line[core] = self.view(node, right, y, (0, channels), (0, cols), core)
            other = line[core]
            for p, (low, high) in enumerate(parts):
                shape = 1, pixels[1] - pixels[0], high - low
                tile = Tile(cell_name(node.output, y, p, pixels), *shape, self.element(node.output))
                op = DotTile(tile, given, other, 1, cols, low)
                self.emit_token(node, op, core, y / self.image(node.output).rows)
                made.setdefault((y, p), []).append(LineCell(pixels, tile))
        self.bind_cells(node, parts, made)

    def product_places(self, node: Node) -> Iterable[tuple[int, Range, int]]:
        """Yields line, pixels and core of each part of a product: as decided, else where the first operand is."""
        chosen, left = self.flow.products.get(node.output), node.inputs[0]
        if isinstance(chosen, DotGrid):
            yield from ((y, cols, core) for rows, cols, core in chosen.places() for y in range(*rows))
            return
        if left not in self.parts_of:
            yield from ((y, *place) for y in range(self.image(left).rows) for place in self.owners(left, y))
            return
        for y, line in enumerate(self.grid(left).lines):
            yield from ((y, cell.cols, self.residency.core_of(cell.tile) or 0) for cell in line[0])

    def emit_token(self, node: Node, op: BodyOp, core: int | None, position: float) -> None:
        self.emit(Compute(node.name, node.op_type, node.output, (), (op,), (op.result,)), core, position)
