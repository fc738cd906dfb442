"""Plans of all layers of a graph that can stream, and a cache of plans for graphs with equal layers."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key, layer_target
from raptor.mapping.decision import LineGrid
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue, find_epilogues
from raptor.mapping.modes.line_plans import enumerate_plans, grid_ns
from raptor.mapping.modes.line_streaming import ChannelRanges, can_stream_layer, line_channel_ranges
from raptor.mapping.modes.plan_choice import LayerPlan
from raptor.target.arch import Target


@dataclass(slots=True, eq=False)
class PlanCache:
    """Memo of plans of layers on one kind of core: parts of a graph, on few or many cores, have most of them in common.

    `plans`, `grids_ns`: plans of layers, and loads of grids in ns; the keys hold everything that they depend on, but
    for the largest number of column segments of `plans`.
    """

    plans: dict[object, tuple[int, list[LayerPlan]]] = field(default_factory=dict[object, tuple[int, list[LayerPlan]]])
    grids_ns: dict[object, float] = field(default_factory=dict[object, float])

    def layer_plans(
        self, operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue, step_ns: float
    ) -> list[LayerPlan]:
        """Returns all plans of a layer (`line_plans.enumerate_plans`)."""
        place = *plan_key(operator, parts, arch, after), step_ns
        # A line is cut into no more pieces than there are cores.
        pieces = min(arch.usable_cores, operator.window.out_dims[-1])
        if place not in self.plans or self.plans[place][0] < pieces:
            self.plans[place] = pieces, list(enumerate_plans(operator, parts, arch, after, step_ns))
        most, plans = self.plans[place]
        return plans if most == pieces else [plan for plan in plans if len(plan.grid.cols) <= pieces]

    def grid_ns(self, operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue, grid: LineGrid) -> float:
        """Returns the load in ns of the busiest core of a grid for a sample (`line_plans.grid_ns`)."""
        place = *plan_key(operator, parts, arch, after), grid
        if place not in self.grids_ns:
            self.grids_ns[place] = grid_ns(operator, parts, arch, after, grid)
        return self.grids_ns[place]


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
    for node in graph.nodes:
        if node.output in without:
            continue
        if isinstance(node.operator, Filter) and can_stream_layer(graph, node, node.operator, parts, arch.xbar_rows):
            chip = layer_target(graph, node, arch)
            more = after.get(filter_key(node), NO_EPILOGUE)
            key, weights = filter_key(node), (knobs.products, corrections.get(filter_key(node), 1.0))
            plans = cache.layer_plans(node.operator, parts[node.inputs[0]], chip, more, knobs.step_ns)
            if plans:
                found[key] = [plan.weighted(*weights) for plan in plans]
    return found


def plan_key(operator: Filter, parts: ChannelRanges, arch: Target, after: Epilogue) -> tuple[object, ...]:
    """Returns a hashable key: layers with equal keys have the same plans and times on one kind of core."""
    return operator.window, operator.weights.shape, operator.groups, parts, arch.widths, after.cost_key
