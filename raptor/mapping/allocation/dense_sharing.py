"""Core sharing by fully connected layers: they share cores with the layers by line that end before them.

They need many crossbars and little time. On cores of their own, they take crossbars from layers that need time. So they
are spread over more cores, with fewer crossbars on each, and layers by line use the crossbars that are left there. A
core that serves both is occupied by a sample from the first line of its layer by line to the last sum: for the time of
the slowest layer, plus the delay of the layers after it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters, graph_tile_channels
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


@dataclass(frozen=True, slots=True)
class DensePlacement:
    """Fully connected layers on cores from 0, with at most `limit` crossbars of each.

    `cores`: number of cores. `slowest_ns`: largest load in ns of a core by these layers.
    """

    limit: int
    layers: Mapping[str, WholeLayer]
    cores: int
    slowest_ns: float


DensePlacements = Callable[[tuple[str, ...]], Sequence[DensePlacement]]
"""(keys of fully connected layers) -> their placements, from few cores to many (`place_dense_layers`)."""


def place_dense_layers(graph: Graph, keys: Sequence[str], arch: Target) -> Iterator[DensePlacement]:
    """Yields placements of fully connected layers with fewer and fewer crossbars of a core, on more and more cores.

    A core has crossbars for a matrix of a whole tile at least.
    """
    filters, tile = find_filters(graph), graph_tile_channels(graph, arch)
    least = max(-(-tile // arch.weight_columns(filters[key].weight_bits)) for key in keys)
    limits = dict.fromkeys(arch.xbars_per_core * step // LIMIT_COUNT for step in range(LIMIT_COUNT - 1, 0, -1))
    for limit in (limit for limit in limits if limit >= least):
        layers, cores = place_whole_layers(graph, dict.fromkeys(keys, 0), arch.with_xbars_per_core(limit), apart=True)
        if cores > arch.usable_cores:
            return
        yield DensePlacement(limit, layers, cores, slowest_dense_ns(graph, layers, arch))


def share_with_dense(
    graph: Graph,
    plans: Mapping[str, Sequence[LayerPlan]],
    apart: CoreDivision,
    placements: DensePlacements,
    arch: Target,
    cores: int,
) -> CoreDivision:
    """Returns the division with the least load in which layers by line share cores with fully connected layers.

    These are the neighbourhood of layers that do not stream with the most cores; one after another, the layers by line
    before them share their cores, the last one first. `apart`: the division without shared cores, which is returned if
    none is better. `plans`: of layers by line. `placements`: see `DensePlacements`. `cores`: available cores.
    """
    taken = [option.cores if _is_dense(graph, option, arch) else 0 for option in apart.chosen_options]
    if max(taken, default=0) < LEAST_SHARE * arch.usable_cores:
        return apart
    dense, found = apart.fronts[taken.index(max(taken))], [apart]
    order = [*find_filters(graph)]
    keys = sorted(dense[0].whole, key=order.index)
    before = [key for key in order[: order.index(keys[0])] if key in plans]
    for first in reversed(range(len(before))):
        late = {key: plans[key] for key in before[first:]}
        shared = [*_shared_options(graph, late, placements(tuple(keys)), arch)]
        if not shared:
            break
        alone = [front for front in apart.fronts if front is not dense and not front[0].plans.keys() & late.keys()]
        division = CoreDivision.with_fewest_cores([*alone, shared])
        if division.cores <= cores:
            found.append(division.grown(cores))
    return min(found, key=lambda division: division.slowest_ns)


def _is_dense(graph: Graph, option: CoreOption, arch: Target) -> bool:
    """True if an option is one of fully connected layers, which are not recurrent."""
    layers = {key: layer for key, layer in option.whole.items() if not isinstance(layer, DotGrid)}
    return slowest_dense_ns(graph, layers, arch) > 0


def _shared_options(
    graph: Graph, late: Mapping[str, Sequence[LayerPlan]], placements: Iterable[DensePlacement], arch: Target
) -> Iterator[CoreOption]:
    """Yields options with more and more cores, and less and less work, for fully connected layers and those before.

    The cores are divided among the layers `late`; each core has some crossbars of the fully connected layers, too.
    """
    filters, least_ns = find_filters(graph), math.inf
    for dense in placements:
        left = arch.xbars_per_core - dense.limit
        fronts = [plan_options(key, front_within(plans, left)) for key, plans in late.items()]
        division = CoreDivision.with_fewest_cores(fronts) if all(fronts) else None
        if division is None or division.cores > dense.cores:
            continue
        _, placed = division.grown(dense.cores).placed()
        delays_ns = [own.plan.core_ns / filters[key].window.out_lines for key, own in placed.items()]
        lines_ns = max(own.plan.core_ns for own in placed.values()) + LINE_DELAY * sum(delays_ns)
        if lines_ns + dense.slowest_ns < least_ns:
            least_ns = lines_ns + dense.slowest_ns
            yield CoreOption(dense.cores, least_ns, placed, dense.layers)
