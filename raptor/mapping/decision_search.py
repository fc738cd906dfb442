"""Searches for the decision of `rows` with the best evaluated times.

A plan knows the work of a layer alone. What the layer costs in its place, with the readers that it sends to, the cores
that it shares and the port of global memory, is known when a decision is evaluated. So a graph is mapped several times.
Each time, the planned work of layers and loaders is corrected by their evaluated work. Fully connected layers count
twice, as they delay a sample, or once. Chains of tokens have several forms, or none. Layers may have lanes, and moves
of computed tensors with much work behind them cores of their own. The work of products counts once, twice or half,
because plans with few products take many crossbars and send more. Then fewer cores are tried: each value has fewer
readers there, and where sending or the port binds, fewer cores are faster. If they are not, cores move to layers that
others wait for. At last, layers on the core with most work get idle cores.

The search is deterministic. It ends after `MOST_STEPS` scheduled steps, so a large graph gets few candidates.
"""

import math
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate

from raptor.common.errors import CapacityError
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.allocation.idle_cores import relieve_core
from raptor.mapping.allocation.phase_sharing import number_phases
from raptor.mapping.decision import Decision, LineFlow, LineUnfolding
from raptor.mapping.evaluated_decision import EvaluatedDecision
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import WorkBounds
from raptor.mapping.evaluation.graph_facts import GraphFacts
from raptor.mapping.evaluation.work_schedule import schedule_work
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.modes.line_plans import MOST_LANES
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import MOST_SMALL_ELEMENTS, count_elements
from raptor.mapping.row_mapping import NothingStreamsError, RowMapper
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, COMPARED_SAMPLE, StepOrder, compare_times
from raptor.mapping.scheduling.sample_stages import estimate_staged_interval
from raptor.mapping.transformer.cache_cores import spread_one_token
from raptor.mapping.transformer.operand_chains import chain_products
from raptor.mapping.transformer.token_choice import APART, GROUPED, SPREAD
from raptor.mapping.work_corrections import next_corrections
from raptor.target.arch import Target

PRODUCT_FACTORS = 2.0, 0.5
"""Factors on `TuningKnobs.products` that are tried, but for 1."""

WORTH_REPEATING = 0.9
"""Largest cost of a decision with moved cores, relative to the one before, for cores to be moved once more.

Products of evaluated times on 200 cores of `bench`, relative to the decision before, with cores moved once and twice:
ResNet-18 with int8 0.87 and 0.83; SqueezeNet 0.95 and 1.33, MobileNet-v2 0.96 and 1.01, GoogLeNet 0.98 and 1.20.
"""

CORRECTION_ROUNDS = 1
"""Number of times that planned work is corrected for each factor."""

WORTH_CHANGING = 0.97
"""Largest evaluated cost of a decision, relative to the first decision, for it to replace the first decision."""

SHARES_OF_MOVES = 0.1, 0.01
"""Work behind a move of computed tensors, relative to the evaluated interval, from which it has cores of its own."""

WORTH_SPREADING = 0.8
"""Largest evaluated cost of a decision with cores for moves, relative to the best one without, to go on from it.

On `bench`, evaluated and measured products of latency and interval: a spectrum with shifted copies on 64 cores 0.89 and
1.12; others of the kind on 200 cores 0.004 and 0.16, a reader of notes 0.57 and 0.59.
"""

WORTH_CORRECTING = 1.15
"""Largest evaluated cost of a decision with lanes, relative to the best one, for its work to be corrected.

On 200 cores of `bench`, before and after the correction: ResNet-8 1.00 and 0.79, ResNet-18 1.8 and 2.3.
"""

MOVED_LANES = 4
"""Lanes of all layers where they are aligned beside moves with cores of their own.

On 200 cores of `bench`, basic-pitch has 2,157 and 1,943 us with the lanes that suit each layer, else 2,589 and 1,187.
"""

