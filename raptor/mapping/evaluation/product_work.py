"""The work of products of two computed tensors, such as the scores of an attention."""

from raptor.graph.ir import Dot, Node
from raptor.mapping.decision import DotGrid, LineFlow, SharedDot
from raptor.mapping.evaluation.cell_layout import CellLayout, CellLine, PlacedCell
from raptor.mapping.evaluation.move_work import bring_region
from raptor.mapping.evaluation.node_work import NodeWork, StepNeed
from raptor.mapping.evaluation.walk import WorkWalk
from raptor.mapping.modes.line_streaming import Range
from raptor.target.timing import ISSUE_NS, vector_ns


def add_product(walk: WorkWalk, node: Node, operator: Dot) -> None:
    """Adds a product whose operands are lines or views: each core multiplies some pixels of the first by all others."""
    flow = walk.decision.flow
    chosen = flow.products.get(node.output) if isinstance(flow, LineFlow) else None
    if isinstance(chosen, SharedDot):
        _add_shared(walk, node, operator, chosen)
        return
    left, right = node.inputs
    channels, width = walk.image(left).channels, walk.image(right).width
    places = find_places(walk, node, operator)
    passed = _pass_operand(walk, node, places, chosen.chain) if chosen is not None and chosen.chain > 1 else []
    work = walk.start_work(node.output)
    work.at_once = True
    lines: list[list[PlacedCell]] = [[] for _ in range(operator.batch)]
    for line, cols, core in places:
        bring_region(walk, work, left, line, (0, channels), cols, core)
        if not passed:
            bring_region(walk, work, right, line, (0, channels), (0, width), core)
        count = (cols[1] - cols[0]) * width
        work.compute_ns[core] += count * (vector_ns(walk.chip(left), channels, 2) + ISSUE_NS)
        lines[line].append(PlacedCell(*cols, core))
    _bind_lines(walk, work, node, lines)
    work.needs += [StepNeed(each, 0, 1, 0) for each in passed]


def _bind_lines(walk: WorkWalk, work: NodeWork, node: Node, lines: list[list[PlacedCell]]) -> None:
    """Records the cells of each line of a product; its work needs the same share of the lines of its operands."""
    parts = walk.facts.parts[node.output]
    cells: list[CellLine] = [tuple(tuple(sorted(line)) for _ in parts) for line in lines]
    walk.layouts[node.output] = layout = CellLayout(walk.image(node.output), parts, tuple(cells))
    work.steps = layout.rounds
    work.needs = walk.needs_lines(node, work.steps)


def _pass_operand(walk: WorkWalk, node: Node, places: list[tuple[int, Range, int]], chain: int) -> list[NodeWork]:
    """Adds the work that brings the second operand of a product to the first core of each chain, then to the next.

    Returns the work of each place in the chains.
    """
    right = node.inputs[1]
    image = walk.image(right)
    needs = [StepNeed(made, 0, 1, made.steps - 1) for made in walk.makers_of(right)]
    works: list[NodeWork] = []
    for _ in range(chain):
        works.append(walk.start_work(node.output, 1, [StepNeed(each, 0, 1, 0) for each in works[-1:]] or needs))
    on_line: dict[int, dict[int, None]] = {}
    for line, _, core in places:
        on_line.setdefault(line, {})[core] = None
    for line, cores in on_line.items():
        before = -1
        for k, core in enumerate(cores):
            if k % chain:
                works[k % chain].send(walk.chip(right), before, core, image.width * image.channels)
            else:
                bring_region(walk, works[0], right, line, (0, image.channels), (0, image.width), core)
            before = core
    return works


def _add_shared(walk: WorkWalk, node: Node, operator: Dot, chosen: SharedDot) -> None:
    """Adds a product of which cores compute some channels of each line, which are then collected pixel by pixel."""
    (left, right), name = node.inputs, node.output
    channels, chip = walk.image(left).channels, walk.chip(left)
    work = walk.start_work(name)
    lines: list[list[PlacedCell]] = [[] for _ in range(operator.batch)]
    for rows, shares in chosen.shares():
        for line in range(*rows):
            for part, core in shares:
                bring_region(walk, work, left, line, (0, channels), (0, operator.rows), core)
                bring_region(walk, work, right, line, (0, channels), part, core)
                count = operator.rows * (part[1] - part[0])
                work.compute_ns[core] += count * (vector_ns(chip, channels, 2) + ISSUE_NS)
    for rows, cols, core in chosen.collectors(operator.rows):
        for line in range(*rows):
            lines[line].append(PlacedCell(*cols, core))
            for part, given in next(shares for own, shares in chosen.shares() if own == rows):
                if given != core:
                    walk.move_cell(work, name, PlacedCell(*cols, given), core, part[1] - part[0], 1.0)
    _bind_lines(walk, work, node, lines)


def find_places(walk: WorkWalk, node: Node, operator: Dot) -> list[tuple[int, Range, int]]:
    """Returns line, pixels and core of each part of a product: as decided, else where the first operand is."""
    flow, left = walk.decision.flow, node.inputs[0]
    chosen = flow.products.get(node.output) if isinstance(flow, LineFlow) else None
    if isinstance(chosen, DotGrid):
        return [(y, cols, core) for rows, cols, core in chosen.places() for y in range(*rows)]
    layout = walk.layouts.get(left)
    if layout is None or layout.whole:
        return [(y, (0, operator.rows), 0) for y in range(operator.batch)]
    return [(y, c.cols, max(c.core, 0)) for y in range(operator.batch) for c in layout.line(y)[0]]
