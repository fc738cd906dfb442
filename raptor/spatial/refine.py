"""Pass that completes a decision by what it decides about single computes, and the application of these records.

The choices build on each other: each looks at the computes as the records before it leave them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.refinement import MovedComputes, ProducedConstants, Refinement, RefinementError
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.placed_graph import Partition, PlacedGraph, Schedule
from raptor.spatial.refinement.late_work import choose_moves_and_relays
from raptor.spatial.refinement.load_balancing import balance_load
from raptor.spatial.refinement.make_constants import ConstantUses, check_constants, choose_constants, make_constants
from raptor.spatial.refinement.move_computes import check_moves, move_computes
from raptor.spatial.refinement.sink_input_work import sink_to_readers
from raptor.spatial.refinement.value_relays import check_relays, relay_values
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class DecisionProgress:
    """A decision that passes complete one after another: refinement, placement, order of work.

    partition, placed, schedule: results of the passes `partition`, `place_cores` and `schedule` for it, each None if
    deciding did not take it, because the decision was complete before. times_ns: latency and interval of the order
    that was chosen; None without a choice.
    """

    decision: Decision
    partition: Partition | None = None
    placed: PlacedGraph | None = None
    schedule: Schedule | None = None
    times_ns: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"{self.decision}"


def refine(graph: Graph, decision: Decision, arch: Target) -> DecisionProgress:
    """Decides what moves, which constants crossbars produce, and which values other cores pass on.

    Only decisions by line are refined, and only if streamed does anything move: layer by layer, cores work in turn, so
    nothing is gained. A decision that has its refinement, because a file or a search had it, stays as it is.
    """
    if decision.refinement is not None:
        return DecisionProgress(decision)
    lowered, flow = lower_graph(graph, decision, arch), decision.flow
    if not isinstance(flow, LineFlow) or not lowered.cores:
        return DecisionProgress(replace(decision, refinement=Refinement()), lowered)
    sunk = sink_to_readers(lowered) if flow.streamed else ()
    partition = move_computes(lowered, sunk)
    constants: tuple[ProducedConstants, ...] = ()
    if flow.makes_constants and not graph.residency.constants:
        constants, partition = choose_constants(partition, ConstantUses.from_partition(partition), arch)
    balanced = balance_load(partition, flow, arch) if flow.streamed else ()
    partition = move_computes(partition, balanced)
    near, relays = choose_moves_and_relays(partition, arch) if flow.streamed else ((), ())
    partition = relay_values(move_computes(partition, near), relays)
    found = Refinement("", sunk, constants, balanced, near, relays)
    if not found.is_empty:
        found = replace(found, lowering=lowering_digest(lowered))
    return DecisionProgress(replace(decision, refinement=found), partition)


def apply_refinement(lowered: Partition, decision: Decision, arch: Target) -> Partition:
    """Returns the plain lowering of a complete decision with its refinement; itself if nothing differs.

    Raises `RefinementError` for a refinement that was made for other computes, or that would break the program.
    """
    *_, refined = lowered, *(after for _, after in refinement_steps(lowered, decision, arch))
    return refined


def refinement_steps(lowered: Partition, decision: Decision, arch: Target) -> Iterator[tuple[str, Partition]]:
    """Yields each field of the refinement that has records, with the partition after these.

    Raises `RefinementError` as `apply_refinement` does.
    """
    records, partition = decision.refinement, lowered
    assert records is not None, "the decision is complete"
    if records.is_empty:
        return
    _check_refined(records, lowered, decision)
    if records.sunk:
        yield "sunk", (partition := _moved("sunk", records.sunk, partition, arch))
    if records.constants:
        uses = ConstantUses.from_partition(partition)
        check_constants(partition, uses, records.constants, arch)
        yield "constants", (partition := make_constants(partition, uses, records.constants, arch))
    if records.balanced:
        yield "balanced", (partition := _moved("balanced", records.balanced, partition, arch))
    if records.near:
        yield "near", (partition := _moved("near", records.near, partition, arch))
    if records.relays:
        check_relays(partition, records.relays, arch)
        yield "relays", relay_values(partition, records.relays)


def _check_refined(records: Refinement, lowered: Partition, decision: Decision) -> None:
    """Raises `RefinementError` unless the records are about these computes, and the flow of the decision has such."""
    flow = decision.flow
    if not isinstance(flow, LineFlow):
        raise RefinementError(f"only a mapping by line is refined, not one by {flow.kind}")
    if records.constants and not flow.makes_constants:
        raise RefinementError("constants: the flow of this mapping makes none")
    if records.lowering != lowering_digest(lowered):
        raise RefinementError("lowering: made for other computes, as the mapping or this version cuts them otherwise")


def _moved(field: str, moves: Sequence[MovedComputes], partition: Partition, arch: Target) -> Partition:
    check_moves(field, moves, partition, arch)
    return move_computes(partition, moves)


def lowering_digest(lowered: Partition) -> str:
    """Returns a SHA-256 digest of the core, the node and the results of each compute."""
    pairs = zip(lowered.cores, lowered.graph.computes, strict=True)
    lines = [f"{core} {c.node} {' '.join([tile.name for tile in c.results])}" for core, c in pairs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
