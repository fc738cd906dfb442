"""The work of products of two computed tensors, such as the scores of an attention."""

from raptor.graph.ir import Dot, Node
from raptor.mapping.decision import LineFlow
from raptor.mapping.evaluation.cell_layout import CellLayout, CellLine, PlacedCell
from raptor.mapping.evaluation.move_work import bring_region
from raptor.mapping.evaluation.walk import WorkWalk
from raptor.mapping.modes.line_streaming import Range
from raptor.target.timing import ISSUE_NS, vector_ns


def add_product(walk: WorkWalk, node: Node, operator: Dot) -> None:
    """Adds a product whose operands are lines or views: each core multiplies some pixels of the first by all others."""
    left, right = node.inputs
    channels, width = walk.image(left).channels, walk.image(right).width
    work = walk.start_work(node.output)
    lines: list[list[PlacedCell]] = [[] for _ in range(operator.batch)]
    for line, cols, core in find_places(walk, node, operator):
        bring_region(walk, work, left, line, (0, channels), cols, core)
        bring_region(walk, work, right, line, (0, channels), (0, width), core)
        count = (cols[1] - cols[0]) * width
        work.compute_ns[core] += count * (vector_ns(walk.chip(left), channels, 2) + ISSUE_NS)
        lines[line].append(PlacedCell(*cols, core))
    parts = walk.facts.parts[node.output]
    cells: list[CellLine] = [tuple(tuple(sorted(line)) for _ in parts) for line in lines]
    walk.layouts[node.output] = layout = CellLayout(walk.image(node.output), parts, tuple(cells))
    work.steps = layout.rounds
    work.needs = walk.needs_lines(node, work.steps)


def find_places(walk: WorkWalk, node: Node, operator: Dot) -> list[tuple[int, Range, int]]:
    """Returns line, pixels and core of each part of a product: as decided, else where the first operand is."""
    flow, left = walk.decision.flow, node.inputs[0]
    chosen = flow.products.get(node.output) if isinstance(flow, LineFlow) else None
    if chosen is not None:
        return [(y, cols, core) for rows, cols, core in chosen.places() for y in range(*rows)]
    layout = walk.layouts.get(left)
    if layout is None or layout.whole:
        return [(y, (0, operator.rows), 0) for y in range(operator.batch)]
    return [(y, (c.first, c.last), max(c.core, 0)) for y in range(operator.batch) for c in layout.line(y)[0]]
