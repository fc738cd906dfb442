"""The work of operators that run line by line where their operands are: element-wise functions, windows, sums."""

import math
from itertools import pairwise

import numpy as np

from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
    Constant,
    Floats,
    Lookup,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Requantise,
    Softmax,
    Stencil,
    arity,
)
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.streaming_layout import is_token_layout
from raptor.graph.window import Window, WindowTable
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.evaluation.cell_layout import GLOBAL_MEMORY, CellLayout, CellLine, PlacedCell
from raptor.mapping.evaluation.move_work import add_whole_move, bring_region, materialise_views
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import Maker, WorkWalk, window_steps
from raptor.mapping.evaluation.whole_work import add_whole_node
from raptor.mapping.modes.integer_costs import requantise_ns
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, keeps_channels, slides_over_lines
from raptor.mapping.modes.line_unfolding import input_columns
from raptor.mapping.modes.sum_trees import combines_in_tree, sum_messages
from raptor.mapping.modes.window_axis import input_lines_read
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, best_pixels_per_op, pixel_runs_ns, repeat_ns, vector_ns


def lead_operand(walk: WorkWalk, node: Node) -> str | None:
    """Returns the operand on whose cores an element-wise function runs; None if it does not run by line."""
    there = [n for n in node.inputs if walk.is_line_layout(n) and walk.same_pixels(n, node.output)]
    lead = max(there, key=walk.lead_order, default=None)
    if lead is None or node.output not in walk.facts.parts or not keeps_channels(walk.graph, lead, node.output):
        return None
    fits = all(walk.same_pixels(n, node.output) or walk.image(n).pixels == 1 for n in node.inputs)
    return lead if fits else None


def regroup_channels(walk: WorkWalk, work: NodeWork, name: str, parts: ChannelRanges) -> str:
    """Returns a key of the layout of a tensor with other channel ranges, which are assembled where the first one is."""
    layout = walk.layouts[name]
    if layout.parts == parts:
        return name
    key = f"{name} by {parts}"
    if key in walk.layouts:
        return key
    walk.regrouped[key] = name
    lines: list[CellLine] = []
    for line, alike in layout.distinct():
        for cells in zip(*line, strict=False):
            home = cells[0].core
            for (low, high), cell in zip(layout.parts, cells, strict=True):
                elements = cell.width * (high - low)
                if cell.core != home:
                    walk.move_cell(work, name, cell, home, elements, alike)
                if home != GLOBAL_MEMORY:
                    work.copy(walk.chip(name), home, high - low, alike * cell.width)
        first = line[0]
        lines.append(tuple(first for _ in parts))
    walk.layouts[key] = CellLayout(layout.image, parts, tuple(lines), starts=layout.starts)
    return key


def add_map(walk: WorkWalk, node: Node, lead: str) -> None:
    """Adds an element-wise function by line, on the cores of the operand `lead`."""
    image, parts = walk.image(node.output), walk.facts.parts[node.output]
    rounds, given = walk.layouts[lead].rounds, walk.layouts[lead].parts
    works = walk.start_by_channels(node, rounds, lead, parts if given == parts else parts[:1])
    works += works[:1] * (len(parts) - len(works))
    key = regroup_channels(walk, works[0], lead, parts)
    layout = sunk_layout(walk, works, node, key) or walk.layouts[key]
    lines: list[CellLine] = []
    for (line, alike), rows in zip(layout.distinct(), layout.spans, strict=True):
        made: list[tuple[PlacedCell, ...]] = []
        for p, cells in enumerate(line):
            placed, work = tuple(c._replace(core=max(c.core, 0)) for c in cells), works[p]
            made.append(placed)
            for before, cell in zip(cells, placed, strict=True):
                elements = cell.width * (parts[p][1] - parts[p][0])
                work.compute_ns[cell.core] += alike * map_ns(walk, node, elements)
                if before.core == GLOBAL_MEMORY:
                    work.load(walk.chip(lead), cell.core, elements, alike)
                bring_operands(walk, work, node, lead, (rows, p), cell, layout)
                limit_steps(work, cell.core, rows, layout)
        lines.append(tuple(made))
    walk.layouts[node.output] = CellLayout(image, parts, tuple(lines), starts=layout.starts)


def limit_steps(work: NodeWork, core: int, rows: Range, layout: CellLayout) -> None:
    """Records that a core works on the lines `rows` only, if the layout of the result has lanes."""
    if layout.starts:
        work.widen_span(core, rows)


