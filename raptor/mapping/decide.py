"""The passes that decide: which rewrites a graph gets, and how each layer of the rewritten graph is computed.

Each choice is made on the graph as the rewrites before it leave it. A stored decision has made all of them.
"""

from dataclasses import dataclass, field, replace

from raptor.common.errors import UserError
from raptor.graph.ir import Graph
from raptor.graph.layers import filters_of
from raptor.mapping.check import faults_of
from raptor.mapping.decision import Decision
from raptor.mapping.estimate import estimate
from raptor.mapping.paces import Pace
from raptor.mapping.plan_cache import PlanCache
from raptor.mapping.rows import NothingStreamsError
from raptor.mapping.strategies import Strategy
from raptor.mapping.trial import Trial
from raptor.target.arch import Target
from raptor.transforms.choices import Rewrites
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fuse_horizontally import find_fusions, fuse_horizontally
from raptor.transforms.fuse_parallel_branches import find_branches
from raptor.transforms.use_vector_unit import find_depthwise, find_means

WORTH_JOINING = 0.99
"""Largest load of the busiest core with horizontal fusion, relative to the load without it, for fusion to be chosen.

On 500 cores, many of them idle because images are small, fusion without this margin cost ResNet-50 2 % more latency x
interval.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A decision that was made before: read from a file, or found by a search with these `trials`.

    `label`: name of the file in messages; empty for the decision of a search, which needs no check.
    """

    decision: Decision
    label: str = ""
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, with the trials of the search that found it."""

    decision: Decision
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        tried = (f"tried {t.name}: {t.fault or f'{t.figure:.10g}'}\n" for t in self.trials)
        return f"{self.decision}{''.join(tried)}"


@dataclass(slots=True, eq=False)
class Mapper:
    """State of the passes that make one decision: by a strategy with the times of `pace`, or as a stored decision says.

    `placed`: the rewrites for which a decision was already made while choosing them, and that decision.
    """

    source: Strategy | Stored
    pace: Pace = "own"
    cache: PlanCache = field(default_factory=PlanCache)
    placed: tuple[Rewrites, Decision] | None = None


def choose_branches(graph: Graph, mapper: Mapper) -> Rewrites:
    """Chooses the parallel branches to fuse into one layer; none without streaming.

    For a stored decision, these are the rewrites that it was made for.
    """
    if isinstance(mapper.source, Stored):
        return mapper.source.decision.rewrites
    streaming = mapper.source.streaming
    return Rewrites(streaming, dict.fromkeys(filters_of(graph))).with_(find_branches(graph) if streaming else {})


def choose_units(graph: Graph, arch: Target, mapper: Mapper, rewrites: Rewrites) -> Rewrites:
    """Adds to `rewrites` the layers that the vector unit computes faster than crossbars: depthwise layers and means.

    Means are moved only if tensors stream.
    """
    if isinstance(mapper.source, Stored):
        return rewrites
    means = find_means(graph, arch) if rewrites.streaming else {}
    return rewrites.with_(find_depthwise(graph, arch) | means)


def choose_fusion(graph: Graph, arch: Target, mapper: Mapper, rewrites: Rewrites) -> Rewrites:
    """Adds to `rewrites` the layers to fuse horizontally, if that lowers the load of the busiest core of the mapping.

    Makes the decisions with and without fusion, and keeps the better one for `map`.
    """
    if isinstance(mapper.source, Stored) or not rewrites.streaming:
        return rewrites
    fused = find_fusions(graph, arch)
    if not fused:
        return rewrites
    best, least_ns = rewrites, 0.0
    for choice in (rewrites, rewrites.with_(fused)):
        rewritten = compose_gathers(fuse_horizontally(graph, choice))
        try:
            decision = mapper.source.place(rewritten, arch, mapper.cache)
        except NothingStreamsError:
            break
        interval_ns = estimate(rewritten, decision, arch, mapper.cache).interval_ns
        if mapper.placed is None or interval_ns <= WORTH_JOINING * least_ns:
            best, least_ns, mapper.placed = choice, interval_ns, (choice, decision)
    return best


def map(graph: Graph, arch: Target, mapper: Mapper, rewrites: Rewrites) -> Decided:
    """Decides how each layer is computed, and on which cores. `graph` has all rewrites.

    Raises `UserError` for a stored decision that is not for this graph and chip, `CapacityError` if the chip is too
    small, and `NothingStreamsError` if a strategy by line should be replaced by its fallback.
    """
    if isinstance(mapper.source, Stored):
        decision, label = mapper.source.decision, mapper.source.label
        fault = next(faults_of(decision, graph, arch), None) if label else None
        if fault is not None:
            raise UserError(f"{label}: {fault}")
        return Decided(decision, mapper.source.trials)
    if mapper.placed is not None and mapper.placed[0] is rewrites:
        _, placed = mapper.placed
    else:
        placed = mapper.source.place(graph, arch, mapper.cache)
    layers = {key: record or placed.layers[key] for key, record in rewrites.layers.items()}
    return Decided(replace(placed, layers=layers, pace=mapper.pace))