ALIGNED_LANES, FEWEST_LINES = 2, 3
"""Lanes of all layers where lanes are aligned, and fewest output lines of one.

With four, every layer that has none after layers with lanes waits for three quarters of an image. Evaluated intervals
of ResNet-18 on 200 cores of `bench`, for all layers with at least 14 lines: 564 us without lanes, 506 with two, 1,103
with four.
"""

PHASE_WEIGHTS = 1.0, 0.5, 0.0
"""Factors on the weight of the latency with which phases of a sample form groups that share cores; 0: none do."""

WORTH_REGROUPING = 0.85
"""Largest evaluated cost of a decision with other groups of phases, relative to the first, to begin with it.

On 200 cores of `bench`, evaluated and simulated: a PP-LCNet without groups 0.74 and 0.76, a text detector with half the
weight 0.75 and 0.68; EfficientNet-B0 without groups 2.06 and 1.71.
"""

FREE_LATENCY, FREE_INTERVAL = 1.03, 1.1
"""Growth of the evaluated times of a decision, relative to the first one, above which it counts twice if both count.

With an interval evaluated as 1.045, ResNet-18 has one of 0.96.
"""

EVEN_SHARE = 0.75
"""Largest even work of fewer cores, relative to the bound of the interval with more, for them to be tried.

On average, cores that share their work as the mapping does are busy for 0.7 of the interval.
"""

MOST_FAILURES = 2
"""Number of smaller core counts, or heights of layers with lanes, in a row that are tried without an improvement."""

MOST_TOKEN_ELEMENTS = 4_000_000
"""Largest number of elements in all tokens of a transformer whose decisions are evaluated.

The evaluation of ViT-tiny alone takes 4 s.
"""

CHAIN_WAYS = float(GROUPED), float(APART), float(SPREAD), 0.0
"""Values of `TuningKnobs.chains` that are compared, beside the one that is best by estimates.

Evaluated latency x interval of small encoders on 64 cores of `bench`, spread relative to the best estimate: ALBERT
0.53, ConvBERT 0.83; in groups: DeBERTa 0.61. Without chains, moves with cores: an unrolled state space (48 cores) 0.04.
"""

CHAIN_LENGTHS = 2, 4, 8
"""Lengths of the chains of cores that pass an operand of a product on."""

MOST_COMPARED_STEPS = 36_000
"""Largest number of scheduled steps of all decisions whose computes are compared with those of the best.

To make the computes of a decision takes 0.2 s of a processor with 11,000 steps, and 1.8 s with 38,000.
"""

MOST_COMPARED = 6
"""Largest number of decisions whose computes are compared with those of the best."""

WORTH_COMPARING = 1.5
"""Largest evaluated cost, relative to that of the best decision, for the computes of another one to be compared."""

MOST_LINES, STAGED_LINES, FEW_LINES = 32, 12, 4
"""Largest number of rounds in which the lines of a node are scheduled while decisions are compared.

With stages there are fewer, because each decision is scheduled many times. A small graph has few, so that a first run
of such models compiles no kernels.
"""

MOST_STEPS = 400_000
"""Number of scheduled steps after which the search ends."""

MOST_REBALANCED_STEPS = 600_000
"""Number of scheduled steps after which no decision with rebalanced cores is evaluated."""


_Evaluation = tuple[WorkBounds, Future[EvaluatedDecision] | None]
"""Bounds of a decision, and its times, which a thread finds; none if its interval is too long."""


