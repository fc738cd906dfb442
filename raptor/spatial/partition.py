"""Pass from Graph to Partition: the lowering of a complete decision, which decides nothing."""

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refine import apply_refinement
from raptor.target.arch import Target


def partition(graph: Graph, decision: Decision, arch: Target) -> Partition:
    """Cuts every tensor into tiles and every layer into computes, each on the virtual core that was decided.

    Raises `RefinementError` if the refinement of a stored decision does not fit these computes.
    """
    return apply_refinement(lower_graph(graph, decision, arch), decision, arch)
