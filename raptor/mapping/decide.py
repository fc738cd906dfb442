"""The passes that decide: which rewrites a graph gets, and how each layer of the rewritten graph is computed.

Each choice is made on the graph as the rewrites before it leave it. A stored decision has made all of them.
"""

from dataclasses import dataclass, field, replace

from raptor.common.errors import UserError
from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.mapping.check_decision import decision_faults
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.evaluated_decisions import ComparedDecisions
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import WorkBounds, evaluate
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import Pace
from raptor.mapping.row_mapping import NothingStreamsError
from raptor.mapping.search_trial import SearchTrial
from raptor.mapping.strategies import Strategy
from raptor.target.arch import Target
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fuse_horizontally import find_fusions, fuse_horizontally
from raptor.transforms.fuse_parallel_branches import find_branches
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.tokens.join_steps import find_steps
from raptor.transforms.turn_images import find_high_images, turn_images
from raptor.transforms.use_vector_unit import find_depthwise, find_means

WORTH_FUSING = 0.99
"""Largest load of the busiest core with horizontal fusion, relative to the load without it, for fusion to be chosen.

On 500 cores, many of them idle because images are small, fusion without this margin cost ResNet-50 2 % more latency x
interval.
"""


WORTH_TURNING = 0.95
"""Largest evaluated latency x interval with turned images, relative to that without, for images to be turned."""


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision that was made before: read from a file, or found by a search with these `trials`.

    `label`: name of the file in messages; empty for the decision of a search, which needs no check.
    """

    decision: Decision
    label: str = ""
    trials: tuple[SearchTrial, ...] = ()


@dataclass(frozen=True, slots=True)
class MappingResult:
    """A decision, with the trials of the search that found it.

    `compared`: decisions to compare when all computes are known, of which it is one.
    """

    decision: Decision
    trials: tuple[SearchTrial, ...] = ()
    compared: ComparedDecisions | None = None

    def __str__(self) -> str:
        tried = (f"tried {t.name}: {t.fault or f'{t.figure:.10g}'}\n" for t in self.trials)
        compared = f"{len(self.compared.decisions)} to compare when all computes are known\n" if self.compared else ""
        return f"{self.decision}{''.join(tried)}{compared}"


@dataclass(slots=True, eq=False)
class MappingState:
    """State of the passes that make one decision: by a strategy with the times of `pace`, or as a stored decision says.

    `placed`: the rewrites for which a decision was already made while choosing them, and that decision.
    """

    source: Strategy | StoredDecision
    pace: Pace = "own"
    cache: PlanCache = field(default_factory=PlanCache)
    known_decision: tuple[RewriteChoice, Decision] | None = None


def choose_branches(graph: Graph, mapper: MappingState) -> RewriteChoice:
    """Chooses the parallel branches, and the steps of loops, to fuse into one layer; none without streaming.

    For a stored decision, these are the rewrites that it was made for.
    """
    if isinstance(mapper.source, StoredDecision):
        return mapper.source.decision.rewrites
    rewrites = RewriteChoice(mapper.source.streaming, dict.fromkeys(find_filters(graph)))
    if not rewrites.streaming:
        return rewrites
    branches = find_branches(graph)
    return rewrites.with_records(branches | find_steps(graph, branches))


def choose_units(graph: Graph, arch: Target, mapper: MappingState, rewrites: RewriteChoice) -> RewriteChoice:
    """Adds to `rewrites` the layers that the vector unit computes faster than crossbars: depthwise layers and means.

    Means are moved only if tensors stream.
    """
    if isinstance(mapper.source, StoredDecision):
        return rewrites
    means = find_means(graph, arch) if rewrites.streaming else {}
    return rewrites.with_records(find_depthwise(graph, arch) | means)


def choose_turning(graph: Graph, arch: Target, mapper: MappingState, rewrites: RewriteChoice) -> RewriteChoice:
    """Adds to `rewrites` whether high images are turned: if the decision with turned images is evaluated as better."""
    if isinstance(mapper.source, StoredDecision) or not rewrites.streaming or not find_high_images(graph):
        return rewrites
    turned, costs = replace(rewrites, turned=True), list[float]()
    for choice in (rewrites, turned):
        rewritten = compose_gathers(turn_images(graph, choice))
        try:
            found = evaluate(rewritten, mapper.source.place(rewritten, arch, mapper.cache), arch)
        except NothingStreamsError:
            return rewrites
        costs.append(found.latency_ns * found.interval_ns)
    return turned if costs[1] <= WORTH_TURNING * costs[0] else rewrites


def choose_fusion(graph: Graph, arch: Target, mapper: MappingState, rewrites: RewriteChoice) -> RewriteChoice:
    """Adds to `rewrites` the layers to fuse horizontally, if that lowers the work of the busiest core of the mapping.

    Makes the decisions with and without fusion, and keeps the better one for `map`.
    """
    if isinstance(mapper.source, StoredDecision) or not rewrites.streaming:
        return rewrites
    fused = find_fusions(graph, arch)
    if not fused:
        return rewrites
    best, least_ns = rewrites, 0.0
    for choice in (rewrites, rewrites.with_records(fused)):
        rewritten = compose_gathers(fuse_horizontally(graph, choice))
        try:
            decision = mapper.source.place(rewritten, arch, mapper.cache)
        except NothingStreamsError:
            break
        busiest_ns = WorkBounds.from_work(decision_work(rewritten, decision, arch), arch).busiest_ns
        if mapper.known_decision is None or busiest_ns <= WORTH_FUSING * least_ns:
            best, least_ns, mapper.known_decision = choice, busiest_ns, (choice, decision)
    return best


def map(graph: Graph, arch: Target, mapper: MappingState, rewrites: RewriteChoice) -> MappingResult:
    """Decides how each layer is computed, and on which cores. `graph` has all rewrites.

    Raises `UserError` for a stored decision that is not for this graph and chip, `CapacityError` if the chip is too
    small, and `NothingStreamsError` if a strategy by line should be replaced by its fallback.
    """
    if isinstance(mapper.source, StoredDecision):
        decision, label = mapper.source.decision, mapper.source.label
        fault = next(decision_faults(decision, graph, arch), None) if label else None
        if fault is not None:
            raise UserError(f"{label}: {fault}")
        return MappingResult(decision, mapper.source.trials)
    compared = None
    if mapper.source.search is not None:
        placed, compared = mapper.source.search(graph, arch, mapper.cache)
    elif mapper.known_decision is not None and mapper.known_decision[0] is rewrites:
        _, placed = mapper.known_decision
    else:
        placed = mapper.source.place(graph, arch, mapper.cache)
    if compared is not None:
        decisions = tuple(_with_rewrites(each, rewrites, mapper.pace) for each in compared.decisions)
        compared = replace(compared, decisions=decisions)
    return MappingResult(_with_rewrites(placed, rewrites, mapper.pace), compared=compared)


def _with_rewrites(placed: Decision, rewrites: RewriteChoice, pace: Pace) -> Decision:
    """Returns a decision with the records of rewrites, in the order of the layers of the prepared graph.

    Layers that rewrites add follow.
    """
    layers = {key: record or placed.layers[key] for key, record in rewrites.layers.items()}
    layers |= {key: record for key, record in placed.layers.items() if key not in layers}
    flow = replace(placed.flow, turned=rewrites.turned) if isinstance(placed.flow, LineFlow) else placed.flow
    return replace(placed, layers=layers, pace=pace, flow=flow)
