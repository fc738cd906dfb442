"""The work of rearrangements: gathers line by line, and views, of which readers gather the regions that they need."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Move, Node
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.run_encoding import find_runs
from raptor.graph.streaming_layout import MOST_LINES
from raptor.mapping.evaluation.cell_layout import GLOBAL_MEMORY, CellLayout, CellLine, PlacedCell, cells_under
from raptor.mapping.evaluation.node_work import NodeWork, StepNeed
from raptor.mapping.evaluation.region_origins import LineRegion, MoveRegion, OperandBegin, RegionOrigins
from raptor.mapping.evaluation.walk import WorkWalk
from raptor.mapping.evaluation.whole_work import cut_lines
from raptor.mapping.modes.line_readers import find_line_reader
from raptor.mapping.modes.line_streaming import Range, cut_channels
from raptor.mapping.packed_runs import count_runs, pack_runs, run_ns

Ints = npt.NDArray[np.int64]


_Region = tuple[int, Range, Range]
"""Line, columns and channels of a tensor."""


def find_origins(walk: WorkWalk, node: Node, region: _Region | None = None, lead: str = "") -> RegionOrigins:
    """Returns the origins of a region of a moved tensor, or of the whole tensor.

    `lead`: the operand whose first element says where the region is gathered, if it has any.
    """
    layouts = tuple((walk.layouts[name].whole, walk.layouts[name].parts) for name in node.inputs)
    key = node.output, region, layouts
    if key not in walk.facts.origins:
        sources = _sources(walk, node)
        if region is not None:
            line, cols, part = region
            sources = sources[line, slice(*cols), slice(*part)]
        walk.facts.origins[key] = _origins(walk, node, sources.reshape(-1))
    lines, runs, begins = walk.facts.origins[key]
    _, _, name, element = min(((b.operand != lead, b.position, b.operand, b.element) for b in begins), default=_NOTHING)
    return RegionOrigins(lines, max(0, walk.layouts[name].core_of(element)) if name else 0, runs)


_NOTHING = (True, 0, "", 0)


def _origins(walk: WorkWalk, node: Node, wanted: Ints) -> MoveRegion:
    """Returns the origins of elements `wanted` of the operands of a move, which are numbered one after another."""
    first, lines, begins = 0, list[LineRegion](), list[OperandBegin]()
    where, offset = np.full(len(wanted), -1), np.zeros(len(wanted), np.int64)
    for name in node.inputs:
        size = walk.image(name).elements
        inside = np.flatnonzero((wanted >= first) & (wanted < first + size))
        if len(inside):
            number, offset[inside], regions = _line_regions(walk, name, wanted[inside] - first)
            where[inside] = len(lines) + number
            lines += regions
            begins.append(OperandBegin(name, int(inside[0]), int(wanted[inside[0]]) - first))
        first += size
    runs = find_runs(where, offset)
    packed = pack_runs(runs, walk.chip(node.output))
    runs = runs if packed is None else np.concatenate([packed.packing, packed.unpacking])
    return MoveRegion(tuple(lines), count_runs(runs), tuple(begins))


def _is_one_run(origins: RegionOrigins) -> bool:
    """True if a region is elements of one line that follow one another there."""
    return len(origins.lines) == 1 and [(strided, count) for _, strided, count in origins.runs] == [(False, 1)]


def _line_regions(walk: WorkWalk, name: str, elements: Ints) -> tuple[Ints, Ints, list[LineRegion]]:
    """Returns the regions that hold some elements of a tensor, after each element's region and offset."""
    image, layout = walk.image(name), walk.layouts[name]
    pixel, channel = np.divmod(elements, image.channels)
    row, column = (np.zeros_like(pixel), pixel) if layout.whole else np.divmod(pixel, image.width)
    ends = np.array([high for _, high in layout.parts])
    keys, number = np.unique(row * len(ends) + np.searchsorted(ends, channel, side="right"), return_inverse=True)
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(len(keys)))
    low, left = (np.minimum.reduceat(values[order], starts) for values in (channel, column))
    high, right = (np.maximum.reduceat(values[order], starts) for values in (channel, column))
    wide = high - low + 1
    offset = (column - left[number]) * wide[number] + channel - low[number]
    regions: list[LineRegion] = []
    for k, key in enumerate(keys):
        y, part = divmod(int(key), len(ends))
        cut = int(wide[k]) < layout.parts[part][1] - layout.parts[part][0] and image.width > 1
        regions.append(
            LineRegion(name, y, part, (int(left[k]), int(right[k]) + 1), (int(low[k]), int(high[k]) + 1), cut)
        )
    return number, offset, regions