def search_rows(graph: Graph, arch: Target, cache: PlanCache, knobs: TuningKnobs) -> tuple[Decision, ...]:
    """Returns the best decision of `rows` that is found about a graph with all rewrites for streaming.

    For a graph with few steps, those follow that are worth comparing when all computes are known: the decision of
    `map_rows`, which stays unless another one is better, the best one, and the next best ones. Several chips, and
    transformers with many tokens, get the decision of `map_rows` alone. Raises as it does.
    """
    elements = count_elements(graph)
    mapper = RowMapper(graph, arch, cache)
    chains = bool(knobs.chains) and mapper.stages is not None
    tokens = sum(each.image.elements for each in graph.tensors.values() if is_token_layout(each.image))
    if arch.chips > 1 or (chains and tokens > MOST_TOKEN_ELEMENTS):
        return (mapper.plan(knobs).decision,)
    with CheckedThreadPool(1) as pool:
        lines = FEW_LINES if elements <= MOST_SMALL_ELEMENTS else MOST_LINES if knobs.stages == 1 else STAGED_LINES
        search = _Search(mapper, knobs, GraphFacts(graph, arch, streams=True), knobs.latency, lines, pool)
        phases = not chains and any(number_phases(graph).values())
        if knobs.latency and phases:
            search.compare_phases()
        corrections = search.correct(search.knobs)
        if chains and knobs.chains == DEFAULT_KNOBS.chains:
            corrections = search.compare_chains(corrections)
            chains = bool(search.knobs.chains)
        elif not chains and knobs.latency and not phases:
            search.correct(replace(search.knobs, latency=0.0))
        if not knobs.latency:
            search.align_lanes(corrections)
        search.use_lanes(corrections)
        if not search.best.knobs.moves:
            search.spread_moves(search.best)
        if search.best.knobs.moves and phases:
            search.regroup_phases()
        for factor in () if chains else PRODUCT_FACTORS:
            search.correct(replace(search.best.knobs, products=factor * knobs.products))
        search.spread_tokens()
        whole = search.best
        search.use_fewer_cores()
        if not chains and 0 < knobs.latency <= 1 and search.best is whole:
            search.rebalance()
        search.chain_products()
        search.use_idle_cores()
        best = search.best
        compared = search.compared_decisions() if knobs.stages == 1 else ()
    return (best.decision, *compared)


