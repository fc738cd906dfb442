"""Searches for the decision of `rows` with the best evaluated times.

A plan knows the work of a layer alone. What the layer costs in its place, with the readers that it sends to, the cores
that it shares and the port of global memory, is known when a decision is evaluated. So a graph is mapped several times.
Each time, the planned work of layers and loaders is corrected by their evaluated work. Fully connected layers count
twice, as they delay a sample, or once, and may share cores with layers before them. Chains of tokens have several
forms, or none. Layers may have lanes, and moves of computed tensors with much work behind them cores of their own. The
work of products counts once, twice or half, because plans with few products take many crossbars and send more. Then
fewer cores are tried: each value has fewer readers there, and where sending or the port binds, fewer cores are faster.
From the best of these, cores move to layers that others wait for. Beside that, more neighbours share cores. At last,
layers on the core with most work get idle cores.

The search is deterministic. It ends after `MOST_STEPS` scheduled steps, so a large graph gets few candidates.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from raptor.common.errors import CapacityError
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.allocation.idle_cores import relieve_core
from raptor.mapping.allocation.phase_sharing import number_phases
from raptor.mapping.decision import Decision, LineUnfolding
from raptor.mapping.evaluated_decisions import ComparedDecisions, EvaluatedDecision, EvaluatedDecisions
from raptor.mapping.evaluation.graph_facts import GraphFacts
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.modes.line_plans import MOST_LANES
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import MOST_SMALL_ELEMENTS, count_elements
from raptor.mapping.row_mapping import NothingStreamsError, RowMapper
from raptor.mapping.transformer.cache_cores import spread_one_token
from raptor.mapping.transformer.operand_chains import chain_products
from raptor.mapping.transformer.token_choice import APART, GROUPED, SPREAD
from raptor.mapping.work_corrections import next_corrections
from raptor.target.arch import Target

PRODUCT_FACTORS = 2.0, 0.5
"""Factors on `TuningKnobs.products` that are tried, but for 1."""

LIGHT_PAIR = 0.8
"""Second value of `TuningKnobs.neighbours` in a search, relative to the usual one; more pairs of layers share cores.

Two layers on the same cores send each other hardly any messages, which the planned work does not know. Latency and
interval on 64 cores of `bench`, without and with it, in us: patches in patches 239, 123 and 198, 107; a signal with
skipped layers 117, 43 and 102, 33.
"""

WORTH_REPEATING = 0.9
"""Largest cost of a decision with moved cores, relative to the one before, for cores to be moved once more.

Products of evaluated times on 200 cores of `bench`, relative to the decision before, with cores moved once and twice:
ResNet-18 with int8 0.87 and 0.83; SqueezeNet 0.95 and 1.33, MobileNet-v2 0.96 and 1.01, GoogLeNet 0.98 and 1.20.
"""

CORRECTION_ROUNDS = 1
"""Number of times that planned work is corrected for each factor."""

SHARES_OF_MOVES = 0.1, 0.01
"""Work behind a move of computed tensors, relative to the evaluated interval, from which it has cores of its own."""

WORTH_ALIGNING = 0.97
"""Largest evaluated cost with aligned lanes, relative to the best decision without, for a search to keep such lanes.

A smaller gain is within the error of the evaluation: with lanes for a gain of 1 %, TinyYOLO-v4 on 200 cores had a
simulated latency of 3.23 ms in place of 2.42.
"""

WORTH_SHARING = 0.95
"""Largest evaluated cost with cores that fully connected layers share, relative to the best decision without.

Evaluated and simulated products of latency and interval on `bench`: VGG-16 on 200 cores 0.64 and 0.39; with a quarter
of its width on 40 cores, 0.94 and 0.89 for 64 pixels, 0.98 and 1.09 for 32; ResNet-8 on 16 cores 0.90 and 0.97.
"""

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

MOST_LINES, STAGED_LINES, FEW_LINES = 32, 12, 4
"""Largest number of rounds in which the lines of a node are scheduled while decisions are compared.

