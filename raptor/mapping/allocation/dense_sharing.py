"""Core sharing by fully connected layers: they share cores with the layers by line that end before them.

They need many crossbars and little time. On cores of their own, they take crossbars from layers that need time. So they
are spread over more cores, with fewer crossbars on each, and layers by line use the crossbars that are left there. A
core that serves both is occupied by a sample from the first line of its layer by line to the last sum: for the time of
the slowest layer, plus the delay of the layers after it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.mapping.allocation.core_division import CoreDivision, CoreOption, WholeLayer, plan_options
from raptor.mapping.allocation.whole_layers import place_whole_layers, slowest_dense_ns
from raptor.mapping.decision import DotGrid
from raptor.mapping.modes.plan_choice import LayerPlan, front_within
from raptor.target.arch import Target

LEAST_SHARE = 1 / 16
"""Part of the cores above which fully connected layers share theirs; below, there is little to gain."""

LIMIT_COUNT = 16
"""Number of limits on the crossbars of a core that fully connected layers may take."""

LINE_DELAY = 2
"""Delay of a layer after the layer before it, in its own lines: a window of 3x3 waits for the next line."""


def share_with_dense(
    graph: Graph, plans: Mapping[str, Sequence[LayerPlan]], apart: CoreDivision, arch: Target, cores: int
) -> CoreDivision:
    """Returns the division with the least load in which layers by line share cores with fully connected layers.

    These are the neighbourhood of layers that do not stream with the most cores; one after another, the layers by line
    before them share their cores, the last one first. `apart`: the division without shared cores, which is returned if
    none is better. `plans`: of layers by line, in the order of the graph. `cores`: available cores.
    """
    found = [apart]
    taken = [o.cores if _is_dense(graph, o, arch) else 0 for o in apart.chosen_options]
    most = max(taken, default=0)
    if most >= LEAST_SHARE * arch.usable_cores:
        dense = apart.fronts[taken.index(most)]
        order = [*find_filters(graph)]
        end = min(order.index(key) for key in dense[0].whole)
        before = [key for key in order[:end] if key in plans]
        for count in range(1, len(before) + 1):
            late = before[len(before) - count :]
            shared = [*_shared_options(graph, {key: plans[key] for key in late}, [*dense[0].whole], arch)]
            if not shared:
                break
            alone = [front for front in apart.fronts if front is not dense and not front[0].plans.keys() & {*late}]
            division = CoreDivision.with_fewest_cores([*alone, shared])
            if division.cores <= cores:
                found.append(division.grown(cores))
    return min(found, key=lambda division: division.slowest_ns)


def _is_dense(graph: Graph, option: CoreOption, arch: Target) -> bool:
    """True if an option is one of fully connected layers, which are not recurrent."""
    return slowest_dense_ns(graph, _whole_layers(option), arch) > 0


def _whole_layers(option: CoreOption) -> dict[str, WholeLayer]:
    return {key: layer for key, layer in option.whole.items() if not isinstance(layer, DotGrid)}


def _shared_options(
    graph: Graph, late: Mapping[str, Sequence[LayerPlan]], dense: Sequence[str], arch: Target
) -> Iterator[CoreOption]:
    """Yields options with more and more cores, and less and less work, for fully connected layers and those before.

    The cores are divided among the layers `late`; each core has some crossbars of the layers `dense`, too.
    """
    filters, least_ns = find_filters(graph), math.inf
    for step in range(LIMIT_COUNT - 1, 0, -1):
        limit = arch.xbars_per_core * step // LIMIT_COUNT
        whole, cores = place_whole_layers(graph, dict.fromkeys(dense, 0), arch.with_xbars_per_core(limit), apart=True)
        if cores > arch.usable_cores or any(m.xbars > limit for layer in whole.values() for m in layer.matrices):
            return
        fronts = [plan_options(key, front_within(plans, arch.xbars_per_core - limit)) for key, plans in late.items()]
        division = CoreDivision.with_fewest_cores(fronts if all(fronts) else [])
        if not division.fronts or division.cores > cores:
            continue
        _, placed = division.grown(cores).placed()
        delays_ns = [own.plan.core_ns / filters[key].window.out_lines for key, own in placed.items()]
        lines_ns = max(own.plan.core_ns for own in placed.values()) + LINE_DELAY * sum(delays_ns)
        core_ns = lines_ns + slowest_dense_ns(graph, whole, arch)
        if core_ns < least_ns:
            least_ns = core_ns
            yield CoreOption(cores, core_ns, placed, whole)