def gather(walk: WorkWalk, work: NodeWork, origins: RegionOrigins, core: int, times: float = 1.0) -> None:
    """Adds the messages that bring a region to a core, and the copies that put it in order."""
    for region in origins.lines:
        if not walk.once(region, core):
            continue
        layout = walk.layouts[region.name]
        if layout.whole:
            cells = [(cell, layout.elements(region.part, cell)) for cell in layout.line(0)[region.part]]
        else:
            pixels, channels = cells_under(layout.line(region.row)[region.part], region.cols), region.channels
            cells = [(cell, width * (channels[1] - channels[0])) for cell, width in pixels]
        if all(cell.core == core for cell, _ in cells):
            continue
        for cell, elements in cells:
            cut = region.cut and cell.core != GLOBAL_MEMORY
            if cut and walk.once("cut", region.name, region.row, region.part, region.channels, cell):
                work.copy(
                    walk.chip(region.name), cell.core, region.channels[1] - region.channels[0], times * cell.width
                )
            walk.move_cell(work, region.name, cell, core, elements, times)
    if not _is_one_run(origins):
        _copy_runs(walk, work, origins, core, times)


def _copy_runs(walk: WorkWalk, work: NodeWork, origins: RegionOrigins, core: int, times: float) -> None:
    """Adds the copies that put the elements of a region in order."""
    chip = walk.chip(work.name)
    for length, strided, count in origins.runs:
        work.compute_ns[core] += times * count * run_ns(length, strided, chip)


def _sources(walk: WorkWalk, node: Node) -> Ints:
    """Returns the source of each element of a moved tensor: [lines, columns, channels]."""
    image = walk.image(node.output)
    assert isinstance(node.operator, Move)
    return node.operator.sources.reshape(image.rows, image.width, image.channels)


# Views


def bring_region(
    walk: WorkWalk, work: NodeWork, name: str, line: int, part: Range, cols: Range, core: int, *, times: float = 1.0
) -> None:
    """Adds what brings a region of a tensor, which may be a view that is not materialised, to a core."""
    if not walk.once("region", name, line, part, cols, core):
        return
    if name in walk.layouts:
        if walk.layouts[name].whole and name in walk.facts.parts:
            cut_lines(walk, name)
        layout = walk.layouts[name]
        for p, (low, high) in enumerate(layout.parts):
            both = min(high, part[1]) - max(low, part[0])
            for cell, width in cells_under(layout.line(0 if layout.whole else line)[p], cols) if both > 0 else ():
                if cell.core != core:
                    walk.move_cell(work, name, cell, core, width * both, times)
        return
    node = walk.facts.views[name]
    materialise_views(walk, node.inputs)
    gather(walk, work, view_origins(walk, node, line, part, cols), core, times)


def view_origins(walk: WorkWalk, node: Node, line: int, part: Range, cols: Range) -> RegionOrigins:
    """Returns the origins of a region of a view, which several cores may ask for."""
    key = node.output, line, part, cols
    if key not in walk.regions:
        walk.regions[key] = find_origins(walk, node, (line, cols, part))
    return walk.regions[key]


