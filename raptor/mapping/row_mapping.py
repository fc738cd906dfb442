"""The strategy `rows`: layers stream line by line, and each gets as many cores as its work needs.

A decision is greedy and deterministic: every layer starts with the fewest cores that hold it, then the slowest layer
gets its next faster grid of cores, as long as cores are left. `raptor.mapping.decision_search` compares several.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from raptor.common.errors import RaptorError
from raptor.graph.ir import Graph, Move, Node
from raptor.graph.layers import graph_tile_channels
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.allocation.bin_packing import pack_layers
from raptor.mapping.allocation.core_division import (
    CoreDivision,
    CoreOption,
    UnitRecord,
    WholeLayer,
    plan_options,
    select_whole_layers,
)
from raptor.mapping.allocation.dense_sharing import (
    DensePlacement,
    DensePlacements,
    place_dense_layers,
    share_with_dense,
)
from raptor.mapping.allocation.latency_rebalancing import rebalance_cores
from raptor.mapping.allocation.pair_sharing import share_in_pairs
from raptor.mapping.allocation.phase_sharing import PhaseSharing, number_phases
from raptor.mapping.allocation.whole_layers import (
    number_neighbourhoods,
    place_whole_layers,
    slowest_dense_ns,
    whole_options,
)
from raptor.mapping.decision import (
    Decision,
    DotGrid,
    LineFlow,
    LineUnfolding,
    renumber_record,
)
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs, chip_patience_ns
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue, find_epilogues
from raptor.mapping.modes.gather_plans import gather_plans, group_gathers
from raptor.mapping.modes.line_plans import load_plans
from raptor.mapping.modes.line_streaming import ChannelRanges, line_channel_ranges, takes_short_runs
from raptor.mapping.modes.plan_cache import PlanCache, plan_layers
from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan, pareto_front
from raptor.mapping.modes.product_plans import ProductUnit, find_product_units
from raptor.mapping.modes.spread_moves import NO_SPREAD_MOVES, MoveWork, SpreadMoves, find_move_work
from raptor.mapping.modes.step_replication import find_one_line_tensors, slow_plans
from raptor.mapping.multichip.chip_stages import LineDecision, map_to_chips
from raptor.mapping.transformer.cache_cores import place_decoder
from raptor.mapping.transformer.token_choice import choose_division
from raptor.mapping.transformer.token_cores import TokenCores, TokenStages
from raptor.mapping.transformer.token_stages import count_epilogue_constants, find_stages
from raptor.target.arch import Target
from raptor.target.timing import global_port_ns

ATTENTION_PATIENCE = 0.4
"""Factor on the patience where attention streams: its messages are many and short.

