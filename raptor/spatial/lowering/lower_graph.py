"""Plain lowering of a graph to SpatialIR: each compute on the virtual core that the records of the layers say."""

from dataclasses import replace

from msgspec import structs

from raptor.graph.ir import Filter, Graph, Move, Take
from raptor.graph.layers import filter_key
from raptor.mapping.decision import Decision, LineFlow, PixelFlow, TileFlow
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy, FilterUse, MoveUse, SpatialGraph, TakeUse, TensorPart
from raptor.spatial.lowering.cache_lowering import CacheLowering
from raptor.spatial.lowering.pixel_lowering import PixelLowering
from raptor.spatial.lowering.tile_lowering import TileLowering
from raptor.spatial.placed_graph import Partition
from raptor.target.arch import Target


def lower_graph(graph: Graph, decision: Decision, arch: Target) -> Partition:
    """Cuts every tensor into tiles and every layer into computes, each on the virtual core of its layer's record.

    The refinement of the decision has no part in this.
    """
    lowering = _lowering(graph, decision, arch)
    for name in graph.inputs:
        lowering.bind_input(name)
    for node in graph.nodes:
        lowering.lower(node)
    lowering.finish()
    _copy_old_states(lowering)
    _read_whole_states(lowering)
    filter_of = {n.output: FilterUse(filter_key(n), n.inputs[0]) for n in graph.nodes if isinstance(n.operator, Filter)}
    take_of = {n.output: TakeUse(n.operator.table, n.inputs[0]) for n in graph.nodes if isinstance(n.operator, Take)}
    # A view may exist as regions only, which `verify_views` proves.
    views = lowering.view_uses
    moved = lowering.tensors.keys() - views.keys()
    moves = ((n, n.operator) for n in graph.nodes if isinstance(n.operator, Move) and n.output in moved)
    computes, cores, positions = zip(*lowering.computes, strict=True) if lowering.computes else ((), (), ())
    # NOTE: by pixel, a tensor is stacked from tiles or cut into them, so its tiles do not show the origin of elements.
    by_pixel = isinstance(decision.flow, PixelFlow)
    move_of = {} if by_pixel else {n.output: MoveUse(move.sources, n.inputs) for n, move in moves}
    cut = SpatialGraph(
        graph.name,
        graph.arithmetic,
        graph.inputs,
        graph.outputs,
        lowering.tensors,
        {filter_key(n): n.operator for n in graph.nodes if isinstance(n.operator, Filter)},
        filter_of,
        take_of,
        move_of,
        lowering.literals,
        computes,
        views,
        lowering.product_uses,
        residency=graph.residency,
    )
    return Partition(cut, cores, positions)


def _copy_old_states(lowering: TileLowering) -> None:
    """Copies what is at once a state of this sample and of the next one: it is overwritten before the next begins."""
    graph, tensors = lowering.graph, lowering.tensors
    before = {part.tile.name for name in graph.residency.state_inputs for part in tensors[name].parts}
    for name in graph.residency.state_outputs:
        tensor, parts = tensors[name], list[TensorPart]()
        for part in tensor.parts:
            if part.tile.name in before:
                tile = structs.replace(part.tile, name=f"{name}.{part.tile.name}")
                op = Copy(tile, part.tile, 0, 0, tile.elements)
                core = lowering.residency.keepers.get(part.tile.name)
                lowering.emit(Compute(tensor.node, "Identity", name, (), (op,), (tile,)), core)
                part = structs.replace(part, tile=tile)
            parts.append(part)
        tensors[name] = replace(tensor, parts=tuple(parts))


def _read_whole_states(lowering: TileLowering) -> None:
    """Copies the tiles of states that nothing reads, such as the oldest row of a window: a core must hold each tile.

    The copy is on a core that makes a part of the next value.
    """
    graph, tensors = lowering.graph, lowering.tensors
    if not graph.residency.states:
        return
    read = {tile.name for placed in lowering.computes for tile in placed.compute.inputs}
    core_of = {tile.name: placed.core for placed in lowering.computes for tile in placed.compute.results}
    for pair in graph.residency.states:
        tensor, after = tensors[pair.input], tensors[pair.output]
        for part in tensor.parts:
            if part.tile.name in read:
                continue
            tile = structs.replace(part.tile, name=f"{part.tile.name}.unread")
            made = [core_of[p.tile.name] for p in after.parts if p.tile.name in core_of]
            op = Copy(tile, part.tile, 0, 0, tile.elements)
            lowering.emit(Compute(after.node, "Identity", pair.output, (), (op,), (tile,)), made[0] if made else 0)


def _lowering(graph: Graph, decision: Decision, arch: Target) -> TileLowering:
    match decision.flow:
        case TileFlow():
            return TileLowering(graph, decision, arch)
        case LineFlow():
            return CacheLowering(graph, decision, arch)
        case PixelFlow():
            return PixelLowering(graph, decision, arch)
