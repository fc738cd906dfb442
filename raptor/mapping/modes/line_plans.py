"""Candidate plans of a layer with line unfolding: every grid of cores that holds it, its crossbars and its time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product

import numpy as np

from raptor.graph.ir import Filter
from raptor.graph.window import Window
from raptor.graph.zero_weights import has_weights
from raptor.mapping.decision import LineGrid
from raptor.mapping.knobs import (
    INPUT_READER_SHARE,
    MEAN_RECEIVERS,
    MESSAGE_OVERHEAD_NS,
    MOST_INPUT_READERS,
)
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, even_ranges, output_ranges
from raptor.mapping.modes.line_unfolding import (
    BandShape,
    LineBlock,
    block_shape,
    count_bands,
    count_blocks,
    count_lane_outs,
    cut_bands,
    distinct_segments,
    input_columns,
    inside_share,
    outputs_per_block,
    outputs_reading,
    pixels_per_block,
)
from raptor.mapping.modes.plan_choice import LayerPlan
from raptor.target.arch import Target, memory_flit_ns
from raptor.target.tensor_layout import Image
from raptor.target.timing import (
    ISSUE_NS,
    global_port_ns,
    load_ns,
    message_element_ns,
    message_ns,
    mvmul_ns,
    vector_element_ns,
)

MOST_LANES = 8
"""Largest number of lanes of a layer."""

WASTEFUL_SHARE = 0.6
"""Share of outputs inside the image below which clipped blocks are tried, too: with a kernel of 3 pixels on an image of
two, for instance, or with a dilation of a third of the image."""

WORTH_CLIPPING = 0.9
"""Largest time of the products of clipped blocks, relative to unclipped ones, because they need more matrices."""

CountedBlocks = tuple[tuple[LineBlock, int], ...]
"""Blocks, each with the number of blocks that it stands for (`count_blocks`)."""

ProductSizes = Mapping[int, int]
"""Number of products, or of matrices, by the number of pixels in the result of one."""


def load_plans(
    image: Image, arch: Target, parts: ChannelRanges = (), after: Epilogue = NO_EPILOGUE, lines: int = 0
) -> Iterator[LayerPlan]:
    """Yields plans to load a model input: every core loads what it needs, or loaders load columns and pass them on.

    A plan without loaders has a grid without cores. `parts`: channel ranges of the input. `after`: epilogue of the
    load, which depends on the input alone. `lines`: lines that moves make of the input, if these are more than it has;
    each reader then takes a message for each of them.
    """
    widths = [high - low for low, high in parts]
    line, readers = image.width * image.channels, estimate_input_readers(arch)
    flit = memory_flit_ns(arch)
    read_ns = readers * (load_ns(arch, -(-2 * line // readers)) - flit) + flit
    moved = max(0, lines - image.rows) * readers
    moved_ns = moved * (message_ns(arch, -(-image.elements // max(1, moved))) + MESSAGE_OVERHEAD_NS)
    first_ns = image.rows * read_ns + moved * flit + after.core_ns(1, 1, widths)
    yield LayerPlan(LineGrid((), (), (), 1, 1, 0, 1), 0, first_ns)
    for cols in split_evenly(image.width, readers):
        shares = [(end - begin) * image.channels for begin, end in cols]
        pieces = readers / len(cols) + 1
        message = message_ns(arch, -(-line // readers)) + MESSAGE_OVERHEAD_NS
        # All loaders share the only port of global memory, where small loads take nearly as long as large ones.
        port_ns = image.rows * sum(global_port_ns(arch, share) for share in shares)
        loaded_ns = image.rows * (load_ns(arch, max(shares)) + pieces * message)
        after_ns = moved_ns / len(cols) + after.core_ns(1 / len(cols), 1, widths)
        grid = LineGrid(cols, ((),), ((0, 0),), 1, 1, 0, 1)
        yield LayerPlan(grid, 0, loaded_ns + after_ns, port_ns=port_ns, behind_ns=after_ns)


def estimate_input_readers(arch: Target) -> int:
    """Returns an estimate of how many cores read each line of a model input."""
    return min(MOST_INPUT_READERS, max(1, int(arch.usable_cores * INPUT_READER_SHARE)))


def enumerate_plans(
    operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue, step_ns: float
) -> Iterator[LayerPlan]:
    """Yields a plan for every grid of cores that holds the layer, and every shape of its blocks.

    `step_ns`: see `TuningKnobs`.
    """
    window, unclipped = operator.window, dict[tuple[int, int], _CoreCosts]()
    outs = output_ranges(operator, parts, arch)
    for cols in split_evenly(window.out_dims[-1], arch.usable_cores):
        widest = _widest(cols)
        extras = {
            (len(groups), len(chosen)): _after_ns(after, window, cols, chosen, len(groups))
            for groups, chosen in _grids(operator, parts, outs)
        }
        for height, pixels, outputs, clipped in _styles(window, parts, cols, arch):
            most = {r: min(pixels, pixels_per_block(r, arch.xbar_rows)) for r in parts}
            segments = distinct_segments(window, cols, max(most.values()))
            blocks = {
                r: {c: count_blocks(window, c, most[r], outputs, clipped=clipped) for c in (widest, *segments)}
                for r in parts
            }
            phases = count_bands(window, height, clipped=clipped)
            shapes = {
                r: [_count_sizes(phases, _distinct(window, b), once=True) for b in found.values()]
                for r, found in blocks.items()
            }
            busiest = {r: _SegmentProducts.from_blocks(phases, found[widest]) for r, found in blocks.items()}
            for groups, chosen in _grids(operator, parts, outs):
                ranges, place = tuple((g[0][0], g[-1][1]) for g in chosen), (len(groups), len(chosen))
                shares = _shares(operator, groups, ranges, outs)
                costs = [(_Cost(window, arch, phases, ranges, n, extras[place]), group) for group, n in shares]
                if not clipped:
                    unclipped[place] = costs, busiest
                elif _mvms_ns(costs, busiest) > WORTH_CLIPPING * _mvms_ns(*unclipped[place]):
                    continue
                xbars = max(cost.xbars(shapes, group) for cost, group in costs)
                if xbars <= arch.xbars_per_core:
                    core_ns, products_ns = max(
                        (cost.core_ns(busiest, group, widest, len(groups)), cost.mvms_ns(busiest, group))
                        for cost, group in costs
                    )
                    step = max(1, int(step_ns / costs[0][0].block_ns(shapes[parts[0]])))
                    # More copies are of no use: a core has at most `rob_size` products under way.
                    copies = max(1, min(arch.rob_size, arch.xbars_per_core // max(1, xbars)))
                    grid = LineGrid(cols, groups, ranges, height, pixels, outputs, step, copies, clipped)
                    yield LayerPlan(grid, xbars, core_ns, products_ns)


def cut_into_lanes(window: Window, plans: Iterable[LayerPlan]) -> Iterator[LayerPlan]:
    """Yields plans of a layer whose output lines are cut into lanes, from plans without lanes.

    A lane reads the lines around it, too, so its work is estimated as its share of the bands of input lines.
    """
    for plan in plans:
        for lanes, share in _lane_shares(window, plan.grid.height, clipped=plan.grid.clipped):
            yield plan.scaled(share, replace(plan.grid, lanes=lanes))


@lru_cache(maxsize=1024)
def _lane_shares(window: Window, height: int, *, clipped: bool) -> tuple[tuple[tuple[Range, ...], float], ...]:
    """Returns ways to cut the output lines into lanes, each with the largest share of the bands that a lane reads."""
    bands = len(cut_bands(window, height, clipped=clipped))
    found: list[tuple[tuple[Range, ...], float]] = []
    for lanes in split_evenly(window.out_lines, MOST_LANES) if bands else ():
        if len(lanes) > 1:
            counts = (count_lane_outs(window, height, lane, clipped=clipped) for lane in lanes)
            found.append((lanes, max(int(np.count_nonzero(count)) for count in counts) / bands))
    return tuple(found)


def _mvms_ns(costs: "Sequence[tuple[_Cost, ChannelRanges]]", busiest: "Mapping[Range, _SegmentProducts]") -> float:
    """Returns the largest time in ns of the MVMs of a core for a sample, as `_CoreCosts` has its arguments."""
    return max(cost.mvms_ns(busiest, group) for cost, group in costs)


def _grids(
    operator: Filter, ins: ChannelRanges, outs: ChannelRanges
) -> Iterator[tuple[tuple[ChannelRanges, ...], tuple[ChannelRanges, ...]]]:
    """Yields pairs of a grouping of the input ranges and a grouping of the output ranges.

    A grouped convolution has one group of inputs: its cores read only what their outputs need, and make no partial sums
    for each other.
    """
    for groups in _groupings(ins) if operator.groups == 1 else [(ins,)]:
        for chosen in _groupings(outs):
            yield groups, chosen


def _shares(
    operator: Filter, groups: tuple[ChannelRanges, ...], outs: tuple[Range, ...], tiles: ChannelRanges
) -> Iterator[tuple[ChannelRanges, int]]:
    """Yields, for each different core of a grid, its input ranges and its largest number of output channels for one."""
    if all(has_weights(operator, part, tile) for group in groups for part in group for tile in tiles):
        yield from ((group, max(b - a for a, b in outs)) for group in groups)
        return
    known: set[tuple[ChannelRanges, int]] = set()
    for out, group in product(outs, groups):
        found = {part: sum(b - a for a, b in outputs_reading(operator, part, out, tiles)) for part in group}
        read = {part: width for part, width in found.items() if width}
        share = tuple(read), max(read.values(), default=0)
        if share not in known:
            known.add(share)
            yield share


def _after_ns(
    after: Epilogue, window: Window, cols: tuple[Range, ...], outs: tuple[tuple[Range, ...], ...], groups: int
) -> float:
    """Returns the time in ns of the epilogue on the core with most columns and channels.

    outs: channel ranges of each part of the grid, which the cores of the input groups share among them.
    """
    widths = max(([b - a for a, b in part[: -(-len(part) // groups)]] for part in outs), key=sum)
    columns = max(b - a for a, b in cols) / window.out_dims[-1]
    return after.core_ns(columns, sum(widths) / outs[-1][-1][1], widths)


def _styles(
    window: Window, parts: ChannelRanges, cols: tuple[Range, ...], arch: Target
) -> Iterator[tuple[int, int, int, bool]]:
    """Yields (height, pixels, outputs, clipped) of blocks; clipped ones last, for few windows (`WASTEFUL_SHARE`)."""
    ways = (False, True) if inside_share(window) < WASTEFUL_SHARE else (False,)
    yield from ((*style, clipped) for style in _shapes(window, parts, cols, arch) for clipped in ways)


def _shapes(
    window: Window, parts: ChannelRanges, cols: tuple[Range, ...], arch: Target
) -> Iterator[tuple[int, int, int]]:
    """Yields (height, pixels, outputs) of blocks: side by side, overlapping (owning outputs), or of several lines."""
    most = pixels_per_block(min(parts, key=lambda r: r[1] - r[0]), arch.xbar_rows)
    for pixels in _halves(most):
        yield 1, pixels, 0
        owned = outputs_per_block(
            window, min(pixels, pixels_per_block(max(parts, key=lambda r: r[1] - r[0]), arch.xbar_rows))
        )
        if window.kernel[-1] > 1 and owned > 1:
            yield 1, arch.xbar_rows, owned
    needed = max(b - a for a, b in (input_columns(window, c) for c in cols))
    channels = max(b - a for a, b in parts)
    tallest = min(arch.xbar_rows // max(1, needed * channels), window.in_dims[-2], 2 * window.kernel[-2])
    owned = max(b - a for a, b in cols)
    yield from ((height, arch.xbar_rows, owned) for height in range(2, tallest + 1))


def _halves(most: int) -> Iterator[int]:
    """Yields `most`, half of it, and so on to 1: smaller blocks need fewer crossbars."""
    while most > 1:
        yield most
        most //= 2
    yield 1


@lru_cache(maxsize=4096)
def _distinct(window: Window, blocks: CountedBlocks) -> CountedBlocks:
    """Returns one block of each shape: blocks of equal shape share a matrix."""
    return tuple({block_shape(window, block): (block, 1) for block, _ in blocks}.values())


def _count_sizes(phases: Mapping[BandShape, int], blocks: CountedBlocks, *, once: bool = False) -> ProductSizes:
    """Counts the products of some blocks, for all bands of lines; with `once`, one for each shape of a band."""
    found: dict[int, int] = {}
    for band, count in phases.items():
        for block, alike in blocks:
            size = len(band.outs) * len(block.outs)
            found[size] = found.get(size, 0) + alike * (1 if once else count)
    return found


@dataclass(frozen=True, slots=True)
class _SegmentProducts:
    """The products of a column segment with one channel range, and the input pixels of a line that they span."""

    sizes: ProductSizes
    pixels: int

    @classmethod
    def from_blocks(cls, phases: Mapping[BandShape, int], blocks: CountedBlocks) -> "_SegmentProducts":
        pixels = blocks[-1][0].pixels[1] - blocks[0][0].pixels[0] if blocks else 0
        return cls(_count_sizes(phases, blocks), pixels)


@dataclass(frozen=True, slots=True)
class _Cost:
    """Crossbars and work of a core of a grid.

    `phases`: number of bands of each shape. `outs`: output channels of the cores. `reading`: number of output channels
    for which a block is multiplied. `extra_ns`: time of the other operations of the core."""

    window: Window
    arch: Target
    phases: Mapping[BandShape, int]
    outs: tuple[Range, ...]
    reading: int
    extra_ns: float

    @property
    def widest(self) -> int:
        """Largest number of output channels of a core."""
        return max(stop - start for start, stop in self.outs)

    def matrix_xbars(self, size: int) -> int:
        """Returns the crossbars of a matrix with `size` pixels of results."""
        return -(-size * self.reading // self.arch.outputs_per_xbar)

    def xbars(self, shapes: dict[Range, list[ProductSizes]], group: tuple[Range, ...]) -> int:
        """Returns the largest number of crossbars of a core over all column segments.

        `shapes`: matrices of unequal shapes, by channel range and column segment.
        """
        columns, reading = self.arch.outputs_per_xbar, self.reading
        segments = range(len(next(iter(shapes.values()))))
        return max(
            sum(count * -(-size * reading // columns) for part in group for size, count in shapes[part][s].items())
            for s in segments
        )

    def core_ns(
        self, products: Mapping[Range, _SegmentProducts], group: tuple[Range, ...], segment: Range, groups: int
    ) -> float:
        """Returns the work in ns of a core for a sample: products, reductions, messages and `extra_ns`.

        `products`: those of the core's column segment, by channel range. `group`: the ranges that it multiplies.
        `groups`: number of groups whose partial sums are added.
        """
        arch, sums = self.arch, with_accumulators(self.arch)
        multiplied = sum(self.part_ns(products[part].sizes) for part in group)
        pixels = sum(products[part].pixels * (part[1] - part[0]) for part in group)
        results = self.window.out_lines * (segment[1] - segment[0]) * self.widest
        moved = message_element_ns(arch)
        added = vector_element_ns(sums) + 2 * message_element_ns(sums)
        reduced = (groups - 1) / groups * results * added if groups > 1 else 0.0
        received = sum(band.lines * n for band, n in self.phases.items()) * (pixels * moved + MESSAGE_OVERHEAD_NS)
        sent = MEAN_RECEIVERS * results / groups * moved
        return multiplied + reduced + received + sent + self.extra_ns

    def part_ns(self, sizes: ProductSizes) -> float:
        """Returns the time in ns of some products and of their additions, for all lines of a sample."""
        added_ns = self.reading * vector_element_ns(with_accumulators(self.arch))
        return sum(count * (self.product_ns(size) + size * added_ns) for size, count in sizes.items())

    def mvms_ns(self, products: Mapping[Range, _SegmentProducts], group: tuple[Range, ...]) -> float:
        """Returns the time in ns of the MVMs of a core for a sample. Arguments: see `core_ns`."""
        each = (item for part in group for item in products[part].sizes.items())
        return sum(count * self.product_ns(size) for size, count in each)

    def product_ns(self, size: int) -> float:
        """Returns the time in ns of an MVM with `size` pixels of results."""
        return _mvmul_ns(self.arch, self.matrix_xbars(size)) + ISSUE_NS

    def block_ns(self, shapes: list[ProductSizes]) -> float:
        """Returns the time in ns of the longest MVM. `shapes`: matrices of unequal shapes, by column segment."""
        return _mvmul_ns(self.arch, self.matrix_xbars(max((max(sizes, default=0) for sizes in shapes), default=0)) or 1)


_CoreCosts = tuple[Sequence[tuple[_Cost, ChannelRanges]], Mapping[Range, _SegmentProducts]]
"""Each different core of a grid, with its cost and the input ranges that it multiplies; the products of its segment."""


@cache
def _widest(cols: tuple[Range, ...]) -> Range:
    """Returns the widest segment; on ties the one nearest to the middle, which reads most."""
    chosen = max(range(len(cols)), key=lambda s: (cols[s][1] - cols[s][0], -abs(s - len(cols) // 2)))
    return cols[chosen]


@cache
def _mvmul_ns(arch: Target, xbars: int) -> float:
    return mvmul_ns(arch, xbars)


def split_evenly(count: int, most: int) -> Iterator[tuple[Range, ...]]:
    """Yields partitions of 0 to `count` into at most `most` nearly equal ranges, one for each size of the largest."""
    sizes = dict.fromkeys(-(-count // pieces) for pieces in range(1, min(most, count) + 1))
    yield from (even_ranges(count, -(-count // size)) for size in sizes)


def _groupings(parts: ChannelRanges) -> Iterator[tuple[tuple[Range, ...], ...]]:
    """Yields partitions of neighbouring parts into groups of nearly equal numbers of parts."""
    for pieces in split_evenly(len(parts), len(parts)):
        yield tuple(parts[a:b] for a, b in pieces)
