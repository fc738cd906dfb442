"""Plans of all layers of a graph that can stream, and a cache of plans for graphs with equal layers."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import filter_key, find_layer_nodes, layer_target
from raptor.graph.zero_weights import has_weights
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue, find_epilogues
from raptor.mapping.modes.gather_plans import KnownTimes
from raptor.mapping.modes.line_plans import cut_into_lanes, enumerate_plans
from raptor.mapping.modes.line_streaming import ChannelRanges, can_stream_layer, line_channel_ranges, output_ranges
from raptor.mapping.modes.plan_choice import LayerPlan, pareto_front
from raptor.target.arch import Target


@dataclass(slots=True, eq=False)
class PlanCache:
    """Memo of plans of layers on one kind of core: parts of a graph, on few or many cores, have most of them in common.

    `plans`: plans of layers; the keys hold everything that they depend on, but for the largest number of column
    segments, which is beside them. `gathers`: times of moves (`gather_plans`).
    """

    plans: dict[object, tuple[int, list[LayerPlan]]] = field(default_factory=dict[object, tuple[int, list[LayerPlan]]])
    gathers: KnownTimes = field(default_factory=KnownTimes)

    def layer_plans(
        self, operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue, step_ns: float
    ) -> list[LayerPlan]:
        """Returns all plans of a layer (`line_plans.enumerate_plans`)."""
        place = *plan_key(operator, parts, arch, after), step_ns
        # A line is cut into no more pieces than there are cores.
        pieces = min(arch.usable_cores, operator.window.out_dims[-1])
        if place not in self.plans or self.plans[place][0] < pieces:
            found = [*enumerate_plans(operator, parts, arch, after, step_ns)]
            self.plans[place] = pieces, [*found, *cut_into_lanes(operator.window, pareto_front(found))]
        most, plans = self.plans[place]
        return plans if most == pieces else [plan for plan in plans if len(plan.grid.cols) <= pieces]


def plan_layers(
    graph: Graph,
    arch: Target,
    knobs: TuningKnobs,
    without: Container[str] = (),
    cache: PlanCache | None = None,
    *,
    parts: Mapping[str, ChannelRanges] | None = None,
    after: Mapping[str, Epilogue] | None = None,
    corrections: Mapping[str, float] | None = None,
) -> dict[str, list[LayerPlan]]:
    """Returns all plans of each layer that can stream, by key; layers without a plan are left out.

    `without`: results of layers to skip. `cache`: plans that were made before; new ones are added. `parts`, `after`:
    channel ranges and epilogues, if they are known. `corrections`: factors on the work of layers, by key.
    """
    cache, corrections = cache or PlanCache(), corrections or {}
    parts = line_channel_ranges(graph, arch) if parts is None else parts
    after = find_epilogues(graph, arch) if after is None else after
    found: dict[str, list[LayerPlan]] = {}
    steps = defaultdict[str, list[Node]](list)
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            steps[filter_key(node)].append(node)
    for key, nodes in steps.items():
        node, operator = nodes[0], nodes[0].operator
        if not isinstance(operator, Filter) or node.output in without:
            continue
        if all(can_stream_layer(graph, step, operator, parts, arch.xbar_rows) for step in nodes):
            chip = layer_target(graph, node, arch)
            more = after.get(key, NO_EPILOGUE)
            weights = knobs.products * len(nodes), corrections.get(key, 1.0)
            plans = cache.layer_plans(operator, parts[node.inputs[0]], chip, more, knobs.step_ns)
            if plans:
                chosen = _with_lanes(plans, operator.window.out_lines, arch, knobs)
                found[key] = [plan.weighted(*weights) for plan in chosen]
    return found


def _with_lanes(plans: Sequence[LayerPlan], lines: int, arch: Target, knobs: TuningKnobs) -> list[LayerPlan]:
    """Returns the plans of a layer with `lines` output lines that have as many lanes as the knobs say.

    Plans with lanes need no more cores than the chip has. If lanes are aligned and no plan has as many, none has lanes.
    """
    whole = [plan for plan in plans if not plan.grid.lanes]
    laned = [plan for plan in plans if plan.grid.lanes and plan.cores <= arch.usable_cores]
    if not knobs.aligned_lines:
        return [*whole, *(plan for plan in laned if len(plan.grid.lanes) <= knobs.lanes)]
    if lines < knobs.aligned_lines:
        return whole
    return [plan for plan in laned if len(plan.grid.lanes) == knobs.lanes] or whole


def plan_key(operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue) -> tuple[object, ...]:
    """Returns a hashable key: layers with equal keys have the same plans and times on one kind of core."""
    tiles = output_ranges(operator, parts, arch)
    zeros = tuple((part, tile) for part in parts for tile in tiles if not has_weights(operator, part, tile))
    return operator.window, operator.weights.shape, operator.groups, zeros, parts, arch.widths, after.cost_key


def count_least_crossbars(graph: Graph, arch: Target) -> int:
    """Returns a lower bound on the crossbars that a graph needs: the cells of all weights."""
    cells = arch.xbar_rows * arch.xbar_cols
    total = 0
    for node in find_layer_nodes(graph).values():
        operator = node.operator
        if isinstance(operator, Filter) and operator.groups == 1:
            total += operator.weights.size * (operator.weight_bits or arch.widths.weights) // arch.cell_bits
    return -(-total // cells)
