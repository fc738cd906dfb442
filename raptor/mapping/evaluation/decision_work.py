"""The work of every core for every node of a decision, before anything is lowered.

The walk follows the rules by which `raptor.spatial.lowering` places nodes, for one line of a tensor instead of all, so
messages are counted between the cores that will exchange them. Tests compare it with the simulator.
"""

from collections import Counter
from collections.abc import Collection

from raptor.graph.ir import Dot, Filter, Graph, Move, Node, Take
from raptor.graph.layers import filter_key
from raptor.mapping.decision import Decision, FullyConnected, KernelUnfolding, LineFlow, LineUnfolding
from raptor.mapping.evaluation.cell_layout import GLOBAL_MEMORY, CellLayout, PlacedCell
from raptor.mapping.evaluation.graph_facts import GraphFacts
from raptor.mapping.evaluation.line_layer_work import add_line_layer
from raptor.mapping.evaluation.line_work import add_line_node
from raptor.mapping.evaluation.move_work import (
    add_line_move,
    add_stacked_rows,
    materialise_views,
    moves_by_line,
    stacks_rows,
)
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.product_work import add_product
from raptor.mapping.evaluation.walk import WorkWalk
from raptor.mapping.evaluation.whole_layer_work import add_whole_layer
from raptor.mapping.evaluation.whole_work import add_whole_node, bring_whole, cut_lines, store_output
from raptor.mapping.modes.line_streaming import can_stream_product, readers_are_placed
from raptor.mapping.modes.produced_constants import (
    choose_produced,
    fit_constants,
    loads_at_port_ns,
    product_ns,
    relieve_port,
)
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, repeat_ns


def decision_work(graph: Graph, decision: Decision, arch: Target, facts: GraphFacts | None = None) -> list[NodeWork]:
    """Returns the work of a decision about a graph that has all rewrites, in an order in which it can be done.

    `facts`: about this graph, target, and kind of flow; it saves time if several decisions are evaluated.
    """
    streams = isinstance(decision.flow, LineFlow) and decision.flow.streamed
    walk = WorkWalk(graph, decision, arch, facts or GraphFacts(graph, arch, streams))
    for name in graph.inputs:
        _add_input(walk, name)
    for node in graph.nodes:
        _add_node(walk, node)
    for name in graph.outputs:
        materialise_views(walk, (name,))
        store_output(walk, name)
    if not graph.residency.constants:
        _add_constants(walk)
    return walk.works


def _add_input(walk: WorkWalk, name: str) -> None:
    """Adds the loads of a model input by its loaders; without loaders, each reader loads what it needs."""
    image = walk.image(name)
    loaders = walk.flow.loaders.get(name, ()) if walk.flow is not None else ()
    if name not in walk.facts.parts:
        walk.bind_tiles(name, [GLOBAL_MEMORY])
        return
    cells = tuple(PlacedCell(*cols, core) for cols, core in loaders) or (PlacedCell(0, image.width, GLOBAL_MEMORY),)
    if loaders:
        work = walk.start_work(name, image.rows)
        for low, high in walk.facts.parts[name]:
            for cell in cells:
                work.load(walk.chip(name), cell.core, cell.width * (high - low), image.rows)
    walk.layouts[name] = CellLayout(image, walk.facts.parts[name], (tuple(cells for _ in walk.facts.parts[name]),))


def _add_node(walk: WorkWalk, node: Node) -> None:
    match node.operator:
        case Filter() as operator:
            _add_layer(walk, node, operator)
        case Move() as operator if stacks_rows(walk, node, operator):
            add_stacked_rows(walk, node)
        case Move() if _has_cores(walk, node) and moves_by_line(walk, node):
            add_line_move(walk, node)
        case Move() if node.output in walk.facts.views:
            walk.start_work(node.output, 1, walk.needs_all(node))
        case Dot() as operator if can_stream_product(walk.graph, node, walk.facts.parts, walk.facts.views):
            add_product(walk, node, operator)
        case Take() if walk.gatherers(node):
            _add_lookup(walk, node)
        case Move() if moves_by_line(walk, node):
            add_line_move(walk, node)
        case _:
            add_line_node(walk, node)