@dataclass(slots=True, eq=False)
class _Search:
    """State of a search.

    knobs: by which the first decision is made. latency: weight of the latency. most_lines: rounds of a node. known:
    decisions so far. evaluated: the times of those that a thread schedules while the next ones are made. steps: steps
    scheduled so far.
    """

    mapper: RowMapper
    knobs: TuningKnobs
    facts: GraphFacts
    latency: float
    most_lines: int
    pool: CheckedThreadPool
    known: list[tuple[Decision, _Evaluation]] = field(default_factory=list[tuple[Decision, _Evaluation]])
    evaluated: list[Future[EvaluatedDecision]] = field(default_factory=list["Future[EvaluatedDecision]"])
    steps: int = 0

    @property
    def best(self) -> EvaluatedDecision:
        """The best decision so far: the first one, unless another is better by enough."""
        first, *others = (found.result() for found in self.evaluated)
        best = min([first, *others], key=lambda found: self.cost_beside(first, found))
        worth_changing = self.cost_beside(first, best) <= WORTH_CHANGING * first.cost(self.latency)
        return best if worth_changing else first

    def compared_decisions(self) -> tuple[Decision, ...]:
        """Returns the first decision, then the best ones, whose computes are worth comparing; none if that is one.

        Without the best one, they have `MOST_COMPARED_STEPS` steps together at most.
        """
        first, *others = (found.result() for found in self.evaluated)
        cost = {id(found): self.cost_beside(first, found) for found in (first, *others)}
        near = [found for found in others if cost[id(found)] <= WORTH_COMPARING * cost[id(self.best)]]
        best = self.best
        others = [found for found in (first, *sorted(near, key=lambda n: cost[id(n)])) if found is not best]
        fitting = sum(steps <= MOST_COMPARED_STEPS for steps in accumulate(found.steps for found in others))
        others = others[: min(fitting, MOST_COMPARED)]
        compared = [best, *others] if best is first else [*others[:1], best, *others[1:]]
        return tuple(found.decision for found in compared) if others else ()

    def cost_beside(self, first: EvaluatedDecision, found: EvaluatedDecision) -> float:
        """Returns the cost of a decision; what its times grow beyond those of the first one counts twice."""
        growth = 1.0
        if self.latency == 1:
            growth = max(1.0, found.latency_ns / (FREE_LATENCY * first.latency_ns))
            growth *= max(1.0, found.interval_ns / (FREE_INTERVAL * first.interval_ns))
        return growth * found.cost(self.latency)

    @property
    def longest_interval_ns(self) -> float:
        """Longest lower bound of the interval with which a decision is still scheduled, in ns."""
        limited = self.evaluated and self.latency == 1
        return FREE_INTERVAL * self.evaluated[0].result().interval_ns if limited else math.inf

    def compare_phases(self) -> None:
        """Begins with the best of some decisions about the cores that phases of a sample share (`PHASE_WEIGHTS`)."""
        for weight in PHASE_WEIGHTS:
            knobs = replace(self.knobs, latency=weight * self.latency)
            self.evaluate(self.mapper.plan(knobs).decision, knobs)
        first, *others = self.evaluated
        best = min(others, key=lambda found: found.result().cost(self.latency), default=first)
        if best.result().cost(self.latency) <= WORTH_REGROUPING * first.result().cost(self.latency):
            self.knobs, self.evaluated = best.result().knobs, [best]

    def correct(
        self, knobs: TuningKnobs, corrections: Mapping[str, float] | None = None, *, limited: bool = True
    ) -> Mapping[str, float]:
        """Evaluates a decision, and decisions by its corrected work. Returns the corrections of the last decision.

        `corrections`: those that are known before, from decisions by other knobs. `limited`: see `evaluate`.
        """
        found = corrections or {}
        for _ in range(CORRECTION_ROUNDS + 1):
            if self.steps > MOST_STEPS:
                break
            planned, used = self.mapper.plan(knobs, found), found
            bounds, times = self.evaluate(planned.decision, knobs, used, limited=limited)
            laned = knobs.lanes > 1 and not (knobs.moves and knobs.aligned_lines)
            if laned and times is not None and self.is_hopeless(times.result()):
                break
            found = next_corrections(used, planned, bounds.busy_ns)
            if not found:
                break
        return found

    def compare_chains(self, corrections: Mapping[str, float]) -> Mapping[str, float]:
        """Evaluates each way to map chains of tokens, and decisions without chains; goes on from the best one.

        Without chains, moves with much work behind them have cores of their own, too. Returns the corrections of the
        decision to go on from. `corrections`: of the decision that is best by estimates.
        """
        first, known = self.best, len(self.evaluated)
        for way in CHAIN_WAYS:
            self.correct(replace(self.knobs, chains=way), limited=bool(way))
        alone = (each.result() for each in self.evaluated[known:] if not each.result().knobs.chains)
        single = min(alone, key=lambda each: each.cost(self.latency), default=None)
        if single is not None:
            self.spread_moves(single)
        best = self.best
        self.knobs = replace(self.knobs, chains=best.knobs.chains, moves=best.knobs.moves)
        return corrections if best is first else best.corrections

    def use_lanes(self, corrections: Mapping[str, float]) -> None:
        """Evaluates decisions in which layers have the lanes that suit each: by planned work, else by corrected work.

        `corrections`: of work without lanes.
        """
        best, knobs = self.best, replace(self.knobs, lanes=MOST_LANES)
        self.correct(knobs)
        if self.best is best:
            self.correct(knobs, corrections)

    def spread_moves(self, first: EvaluatedDecision) -> None:
        """Evaluates decisions like `first` in which moves of computed tensors have cores of their own.

        They have if the work behind one is a part of the interval; fewer moves are tried first (`SHARES_OF_MOVES`).
        Decisions that gain too little (`WORTH_SPREADING`) are forgotten; one that gains enough is gone on from, also
        with aligned lanes.
        """
        known = len(self.evaluated)
        for share in SHARES_OF_MOVES:
            knobs = replace(first.knobs, moves=share * first.interval_ns)
            if self.mapper.with_moves(knobs.moves).spread.moves:
                self.correct(knobs)
            if self._best_after(first, known) is not first:
                self.steps = 0
                self._align_beside_moves(knobs)
                self.spread_moves(self._best_after(first, known))
                return
            del self.evaluated[known:]

    def _best_after(self, first: EvaluatedDecision, known: int) -> EvaluatedDecision:
        """Returns the best decision but for the first `known` if it gains enough (`WORTH_SPREADING`); else `first`."""
        found = (each.result() for each in self.evaluated[known:])
        best = min(found, key=lambda each: self.cost_beside(first, each), default=first)
        return best if self.cost_beside(first, best) <= WORTH_SPREADING * first.cost(self.latency) else first

    def _align_beside_moves(self, knobs: TuningKnobs) -> None:
        """Evaluates decisions in which high layers have aligned lanes beside moves with cores of their own."""
        lines = FEWEST_LINES * MOVED_LANES
        if max(_heights_of_layers(self.mapper.graph, self.best.decision), default=0) >= lines:
            with suppress(CapacityError, NothingStreamsError):
                self.correct(replace(knobs, lanes=MOVED_LANES, aligned_lines=lines))

    def regroup_phases(self) -> None:
        """Evaluates decisions with other groups of phases (`PHASE_WEIGHTS`), from the best one on."""
        best = self.best
        for weight in PHASE_WEIGHTS[1:]:
            self.correct(replace(best.knobs, latency=weight * self.latency))

    def is_hopeless(self, found: EvaluatedDecision) -> bool:
        """True if a decision is so much worse than the best one that corrected work will not make it the best."""
        return found.cost(self.latency) > WORTH_CORRECTING * self.best.cost(self.latency)

    def align_lanes(self, corrections: Mapping[str, float]) -> None:
        """Evaluates decisions in which all layers with many output lines have equal lanes, from the best one on.

        A lane then reads the same lane of the layer before, but for its edges. So no lane waits until another one ends,
        as with lanes that suit each layer alone. Layers with fewer and fewer lines have lanes, too.
        `corrections`: of work without lanes, which is nearer to that of lanes than planned work.
        """
        best, failures = self.best, 0
        for lines in _heights_of_layers(self.mapper.graph, best.decision):
            try:
                self.correct(replace(best.knobs, lanes=ALIGNED_LANES, aligned_lines=lines), corrections)
            except (CapacityError, NothingStreamsError):
                return
            failures = failures + 1 if self.best is best else 0
            if failures == MOST_FAILURES:
                return
            best = self.best

    def rebalance(self) -> None:
        """Evaluates decisions in which cores move to layers that others wait for, from the best one on.

        Layers' work is corrected as for the best decision, then by the evaluation. Ends at `WORTH_REPEATING`.
        """
        best = self.best
        corrections = best.corrections
        while self.steps <= MOST_REBALANCED_STEPS:
            knobs = replace(best.knobs, line_latency=1.0)
            planned = self.mapper.plan(knobs, corrections)
            bounds, _ = self.evaluate(planned.decision, knobs, corrections)
            if self.best.cost(self.latency) > WORTH_REPEATING * best.cost(self.latency):
                return
            best, corrections = self.best, next_corrections(corrections, planned, bounds.busy_ns)

    def spread_tokens(self) -> None:
        """Evaluates decisions by which layers of one token have cores for their row tiles."""
        best = self.best
        for decision in spread_one_token(self.mapper.graph, best.decision, self.mapper.arch):
            self.evaluate(decision, best.knobs)

    def use_fewer_cores(self) -> None:
        """Evaluates the best decision so far for fewer and fewer cores, powers of two.

        So a larger chip has the choices of a smaller one.
        """
        arch, best, failures = self.mapper.arch, self.best, 0
        for cores in (2**n for n in reversed(range((arch.usable_cores - 1).bit_length()))):
            full = best.bounds.total_ns / cores > EVEN_SHARE * best.bounds.least_interval_ns
            if failures == MOST_FAILURES or (full and not best.waits_for_port):
                return
            places = (arch.places or range(arch.core_count))[:cores]
            try:
                planned = replace(self.mapper, arch=arch.with_places(places)).plan(best.knobs)
            except (CapacityError, NothingStreamsError):
                return
            self.evaluate(planned.decision, best.knobs)
            failures = failures + 1 if self.best is best else 0
            best = self.best

    def chain_products(self) -> None:
        """Evaluates the best decision so far with longer and longer chains of cores that pass operands on."""
        for length in CHAIN_LENGTHS:
            best = self.best
            self.evaluate(chain_products(self.mapper.graph, best.decision, length), best.knobs)
            if self.best is best:
                return

    def use_idle_cores(self) -> None:
        """Evaluates decisions in which layers on the core with most work have idle cores, too, from the best one on.

        Ends when none is better than the best so far, or where the port of global memory binds.
        """
        graph, arch = self.mapper.graph, self.mapper.arch
        while self.steps <= MOST_STEPS:
            best = self.best
            if best.waits_for_port:
                return
            busiest = max(best.bounds.busy_ns, key=best.bounds.busy_ns.__getitem__)
            for decision in relieve_core(graph, best.decision, arch, busiest):
                self.evaluate(decision, best.knobs)
            if self.best is best:
                return

    def evaluate(
        self,
        decision: Decision,
        knobs: TuningKnobs,
        corrections: Mapping[str, float] | None = None,
        *,
        limited: bool = True,
    ) -> _Evaluation:
        """Returns the bounds of a decision, and its times, which a thread finds; none if its interval is too long.

        knobs, corrections: by which it was made. limited: a decision is only scheduled if its interval may be near that
        of the first one; else, decisions like it with cores for moves may be much better.
        """
        graph, arch = self.mapper.graph, self.mapper.arch
        for known, evaluation in self.known:
            if known == decision:
                return evaluation
        works = decision_work(graph, decision, arch, self.facts)
        bounds = WorkBounds.from_work(works, arch)
        if limited and bounds.least_interval_ns > self.longest_interval_ns:
            self.known.append((decision, (bounds, None)))
            return bounds, None
        steps = schedule_work(works, arch, self.most_lines)
        self.steps += len(steps.core)
        assert isinstance(decision.flow, LineFlow)
        patience_ns = decision.flow.patience_ns

        def scheduled() -> EvaluatedDecision:
            latency_ns, interval_ns = compare_times(steps, patience_ns, BALANCED_OBJECTIVE.patiences)
            if knobs.stages > 1:
                base = StepOrder(patience_ns, COMPARED_SAMPLE)
                interval_ns = min(interval_ns, estimate_staged_interval(steps, base, int(knobs.stages)))
            times_ns = latency_ns, interval_ns
            return EvaluatedDecision(decision, knobs, corrections or {}, bounds, *times_ns, len(steps.core))

        self.evaluated.append(self.pool.submit(scheduled))
        self.known.append((decision, (bounds, self.evaluated[-1])))
        return bounds, self.evaluated[-1]


def _heights_of_layers(graph: Graph, decision: Decision) -> list[int]:
    """Returns the heights (output lines) of all layers by line that are high enough for lanes, the largest first."""
    windows = {key: filter_.window for key, filter_ in find_filters(graph).items()}
    lines = {windows[key].out_lines for key, layer in decision.layers.items() if isinstance(layer, LineUnfolding)}
    return sorted((each for each in lines if each >= FEWEST_LINES * ALIGNED_LANES), reverse=True)
