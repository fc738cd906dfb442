"""Pass that completes a decision by the placement: which core of the chip each virtual core is."""

from dataclasses import replace

import numpy as np

from raptor.common.errors import DeadLinkError
from raptor.common.option_spelling import spell_option
from raptor.graph.ir import Graph
from raptor.mapping.decision import CorePlacement, LineFlow
from raptor.spatial.mesh_placement import find_cut_pairs, find_placement, list_messages, place_cores
from raptor.spatial.partition import partition
from raptor.spatial.placed_graph import PlacedGraph
from raptor.spatial.refine import DecisionProgress
from raptor.target.arch import Target


def choose_placement(graph: Graph, done: DecisionProgress, arch: Target) -> DecisionProgress:
    """Chooses a placement with which messages travel few hops; a decision that has a placement keeps it.

    Only flows by line are optimised: in the others, each virtual core stays at the place of its number, unless a
    message would cross a dead link. Raises `RefinementError` if a stored refinement does not fit the computes on which
    the placement depends, and `DeadLinkError` if messages cross dead links at all places that were tried.
    """
    decision, cut = done.decision, done.partition
    if decision.placement is None or arch.cut_routes is not None:
        cut = cut or partition(graph, decision, arch)
    if decision.placement is None:
        assert cut is not None, "made just before"
        found: tuple[int, ...] = ()
        if (isinstance(decision.flow, LineFlow) or arch.cut_routes is not None) and cut.cores:
            found = tuple(find_placement(list_messages(cut, arch), arch).tolist())
        is_numbered = found == tuple(range(len(found)))
        decision = replace(decision, placement=CorePlacement(() if is_numbered else found))
    placed = cut and place_cores(cut, decision, arch)
    if placed is not None:
        _check_links(placed, arch)
    return replace(done, decision=decision, partition=cut, placed=placed)


def _check_links(placed: PlacedGraph, arch: Target) -> None:
    """Raises `DeadLinkError` if a message crosses a dead link."""
    pairs = np.unique(list_messages(placed, arch)[:, :2], axis=0)
    cut = find_cut_pairs(pairs, arch)
    if not len(cut):
        return
    assert arch.defects is not None, "only defects cut routes"
    sender, receiver = cut[0].tolist()
    raise DeadLinkError(
        "pairs of cores that exchange messages without a dead link on their way",
        len(pairs),
        len(pairs) - len(cut),
        where=f"chip {arch.defects.file.name!r}, messages such as those from core {sender} to core {receiver}",
        levers=[f"another mapping, such as {spell_option('mapping', 'raptor')},"],
        without="a chip with fewer dead links",
    )
