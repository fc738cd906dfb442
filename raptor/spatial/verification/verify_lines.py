"""Verifier of layers with line unfolding: every output adds each product that it needs once, and no other.

A product is an input pixel times a kernel position, for the input channels of a matrix. Products are counted from the
tables of `ApplyLine`, `Overlap` and `Copy` alone, independently of how the decision cuts lines into blocks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.common.errors import VerifyError
from raptor.common.index_ranges import concatenate_ranges
from raptor.graph.ir import Filter
from raptor.graph.window import cached_input_pixels
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy, SpatialGraph, TensorParts
from raptor.spatial.operations import ApplyLine, Move, Overlap
from raptor.spatial.tiles import Tile
from raptor.spatial.verification.copy_sources import CopySources
from raptor.spatial.verification.pixel_origins import (
    NOWHERE,
    PixelOrigins,
    TensorPixels,
    region_corner,
)
from raptor.spatial.verification.relu_sums import sums_before_relu
from raptor.spatial.verification.zero_gaps import misses_only_zeros
from raptor.target.tensor_layout import TensorRegion

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Range = tuple[int, int]


def verify_lines(graph: SpatialGraph, relayed: CopySources) -> None:
    """Checks that the layers with line unfolding add all their products, each once, and nothing else.

    relayed: all copies of the graph. Raises `VerifyError` with the ONNX node and the products that are wrong.
    """
    layers: dict[str, list[Compute]] = {}
    flow = graph.dataflow
    for compute in _without_relays(graph, flow.computes_with_class(ApplyLine, Overlap), relayed):
        layers.setdefault(compute.layer, []).append(compute)
    dense = {
        key for key, computes in layers.items() if any(isinstance(m, Matrix) for c in computes for m in c.matrices)
    }
    layers = {key: computes for key, computes in layers.items() if key not in dense}
    if not layers:
        return
    copies = PixelOrigins.from_computes(graph.computes[i] for i in flow.computes_with_class(Copy, ApplyLine, Move))
    for key, computes in layers.items():
        steps = [(name, use) for name, use in graph.filter_of.items() if use.key == key]
        makers = {op.result.name: (i, op) for i, compute in enumerate(computes) for op in compute.body}
        checked = set[int]()
        for name, use in steps:
            places = TensorPixels(graph.tensors[use.source], copies)
            operator, tensor = graph.filters[key], graph.tensors[name]
            sums = sums_before_relu(graph, key, tensor) if operator.relu else tensor
            own = _computes_of_step(sums, makers) if len(steps) > 1 else [*range(len(computes))]
            checked.update(own)
            _LineLayerCheck(operator, sums, places).check([computes[i] for i in own])
        for i in sorted({*range(len(computes))} - checked):
            raise VerifyError(
                f"spatial: {computes[i].node}: {computes[i].results[0]} is part of no result of the layer"
            )


def _without_relays(graph: SpatialGraph, numbers: list[int], relayed: CopySources) -> Iterator[Compute]:
    """Yields some computes in which sums add the products and partial sums themselves, in place of relayed copies."""
    made = {op.result for i in numbers for op in graph.computes[i].body if isinstance(op, ApplyLine | Overlap)}
    firsts: list[int] = np.searchsorted(graph.dataflow.op_compute, numbers).tolist()
    for number, first in zip(numbers, firsts, strict=True):
        compute = graph.computes[number]
        body = list(compute.body)
        for k, op in enumerate(body):
            if isinstance(op, Overlap) and any(tile.name in relayed.filling for tile in op.sources):
                sources = [relayed.source(tile, made, first + k) or tile for tile in op.sources]
                body[k] = structs.replace(op, sources=tuple(sources))
        yield structs.replace(compute, body=tuple(body))


def _computes_of_step(tensor: TensorParts, makers: Mapping[str, tuple[int, BodyOp]]) -> list[int]:
    """Returns the numbers of the computes of a recurrent layer of which one time step consists.

    tensor: the sums of the step; the other computes are those whose results it adds. makers: for each tile that the
    layer makes in any step, the number of the compute and the operation.
    """
    wanted = [part.tile.name for part in tensor.parts]
    found = set[int]()
    while wanted:
        number, op = makers.get(wanted.pop(), (-1, None))
        if op is not None:
            found.add(number)
            wanted += [tile.name for tile in op.sources] if isinstance(op, Overlap) else []
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _MultipliedBlocks:
    """All multiplied blocks, as columns with one entry per product.

    start: first element of the product, counted through all products. matrix: its number. row, col: first input pixel.
    out_place: [products, dimensions but the last], line of the first output pixel. out_col: its column. The pixel may
    lie outside the image.
    """

    start: Ints
    matrix: Ints
    row: Ints
    col: Ints
    out_place: Ints
    out_col: Ints


@dataclass(frozen=True, slots=True)
class _Added:
    """All additions to output pixels, as columns with one entry per addition.

    part: number of the channel range. row, col: the output pixel. product: number of the product that is added.
    """

    part: Ints
    row: Ints
    col: Ints
    product: Ints


@dataclass(slots=True)
class _Flat:
    """Several lists of numbers stored as one, so that many lookups take one numpy operation."""

    values: list[int] = field(default_factory=list[int])
    first: list[int] = field(default_factory=list[int])

    def add(self, values: list[int]) -> None:
        self.first.append(len(self.values))
        self.values += values

    def look_up(self, which: Ints, index: Ints) -> Ints:
        """Returns element `index[i]` of list `which[i]`, for each i."""
        return np.array(self.values, np.int64)[np.array(self.first, np.int64)[which] + index]


def _concatenate_tables(tables: list[Ints]) -> tuple[Ints, Ints]:
    """Concatenates tables of four columns. Returns the number of the table of each row, and the joined table."""
    lengths = [len(table) for table in tables]
    return np.repeat(np.arange(len(tables)), lengths), np.concatenate([np.zeros((0, 4), np.int64), *tables])


@dataclass(slots=True)
class _Matrices:
    """The distinct matrices of a layer, with their fields as columns."""

    found: list[LineMatrix] = field(default_factory=list[LineMatrix])
    number: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, matrix: LineMatrix) -> int:
        """Returns the number of a matrix; adds the matrix if it is new."""
        if id(matrix) not in self.number:
            self.number[id(matrix)] = len(self.found)
            self.found.append(matrix)
        return self.number[id(matrix)]

    @property
    def ranges(self) -> list[Range]:
        """The distinct ranges of input channels, sorted."""
        return sorted({m.ins for m in self.found})

    @property
    def ins(self) -> Ints:
        """[matrices]: index of the input channels in `ranges`."""
        ranges = self.ranges
        return np.array([ranges.index(m.ins) for m in self.found], np.int64)

    @property
    def block(self) -> tuple[Ints, ...]:
        """Columns: lines of the block, its pixels, and the pixel under the first kernel column of the first output.

        That pixel is counted from the first pixel of the block.
        """
        rows = [(m.band.lines, m.pixels, m.shift) for m in self.found]
        return tuple(np.array(rows, np.int64).reshape(-1, 3).T)

    def down(self, dims: int) -> Ints:
        """[matrices, dimensions but the last]: the input line under the first kernel row of the first output line."""
        return np.array([m.band.shift for m in self.found], np.int64).reshape(-1, dims)

    @property
    def product(self) -> tuple[Ints, ...]:
        """Columns: output pixels of a line of the product, first output channel, number of output channels."""
        rows = [(len(m.places), m.outs[0], m.outs[1] - m.outs[0]) for m in self.found]
        return tuple(np.array(rows, np.int64).reshape(-1, 3).T)

    def outs(self, dims: int) -> Ints:
        """[matrices, lines of the product, dimensions]: output line, counted from the first one.

        Shorter rows are padded with their last line. dims: see `down`.
        """
        most = max((len(m.band.outs) for m in self.found), default=1)
        rows = [m.band.outs + m.band.outs[-1:] * (most - len(m.band.outs)) for m in self.found]
        return np.array(rows, np.int64).reshape(-1, most, dims)

    @property
    def cols(self) -> Ints:
        """[matrices, pixels of a line of the product]: output pixel, counted from the first. Padded with the last."""
        most = max((len(m.places) for m in self.found), default=1)
        rows = [m.places + m.places[-1:] * (most - len(m.places)) for m in self.found]
        return np.array(rows, np.int64).reshape(-1, most)


@dataclass(slots=True)
class _LineLayerCheck:
    """A layer to check. `bases`: first element of the result of each `ApplyLine`, counted through all of them."""

    operator: Filter
    tensor: TensorParts
    places: TensorPixels
    matrices: _Matrices = field(default_factory=_Matrices)
    bases: dict[str, int] = field(default_factory=dict[str, int])

    def check(self, computes: list[Compute]) -> None:
        """Counts the products that each output adds, then checks the counts."""
        blocks = self.blocks(computes)
        sums = [op for c in computes for op in c.body if isinstance(op, Overlap)]
        self.check_counts(self.counts(blocks, self.added(blocks, sums)))

    def error(self, what: str) -> VerifyError:
        return VerifyError(f"spatial: {self.tensor.node}: {what}")

    def blocks(self, computes: list[Compute]) -> _MultipliedBlocks:
        """Returns the multiplied blocks.

        Raises `VerifyError` if the pixels are not a block of the input, or do not have the shape of the matrix.
        """
        start, matrix, tile, element = self.tables(computes)
        copies = self.places.copies
        channels = np.array([t.channels for t in copies.tiles], np.int64)[tile]
        lines, pixels, right = (column[matrix] for column in self.matrices.block)
        at = copies.first[tile] + element // channels
        k, i = concatenate_ranges(lines * pixels)
        rows, cols = self.places.find_places(at[i] + k, self.matrices.ins[matrix[i]], self.matrices.ranges)
        row, col = rows[k == 0], cols[k == 0]
        line, pixel = np.divmod(k, pixels[i])
        bad = np.zeros(len(start), np.bool_)
        bad[i[(rows != row[i] + line) | (cols != col[i] + pixel)]] = True
        place, down = self.place(self.operator.window.in_dims, np.maximum(row, 0)), self.matrices.down(self.lines)
        firsts = [self.first_output(dim, place[:, dim], down[matrix, dim]) for dim in range(self.lines)]
        out_place = np.stack([out for out, _ in firsts], axis=1)
        out_col, col_rest = self.first_output(-1, col, right)
        bad |= (element % channels != 0) | (col_rest != 0) | np.any([rest != 0 for _, rest in firsts], axis=0)
        bad |= place[:, -1] + lines > self.operator.window.in_dims[-2]  # lines of two slices of a volume
        for b in np.flatnonzero(bad).tolist():
            raise self.error(f"{copies.tiles[int(tile[b])]} from element {element[b]} on is no block of its matrix")
        return _MultipliedBlocks(start, matrix, row, col, out_place, out_col)

    @property
    def lines(self) -> int:
        """Number of dimensions that identify a line: all but the last."""
        return len(self.operator.window.kernel) - 1

    @staticmethod
    def place(dims: tuple[int, ...], line: Ints) -> Ints:
        """Returns [lines, dimensions but the last]: the coordinates of each line of an image."""
        return np.stack(np.unravel_index(line, dims[:-1]), axis=1).astype(np.int64)

    def first_output(self, axis: int, given: Ints, shift: Ints) -> tuple[Ints, Ints]:
        """Returns, in one dimension, the first output of matrices of `shift` whose first input is `given`, and a rest.

        The rest is 0 if there is such an output. The inputs of a transposed window are `stride` places apart, and the
        first place that an output reads is under the last kernel position.
        """
        window = self.operator.window
        stride, pad = window.strides[axis], window.pads[axis]
        if window.transposed:
            out = given * stride - pad + (window.kernel[axis] - 1) * window.dilations[axis] + shift
            return out, np.zeros_like(out)
        return np.divmod(given + pad + shift, stride)

    def tables(self, computes: list[Compute]) -> tuple[Ints, ...]:
        """Returns columns of all products: first element of the product, matrix, tile, first element of the block."""
        ops: list[ApplyLine[Tile]] = []
        matrices, tiles = _Flat(), _Flat()
        for compute in computes:
            numbers = [self.matrices.add(m) for m in compute.matrices if isinstance(m, LineMatrix)]
            for op in (op for op in compute.body if isinstance(op, ApplyLine)):
                matrices.add(numbers)
                tiles.add([self.places.copies.number[t.name] for t in op.lines])
                ops.append(op)
        i, table = _concatenate_tables([op.products for op in ops])
        sizes = np.array([op.result.elements for op in ops], np.int64)
        bases = np.cumsum(sizes) - sizes
        self.bases = {op.result.name: base for op, base in zip(ops, bases.tolist(), strict=True)}
        weight, line, element, target = table.T
        return bases[i] + target, matrices.look_up(i, weight), tiles.look_up(i, line), element

    def added(self, blocks: _MultipliedBlocks, sums: list[Overlap[Tile]]) -> _Added:
        """Returns all additions. Raises `VerifyError` if elements of a product are added to the wrong output."""
        runs, regions = self.runs(sums)
        op, target, given, elements = runs.T
        parts = sorted({p.region.channels for p in self.tensor.parts})
        columns = [(parts.index(r.channels), *r.channels, *region_corner(r)) for r in regions]
        part, low, high, row, first = np.array(columns, np.int64).reshape(-1, 5)[op].T
        product = np.searchsorted(blocks.start, runs[:, 2], side="right") - 1
        own = high - low
        place = row, first + target // own, low
        good = (target % own == 0) & (elements % own == 0)
        good &= self.belongs(blocks, product, given - blocks.start[product], elements, own, place)
        for bad in np.flatnonzero(~good).tolist():
            raise self.error(f"{sums[int(op[bad])].result} adds at {target[bad]} what belongs elsewhere")
        k, i = concatenate_ranges(elements // own)
        return _Added(part[i], row[i], place[1][i] + k, product[i])

    def belongs(
        self,
        blocks: _MultipliedBlocks,
        product: Ints,
        first: Ints,
        elements: Ints,
        own: Ints,
        place: tuple[Ints, Ints, Ints],
    ) -> Bools:
        """Returns, for each run of elements of a product, whether they belong to the given place of the output.

        first, elements: the run in its product. own: channels of the output tile. place: row, column and channel.
        """
        matrix, (row, col, channel) = blocks.matrix[product], place
        count, low, width = (column[matrix] for column in self.matrices.product)
        line, rest = np.divmod(first, count * width)
        pixel, offset = np.divmod(rest, width)
        pixels, outs = elements // own, self.matrices.outs(self.lines)
        inside = (pixel + pixels <= count) & (offset + own <= width) & ((own == width) | (pixels == 1))
        places = blocks.out_place[product] + outs[matrix, np.minimum(line, outs.shape[1] - 1)]
        same = (places == self.place(self.operator.window.out_dims, row)).all(axis=1)
        k, i = concatenate_ranges(pixels)
        cols = self.matrices.cols
        result_col = blocks.out_col[product[i]] + cols[matrix[i], np.minimum(pixel[i] + k, cols.shape[1] - 1)]
        same[i[result_col != col[i] + k]] = False
        return inside & same & (low + offset == channel)

    def runs(self, sums: list[Overlap[Tile]]) -> tuple[Ints, list[TensorRegion]]:
        """Returns the runs that add products, and the region of each sum.

        Runs are rows (number of the sum, element of the sum, element counted through all products, number of elements).
        """
        regions = self.regions(sums)
        sources = _Flat()
        for op in sums:
            sources.add([self.bases.get(t.name, -1) for t in op.sources])
        i, table = _concatenate_tables([op.runs for op in sums])
        target, source, first, elements = table.T
        base = sources.look_up(i, source)
        runs = np.stack([i, target, base + first, elements], axis=1)[base >= 0]
        return runs, [regions[op.result.name] for op in sums]

    def regions(self, sums: list[Overlap[Tile]]) -> dict[str, TensorRegion]:
        """Returns the output region of each sum, by name of its tile.

        A sum is a part of the tensor, or a partial sum that one other sum adds completely and once. Raises
        `VerifyError` if it is neither.
        """
        regions = {p.tile.name: p.region for p in self.tensor.parts}
        partial = {op.result.name for op in sums}
        for op in reversed(sums):
            region = regions.get(op.result.name)
            if region is None or region.elements(self.tensor.image) != op.result.elements:
                raise self.error(f"{op.result} is no part of {self.tensor.name}")
            for i, tile in ((i, t) for i, t in enumerate(op.sources) if t.name not in self.bases):
                whole = [[0, i, 0, op.result.elements]]
                if tile.name not in partial or tile.name in regions or op.runs[op.runs[:, 1] == i].tolist() != whole:
                    raise self.error(f"{op.result} does not add {tile} whole and once")
                regions[tile.name] = region
        return regions

    def counts(self, blocks: _MultipliedBlocks, added: _Added) -> Ints:
        """Counts additions: [output channel range, output pixel, input channel range, kernel position]."""
        window, image, ranges = self.operator.window, self.tensor.image, self.matrices.ranges
        matrix = blocks.matrix[added.product]
        lines, pixels, *_ = (column[matrix] for column in self.matrices.block)
        hit = np.ones((len(matrix), 1), np.bool_)
        out, given = self.place(window.out_dims, added.row), self.place(window.in_dims, blocks.row[added.product])
        for dim in range(self.lines):
            row = self.positions(dim, out[:, dim]) - given[:, dim, None]
            count = lines[:, None] if dim == self.lines - 1 else 1
            both = hit[:, :, None] & ((row >= 0) & (row < count))[:, None, :]
            hit = both.reshape(len(matrix), hit.shape[1] * row.shape[1])
        col = self.positions(-1, added.col) - blocks.col[added.product][:, None]
        hit = hit[:, :, None] & ((col >= 0) & (col < pixels[:, None]))[:, None, :]
        shape = len({p.region.channels for p in self.tensor.parts}), image.pixels, len(ranges), window.tap_count
        pixel = added.part * image.pixels + added.row * image.width + added.col
        cell = pixel * len(ranges) + self.matrices.ins[matrix]
        i, tap = np.nonzero(hit.reshape(-1, window.tap_count))
        return np.bincount(cell[i] * window.tap_count + tap, minlength=int(np.prod(shape))).reshape(shape)

    def positions(self, axis: int, outs: Ints) -> Ints:
        """Returns [outputs, kernel positions] of one dimension: the input row or column that is read.

        It may lie outside the image. `NOWHERE` if a transposed window reads nothing there.
        """
        window = self.operator.window
        stride, pad, taps = window.strides[axis], window.pads[axis], np.arange(window.kernel[axis])
        if window.transposed:
            given, rest = np.divmod(outs[:, None] + pad - taps * window.dilations[axis], stride)
            return np.where(rest == 0, given, NOWHERE)
        return (outs * stride - pad)[:, None] + taps * window.dilations[axis]

    def check_counts(self, counts: Ints) -> None:
        """Raises `VerifyError` unless each product that the window needs is added once, and no other."""
        ranges, needed = self.matrices.ranges, cached_input_pixels(self.operator.window) >= 0
        whole, taps = (0, self.operator.in_channels), np.flatnonzero(needed.any(axis=0)).tolist()
        every = (0, self.operator.weights.shape[2])
        if not all(misses_only_zeros(self.operator, tap, ranges, whole, every) for tap in taps):
            raise self.error(f"multiplies input channels {ranges}, not each of {self.operator.in_channels} once")
        for part, pixel, group, tap in np.argwhere(self.is_wrong(counts, needed))[:1].tolist():
            row, col = divmod(pixel, self.tensor.image.width)
            where = f"row {row} column {col} of channel range {part} of {self.tensor.name}"
            times = counts[part, pixel, group, tap]
            raise self.error(f"{where} adds kernel position {tap} of channels {ranges[group]} {times} times")

    def is_wrong(self, counts: Ints, needed: Bools) -> Bools:
        """Returns which counts are wrong. needed: [output pixel, kernel position].

        Products are ignored if their weights are all 0, such as those between channels of different groups.
        """
        outs = sorted({p.region.channels for p in self.tensor.parts})
        taps = range(len(self.operator.weights))
        read = [[[self.is_read(tap, r, out) for tap in taps] for r in self.matrices.ranges] for out in outs]
        return (counts != needed[:, None, :]) & np.array(read, np.bool_).reshape(len(outs), 1, -1, len(taps))

    def is_read(self, tap: int, given: Range, out: Range) -> bool:
        """Returns whether output channels `out` depend on the input channels `given` by a kernel position."""
        return bool(self.operator.matrix(tap, given, out).any())
