"""The work of layers with matrices of whole tiles: fully connected, recurrent, or too large to stream."""

from collections import defaultdict

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import layer_target
from raptor.mapping.decision import FullyConnected, KernelUnfolding, Matrix
from raptor.mapping.evaluation.cell_layout import PlacedCell
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import WorkWalk
from raptor.mapping.evaluation.whole_work import bring_whole
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import Range, cut_channels
from raptor.mapping.modes.sum_trees import passing_place, sum_messages
from raptor.target.timing import ISSUE_NS, mvmul_ns, vector_ns

_Placed = tuple[Matrix, int]
"""A matrix and its core."""


def _bring_inputs(
    walk: WorkWalk, work: NodeWork, node: Node, operator: Filter, matrices: list[Matrix], core: int
) -> None:
    """Adds the messages with the inputs that a core of a fully connected layer multiplies."""
    (name,) = node.inputs
    layout = walk.layouts[name]
    pixel_of: list[int] = operator.window.input_pixels()[0].tolist()
    wanted: defaultdict[tuple[int, int, PlacedCell], int] = defaultdict(int)
    for tap, (first, last) in {(m.tap, m.rows) for m in matrices}:
        y, x = divmod(pixel_of[tap], layout.image.width)
        line = layout.line(0 if layout.whole else y)
        for p, (low, high) in enumerate(layout.parts):
            both = min(high, last) - max(low, first)
            if both > 0:
                cell = next(cell for cell in line[p] if cell.first <= x < cell.last)
                wanted[0 if layout.whole else y, p, cell] += both
    for (_, _, cell), elements in wanted.items():
        if cell.core != core:
            walk.move_cell(work, name, cell, core, elements, 1)


def _add_products(
    walk: WorkWalk, work: NodeWork, node: Node, operator: Filter, placed: list[_Placed], trees: bool
) -> None:
    """Adds the work of all products: matrix products and additions on each core, and messages that bring the inputs.

    trees: cores pass the inputs on.
    """
    chip, pixels = layer_target(walk.graph, node, walk.arch), operator.window.out_pixels
    sums, first = with_accumulators(chip), walk.layer_steps(node)[0] == 0
    on_core: defaultdict[int, list[Matrix]] = defaultdict(list)
    held: defaultdict[frozenset[tuple[int, Range]], list[int]] = defaultdict(list)
    for matrix, core in placed:
        on_core[core].append(matrix)
        added_ns = vector_ns(sums, matrix.cols[1] - matrix.cols[0], 2) + 2 * ISSUE_NS
        work.compute_ns[core] += pixels * (mvmul_ns(chip, matrix.xbars) + added_ns)
        walk.crossbars[core] += matrix.xbars if first else 0  # the steps of a recurrent layer share them
    for core, matrices in on_core.items():
        inputs = frozenset((m.tap, m.rows) for m in matrices)
        passing = passing_place(len(held[inputs])) if trees else None
        held[inputs].append(core)
        if pixels == 1 and passing is not None:
            elements = sum(high - low for _, (low, high) in inputs)
            work.send(walk.chip(node.inputs[0]), held[inputs][passing], core, elements)
        elif pixels == 1:
            _bring_inputs(walk, work, node, operator, matrices, core)
        else:
            rows = sum(high - low for low, high in {m.rows for m in matrices})
            bring_whole(walk, work, node.inputs[0], core, min(1.0, rows / operator.in_channels))


def _add_sums(
    walk: WorkWalk, work: NodeWork, node: Node, operator: Filter, placed: list[_Placed], trees: bool
) -> list[int]:
    """Adds the sums over the cores of each output tile, as `trees` if these are many. Returns the core of each tile."""
    sums, pixels = with_accumulators(layer_target(walk.graph, node, walk.arch)), operator.window.out_pixels
    columns: defaultdict[Range, dict[int, None]] = defaultdict(dict[int, None])
    for matrix, core in placed:
        columns[matrix.cols][core] = None
    homes: list[int] = []
    for (low, high), cores in columns.items():
        tiles = cut_channels(high - low, walk.facts.tile)
        for n, (first, last) in enumerate(tiles):
            place, elements = n * len(cores) // len(tiles), pixels * (last - first)
            home = [*cores][place]
            homes.append(home)
            for giver, core in sum_messages([*cores], place, len(homes) - 1, as_tree=trees):
                work.send(sums, giver, core, elements)
                work.compute_ns[core] += vector_ns(sums, elements, 2) + ISSUE_NS
            if operator.relu:
                work.compute_ns[home] += vector_ns(walk.chip(node.output), elements, 1) + ISSUE_NS
    return homes


def add_whole_layer(walk: WorkWalk, node: Node, operator: Filter, chosen: KernelUnfolding | FullyConnected) -> None:
    """Adds a layer with matrices of whole tiles, each for all output pixels."""
    if isinstance(chosen, FullyConnected):
        chosen = chosen.step_record(*walk.layer_steps(node))
    work = walk.start_work(node.output, 1, walk.needs_all(node))
    placed = list(zip(chosen.matrices, chosen.cores, strict=True))
    trees = isinstance(chosen, FullyConnected) and chosen.trees
    _add_products(walk, work, node, operator, placed, trees)
    walk.bind_tiles(node.output, _add_sums(walk, work, node, operator, placed, trees))