With stages there are fewer, because each decision is scheduled many times. A small graph has few, so that a first run
of such models compiles no kernels.
"""

MOST_STEPS = 400_000
"""Number of scheduled steps after which the search ends."""

MOST_REBALANCED_STEPS = 600_000
"""Number of scheduled steps after which no decision with rebalanced cores is evaluated."""


def search_rows(
    graph: Graph, arch: Target, cache: PlanCache, knobs: TuningKnobs
) -> tuple[Decision, ComparedDecisions | None]:
    """Returns the best decision of `rows` that is found about a graph with all rewrites for streaming, and others.

    The others are those of a graph with few steps that are worth comparing when all computes are known. Several chips,
    and transformers with many tokens, get the decision of `map_rows` alone. Raises as it does.
    """
    mapper = RowMapper(graph, arch, cache)
    chains = bool(knobs.chains) and mapper.stages is not None
    tokens = sum(each.image.elements for each in graph.tensors.values() if is_token_layout(each.image))
    if arch.chips > 1 or (chains and tokens > MOST_TOKEN_ELEMENTS):
        return mapper.plan(knobs).decision, None
    small = count_elements(graph) <= MOST_SMALL_ELEMENTS
    lines = FEW_LINES if small else MOST_LINES if knobs.stages == 1 else STAGED_LINES
    facts = GraphFacts(graph, arch, streams=True)
    with CheckedThreadPool(1) as pool:
        known = EvaluatedDecisions(graph, arch, facts, knobs.latency, lines, pool)
        _Search(mapper, knobs, known, chains).run()
        return known.best.decision, known.find_compared() if knobs.stages == 1 else None


@dataclass(slots=True, eq=False)
class _Search:
    """State of a search.

    knobs: by which the first decision is made. known: decisions so far. chains: whether tokens form chains.
    """

    mapper: RowMapper
    knobs: TuningKnobs
    known: EvaluatedDecisions
    chains: bool

    @property
    def best(self) -> EvaluatedDecision:
        return self.known.best

    @property
    def latency(self) -> float:
        """Weight of the latency."""
        return self.known.latency

    def run(self) -> None:
        """Evaluates decisions, each kind from the best one so far on."""
        phases = not self.chains and any(number_phases(self.mapper.graph).values())
        if self.latency and phases:
            self.compare_phases()
        corrections = self.share_dense_cores(self.correct(self.knobs))
        if self.chains and self.knobs.chains == DEFAULT_KNOBS.chains:
            corrections = self.compare_chains(corrections)
        elif not self.chains and self.latency and not phases:
            self.correct(replace(self.knobs, latency=0.0))
        if not self.chains and not phases:
            self.align_lanes(corrections)
        self.use_lanes(corrections)
        if not self.best.knobs.moves:
            self.spread_moves(self.best)
        if self.best.knobs.moves and phases:
            self.regroup_phases()
        plain, other = self.best, self.best_with_other_lanes()
        lighter = None if self.chains or phases else self.share_more()
        self.divide_otherwise(plain)
        if other is not None:
            self.divide_otherwise(other)
        if lighter is not None and self.best is lighter:
            self.divide_otherwise(lighter)
        self.spread_tokens()
        self.chain_products()
        self.use_idle_cores()

    def divide_otherwise(self, start: EvaluatedDecision) -> None:
        """Evaluates decisions with other divisions of the cores: by other weights of products, and for fewer cores.

        From the best of them, cores move to layers that others wait for.
        """
        count = len(self.known.found)
        for factor in () if self.chains else PRODUCT_FACTORS:
            self.correct(replace(start.knobs, products=factor * self.knobs.products))
        whole = self.known.best_since(start, count)
        self.use_fewer_cores(whole)
        if not self.chains and 0 < self.latency <= 1:
            self.rebalance(self.known.best_since(start, count))

    def compare_phases(self) -> None:
        """Begins with the best of some decisions about the cores that phases of a sample share (`PHASE_WEIGHTS`)."""
        for weight in PHASE_WEIGHTS:
            knobs = replace(self.knobs, latency=weight * self.latency)
            self.known.evaluate(self.mapper.plan(knobs).decision, knobs)
        first, *others = self.known.found
        best = min(others, key=lambda found: found.result().cost(self.latency), default=first)
        if best.result().cost(self.latency) <= WORTH_REGROUPING * first.result().cost(self.latency):
            self.knobs, self.known.found = best.result().knobs, [best]

    def correct(
        self,
        knobs: TuningKnobs,
        corrections: Mapping[str, float] | None = None,
        *,
        limited: bool = True,
        mapper: RowMapper | None = None,
    ) -> Mapping[str, float]:
        """Evaluates a decision, and decisions by its corrected work. Returns the corrections of the last decision.

        `corrections`: those that are known before, from decisions by other knobs. `limited`: see `evaluate`.
        `mapper`: makes the decisions; the mapper of the search if None, which uses all cores.
        """
        found, mapper = corrections or {}, mapper or self.mapper
        for _ in range(CORRECTION_ROUNDS + 1):
            if self.known.steps > MOST_STEPS:
                break
            planned, used = mapper.plan(knobs, found), found
            bounds, times = self.known.evaluate(planned.decision, knobs, used, limited=limited)
            laned = knobs.lanes > 1 and not (knobs.moves and knobs.aligned_lines)
            if laned and times is not None and self.is_hopeless(times.result()):
                break
            found = next_corrections(used, planned, bounds)
            if not found:
                break
        return found

    def share_dense_cores(self, corrections: Mapping[str, float]) -> Mapping[str, float]:
        """Evaluates decisions in which fully connected layers share cores with layers before (`TuningKnobs.dense`).

        Those that gain too little (`WORTH_SHARING`) are forgotten; else goes on from them. Returns the corrections of
        the decision to go on from. `corrections`: of the best one so far.
        """
        first, known, knobs = self.best, len(self.known.found), replace(self.knobs, dense=1.0)
        found = self.correct(knobs)
        if self._forget_small_gain(first, known, WORTH_SHARING):
            return corrections
        self.knobs = knobs
        return found

    def compare_chains(self, corrections: Mapping[str, float]) -> Mapping[str, float]:
        """Evaluates each way to map chains of tokens, and decisions without chains; goes on from the best one.

        Without chains, moves with much work behind them have cores of their own, too. Returns the corrections of the
        decision to go on from. `corrections`: of the decision that is best by estimates.
        """
        first, known = self.best, len(self.known.found)
        for way in CHAIN_WAYS:
            self.correct(replace(self.knobs, chains=way), limited=bool(way))
        alone = (each.result() for each in self.known.found[known:] if not each.result().knobs.chains)
        single = min(alone, key=lambda each: each.cost(self.latency), default=None)
        if single is not None:
            self.spread_moves(single)
        best = self.best
        self.knobs = replace(self.knobs, chains=best.knobs.chains, moves=best.knobs.moves)
        self.chains = bool(best.knobs.chains)
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
        known = len(self.known.found)
        for share in SHARES_OF_MOVES:
            knobs = replace(first.knobs, moves=share * first.interval_ns)
            if self.mapper.with_moves(knobs.moves).spread.moves:
                self.correct(knobs)
            if self._best_after(first, known) is not first:
                self.known.steps = 0
                self._align_beside_moves(knobs)
                self.spread_moves(self._best_after(first, known))
                return
            del self.known.found[known:]

    def _best_after(self, first: EvaluatedDecision, known: int) -> EvaluatedDecision:
        """Returns the best decision but for the first `known` if it gains enough (`WORTH_SPREADING`); else `first`."""
        best = self.known.best_since(first, known)
        return best if self.known.cost_beside(first, best) <= WORTH_SPREADING * first.cost(self.latency) else first

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

    def share_more(self) -> EvaluatedDecision | None:
        """Evaluates decisions by the knobs of the best decision and of the first one, but with more shared cores.

        `LIGHT_PAIR` says how many neighbours share cores. Returns the best of these decisions if no other decision of
        the search is better; else None, and the steps that they took do not count for `MOST_STEPS`.
        """
        best, steps = self.best, self.known.steps
        for knobs in (best.knobs, self.knobs):
            self.correct(replace(knobs, neighbours=LIGHT_PAIR * self.knobs.neighbours))
        if self.best is not best:
            return self.best
        self.known.steps = steps
        return None

    def align_lanes(self, corrections: Mapping[str, float]) -> None:
        """Evaluates decisions in which all layers with many output lines have equal lanes, from the best one on.

        A lane then reads the same lane of the layer before, but for its edges. So no lane waits until another one ends,
        as with lanes that suit each layer alone. Layers with fewer and fewer lines have lanes, too. Decisions that gain
        too little (`WORTH_ALIGNING`) are forgotten. `corrections`: of work without lanes, which is nearer to the work
        with lanes than planned work is.
        """
        first, known = self.best, len(self.known.found)
        best, failures = first, 0
        for lines in _heights_of_layers(self.mapper.graph, best.decision):
            try:
                self.correct(replace(best.knobs, lanes=ALIGNED_LANES, aligned_lines=lines), corrections)
            except (CapacityError, NothingStreamsError):
                break
            failures = failures + 1 if self.best is best else 0
            if failures == MOST_FAILURES:
                break
            best = self.best
        self._forget_small_gain(first, known, WORTH_ALIGNING)

    def _forget_small_gain(self, first: EvaluatedDecision, known: int, worth: float) -> bool:
        """Forgets the decisions after the first `known` ones if the best costs over `worth` times as much as `first`.

        Returns whether they are forgotten.
        """
        small = self.known.cost_beside(first, self.best) > worth * first.cost(self.latency)
        if small:
            del self.known.found[known:]
        return small

    def best_with_other_lanes(self) -> EvaluatedDecision | None:
        """Returns the best decision with other lanes than the best of all, if it is nearly as good; else None."""
        lanes = self.best.knobs.lanes, self.best.knobs.aligned_lines
        found = (each.result() for each in self.known.found)
        others = (each for each in found if (each.knobs.lanes, each.knobs.aligned_lines) != lanes)
        best = min(others, key=lambda each: each.cost(self.latency), default=None)
        return None if best is None or self.is_hopeless(best) else best

    def rebalance(self, best: EvaluatedDecision) -> None:
        """Evaluates decisions like `best` in which cores move to layers that others wait for.

        Layers' work is corrected as for `best`, then by the evaluation. Ends at `WORTH_REPEATING`.
        """
        corrections = best.corrections
        while self.known.steps <= MOST_REBALANCED_STEPS:
            knobs, count = replace(best.knobs, line_latency=1.0), len(self.known.found)
            planned = self.mapper.plan(knobs, corrections)
            bounds, _ = self.known.evaluate(planned.decision, knobs, corrections)
            found = self.known.best_since(best, count)
            if found.cost(self.latency) > WORTH_REPEATING * best.cost(self.latency):
                return
            best, corrections = found, next_corrections(corrections, planned, bounds)

    def spread_tokens(self) -> None:
        """Evaluates decisions by which layers of one token have cores for their row tiles."""
        best = self.best
        for decision in spread_one_token(self.mapper.graph, best.decision, self.mapper.arch):
            self.known.evaluate(decision, best.knobs)

    def use_fewer_cores(self, best: EvaluatedDecision) -> None:
        """Evaluates a decision for fewer and fewer cores, powers of two, as long as that makes it better.

        So a larger chip has the choices of a smaller one: by planned work, and by work that is corrected as for `best`.
        """
        arch, failures = self.mapper.arch, 0
        for cores in (2**n for n in reversed(range((arch.usable_cores - 1).bit_length()))):
            full = best.bounds.total_ns / cores > EVEN_SHARE * best.bounds.least_interval_ns
            if failures == MOST_FAILURES or (full and not best.waits_for_port):
                return
            count = len(self.known.found)
            try:
                for corrections in (None, best.corrections):
                    self.correct(best.knobs, corrections, mapper=self.mapper.on_first_cores(cores))
            except (CapacityError, NothingStreamsError):
                return
            found = self.known.best_since(best, count)
            best, failures = found, failures + 1 if found is best else 0

    def chain_products(self) -> None:
        """Evaluates the best decision so far with longer and longer chains of cores that pass operands on."""
        for length in CHAIN_LENGTHS:
            best = self.best
            self.known.evaluate(chain_products(self.mapper.graph, best.decision, length), best.knobs)
            if self.best is best:
                return

    def use_idle_cores(self) -> None:
        """Evaluates decisions in which layers on the core with most work have idle cores, too, from the best one on.

        Ends when none is better than the best so far, or where the port of global memory binds.
        """
        graph, arch = self.mapper.graph, self.mapper.arch
        while self.known.steps <= MOST_STEPS:
            best = self.best
            if best.waits_for_port:
                return
            busiest = max(best.bounds.busy_ns, key=best.bounds.busy_ns.__getitem__)
            for decision in relieve_core(graph, best.decision, arch, busiest):
                self.known.evaluate(decision, best.knobs)
            if self.best is best:
                return


def _heights_of_layers(graph: Graph, decision: Decision) -> list[int]:
    """Returns the heights (output lines) of all layers by line that are high enough for lanes, the largest first."""
    windows = {key: filter_.window for key, filter_ in find_filters(graph).items()}
    lines = {windows[key].out_lines for key, layer in decision.layers.items() if isinstance(layer, LineUnfolding)}
    return sorted((each for each in lines if each >= FEWEST_LINES * ALIGNED_LANES), reverse=True)
