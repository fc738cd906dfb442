"""The strategy `rows`: layers stream line by line, and each gets as many cores as its work needs.

A decision is greedy and deterministic: every layer starts with the fewest cores that hold it, then the slowest layer
gets its next faster grid of cores, as long as cores are left. `raptor.mapping.decision_search` compares several.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from raptor.common.errors import RaptorError
from raptor.graph.ir import Graph, Move, Node
from raptor.graph.layers import find_filters, graph_tile_channels
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.allocation.bin_packing import pack_layers
from raptor.mapping.allocation.latency_rebalancing import rebalance_cores
from raptor.mapping.allocation.pair_sharing import CoreDivision, share_in_pairs
from raptor.mapping.allocation.phase_sharing import PhaseSharing, number_phases
from raptor.mapping.allocation.tail_sharing import TailSharing
from raptor.mapping.allocation.whole_layers import (
    SpareCores,
    number_neighbourhoods,
    place_whole_layers,
    renumber_layers,
    slowest_dense_ns,
)
from raptor.mapping.decision import (
    Decision,
    LayerRecord,
    LineFlow,
    LineUnfolding,
    renumber_record,
)
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs, chip_patience_ns
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue, find_epilogues
from raptor.mapping.modes.gather_plans import gather_plans, group_gathers
from raptor.mapping.modes.line_plans import load_plans
from raptor.mapping.modes.line_streaming import ChannelRanges, find_gathers, line_channel_ranges, takes_short_runs
from raptor.mapping.modes.plan_cache import PlanCache, plan_layers
from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan, choose_plans, pareto_front, place_in_order
from raptor.mapping.modes.step_replication import (
    RecurrentSteps,
    WholeLayer,
    find_one_line_tensors,
    find_recurrent_steps,
    find_relay_steps,
    slow_plans,
)
from raptor.mapping.multichip.chip_stages import LineDecision, map_to_chips
from raptor.mapping.transformer.cache_cores import place_decoder
from raptor.mapping.transformer.token_choice import choose_token_cores
from raptor.mapping.transformer.token_cores import TokenCores, TokenStages
from raptor.mapping.transformer.token_stages import count_epilogue_constants, find_stages
from raptor.target.arch import Target
from raptor.target.timing import global_port_ns

TAIL_SHARE = 1 / 16
"""Share of the cores above which the last layers share theirs with other layers; below, there is little to gain."""


ATTENTION_PATIENCE = 0.4
"""Factor on the patience where attention streams: its messages are many and short.

