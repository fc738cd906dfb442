"""Pass that completes a decision by the placement: which core of the chip each virtual core is."""

from dataclasses import replace

from raptor.graph.ir import Graph
from raptor.mapping.decision import CorePlacement, LineFlow
from raptor.spatial.mesh_placement import find_placement, list_messages, place_cores
from raptor.spatial.partition import partition
from raptor.spatial.refine import DecisionProgress
from raptor.target.arch import Target


def choose_placement(graph: Graph, done: DecisionProgress, arch: Target) -> DecisionProgress:
    """Chooses a placement with which messages travel few hops; a decision that has a placement keeps it.

    Only flows by line are optimised: in the others, each virtual core stays at the place of its number. Raises
    `RefinementError` if a stored refinement does not fit the computes on which the placement depends.
    """
    decision, cut = done.decision, done.partition
    if decision.placement is None:
        cut = cut or partition(graph, decision, arch)
        found: tuple[int, ...] = ()
        if isinstance(decision.flow, LineFlow) and cut.cores:
            found = tuple(find_placement(list_messages(cut, arch), arch).tolist())
        is_numbered = found == tuple(range(len(found)))
        decision = replace(decision, placement=CorePlacement(() if is_numbered else found))
    return replace(done, decision=decision, partition=cut, placed=cut and place_cores(cut, decision, arch))