Scheduled by default on `bench` with 200 cores, latency x interval relative to a factor of 1: ViT-tiny 0.96, BERT-tiny
0.98. BERT-base on 144 cores: 0.92.
"""

_Placed = tuple[dict[str, UnitRecord], dict[str, PlacedPlan]]
"""Layers that do not stream and products, and a plan with cores for each layer by line and each input."""

WholeOptions = Callable[[frozenset[str], float], tuple[list[list[CoreOption]], float]]
"""(layers by line, weight) -> options of the layers that do not stream (`whole_options`)."""


@dataclass(frozen=True, slots=True)
class _MappingTask:
    """A graph to map, with plans of the layers that stream and of the loads of inputs.

    Layers lose their plans if the chip is too small. gathers: see `RowMapper.gathers`; `inputs` has their plans. whole:
    see `RowMapper.whole_options`. dense: see `RowMapper.dense_placements`. products: options of products of two
    computed tensors that have cores of their own. spread: moves of computed tensors that have, too
    (`SpreadMoves.moves`).
    """

    graph: Graph
    arch: Target
    knobs: TuningKnobs
    layers: dict[str, list[LayerPlan]]
    inputs: dict[str, list[LayerPlan]]
    gathers: Mapping[str, tuple[Node, ...]]
    whole: WholeOptions
    dense: DensePlacements
    products: Mapping[str, list[CoreOption]]
    spread: Collection[str]

    @property
    def plans(self) -> dict[str, list[LayerPlan]]:
        return self.layers | self.inputs


class NothingStreamsError(RaptorError):
    """Raised if the chip is too small even if no layer streams; another strategy may fit."""


@dataclass(frozen=True, slots=True)
class PlannedDecision:
    """A decision, and the work by which its cores were divided.

    planned_ns: work in ns of the busiest core of each layer by line and each tensor with loaders, by key, as far as it
    has cores of its own or shares them in turns; without chains of a transformer. For an input without loaders, the
    time in ns for which its readers keep the port of global memory busy, and for which they work on what they load.
    """

    decision: Decision
    planned_ns: Mapping[str, float]


def map_rows(graph: Graph, arch: Target, cache: PlanCache, knobs: TuningKnobs = DEFAULT_KNOBS) -> Decision:
    """Returns the decision of `rows` about a graph with all rewrites for streaming. `cache`: see `plan_layers`.

    Raises `NothingStreamsError` if no layer can stream on a chip of this size.
    """
    return RowMapper(graph, arch, cache).plan(knobs).decision


@dataclass(frozen=True)
class RowMapper:
    """Makes decisions of `rows` about a graph with all rewrites for streaming.

    `cache`: see `plan_layers`. `fed`: inputs that other chips send, so that no loader is needed. `spread`: moves of
    computed tensors that have cores of their own, beside those of `find_gathers`. `chained`: layers of tokens form
    chains with attentions (`find_stages`), else they are divided as all other layers, and so are products.
    """

    graph: Graph
    arch: Target
    cache: PlanCache
    fed: Collection[str] = ()
    spread: SpreadMoves = NO_SPREAD_MOVES
    chained: bool = True

    def plan(self, knobs: TuningKnobs, corrections: Mapping[str, float] | None = None) -> PlannedDecision:
        """Returns the decision by some knobs, with the work by which it was made.

        `corrections`: factors on the planned work of layers by line and of loads, by key; other layers keep theirs.
        Raises `NothingStreamsError` if no layer can stream on a chip of this size.
        """
        if knobs.moves:
            return self.with_moves(knobs.moves).plan(replace(knobs, moves=0), corrections)
        if not knobs.chains and self.chained:
            return self.without_chains.plan(knobs, corrections)
        planned_ns: dict[str, float] = {}
        lines = self.map_lines(knobs, corrections or {}, planned_ns)
        if self.arch.chips > 1 and self.arch.places is None:
            lines = self._map_stages(knobs, lines)
        if lines is None:
            raise NothingStreamsError("no layer can be computed by line on a chip of this size")
        layers, flow = lines
        decision = Decision("rows", graph_tile_channels(self.graph, self.arch), flow, layers)
        return PlannedDecision(place_decoder(self.graph, decision, self.arch), planned_ns)

    def _map_stages(self, knobs: TuningKnobs, whole: LineDecision | None) -> LineDecision | None:
        """Returns layers and flow for several chips. `whole`: the decision that takes all chips as one."""

        def mapped(part: Graph, chip: Target, fed: Collection[str]) -> LineDecision | None:
            return RowMapper(part, chip, self.cache, fed).map_lines(knobs, {}, {})

        return map_to_chips(self.graph, self.arch, knobs, self.cache, mapped, whole)

    @cached_property
    def parts(self) -> dict[str, ChannelRanges]:
        return line_channel_ranges(self.graph, self.arch)

    def with_moves(self, least_ns: float) -> "RowMapper":
        """Returns a mapper by which moves with at least `least_ns` of work behind them have cores of their own."""
        spread = self._move_work.spread(least_ns)
        return self._spreading.setdefault(frozenset(spread.moves), replace(self, spread=spread))

    def on_first_cores(self, count: int) -> "RowMapper":
        """Returns a mapper that uses only the first `count` of the cores which this one may use."""
        places = (self.arch.places or range(self.arch.core_count))[:count]
        return self._smaller.setdefault(count, replace(self, arch=self.arch.with_places(places)))

    @cached_property
    def without_chains(self) -> "RowMapper":
        """A mapper without chains."""
        return replace(self, chained=False)

    @cached_property
    def _move_work(self) -> MoveWork:
        return find_move_work(self.graph, self.parts, self.arch)

    @cached_property
    def _spreading(self) -> "dict[frozenset[str], RowMapper]":
        return {}

    @cached_property
    def _smaller(self) -> "dict[int, RowMapper]":
        return {}

    @cached_property
    def epilogues(self) -> Mapping[str, Epilogue]:
        return find_epilogues(self.graph, self.arch, self.spread)

    @cached_property
    def stages(self) -> TokenStages | None:
        if not self.chained:
            return None
        return find_stages(self.graph, self.arch, {key: each.elements_ns for key, each in self.epilogues.items()})

    @cached_property
    def product_units(self) -> dict[str, ProductUnit]:
        """The products of computed tensors that have cores of their own; none if there are chains."""
        return {} if self.chained else find_product_units(self.graph, self.parts, self.arch)

    @cached_property
    def whole_options(self) -> WholeOptions:
        """A memo of options of the layers that do not stream, by the layers that do, and by weight."""
        after_ns = {key: each.elements_ns for key, each in self.epilogues.items()}

        @cache
        def options(by_line: frozenset[str], weight: float) -> tuple[list[list[CoreOption]], float]:
            numbers = number_neighbourhoods(self.graph, by_line)
            return whole_options(self.graph, numbers, after_ns, self.arch, weight)

        return options

    @cached_property
    def dense_placements(self) -> DensePlacements:
        """A memo of placements of fully connected layers with some crossbars of each core."""

        @cache
        def place(keys: tuple[str, ...]) -> Sequence[DensePlacement]:
            return [*place_dense_layers(self.graph, keys, self.arch)]

        return place

    @cached_property
    def gathers(self) -> dict[str, tuple[Node, ...]]:
        """The moves that get cores of their own, in groups that share them; key: the first result."""
        alone = {n: node for n, node in self.spread.gathers(self.graph, self.parts).items() if self.has_loads(node)}
        return group_gathers(self.graph, alone)

    def has_loads(self, node: Node) -> bool:
        """True if this chip loads the operands of a node: no other chip sends them."""
        return not {*node.inputs}.intersection(self.fed)

    @cached_property
    def input_plans(self) -> dict[str, list[LayerPlan]]:
        """Plans to load model inputs, and to gather lines from them."""
        graph, arch, parts, fed = self.graph, self.arch, self.parts, self.fed
        gathers = {node.output: node for nodes in self.gathers.values() for node in nodes}
        passed = {node.output for node in gathers.values() if takes_short_runs(graph, node)}
        read = {name for node in graph.nodes if node.output not in gathers.keys() - passed for name in node.inputs}
        lines = Counter[str]()
        for node in graph.nodes:
            if isinstance(node.operator, Move) and node.output not in gathers:
                lines |= Counter(dict.fromkeys(node.inputs, graph.tensors[node.output].image.rows))
        loads = {
            n: list(load_plans(graph.tensors[n].image, arch, parts[n], self.epilogues.get(n, NO_EPILOGUE), lines[n]))
            for n in graph.inputs
            if n in parts and n in read and n not in fed
        }
        return loads | {
            name: list(gather_plans(nodes, graph, arch, parts[name], self.epilogues, self.cache.gathers))
            for name, nodes in self.gathers.items()
        }

    def map_lines(
        self, knobs: TuningKnobs, corrections: Mapping[str, float], planned_ns: dict[str, float]
    ) -> LineDecision | None:
        """Returns the layers on crossbars, and the flow with its loaders; None if the chip is too small.

        `corrections`: see `plan`. `planned_ns`: gets the planned work.
        """
        inputs = {
            name: [plan.weighted(1, corrections.get(name, 1.0)) for plan in plans]
            for name, plans in self.input_plans.items()
        }

        def layers(without: Container[str] = ()) -> dict[str, list[LayerPlan]]:
            return plan_layers(
                *(self.graph, self.arch, knobs, without, self.cache),
                parts=self.parts,
                after=self.epilogues,
                corrections=corrections,
            )

        products = {
            name: [*unit.core_options(name, self.arch.usable_cores, corrections.get(name, 1.0))]
            for name, unit in self.product_units.items()
        }

        def task_of(layers: dict[str, list[LayerPlan]]) -> _MappingTask:
            given = self.whole_options, self.dense_placements, products, self.spread.moves.keys()
            return _MappingTask(self.graph, self.arch, knobs, layers, inputs, self.gathers, *given)

        if self.stages is not None:
            task = task_of(layers(self.stages.keys))
            beside = _beside_tokens(task, self.stages)
            if beside is not None:
                (whole, placed), choice = beside
                planned_ns.update((key, each.plan.work_ns) for key, each in placed.items())
                return _numbered(task, renumber_layers(whole, choice.cores), placed, choice)
        task = task_of(layers())
        fitting = _fit(task)
        if fitting is None:
            return None
        planned_ns.update((key, placed.plan.work_ns) for key, placed in fitting[1].items())
        planned_ns.update(_product_times(products, fitting[0]))
        return _numbered(task, *fitting, TokenCores())


def _product_times(
    options: Mapping[str, list[CoreOption]], chosen: Mapping[str, UnitRecord]
) -> Iterator[tuple[str, float]]:
    """Yields (name, planned time in ns of a core) of the products that have cores of their own."""
    for name, front in options.items():
        if name in chosen:
            cores = len(chosen[name].cores)
            yield name, next(option.core_ns for option in front if option.cores == cores)


def _beside_tokens(task: _MappingTask, stages: TokenStages) -> tuple[_Placed, TokenCores] | None:
    """Returns what is beside chains and attentions, and the cores of these; None if the chip is too small.

    See `choose_division`.
    """
    arch, knobs = task.arch, task.knobs
    plans = {key: found for key, found in task.plans.items() if key not in _loaded_tokens(task)}
    division = _fewest_cores(task, plans, task.layers.keys() | stages.keys)
    found = choose_division(stages, division, arch, knobs)
    return None if found is None else (found[0].placed(), found[1])


def _loaded_tokens(task: _MappingTask) -> set[str]:
    """Returns the tokens that are loaded, looked up or gathered: the first chain has them, too."""
    images = task.graph.tensors
    return {n for n in task.inputs if is_token_layout(images[n].image) and n not in task.spread}


def _numbered(
    task: _MappingTask, whole: Mapping[str, UnitRecord], placed: dict[str, PlacedPlan], tokens: TokenCores
) -> LineDecision:
    """Assembles layers and flow. The cores of `tokens` are renumbered to follow the cores of `placed`."""
    arch, images = task.arch, task.graph.tensors
    lines = {key: LineUnfolding(placed[key].plan.grid, placed[key].cores) for key in task.layers}
    loading_of = ((n, placed[n]) for n in task.inputs if n in placed and placed[n].cores)
    loaders = {n: tuple(zip(p.plan.grid.cols, p.cores, strict=True)) for n, p in loading_of}
    for name, nodes in task.gathers.items():
        loaders |= dict.fromkeys([node.output for node in nodes], loaders[name]) if name in loaders else {}
    first = _first_free(placed)
    in_chains = {key: renumber_record(layer, first.__add__) for key, layer in tokens.layers.items()}
    products = {key: renumber_record(grid, first.__add__) for key, grid in tokens.products.items()}
    products |= {key: grid for key, grid in whole.items() if isinstance(grid, DotGrid)}
    others = select_whole_layers(whole)
    begin = next(iter(in_chains.values()), None)
    if begin is not None:
        first_tokens = tuple((cols, begin.core(s, 0, 0)) for s, cols in enumerate(begin.grid.cols))
        wide = {n for n in task.inputs.keys() - placed.keys() if images[n].image.width == begin.grid.cols[-1][1]}
        loaders |= dict.fromkeys(sorted(wide), first_tokens)
    xbar = arch.xbar_rows, arch.outputs_per_xbar
    patience_ns = chip_patience_ns(arch, task.knobs) * (ATTENTION_PATIENCE if products else 1)
    return {**lines, **in_chains, **others}, LineFlow(
        xbar, patience_ns, loaders, products=products, makes_constants=True
    )


def _first_free(placed: dict[str, PlacedPlan]) -> int:
    """Returns the first core after the cores of all plans."""
    return 1 + max((core for p in placed.values() for core in p.cores), default=-1)


def renumber_layers(layers: Mapping[str, UnitRecord], first: int) -> dict[str, UnitRecord]:
    """Returns layers whose cores have numbers larger by `first`."""
    return {key: renumber_record(layer, first.__add__) for key, layer in layers.items()}


def _fit(task: _MappingTask) -> _Placed | None:
    """Returns the layers that do not stream, and a plan with cores for each streamed layer and input; else None.

    Layers have cores of their own if there are enough, unless sharing is faster. If there are not enough, distant
    layers that do not stream share cores, then all layers do. If that does not fit either, streamed layers lose their
    plans, the last one first, because a layer that does not stream wastes the fewest crossbars.
    """
    graph, arch, layers = task.graph, task.arch, task.layers
    while True:
        division = _fewest_cores(task, task.plans, layers.keys())
        if division.cores <= arch.usable_cores:
            available = division.within(arch.usable_cores, task.knobs.share)
            division = division.grown(available)
            if task.knobs.dense:
                division = share_with_dense(graph, layers, division, task.dense, arch, available)
            shared = None if task.products else _share_phases(task, division)
            return shared or _share_cores(task, division, available).placed()
        whole, used = place_whole_layers(graph, number_neighbourhoods(graph, layers), arch, apart=False)
        together = [CoreOption(used, 0.0, whole=whole)]
        division = CoreDivision.with_fewest_cores(
            [*(plan_options(key, pareto_front(plans)) for key, plans in task.plans.items()), together]
        )
        if division.cores <= arch.usable_cores:
            return division.grown(division.within(arch.usable_cores, task.knobs.share)).placed()
        left = arch.usable_cores - used
        placed = pack_layers(task.plans, left, arch.xbars_per_core) if left > 0 else None
        if placed is not None:
            return renumber_layers(whole, _first_free(placed)), placed
        if not layers:
            return None
        layers.popitem()


def _fewest_cores(
    task: _MappingTask, plans: Mapping[str, Sequence[LayerPlan]], by_line: Collection[str]
) -> CoreDivision:
    """Returns the division in which each unit has its fewest cores. `plans`: of layers and inputs that get cores by it.

    Beside recurrent layers, pixels of sequences arrive at the rate of their steps.
    """
    whole, step_ns = task.whole(frozenset(by_line), 1 + task.knobs.latency)
    fronts = slow_plans(plans, find_one_line_tensors(task.graph) if step_ns else (), step_ns)
    lines = (plan_options(key, front) for key, front in fronts.items())
    return CoreDivision.with_fewest_cores([*lines, *task.products.values(), *whole])


def _share_cores(task: _MappingTask, division: CoreDivision, available: int) -> CoreDivision:
    """Returns a division of the available cores in which neighbours share cores, and cores move, as the knobs say."""
    graph, arch, knobs = task.graph, task.arch, task.knobs
    if knobs.neighbours:
        division = share_in_pairs(graph, task.plans, division, available, arch.xbars_per_core, knobs.neighbours)
    weight = knobs.latency if knobs.latency > 1 else knobs.line_latency
    return rebalance_cores(graph, division, available, weight) if weight else division


def _share_phases(task: _MappingTask, division: CoreDivision) -> _Placed | None:
    """Returns a result of `_fit` with cores shared by layers of different phases; None if `division` is no worse.

    `division`: without shared cores. If many cores compute a phase, they wait for each other's loads: each column of
    cores loads all weights of a depthwise layer. So the time of these loads is added to the time of a plan.
    """
    graph, arch, knobs, (whole, apart) = task.graph, task.arch, task.knobs, division.placed()
    number, constants, others = (
        number_phases(graph),
        count_epilogue_constants(graph),
        number_neighbourhoods(graph, task.layers),
    )

    def loaded(key: str, plan: LayerPlan) -> LayerPlan:
        port_ns = len(plan.grid.cols) * global_port_ns(arch, constants.get(key, 0))
        return replace(plan, work_ns=plan.work_ns + port_ns)

    def cost(interval_ns: float, latency_ns: float) -> float:
        return interval_ns * latency_ns**knobs.latency

    fronts: defaultdict[int, dict[str, list[LayerPlan]]] = defaultdict(dict)
    for key, plans in task.plans.items():
        fronts[number.get(key, 0)][key] = pareto_front(loaded(key, plan) for plan in plans)
    phases = sorted(fronts)
    phase_of = {key: max(0, bisect_right(phases, number[key]) - 1) for key in others}

    def place(groups: Sequence[int]) -> tuple[dict[str, WholeLayer], int]:
        return place_whole_layers(graph, {key: groups[phase_of[key]] for key in others}, arch, apart=True)

    found = PhaseSharing([fronts[n] for n in phases], place, arch.usable_cores, arch.xbars_per_core, knobs.share)
    best = min(found.choices(), key=lambda c: cost(c.interval_ns, c.latency_ns), default=None)
    times = [max(loaded(key, apart[key].plan).core_ns for key in fronts[n]) for n in phases]
    if best is None:
        return None
    shared_ns, apart_ns = (slowest_dense_ns(graph, found, arch) for found in (best.rest, select_whole_layers(whole)))
    shared_cost = cost(max(best.interval_ns, shared_ns), best.latency_ns + shared_ns)
    if shared_cost >= cost(max(*times, apart_ns), sum(times) + apart_ns):
        return None
    placed = best.placed
    return renumber_layers(best.rest, _first_free(placed)), placed