Scheduled by default on `bench` with 200 cores, latency x interval relative to a factor of 1: ViT-tiny 0.96, BERT-tiny
0.98. BERT-base on 144 cores: 0.92.
"""

MOST_FAILED_GROWTHS = 3
"""Number of times that the slowest layer beside a transformer gets more cores without an improvement."""


@dataclass(frozen=True, slots=True)
class _MappingTask:
    """A graph to map, with plans of the layers that stream and of the loads of inputs.

    Layers lose their plans if the chip is too small. gathers: see `RowMapper.gathers`; `inputs` has their plans.
    """

    graph: Graph
    arch: Target
    knobs: TuningKnobs
    layers: dict[str, list[LayerPlan]]
    inputs: dict[str, list[LayerPlan]]
    gathers: Mapping[str, tuple[Node, ...]]

    @property
    def plans(self) -> dict[str, list[LayerPlan]]:
        return self.layers | self.inputs


class NothingStreamsError(RaptorError):
    """Raised if the chip is too small even if no layer streams; another strategy may fit."""


@dataclass(frozen=True, slots=True)
class PlannedDecision:
    """A decision, and the work by which its cores were divided.

    planned_ns: work in ns of the busiest core of each layer by line and each tensor with loaders, by key, as far as it
    has cores of its own or shares them in turns; without chains of a transformer.
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

    `cache`: see `plan_layers`. `fed`: inputs that other chips send, so that no loader is needed.
    """

    graph: Graph
    arch: Target
    cache: PlanCache
    fed: Collection[str] = ()

    def plan(self, knobs: TuningKnobs, corrections: Mapping[str, float] | None = None) -> PlannedDecision:
        """Returns the decision by some knobs, with the work by which it was made.

        `corrections`: factors on the planned work of layers by line and of loaders, by key; other layers keep theirs.
        Raises `NothingStreamsError` if no layer can stream on a chip of this size.
        """
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

    @cached_property
    def epilogues(self) -> Mapping[str, Epilogue]:
        return find_epilogues(self.graph, self.arch)

    @cached_property
    def stages(self) -> TokenStages | None:
        return find_stages(self.graph, self.arch, {key: each.elements_ns for key, each in self.epilogues.items()})

    @cached_property
    def gathers(self) -> dict[str, tuple[Node, ...]]:
        """The moves of model inputs that get cores of their own, in groups that share them; key: the first result."""
        alone = {n: node for n, node in find_gathers(self.graph, self.parts).items() if self.has_loads(node)}
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
            name: list(gather_plans(nodes, graph, arch, parts[name], self.epilogues))
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

        if self.stages is not None:
            task = _MappingTask(self.graph, self.arch, knobs, layers(self.stages.keys), inputs, self.gathers)
            tokens = _beside_tokens(task, self.stages)
            if tokens is not None:
                return tokens
        task = _MappingTask(self.graph, self.arch, knobs, layers(), inputs, self.gathers)
        fitting = _fit(task, {key: each.elements_ns for key, each in self.epilogues.items()})
        if fitting is None:
            return None
        planned_ns.update((key, placed.plan.core_ns) for key, placed in fitting[1].items())
        return _numbered(task, *fitting, TokenCores())


def _beside_tokens(task: _MappingTask, stages: TokenStages) -> tuple[dict[str, LayerRecord], LineFlow] | None:
    """Returns layers and flow with chains and attentions on cores of their own; None if the chip is too small.

    The slowest of the other layers gets more cores as long as that lowers interval x latency; its time counts in both.
    """
    graph, arch, knobs, others, inputs = task.graph, task.arch, task.knobs, task.layers, task.inputs
    tokens = {name for name in inputs if is_token_layout(graph.tensors[name].image)}
    fronts = {k: pareto_front(p) for k, p in (others | {n: p for n, p in inputs.items() if n not in tokens}).items()}
    whole, used = place_whole_layers(graph, number_neighbourhoods(graph, others.keys() | stages.keys), arch, apart=True)
    at = dict.fromkeys(fronts, 0)
    tried: list[tuple[float, dict[str, int], TokenCores]] = []
    while True:
        taken = sum(fronts[key][i].cores for key, i in at.items())
        layer_ns = {key: fronts[key][i].core_ns for key, i in at.items()}
        slowest_ns = max(layer_ns.values(), default=0.0)
        choice = choose_token_cores(stages, arch, arch.usable_cores - used - taken, knobs, layer_ns)
        if choice is None:
            break
        cost = max(choice.interval_ns, slowest_ns) * (choice.latency_ns + slowest_ns) ** knobs.latency
        tried.append((cost, dict(at), choice))
        slow = [k for k, i in at.items() if i + 1 < len(fronts[k])]
        costs = [cost for cost, *_ in tried]
        if not slow or (slowest_ns < choice.interval_ns and min(costs) not in costs[-MOST_FAILED_GROWTHS:]):
            break
        at[max(slow, key=lambda k: fronts[k][at[k]].core_ns)] += 1
    if not tried:
        return None
    _, at, choice = min(tried, key=itemgetter(0))
    placed = place_in_order({key: fronts[key][i] for key, i in at.items()})
    behind = renumber_layers(whole, _first_free(placed) + choice.cores)
    return _numbered(task, behind, placed, choice)


def _numbered(
    task: _MappingTask, whole: dict[str, WholeLayer], placed: dict[str, PlacedPlan], tokens: TokenCores
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
    begin = next(iter(in_chains.values()), None)
    if begin is not None:
        first_tokens = tuple((cols, begin.core(s, 0, 0)) for s, cols in enumerate(begin.grid.cols))
        wide = {n for n in task.inputs.keys() - placed.keys() if images[n].image.width == begin.grid.cols[-1][1]}
        loaders |= dict.fromkeys(sorted(wide), first_tokens)
    xbar = arch.xbar_rows, arch.outputs_per_xbar
    patience_ns = chip_patience_ns(arch, task.knobs) * (ATTENTION_PATIENCE if products else 1)
    return {**lines, **in_chains, **whole}, LineFlow(
        xbar, patience_ns, loaders, products=products, makes_constants=True
    )


def _slowest_ns(placed: Mapping[str, PlacedPlan]) -> float:
    return max((p.plan.core_ns for p in placed.values()), default=0.0)


def _first_free(placed: dict[str, PlacedPlan]) -> int:
    """Returns the first core after the cores of all plans."""
    return 1 + max((core for p in placed.values() for core in p.cores), default=-1)


def _fit(
    task: _MappingTask, after_ns: Mapping[str, float]
) -> tuple[dict[str, WholeLayer], dict[str, PlacedPlan]] | None:
    """Returns the layers that do not stream, and a plan with cores for each streamed layer and input; else None.

    Layers have cores of their own if there are enough, unless sharing is faster. If there are not enough, distant
    layers that do not stream share cores, then all layers do. If that does not fit either, streamed layers lose their
    plans, the last one first, because a layer that does not stream wastes the fewest crossbars.
    """
    graph, arch, layers, share = task.graph, task.arch, task.layers, task.knobs.share
    fronts = {key: pareto_front(plans) for key, plans in task.plans.items()}
    while True:
        others = number_neighbourhoods(graph, layers)
        whole, used = place_whole_layers(graph, others, arch, apart=True)
        placed = choose_plans(fronts, arch.usable_cores, used, share)
        if placed is not None:
            steps = list(find_recurrent_steps(graph, whole, others, after_ns, arch))
            if steps:
                slow = slow_plans(task.plans, find_one_line_tensors(graph), max(found.step_ns for found in steps))
                relays = find_relay_steps(graph, steps)
                placed = choose_plans(slow, arch.usable_cores, used, share) or placed
                copied, placed = _copy_steps([*steps, *relays], slow, arch.usable_cores, used, placed, share)
                return renumber_layers(whole | copied, _first_free(placed)), placed
            spread = _spread_dense(task, others, fronts, whole, placed)
            whole, used, placed = spread or (whole, used, placed)
            shared = _share_last(task) or _share_phases(task, placed)
            apart = whole, placed
            if shared is not None and (spread is None or _dense_cost(task, *shared) <= _dense_cost(task, *apart)):
                return shared
            placed = _divide(task, fronts, placed, arch.usable_cores - used)
            return renumber_layers(whole, _first_free(placed)), placed
        whole, used = place_whole_layers(graph, others, arch, apart=False)
        placed = choose_plans(fronts, arch.usable_cores, used, share)
        if placed is None and used < arch.usable_cores:
            placed = pack_layers(task.plans, arch.usable_cores - used, arch.xbars_per_core)
        if placed is not None:
            return renumber_layers(whole, _first_free(placed)), placed
        if not layers:
            return None
        del fronts[layers.popitem()[0]]


def _spread_dense(
    task: _MappingTask,
    others: Mapping[str, int],
    fronts: dict[str, list[LayerPlan]],
    compact: dict[str, WholeLayer],
    placed: dict[str, PlacedPlan],
) -> tuple[dict[str, WholeLayer], int, dict[str, PlacedPlan]] | None:
    """Spreads slow fully connected layers over more cores. Returns (layers that do not stream, their cores, new plans).

    compact, placed: these layers on as few cores as hold them, and the plans of the others. None if no such layer is
    slower than the slowest streamed layer, or if spreading does not lower the cost. A layer after a small image has few
    weights per pixel, so a single core would multiply one pixel after another.
    """
    graph, arch, share = task.graph, task.arch, task.knobs.share
    if slowest_dense_ns(graph, compact, arch) <= _slowest_ns(placed):
        return None
    best, found = _dense_cost(task, compact, placed), None
    for more in (2**n for n in range(arch.usable_cores.bit_length())):
        whole, used = place_whole_layers(graph, others, arch, apart=True, spare=SpareCores(more, _slowest_ns(placed)))
        plans = choose_plans(fronts, arch.usable_cores, used, share)
        if plans is not None and _dense_cost(task, whole, plans) < best:
            best, found = _dense_cost(task, whole, plans), (whole, used, plans)
    return found


def _dense_cost(task: _MappingTask, whole: Mapping[str, WholeLayer], plans: Mapping[str, PlacedPlan]) -> float:
    """Returns interval x weighted latency, estimated from the slowest dense and the slowest streamed layer."""
    dense_ns, lines_ns = slowest_dense_ns(task.graph, whole, task.arch), _slowest_ns(plans)
    return max(dense_ns, lines_ns) * (dense_ns + lines_ns) ** task.knobs.latency


def _divide(
    task: _MappingTask, fronts: Mapping[str, Sequence[LayerPlan]], placed: dict[str, PlacedPlan], cores: int
) -> dict[str, PlacedPlan]:
    """Divides `cores` among the streamed layers as the knobs say. `placed`: plans without shared cores."""
    graph, arch, knobs = task.graph, task.arch, task.knobs
    division = CoreDivision.without_sharing(fronts, placed)
    available = max(division.cores, cores - int(arch.usable_cores * (1 - knobs.share)))
    if knobs.neighbours:
        division = share_in_pairs(graph, task.plans, division, available, arch.xbars_per_core, knobs.neighbours)
    weight = knobs.latency if knobs.latency > 1 else knobs.line_latency
    if weight:
        division = rebalance_cores(graph, division, available, weight)
    return division.placed()


def _copy_steps(
    steps: Sequence[RecurrentSteps],
    fronts: dict[str, list[LayerPlan]],
    cores: int,
    used: int,
    placed: dict[str, PlacedPlan],
    share: float,
) -> tuple[dict[str, WholeLayer], dict[str, PlacedPlan]]:
    """Replicates the slowest recurrent layers as long as no streamed layer becomes the bottleneck.

    cores, used, share: as for `choose`. Returns the recurrent layers, and the plans of the others.
    """
    copies = [1] * len(steps)
    while True:
        slowest = max(range(len(steps)), key=lambda i: steps[i].core_ns(copies[i]))
        more = steps[slowest].next_copies(copies[slowest])
        if more is None:
            break
        tried = [more if i == slowest else count for i, count in enumerate(copies)]
        taken = sum((count - 1) * len(found.cores) for count, found in zip(tried, steps, strict=True))
        fewer = choose_plans(fronts, cores, used + taken, share)
        if fewer is None or _slowest_ns(fewer) > max(_slowest_ns(placed), steps[slowest].core_ns(copies[slowest])):
            break
        copies, placed = tried, fewer
    layers: dict[str, WholeLayer] = {}
    for count, found in zip(copies, steps, strict=True):
        layers |= found.copy_layers(count, used)
        used += (count - 1) * len(found.cores)
    return layers, placed


def _share_last(task: _MappingTask) -> tuple[dict[str, WholeLayer], dict[str, PlacedPlan]] | None:
    """Returns a result of `_fit` with cores shared by the last layers; None if these need few cores of their own."""
    graph, arch, layers = task.graph, task.arch, task.layers
    others, order = number_neighbourhoods(graph, layers), list(find_filters(graph))
    behind = order.index(list(layers)[-1]) if layers else -1
    last = {key: run for key, run in others.items() if order.index(key) > behind}
    before = {key: run for key, run in others.items() if key not in last}

    def place(limit: int) -> tuple[dict[str, WholeLayer], int]:
        return place_whole_layers(graph, last, arch.with_xbars_per_core(limit), apart=True)

    if place(arch.xbars_per_core)[1] < TAIL_SHARE * arch.usable_cores:
        return None
    whole, used = place_whole_layers(graph, before, arch, apart=True)
    filters = find_filters(graph)
    lines = {key: filters[key].window.out_lines for key in layers}
    least = max(-(-graph_tile_channels(graph, arch) // arch.weight_columns(filters[key].weight_bits)) for key in last)
    free = arch.usable_cores - used
    shared = TailSharing(task.plans, lines, place, least, free, arch.xbars_per_core, task.knobs.share).find_best()
    if shared is None:
        return None
    moved = renumber_layers(shared.last, shared.first)
    return moved | renumber_layers(whole, shared.end), shared.placed


def _share_phases(
    task: _MappingTask, apart: dict[str, PlacedPlan]
) -> tuple[dict[str, WholeLayer], dict[str, PlacedPlan]] | None:
    """Returns a result of `_fit` with cores shared by layers of different phases; None if `apart` is no worse.

    `apart`: plans without shared cores. If many cores compute a phase, they wait for each other's loads: each column of
    cores loads all weights of a depthwise layer. So the time of these loads is added to the time of a plan.
    """
    graph, arch, knobs = task.graph, task.arch, task.knobs
    number, constants, others = (
        number_phases(graph),
        count_epilogue_constants(graph),
        number_neighbourhoods(graph, task.layers),
    )

    def loaded(key: str, plan: LayerPlan) -> LayerPlan:
        port_ns = len(plan.grid.cols) * global_port_ns(arch, constants.get(key, 0))
        return replace(plan, core_ns=plan.core_ns + port_ns)

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
    if best is None or cost(best.interval_ns, best.latency_ns) >= cost(max(times), sum(times)):
        return None
    placed = best.placed
    return renumber_layers(best.rest, _first_free(placed)), placed