def materialise_views(walk: WorkWalk, names: Iterable[str]) -> None:
    """Adds the work that makes the views among some tensors, but for views that are made already."""
    for name in names:
        if name in walk.facts.views and name not in walk.layouts:
            _materialise_view(walk, name)


def _materialise_view(walk: WorkWalk, name: str) -> None:
    """Adds the work that makes a view: where the next layer reads it if known, else where its elements are."""
    node, image = walk.facts.views[name], walk.image(name)
    materialise_views(walk, node.inputs)
    made = walk.makers[name][0].work if name in walk.makers else walk.start_work(name, 1, walk.needs_all(node))
    if name not in walk.facts.parts:
        _materialise_tiles(walk, made, node)
        return
    lines: list[CellLine] = []
    parts, own = walk.facts.parts[name], tuple(PlacedCell(*cols, core) for cols, core in walk.gatherers(node))
    readers = [find_line_reader(walk.graph, walk.decision, walk.facts.readers, name, part) for part in parts]
    for y in range(image.rows):
        line: list[tuple[PlacedCell, ...]] = []
        for part, reader in zip(parts, readers, strict=True):
            read = tuple(PlacedCell(*cols, core) for cols, core in (reader.cells(image, y) if reader else ()))
            cells = own or read or tuple(_owned_cells(walk, node, y))
            for cell in cells:
                origins = view_origins(walk, node, y, part, cell.cols)
                gather(walk, made, origins, cell.core)
            line.append(cells)
        lines.append(tuple(line))
    walk.layouts[name] = CellLayout(image, parts, tuple(lines) if len({*lines}) > 1 else (lines[0],))


def _materialise_tiles(walk: WorkWalk, made: NodeWork, node: Node) -> None:
    """Adds the work that makes a view by tile: where a fully connected layer reads a tile, or where its elements are.

    A view of several pixels is made in one place.
    """
    name, image = node.output, walk.image(node.output)
    reader = walk.decision.find_dense_reader(walk.facts.readers.get(name, ()))
    if reader is None or image.pixels > 1:
        origins = find_origins(walk, node)
        gather(walk, made, origins, origins.core)
        walk.bind_tiles(name, [origins.core])
        return
    tiles = cut_channels(image.channels, walk.facts.tile)
    cores = [reader.reading_core(channels) for channels in tiles]
    for channels, core in zip(tiles, cores, strict=True):
        gather(walk, made, find_origins(walk, node, (0, (0, 1), channels)), core)
    walk.bind_tiles(name, cores)


def _owned_cells(walk: WorkWalk, node: Node, line: int) -> Iterator[PlacedCell]:
    """Yields runs of pixels of a line of a view whose first element is on the same core."""
    first = _sources(walk, node)[line, :, 0]
    cores = np.zeros(len(first), np.int64)
    start = 0
    for name in node.inputs:
        image, layout = walk.image(name), walk.layouts[name]
        inside = (first >= start) & (first < start + image.elements)
        cells = layout.cell_of_element.reshape(-1)[first[inside] - start]
        cores[inside] = layout.cell_cores[cells % len(layout.cell_cores)]
        start += image.elements
    chosen: list[int] = np.maximum(cores, 0).tolist()
    places = list(enumerate(chosen))
    for core, run in groupby(places, key=lambda place: place[1]):
        xs = [x for x, _ in run]
        yield PlacedCell(xs[0], xs[-1] + 1, core)


# Whole tensors


def add_whole_move(walk: WorkWalk, node: Node) -> None:
    """Adds a rearrangement of whole tensors, where the first element is; of single pixels, where the latest one is."""
    work = walk.start_work(node.output, 1, walk.needs_all(node))
    single = all(walk.image(name).pixels == 1 for name in node.inputs)
    origins = find_origins(walk, node, lead=max(node.inputs, key=walk.lead_order) if single else "")
    gather(walk, work, origins, origins.core)
    walk.bind_tiles(node.output, [origins.core])


# Rows of one pixel


