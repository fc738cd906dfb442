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
"""Time of the busiest core, relative to that with all layers apart, from which on layers are joined.

On 500 cores, where small images leave many of them idle, ResNet-50 took 2 % more latency x interval for nothing.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A decision that was made before: it is in a file, or a search found it in these `trials`.

    `label`: the name of the file in messages; empty for the decision of a search, which needs no check.
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
    """Makes one decision: by a strategy with the times of `pace`, or as a stored one says.

    `placed`: the decision for some rewrites, if choosing these took one.
    """

    source: Strategy | Stored
    pace: Pace = "own"
    cache: PlanCache = field(default_factory=PlanCache)
    placed: tuple[Rewrites, Decision] | None = None


def choose_branches(graph: Graph, mapper: Mapper) -> Rewrites:
    """Returns the choice with the layers of parallel branches that become one layer; all choices of a stored decision.

    Without streaming there are none.
    """
    if isinstance(mapper.source, Stored):
        return mapper.source.decision.rewrites
    streaming = mapper.source.streaming
    return Rewrites(streaming, dict.fromkeys(filters_of(graph))).with_(find_branches(graph) if streaming else {})


def choose_units(graph: Graph, arch: Target, mapper: Mapper, rewrites: Rewrites) -> Rewrites:
    """Returns the choice with the layers that the vector unit computes faster than crossbars.

    Means are among them only if tensors stream.
    """
    if isinstance(mapper.source, Stored):
        return rewrites
    means = find_means(graph, arch) if rewrites.streaming else {}
    return rewrites.with_(find_depthwise(graph, arch) | means)


def choose_fusion(graph: Graph, arch: Target, mapper: Mapper, rewrites: Rewrites) -> Rewrites:
    """Returns the choice with layers to fuse horizontally, if that makes the busiest core of the mapping less busy.

    So it takes the decisions with and without fusion; the better one is kept for `map`.
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