def _has_cores(walk: WorkWalk, node: Node) -> bool:
    """Checks whether a move is made on cores of its own; else it is a view (`TokenLowering.has_cores`)."""
    return bool(walk.gatherers(node)) and readers_are_placed(walk.facts.views, walk.facts.readers.get(node.output, ()))


def _add_lookup(walk: WorkWalk, node: Node) -> None:
    """Adds an embedding lookup that has cores of its own: each loads a row of the table for each of its pixels."""
    image, parts = walk.image(node.output), walk.facts.parts[node.output]
    cells = tuple(PlacedCell(*cols, core) for cols, core in walk.gatherers(node))
    work = walk.start_work(node.output, image.rows, walk.needs_all(node))
    for cell in cells:
        bring_whole(walk, work, node.inputs[0], cell.core)
        pixels = image.rows * cell.width
        for low, high in parts:
            work.load(walk.chip(node.output), cell.core, high - low, pixels)
        work.compute_ns[cell.core] += len(parts) * pixels * 4 * ISSUE_NS
    walk.layouts[node.output] = CellLayout(image, parts, (tuple(cells for _ in parts),))


def _add_layer(walk: WorkWalk, node: Node, operator: Filter) -> None:
    (name,) = node.inputs
    materialise_views(walk, node.inputs)
    match walk.decision.layers.get(filter_key(node)):
        case LineUnfolding() as chosen:
            if not walk.is_line_layout(name):
                cut_lines(walk, name)
            add_line_layer(walk, node, operator, chosen)
        case KernelUnfolding() | FullyConnected() as chosen:
            add_whole_layer(walk, node, operator, chosen)
        case _:
            add_whole_node(walk, node)


def _add_constants(walk: WorkWalk) -> None:
    """Adds what brings the constants of each core there: loads, or one product of free crossbars if that is faster.

    Where the port of global memory would bind, more cores make theirs, as `choose_constants` of the refinement decides.
    """
    arch, makes = walk.arch, walk.flow is not None and walk.flow.makes_constants
    spare: dict[int, dict[object, int]] = {}
    for core, constants in walk.constants.items():
        sizes, free = {key: size for key, (size, _) in constants.items()}, arch.xbars_per_core - walk.crossbars[core]
        produced = choose_produced(sizes, free, arch) if makes else set[object]()
        if makes and not produced and (fitting := fit_constants(sizes, free, arch)):
            spare[core] = {key: sizes[key] for key in sizes if key in fitting}
        else:
            _add_constants_of(walk, core, produced)
    busy_ns = Counter[int]()
    for work in walk.works:
        busy_ns.update(work.core_ns(arch))
    port_ns = sum(memory.port_ns for work in walk.works for memory in work.memory.values())
    port_ns += sum(loads_at_port_ns(sizes.values(), arch) for sizes in spare.values())
    relieved = {*relieve_port(spare, busy_ns, port_ns, arch)}
    for core, sizes in spare.items():
        _add_constants_of(walk, core, {*sizes} if core in relieved else set())


def _add_constants_of(walk: WorkWalk, core: int, produced: Collection[object]) -> None:
    """Adds the loads of the constants of a core, and the product and the copies of those that it produces."""
    arch, work, constants = walk.arch, walk.constant_readers[core], walk.constants[core]
    if produced:
        work.load(arch, core, 1)
        work.compute_ns[core] += product_ns([constants[key][0] for key in produced], arch) + ISSUE_NS
    for key, (size, filled) in constants.items():
        if key not in produced:
            work.load(arch, core, size)
        elif size > 1:
            work.copy(arch, core, size)
        work.compute_ns[core] += sum(n * repeat_ns(arch, size // n, row) for n, row in filled if n * row > size)