def stacks_rows(walk: WorkWalk, node: Node, operator: Move) -> bool:
    """True if nothing reads a move whose rows are tensors of one pixel, in any order: they stay where they are."""
    image = walk.image(node.output)
    if node.output in walk.facts.readers or image.width > 1 or any(walk.image(name).pixels > 1 for name in node.inputs):
        return False
    if any(walk.image(name).channels != image.channels for name in node.inputs):
        return False
    return len(node.inputs) == image.rows and bool((np.diff(operator.sources, axis=1) == 1).all())


def add_stacked_rows(walk: WorkWalk, node: Node) -> None:
    """Binds rows that stay where they are; nothing is moved."""
    image = walk.image(node.output)
    starts: list[int] = _sources(walk, node)[:, 0, 0].tolist()
    names = [node.inputs[first // image.channels] for first in starts]
    parts = walk.layouts[names[0]].parts
    lines = tuple(walk.layouts[name].line(0) for name in names)
    walk.layouts[node.output] = CellLayout(image, parts, lines)
    walk.makers[node.output] = [made for name in names for made in walk.makers.get(name, ())]


# Gathers line by line


def moves_by_line(walk: WorkWalk, node: Node) -> bool:
    """True if a rearrangement of lines has cores of its own, or each of its lines reads few lines of its operands."""
    if node.output not in walk.facts.parts or not all(walk.is_line_layout(name) for name in node.inputs):
        return False
    return bool(walk.gatherers(node)) or walk.facts.move_origins(node)[1] <= MOST_LINES


def add_line_move(walk: WorkWalk, node: Node) -> None:
    """Adds a rearrangement line by line, on the cores of the operand that is ready last."""
    image, parts = walk.image(node.output), walk.facts.parts[node.output]
    lead, places = max(node.inputs, key=walk.lead_order), walk.facts.move_origins(node)[0]
    work = walk.start_work(node.output, image.rows, _move_needs(walk, node, places))
    gatherers = dict(walk.gatherers(node))
    columns = [*gatherers] or _columns(walk, node, lead, places)
    uneven = bool(gatherers) or any(len(walk.layouts[name].lines) > 1 for name in node.inputs)
    uneven = uneven or _lines_apart(walk, node, lead, places)
    count = image.rows if uneven else min(image.rows, MOST_LINES)  # else few lines in the middle stand for all
    first = (image.rows - count) // 2
    at_once = {
        cols: {(node.inputs[t], row): read for (t, row), read in places.columns_read(cols).items()}
        for cols in gatherers
    }
    lines, reused = list[CellLine](), set[tuple[str, int, int]]()
    for y in range(first, first + count):
        line: list[tuple[PlacedCell, ...]] = []
        for low, high in parts:
            same = None if gatherers else _equal_line(walk, node, places, y, (low, high))
            if same is not None and same not in reused:
                reused.add(same)
                name, row, part = same
                line.append(walk.layouts[name].line(row)[part])
                continue
            cells: list[PlacedCell] = []
            for cols in columns:
                origins = find_origins(walk, node, (y, cols, (low, high)), lead)
                cell = PlacedCell(*cols, gatherers.get(cols, origins.core))
                cells.append(cell)
                _gather_line(walk, work, origins, cell.core, at_once.get(cols, {}), image.rows / count)
            line.append(tuple(cells))
        lines.append(tuple(line))
    if not uneven:
        walk.layouts[node.output] = CellLayout(image, parts, (lines[count // 2],))
        return
    starts = tuple(y for y in range(count) if y == 0 or lines[y] != lines[y - 1])
    if len(starts) in (1, count):
        walk.layouts[node.output] = CellLayout(image, parts, tuple(lines) if len(starts) > 1 else (lines[0],))
        return
    walk.layouts[node.output] = CellLayout(image, parts, tuple(lines[y] for y in starts), starts=starts)
    for rows in pairwise((*starts, count)):
        for core in {cell.core for placed in lines[rows[0]] for cell in placed}:
            work.widen_span(core, rows)


def _equal_line(walk: WorkWalk, node: Node, places: MoveOrigins, y: int, part: Range) -> tuple[str, int, int] | None:
    """Returns (operand, line, number of the channel range) that equals a line and channel range of a moved tensor.

    The first line that equals it is the operand's; later ones are copies. None if there is no such line.
    """
    at = y, slice(None), slice(*part)
    tensor, line, channel = places.tensor[at], places.line[at], places.channel[at]
    name, row = node.inputs[max(0, int(tensor[0, 0]))], int(line[0, 0])
    ranges, width = walk.layouts[name].parts, len(tensor)
    own = (int(channel[0, 0]), int(channel[0, 0]) + part[1] - part[0])
    if own not in ranges or walk.image(name).width != width:
        return None
    here = (tensor == tensor[0, 0]) & (line == row) & (places.col[at] == np.arange(width)[:, None])
    equal = tensor[0, 0] >= 0 and bool((here & (channel == np.arange(*own))).all())
    return (name, row, ranges.index(own)) if equal else None


def _gather_line(
    walk: WorkWalk,
    work: NodeWork,
    origins: RegionOrigins,
    core: int,
    at_once: Mapping[tuple[str, int], Range],
    times: float,
) -> None:
    """Adds what puts a part of a line together on a core: whole pixels of operand lines come once, then are copied.

    at_once: columns of a line of an operand that are brought for all lines of the result.
    """
    for region in origins.lines:
        cols = at_once.get((region.name, region.row), region.cols)
        walk.bring_line(work, region.name, (region.row, region.part), cols, core, lines=times, alone=True)
    _copy_runs(walk, work, origins, core, times)


def _lines_apart(walk: WorkWalk, node: Node, lead: str, places: MoveOrigins) -> bool:
    """True if lines of a result take their first element from different cores that have columns of the same line."""
    inside = places.tensor == node.inputs.index(lead)
    ends = np.array([cell.last for cell in walk.layouts[lead].line(0)[0]], np.int64)
    first = np.where(inside, places.col, ends[-1]).reshape(len(inside), -1)
    rows, at = np.arange(len(inside)), inside.reshape(len(inside), -1).argmax(axis=1)
    cell = np.searchsorted(ends, first[rows, at], side="right")
    return len(np.unique(cell[cell < len(ends)])) > 1


def _columns(walk: WorkWalk, node: Node, lead: str, places: MoveOrigins) -> list[Range]:
    """Cuts the columns of a result where the elements of the leading operand come from another cell."""
    inside = places.tensor == node.inputs.index(lead)
    read: Ints = np.where(inside, places.col, walk.image(lead).width).min(axis=(0, 2))
    ends = np.array([cell.last for cell in walk.layouts[lead].line(0)[0]], np.int64)
    cell: Ints = np.searchsorted(ends, read, side="right")
    known = np.flatnonzero(cell < len(ends))  # padding belongs to the column before it
    before = np.maximum(np.searchsorted(known, np.arange(len(cell)), side="right") - 1, 0)
    cuts = np.flatnonzero(np.diff(cell[known[before]])) + 1 if len(known) else ()
    return list(pairwise([0, *map(int, cuts), len(cell)]))


def _move_needs(walk: WorkWalk, node: Node, places: MoveOrigins) -> list[StepNeed]:
    """Returns the needs of a move by line: the last line of each operand that a line reads, as a straight line."""
    rows, found = len(places.tensor), list[StepNeed]()
    for t, name in enumerate(node.inputs):
        count = walk.image(name).rows
        last = np.where(places.tensor == t, places.line, -1).reshape(rows, -1).max(axis=1)
        reach = int((last - np.arange(rows) * count // rows).max(initial=0))
        for made in walk.makers_of(name):
            by_line = made.steps == count
            found.append(StepNeed(made, count, rows, reach) if by_line else StepNeed(made, 0, 1, made.steps - 1))
    return found
