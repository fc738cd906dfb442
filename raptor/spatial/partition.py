"""Graph to SpatialIR, by the lowering that the mapping asks for."""

from raptor.graph.ir import Filter, Graph
from raptor.mapping.decision import ByLine, ByPixel, ByTile, Decision, filter_key
from raptor.spatial.ir import FilterUse, SpatialGraph
from raptor.spatial.lower_lines import LineLowering
from raptor.spatial.lower_pixels import PixelLowering
from raptor.spatial.lower_tiles import Lowering


def partition(graph: Graph, decision: Decision) -> SpatialGraph:
    """Cuts every tensor into tiles and every layer into computes, as was decided."""
    lowering = _lowering(graph, decision)
    for name in graph.inputs:
        lowering.bind_input(name)
    for node in graph.nodes:
        lowering.lower(node)
    lowering.finish()
    filter_of = {n.output: FilterUse(filter_key(n), n.inputs[0]) for n in graph.nodes if isinstance(n.operator, Filter)}
    return SpatialGraph(
        graph.name,
        graph.inputs,
        graph.outputs,
        lowering.tensors,
        {filter_key(n): n.operator for n in graph.nodes if isinstance(n.operator, Filter)},
        filter_of,
        lowering.literals,
        tuple(lowering.computes),
    )


def _lowering(graph: Graph, decision: Decision) -> Lowering:
    match decision.flow:
        case ByTile():
            return Lowering(graph, decision)
        case ByLine():
            return LineLowering(graph, decision)
        case ByPixel():
            return PixelLowering(graph, decision)
