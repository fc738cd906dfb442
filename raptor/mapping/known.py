"""Plans of all layers of a graph that can be computed by line, and what is known of layers from other graphs."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key, layer_target
from raptor.mapping.decision import ByLine, Decision, LineGrid
from raptor.mapping.depthwise import as_lines, as_stencils, choose_depthwise, use_vector_unit, use_views
from raptor.mapping.following import NOTHING, Following, following
from raptor.mapping.knobs import Knobs
from raptor.mapping.line_plans import grid_ns, plans_of
from raptor.mapping.plans import Plan
from raptor.mapping.streaming import Parts, line_parts, runs_by_line
from raptor.target.arch import Target
from raptor.transforms.choices import JoinedLayer, OnVectorUnit
from raptor.transforms.choose_units import choose_means
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fuse_horizontally import choose_fusion, fuse_horizontally
from raptor.transforms.fuse_parallel_branches import choose_branches, fuse_parallel_branches


@dataclass(frozen=True, slots=True, eq=False)
class OnCrossbars:
    """A graph by lines, with matrices only for those layers that have some.

    `others`: the layers without matrices of their own. In `graph`, they are on the vector unit or parts of others, and
    rearrangements are joined.
    """

    others: Mapping[str, OnVectorUnit | JoinedLayer]
    graph: Graph


@dataclass(slots=True, eq=False)
class Known:
    """Knowledge about layers on one kind of core: parts of a graph, on few cores and on many, have most in common.

    `plans` and `grids_ns`: plans of layers, and working times of grids, by all that they depend on. `prepared`: the
    graph that was asked for last, and what is left of it for crossbars, without joined layers and with them.
    """

    plans: dict[object, list[Plan]] = field(default_factory=dict[object, list[Plan]])
    grids_ns: dict[object, float] = field(default_factory=dict[object, float])
    prepared: tuple[Graph, tuple[OnCrossbars, ...]] | None = None

    def on_crossbars(self, graph: Graph, arch: Target) -> tuple[OnCrossbars, ...]:
        """Returns what is left of a graph for crossbars: without joined layers, and with them if there are any."""
        if self.prepared is None or self.prepared[0] is not graph:
            sums = choose_branches(graph)
            summed = fuse_parallel_branches(graph, sums)
            vector = choose_depthwise(summed, arch) | choose_means(summed, arch)
            laid = as_lines(as_stencils(summed, vector))
            joined = choose_fusion(laid, arch)
            ways = (dict[str, JoinedLayer](), joined) if joined else (joined,)
            found = tuple(
                OnCrossbars(sums | vector | way, compose_gathers(fuse_horizontally(laid, way))) for way in ways
            )
            self.prepared = graph, found
        return self.prepared[1]

    def lowered(self, graph: Graph, decision: Decision) -> Graph:
        """Returns the graph as the decision computes it."""
        if self.prepared is not None and self.prepared[0] is graph and isinstance(decision.flow, ByLine):
            others = {k: v for k, v in decision.layers.items() if isinstance(v, OnVectorUnit | JoinedLayer)}
            for found in self.prepared[1]:
                if found.others == others:
                    return found.graph
        return use_views(use_vector_unit(graph, decision), decision)

    def grid_ns(self, operator: Filter, parts: Parts, arch: Target, after: Following, grid: LineGrid) -> float:
        """Returns the working time of the busiest core of a grid for a sample."""
        place = *layer_shape(operator, parts, arch, after), grid
        if place not in self.grids_ns:
            self.grids_ns[place] = grid_ns(operator, parts, arch, after, grid)
        return self.grids_ns[place]


def layer_plans(
    graph: Graph, arch: Target, knobs: Knobs, without: Container[str] = (), known: Known | None = None
) -> dict[str, list[Plan]]:
    """Returns every plan of each layer that can be computed by line, by the key of the layer; of some layers none.

    `known`: plans that were made before; those that are made now are added.
    """
    known = known or Known()
    parts = line_parts(graph, arch.xbar_rows)
    after = following(graph, arch)
    found: dict[str, list[Plan]] = {}
    for node in graph.nodes:
        if node.output in without:
            continue
        if isinstance(node.operator, Filter) and runs_by_line(graph, node, node.operator, parts, arch.xbar_rows):
            chip = layer_target(graph, node, arch)
            more = after.get(filter_key(node), NOTHING)
            # A line is cut into no more pieces than there are cores.
            pieces = min(arch.usable_cores, node.operator.window.out_dims[-1])
            place = *layer_shape(node.operator, parts[node.inputs[0]], chip, more), knobs, pieces
            if place not in known.plans:
                known.plans[place] = list(plans_of(node.operator, parts[node.inputs[0]], chip, more, knobs))
            if known.plans[place]:
                found[filter_key(node)] = known.plans[place]
    return found


def layer_shape(operator: Filter, parts: Parts, arch: Target, after: Following) -> tuple[object, ...]:
    """Returns all that plans of a layer and their times depend on, on one kind of core."""
    return operator.window, operator.weights.shape, operator.groups, parts, arch.widths, after.shape
