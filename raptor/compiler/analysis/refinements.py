"""Says in sentences what a decision adds after the layers: moves, constants, relays, placement, order of work."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raptor.compiler.pipeline import MappedGraph
from raptor.mapping.decision import Decision, Flow, LineFlow
from raptor.mapping.paces import apply_pace
from raptor.mapping.refinement import MovedComputes, ProducedConstants, Refinement, Relay
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.mesh_placement import flit_distance, list_messages, place_cores
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refine import refinement_steps
from raptor.spatial.refinement.shared_relays import WORTH_RELAYING
from raptor.spatial.refinement.value_relays import RELAY_GAIN
from raptor.target.arch import Target
from validator.simulate.simulation_report import time_text

Kind = Literal["sunk", "constants", "balanced", "near", "relays", "placement", "order"]

_MOST = 4
"""Nodes and cores that a sentence lists."""


@dataclass(frozen=True, slots=True)
class Change:
    """A choice about single computes, the placement of the cores, or the order of all computes.

    `count`: computes that move, constants that crossbars produce, values that are relayed, or cores with another place
    than that of their number; 0 for the order. `nodes`: the ONNX nodes of computes, most computes first. `cores`: the
    cores of the chip that get them; none for the placement and the order. `why`: a sentence.
    """

    kind: Kind
    count: int
    nodes: tuple[str, ...]
    cores: tuple[int, ...]
    why: str


def changes(mapped: MappedGraph, arch: Target) -> tuple[tuple[Change, ...], Partition]:
    """Returns the changes of a complete decision in their order, and the partition with all of them."""
    timed, decision = apply_pace(arch, mapped.decision.pace), mapped.decision
    records, before = decision.refinement, lower_graph(mapped.graph, decision, timed)
    assert records is not None, "the decision is complete"
    steps: list[tuple[str, Partition]] = []
    for field, after in refinement_steps(before, decision, timed):
        steps.append((field, before))
        before = after
    places: dict[int, int] = {}
    if steps:
        places.update(zip(before.cores, place_cores(before, decision, timed).cores, strict=True))
    found = [_change(field, records, was, before, places) for field, was in steps]
    return (*found, *_placement(decision, before, timed), *_order(decision.flow)), before


def _change(field: str, records: Refinement, was: Partition, last: Partition, places: Mapping[int, int]) -> Change:
    """Describes the records of a field. was: the partition before them; places: chip core of each virtual core."""
    match field:
        case "constants":
            return _constants(records.constants, last, places)
        case "relays":
            return _relays(records.relays, was, places)
        case "sunk":
            return _moved("sunk", records.sunk, was, places)
        case "balanced":
            return _moved("balanced", records.balanced, was, places)
        case _:
            return _moved("near", records.near, was, places)


def _constants(runs: Sequence[ProducedConstants], last: Partition, places: Mapping[int, int]) -> Change:
    cores, count = _on_chip((core for run in runs for core in range(run.first, run.stop)), places), len(last.graph.made)
    made = f"{_count(count, 'constant')} by products of free crossbars of {_count(len(cores), 'core')}"
    return Change("constants", count, (), cores, f"{made}: loads at the port of global memory would take longer")


def _relays(relays: Sequence[Relay], was: Partition, places: Mapping[int, int]) -> Change:
    way = {core for relay in relays for core in relay.cores}
    cores, shared = _on_chip(way, places), not way.isdisjoint(was.cores)
    readers = [each.reader for relay in relays for each in relay.tiles]
    where = f"{_count(len(cores), 'core')} with other work" if shared else _count(len(cores), "idle core")
    kept = f"{_count(len(readers), 'value')} on {where}"
    factor = WORTH_RELAYING if shared else RELAY_GAIN
    why = f"{kept} until they are read: a sample would else occupy some core at least {factor} times as long"
    return Change("relays", len(readers), _nodes(readers, was), cores, why)


def _moved(kind: Kind, moves: Sequence[MovedComputes], was: Partition, places: Mapping[int, int]) -> Change:
    computes = [i for move in moves for i in range(move.first, move.stop)]
    nodes, cores = _nodes(computes, was), _on_chip((move.core for move in moves), places)
    left, to = (_listed("core", map(str, c)) for c in (_on_chip((was.cores[i] for i in computes), places), cores))
    what = f"{_count(len(computes), 'compute')} of {_listed('', nodes)} from {left} to {to}"
    why = {
        "sunk": "they read model inputs only, and are needed there first",
        "balanced": "the busiest cores work less so, and latency x interval of a list schedule is less",
        "near": "where they were, a sample would occupy a core for much longer",
    }[kind]
    return Change(kind, len(computes), nodes, cores, f"{what}: {why}")


def _placement(decision: Decision, partition: Partition, arch: Target) -> Iterator[Change]:
    """Yields a line about the placement if any core of the mapping has another number on the chip."""
    assert decision.placement is not None, "the decision is complete"
    if not decision.placement.places:
        return
    messages, places = list_messages(partition, arch), np.array(decision.placement.places)
    numbered = np.arange(len(places))
    count, unit = int((places != numbered).sum()), "hops" if arch.table is None else "ns"
    way, before = (flit_distance(messages, each, arch) for each in (places, numbered))
    taken = f"all flits together take {way:,.0f} {unit} instead of {before:,.0f}"
    why = f"{_count(count, 'core')} not at the places of their numbers: {taken}"
    yield Change("placement", count, (), (), why)


def _order(flow: Flow) -> Iterator[Change]:
    """Yields the order of work if it is a choice."""
    if isinstance(flow, LineFlow) and flow.streamed:
        patience = time_text(flow.patience_ns)
        name = f"sample {flow.sample + 1} in a list schedule of consecutive ones with a patience of {patience}"
        yield Change("order", 0, (), (), f"work of each core in the order of {name}: the best order that was tried")


def _nodes(computes: Iterable[int], partition: Partition) -> tuple[str, ...]:
    """Returns the nodes of computes, those with most computes first."""
    nodes = Counter(partition.graph.computes[i].node or "the model inputs" for i in computes)
    return tuple(node for node, _ in nodes.most_common())


def _on_chip(cores: Iterable[int], places: Mapping[int, int]) -> tuple[int, ...]:
    """Returns the cores of the chip for virtual cores, each once; those with no work left have none."""
    return tuple(sorted({places[core] for core in cores if core in places}))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(what: str, names: Iterable[str]) -> str:
    """Returns a text that names the first few."""
    found = list(names)
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    plural = f"{what}s " if what and len(found) > 1 else f"{what} " if what else ""
    return f"{plural}{', '.join(found[:_MOST])}{more}"