def map_ns(walk: WorkWalk, node: Node, elements: int) -> float:
    """Returns the time in ns of an element-wise function of `elements` elements."""
    result, chip = walk.graph.tensors[node.output].element, walk.chip(node.inputs[0])
    match node.operator:
        case Requantise(recipe=RequantiseRecipe() as recipe):
            return requantise_ns(recipe, result, elements, walk.arch) + ISSUE_NS
        case Map(function=function):
            return vector_ns(walk.chip(node.output), elements, arity(function)) + ISSUE_NS
        case _:
            return vector_ns(chip, elements, 2, result) + ISSUE_NS


def sunk_layout(walk: WorkWalk, works: list[NodeWork], node: Node, lead: str) -> CellLayout | None:
    """Returns the layout of a function that runs on the cores of the layer that reads its result, else None."""
    layer = walk.decision.layers.get(walk.facts.sunk.get(node.output, ""))
    layout = walk.layouts[lead]
    if not isinstance(layer, LineUnfolding) or {r for g in layer.grid.ins for r in g} != {*layout.parts}:
        return None
    group_of = {part: g for g, group in enumerate(layer.grid.ins) for part in group}
    lines: list[CellLine] = []
    for rows in layer.grid.lanes or ((0, layout.rows),):
        steps = rows if layer.grid.lanes else None
        cells: list[tuple[PlacedCell, ...]] = []
        for p, part in enumerate(layout.parts):
            at, segments = p % len(layer.grid.outs), layer.grid.segments_at(rows[0])
            own = [PlacedCell(*cols, layer.core(s, group_of[part], at)) for s, cols in segments]
            for cell in own:
                count = rows[1] - rows[0]
                walk.bring_lines(works[p], lead, rows, p, cell.cols, cell.core, lines=count, exact=True, steps=steps)
            cells.append(tuple(own))
        lines.append(tuple(cells))
    starts = tuple(low for low, _ in layer.grid.lanes)
    return CellLayout(layout.image, layout.parts, tuple(lines), starts=starts)


def bring_operands(
    walk: WorkWalk, work: NodeWork, node: Node, lead: str, at: tuple[Range, int], cell: PlacedCell, made: CellLayout
) -> None:
    """Adds what an element-wise function needs of its other operands for cells: lines and channel range `at`.

    made: the layout of the result.
    """
    (rows, p), parts = at, walk.facts.parts[node.output]
    (low, high), alike = parts[p], rows[1] - rows[0]
    steps = rows if made.starts else None
    for name in node.inputs:
        if name == lead:
            continue
        if walk.same_pixels(name, node.output) and walk.is_line_layout(name):
            key = regroup_channels(walk, work, name, parts)
            walk.bring_lines(work, key, rows, p, cell.cols, cell.core, lines=alike, exact=True, steps=steps)
        elif name in walk.facts.views and name not in walk.layouts:
            bring_region(walk, work, name, rows[0], parts[p], cell.cols, cell.core, times=alike)
        elif walk.image(name).pixels == 1:
            bring_pixel(walk, work, name, parts[p], cell)
    if isinstance(node.operator, Map):
        for constant in node.operator.operands:
            if isinstance(constant, Constant):
                own = constant.pixels[..., low:high] if constant.pixels.shape[-1] > 1 else constant.pixels
                add_constant(walk, work, own, rows, cell, high - low, short=is_token_layout(walk.image(node.output)))


