"""The work of operators on whole tensors, which run on the core of their first operand."""

from raptor.graph.ir import ConstantTensor, Dot, Map, Node, Pool, Stencil, Take
from raptor.graph.window import Window
from raptor.mapping.evaluation.cell_layout import GLOBAL_MEMORY, CellLayout, PlacedCell
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import WorkWalk, iterate_tiles
from raptor.mapping.modes.operator_cost import operator_ns
from raptor.target.timing import ISSUE_NS, pixel_runs_ns, vector_ns


def bring_whole(walk: WorkWalk, work: NodeWork, name: str, core: int, share: float = 1.0) -> None:
    """Adds messages with `share` of the elements of a tensor to a core, unless the core has them."""
    layout = walk.layouts.get(name)
    if layout is None or not walk.once("whole", name, core, share):
        return
    for part, cell, alike in iterate_tiles(layout):
        if cell.core != core:
            elements = max(1, round(layout.elements(part, cell) * share))
            walk.move_cell(work, name, cell, core, elements, alike)


def cut_lines(walk: WorkWalk, name: str) -> None:
    """Replaces whole tiles of a tensor that streams by lines on their cores."""
    whole, parts = walk.layouts[name], walk.facts.parts[name]
    cores = [cells[0].core for cells in whole.lines[0]]
    image = whole.image
    cells = tuple((PlacedCell(0, image.width, cores[min(p, len(cores) - 1)]),) for p in range(len(parts)))
    if cores[0] != GLOBAL_MEMORY:
        made = walk.makers[name][0].work
        for (low, high), (cell,) in zip(parts, cells, strict=True):
            made.copy(walk.chip(name), cell.core, image.width * (high - low), image.rows)
    walk.layouts[name] = CellLayout(image, parts, (cells,))


def add_whole_node(walk: WorkWalk, node: Node) -> None:
    """Adds an operator on whole tensors."""
    work = walk.start_work(node.output, 1, walk.needs_all(node))
    image, chip = walk.image(node.output), walk.chip(node.output)
    home = _home(walk, node)
    tiles = [cells[0].core for cells in home.lines[0]] if home is not None else [0]
    spread = isinstance(node.operator, Map) and len(tiles) == -(-image.channels // walk.facts.tile)
    cores = tiles if spread else tiles[:1]
    for name in node.inputs:
        layout = walk.layouts.get(name)
        if spread and layout is not None and layout.whole and len(layout.parts) == len(cores):
            for cells, core in zip(layout.lines[0], cores, strict=True):
                if cells[0].core != core:
                    walk.move_cell(work, name, cells[0], core, layout.elements(0, cells[0]), 1)
        else:
            for core in cores:
                bring_whole(walk, work, name, core)
    for core in cores:
        work.compute_ns[core] += whole_ns(walk, node) / len(cores) + ISSUE_NS
    if isinstance(node.operator, Take):
        work.load(chip, cores[0], image.channels, image.pixels)
    walk.bind_tiles(node.output, cores)


def _home(walk: WorkWalk, node: Node) -> CellLayout | None:
    """Returns the operand on whose cores a node runs: the last one for a function of one pixel, else the first one."""
    given = [name for name in node.inputs if name in walk.layouts and walk.layouts[name].first_core != GLOBAL_MEMORY]
    if not given:
        return None
    if isinstance(node.operator, Map) and walk.image(node.output).pixels == 1:
        return walk.layouts[max(given, key=walk.facts.turns.__getitem__)]
    return walk.layouts[given[0]]


def whole_ns(walk: WorkWalk, node: Node) -> float:
    """Estimates the time in ns of an operator on whole tensors."""
    image, chip = walk.image(node.output), walk.chip(node.output)
    match node.operator:
        case Dot(batch=batch, rows=rows, cols=cols):
            return batch * rows * cols * (vector_ns(chip, walk.image(node.inputs[0]).channels, 2) + ISSUE_NS)
        case Take():
            return image.pixels * 4 * ISSUE_NS
        case ConstantTensor():
            return 0.0
        case Stencil(window=Window() as window):
            return 2 * window.tap_count * pixel_runs_ns(chip, image.pixels, image.channels, 1)
        case Pool(window=window):
            return image.pixels * (window.tap_count - 1) * (vector_ns(chip, image.channels, 2) + ISSUE_NS)
        case _:
            return operator_ns(walk.graph, node, walk.arch)


def store_output(walk: WorkWalk, name: str) -> None:
    """Adds the stores of an output of the model."""
    layout, made = walk.layouts[name], walk.makers_of(name) or [walk.start_work(name)]
    for part, cell, alike in iterate_tiles(layout):
        core = max(cell.core, 0)
        work = next((work for work in reversed(made) if core in work.compute_ns), made[-1])
        work.store(walk.chip(name), core, layout.elements(part, cell), alike)