def add_constant(
    walk: WorkWalk, work: NodeWork, values: Floats, rows: Range, cell: PlacedCell, channels: int, *, short: bool
) -> None:
    """Records the constants that a core reads for a cell of each of the lines `rows`.

    values: [rows, width, channels], without repetitions. short: a scalar is stored as one element.
    """
    height, width, _ = values.shape
    lines = values[slice(*rows)] if height > 1 else values
    if not np.isfinite(values).all():  # crossbars cannot produce it
        for line in lines:
            work.load(walk.arch, cell.core, line.size // width * cell.width)
    elif height == width == 1:
        elements = 1 if short and values.size == 1 else channels
        walk.constant(work, cell.core, (values.tobytes(), channels), elements, row=cell.width * channels)
    else:
        for line in lines:
            own = line[cell.first : cell.last] if width > 1 else line
            walk.constant(work, cell.core, (own.tobytes(), cell.width, channels), cell.width * channels)


def bring_pixel(walk: WorkWalk, work: NodeWork, name: str, part: Range, cell: PlacedCell) -> None:
    """Adds the transfer of channels of a tensor of one pixel to a core, and the copies that fill a row of its pixels.

    Both are done once in a sample.
    """
    layout, core = walk.layouts.get(name), cell.core
    if layout is None or not walk.once("pixel", name, part, core):
        return
    piece = min(walk.image(name).channels, part[1] - part[0])
    if cell.width * (part[1] - part[0]) > piece:
        work.compute_ns[core] += repeat_ns(walk.chip(name), piece, cell.width * (part[1] - part[0]))
    for (low, high), cells in zip(layout.parts, layout.lines[0], strict=True):
        if low < part[1] and part[0] < high and cells[0].core != core:
            walk.move_cell(work, name, cells[0], core, min(high, part[1]) - max(low, part[0]), 1)


def add_per_pixel(walk: WorkWalk, node: Node) -> None:
    """Adds a sum over the channels or a softmax of each pixel, on the cores of the first channel range."""
    (name,), image, parts = node.inputs, walk.image(node.output), walk.facts.parts[node.output]
    layout = walk.layouts[name]
    work = walk.start_work(node.output, layout.rounds, walk.needs_lines(node, layout.rounds))
    sums, chip = isinstance(node.operator, ChannelSum), walk.chip(name)
    channels = walk.image(name).channels
    pixel_ns = vector_ns(chip, channels, 1 if sums else 2) + ISSUE_NS
    if sums and image.channels > 1:
        pixel_ns += vector_ns(chip, image.channels, 1) + ISSUE_NS
    lines: list[CellLine] = []
    for (line, alike), rows in zip(layout.distinct(), layout.spans, strict=True):
        cells = tuple(c._replace(core=max(c.core, 0)) for c in line[0])
        for cell in cells:
            work.compute_ns[cell.core] += alike * (pixel_ns * cell.width + ISSUE_NS)
            limit_steps(work, cell.core, rows, layout)
        for (low, high), others in zip(layout.parts[1:], line[1:], strict=True):
            for other, cell in zip(others, cells, strict=False):
                if other.core != cell.core:
                    elements = cell.width * (1 if sums else high - low)
                    walk.move_cell(work, name, other, cell.core, elements, alike)
        lines.append(tuple(cells for _ in parts))
    walk.layouts[node.output] = CellLayout(image, parts, tuple(lines), starts=layout.starts)


def add_global_pool(walk: WorkWalk, node: Node) -> None:
    """Adds a pool over all pixels: each core reduces its pixels, then the results of all cores are combined."""
    (name,) = node.inputs
    layout, chip = walk.layouts[name], walk.chip(node.output)
    work = walk.start_work(node.output, layout.rounds, walk.needs_lines(node, layout.rounds))
    homes: list[int] = []
    for p, (low, high) in enumerate(layout.parts):
        home = max(layout.lines[0][p][0].core, 0)
        homes.append(home)
        cores: dict[int, None] = {}
        for line, alike in layout.distinct():
            for cell in line[p]:
                core = max(cell.core, 0)
                work.compute_ns[core] += alike * (vector_ns(chip, cell.width * (high - low), 2) + ISSUE_NS)
                cores[core] = None
        for core, to in sum_messages([*cores], 0, p, as_tree=combines_in_tree(len(cores))):
            work.send(chip, core, to, high - low)
            work.compute_ns[to] += vector_ns(chip, high - low, 2) + ISSUE_NS
    walk.bind_tiles(node.output, homes)


def add_window(walk: WorkWalk, node: Node, window: Window) -> None:
    """Adds a pool or a depthwise layer by line, on the cores that have the columns of the input."""
    (name,), image = node.inputs, walk.image(node.output)
    layout = walk.layouts[name]
    works = walk.start_by_channels(node, image.rows, name, layout.parts, lines=window_steps(window))
    starts: tuple[int, ...] = ()
    if len(layout.lines) == 1:
        lines = [_window_line(walk, works, node, window, [(0, layout.rows)], 0, image.rows)]
    elif layout.starts:
        lanes = find_window_lanes(layout, window)
        lines = list[CellLine]()
        for rows in lanes:
            read = [line for y in range(*rows) for line, _ in input_lines_read(window)[y]]
            given = [*layout.under((min(read), max(read) + 1))] if read else []
            made = _window_line(walk, works, node, window, given, _middle_line(window, rows[0]), rows[1] - rows[0])
            for work, cells in zip(works, made, strict=True):
                for cell in cells:
                    work.widen_span(cell.core, rows)
            lines.append(made)
        starts = tuple(low for low, _ in lanes)
    else:
        lines = [
            _window_line(walk, works, node, window, [(line, 1) for line, _ in read], read[len(read) // 2][0], 1)
            for read in input_lines_read(window)
        ]
    walk.layouts[node.output] = CellLayout(image, layout.parts, tuple(lines), starts=starts)


def find_window_lanes(layout: CellLayout, window: Window) -> list[Range]:
    """Returns the lanes of a pool or depthwise layer: each output line is computed in the lane of its middle input."""
    lane = [layout.index(_middle_line(window, y)) for y in range(window.out_lines)]
    ends = [y for y in range(1, len(lane)) if lane[y] != lane[y - 1]]
    return [*pairwise((0, *ends, len(lane)))]


def _middle_line(window: Window, y: int) -> int:
    read = input_lines_read(window)[y]
    return read[len(read) // 2][0] if read else 0


def _window_line(
    walk: WorkWalk,
    works: list[NodeWork],
    node: Node,
    window: Window,
    read: list[tuple[int, int]],
    lead: int,
    alike: int,
) -> CellLine:
    """Adds `alike` lines of the result on the cores of line `lead`. `read`: (line, number of lines) of the input."""
    (name,), made = node.inputs, list[tuple[PlacedCell, ...]]()
    layout, chip = walk.layouts[name], walk.chip(node.output)
    for p, cells in enumerate(layout.line(lead)):
        own, work = list[PlacedCell](), works[p]
        channels = layout.parts[p][1] - layout.parts[p][0]
        for cols, core in share_columns(cells, window.out_dims[-1], 1, window.strides[-1]):
            pixels = input_columns(window, cols)
            for line, count in read:
                walk.bring_line(work, name, (line, p), pixels, core, lines=count, exact=True)
            width, wide = cols[1] - cols[0], pixels[1] - pixels[0]
            work.compute_ns[core] += alike * window_ns(chip, node, window, width, wide, channels)
            if isinstance(node.operator, Stencil):
                row, taps = channels * _pixels_at_once(chip, window, width, channels), window.tap_count
                walk.constant(work, core, (node.output, p), taps * channels, taps, row)
            own.append(PlacedCell(*cols, core))
        made.append(tuple(own))
    return tuple(made)


def add_table(walk: WorkWalk, node: Node, operator: Stencil, table: WindowTable) -> None:
    """Adds an interpolation by line, on the cores that have the same fraction of the columns of the input."""
    (name,), image = node.inputs, walk.image(node.output)
    layout, before, chip = walk.layouts[name], walk.image(node.inputs[0]), walk.chip(node.output)
    work = walk.start_work(node.output, image.rows, walk.needs_lines(node, image.rows, before.rows, image.rows, 1))
    alike = bool((operator.weights == operator.weights[:1]).all())
    lines: list[CellLine] = []
    for (line, count), rows in zip(layout.distinct(), layout.spans, strict=True):
        made: list[tuple[PlacedCell, ...]] = []
        for p, cells in enumerate(line):
            channels = layout.parts[p][1] - layout.parts[p][0]
            own = [
                PlacedCell(*cols, core) for cols, core in share_columns(cells, image.width, image.width, before.width)
            ]
            for cell in own:
                read = cell.first * before.width // image.width, -(-cell.last * before.width // image.width)
                wider = max(0, read[0] - 1), min(before.width, read[1] + 1)
                walk.bring_line(work, name, (rows[0], p), wider, cell.core, lines=count, exact=True)
                together = best_pixels_per_op(chip, cell.width, channels) if alike else 1
                run_ns = pixel_runs_ns(chip, cell.width, channels, together)
                work.compute_ns[cell.core] += image.rows * count / layout.rows * 2 * table.tap_count * run_ns
            made.append(tuple(own))
        lines.append(tuple(made))
    starts = tuple(-(-low * image.rows // before.rows) for low in layout.starts)
    walk.layouts[node.output] = CellLayout(image, layout.parts, tuple(lines) if starts else (lines[0],), starts=starts)


def share_columns(cells: tuple[PlacedCell, ...], width: int, times: int, stride: int) -> list[tuple[Range, int]]:
    """Returns the output pixels and the core of each input cell: output x is where input x * stride / times is."""
    found: list[tuple[Range, int]] = []
    first = 0
    for i, cell in enumerate(cells):
        last = min(width, width if i == len(cells) - 1 else -(-cell.last * times // stride))
        if first < last:
            found.append(((first, last), max(cell.core, 0)))
        first = max(first, last)
    return found


def window_ns(chip: Target, node: Node, window: Window, width: int, read: int, channels: int) -> float:
    """Estimates the time in ns of a line of a pool or depthwise layer: `width` pixels made of `read` pixels."""
    lines = [len(taps) for taps in input_lines_read(window)]
    inside = sum(lines) / len(lines) / max(1, math.prod(window.kernel[:-1]))
    if isinstance(node.operator, Stencil):
        together = _pixels_at_once(chip, window, width, channels)
        return inside * 2 * window.tap_count * pixel_runs_ns(chip, width, channels, together)
    down, along = inside * math.prod(window.kernel[:-1]), window.kernel[-1]
    run = width if window.strides[-1] == 1 else 1
    along_ns = width / run * (vector_ns(chip, run * channels, 2) + ISSUE_NS)
    if 1 in window.kernel[-2:]:
        return max(0.0, down * along - 1) * along_ns
    return max(0.0, down - 1) * (vector_ns(chip, read * channels, 2) + ISSUE_NS) + (along - 1) * along_ns


def _pixels_at_once(chip: Target, window: Window, width: int, channels: int) -> int:
    """Returns the number of pixels that an instruction of a depthwise layer weights."""
    return 1 if window.strides[-1] > 1 else best_pixels_per_op(chip, width, channels)


def add_concat(walk: WorkWalk, node: Node) -> None:
    """Joins layouts by channels; nothing is moved."""
    first, parts, makers = 0, list[Range](), list[Maker]()
    for name in node.inputs:
        parts += [(first + low, first + high) for low, high in walk.layouts[name].parts]
        makers += [Maker(m.work, (first + m.channels[0], first + m.channels[1])) for m in walk.makers.get(name, ())]
        first += walk.image(name).channels
    layouts = [walk.layouts[name] for name in node.inputs]
    starts = sorted({low for layout in layouts for low, _ in layout.spans})
    lines = tuple(sum((layout.line(y) for layout in layouts), ()) for y in starts)
    lanes = tuple(starts) if any(layout.starts for layout in layouts) else ()
    walk.layouts[node.output] = CellLayout(walk.image(node.output), tuple(parts), lines, starts=lanes)
    walk.makers[node.output] = makers


def add_rename(walk: WorkWalk, node: Node) -> None:
    """Gives a layout another name."""
    (name,) = node.inputs
    walk.layouts[node.output], walk.makers[node.output] = walk.layouts[name], walk.makers.get(name, [])


def add_line_node(walk: WorkWalk, node: Node) -> None:
    """Adds a node without weights: by line if it can, else on whole tensors."""
    elementwise = isinstance(node.operator, Map | Requantise | Bound | Lookup)
    lead = lead_operand(walk, node) if elementwise else None
    if lead is None:
        materialise_views(walk, node.inputs)
        lead = lead_operand(walk, node) if elementwise else None  # a view may be lines now
    if lead is not None:
        add_map(walk, node, lead)
        return
    lines = [name for name in node.inputs if walk.is_line_layout(name)]
    same = bool(lines) and walk.same_pixels(lines[0], node.output)
    if isinstance(node.operator, Pool | Stencil) and lines and _add_sliding(walk, node, node.operator):
        return
    match node.operator:
        case ChannelSum() | Softmax() if same and node.output in walk.facts.parts:
            add_per_pixel(walk, node)
        case Rename() if same:
            add_rename(walk, node)
        case Concat() if node.output in walk.facts.parts and len(lines) == len(node.inputs):
            add_concat(walk, node)
        case Move():
            add_whole_move(walk, node)
        case _:
            add_whole_node(walk, node)


def _add_sliding(walk: WorkWalk, node: Node, operator: Pool | Stencil) -> bool:
    """Adds a window over an input that is lines. Returns False, and adds nothing, if it does not work by line."""
    image = walk.image(node.output)
    slides = node.output in walk.facts.parts and not is_token_layout(image)
    match operator.window:
        case Window() as window if isinstance(operator, Pool) and window.out_pixels == 1 and not window.transposed:
            add_global_pool(walk, node)
        case Window() as window if slides and slides_over_lines(walk.graph, node, window):
            add_window(walk, node, window)
        case WindowTable() as table if slides and isinstance(operator, Stencil):
            add_table(walk, node, operator, table)
        case _:
            return False
    return True
