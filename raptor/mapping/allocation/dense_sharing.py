"""Core sharing by fully connected layers: they share cores with the layers by line that end before them.

They need many crossbars and little time. On cores of their own, they take crossbars from layers that need time. So they
are spread over more cores, with fewer crossbars on each, and layers by line use the crossbars that are left there. A
core that serves both is occupied by a sample from the first line of its layer by line to the last sum: for the time of
the slowest layer, plus the delay of the layers after it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters, graph_tile_channels
from raptor.mapping.allocation.core_division import (
    CoreDivision,
    CoreOption,
    OptionFronts,
    WholeLayer,
    plan_options,
    select_whole_layers,
)
from raptor.mapping.allocation.whole_layers import place_whole_layers, slowest_dense_ns
from raptor.mapping.modes.plan_choice import LayerPlan, front_within
from raptor.target.arch import Target

LEAST_SHARE = 1 / 16
"""Part of the cores above which fully connected layers share theirs; below, there is little to gain."""

LIMIT_COUNT = 16
"""Number of limits on the crossbars of a core that fully connected layers may take."""

LINE_DELAY = 2
"""Output lines of a layer by line for which it runs longer than the layer that it reads: a window of 3x3 waits for the
line below."""


@dataclass(frozen=True, slots=True)
class DensePlacement:
    """Fully connected layers, placed on cores that are numbered from 0, with at most `limit` crossbars on each core.

    `cores`: number of cores. `slowest_ns`: largest time in ns that a core works for these layers in a sample.
    """

    limit: int
    layers: Mapping[str, WholeLayer]
    cores: int
    slowest_ns: float


DensePlacements = Callable[[tuple[str, ...]], Sequence[DensePlacement]]
"""(keys of fully connected layers) -> their placements, from few cores to many (`place_dense_layers`)."""


def place_dense_layers(graph: Graph, keys: Sequence[str], arch: Target) -> Iterator[DensePlacement]:
    """Yields placements of fully connected layers, each with fewer crossbars on a core and more cores than the last.

    A placement has enough crossbars on a core for a matrix as wide as a tile.
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
    """Returns the division whose busiest core works least, of those in which fully connected layers share cores.

    The neighbourhood of fully connected layers with the most cores shares these with the last layer by line before it,
    with the last two, and so on; each such division is compared. `apart`: the division without shared cores, which is
    returned if none is better. `plans`: of layers by line. `placements`: see `DensePlacements`. `cores`: available
    cores.
    """
    taken = [option.cores if _is_dense(graph, option, arch) else 0 for option in apart.chosen_options]
    if max(taken, default=0) < LEAST_SHARE * arch.usable_cores:
        return apart
    alone, found = apart.fronts[taken.index(max(taken))], [apart]
    order = [*find_filters(graph)]
    keys = sorted(alone[0].whole, key=order.index)
    before = [key for key in order[: order.index(keys[0])] if key in plans]
    placed = placements(tuple(keys))
    left = [arch.xbars_per_core - dense.limit for dense in placed]
    fronts = {key: [plan_options(key, front_within(plans[key], xbars)) for xbars in left] for key in before}
    for first in reversed(range(len(before))):
        late = before[first:]
        shared = [*_shared_options(graph, placed, [*zip(*(fronts[key] for key in late), strict=True)])]
        if not shared:
            break
        others = [front for front in apart.fronts if front is not alone and not front[0].plans.keys() & {*late}]
        division = CoreDivision.with_fewest_cores([*others, shared])
        if division.cores <= cores:
            found.append(division.grown(cores))
    return min(found, key=lambda division: division.slowest_ns)


def _is_dense(graph: Graph, option: CoreOption, arch: Target) -> bool:
    """Checks whether an option has fully connected layers, but no recurrent ones."""
    return slowest_dense_ns(graph, select_whole_layers(option.whole), arch) > 0


def _shared_options(
    graph: Graph, placements: Sequence[DensePlacement], fronts: Sequence[OptionFronts]
) -> Iterator[CoreOption]:
    """Yields options of fully connected layers and the layers by line before them, with more cores and less work each.

    The cores of a placement are divided among the layers by line. `fronts`: for each placement, the options of these
    layers with the crossbars that the placement leaves on a core.
    """
    filters, least_ns = find_filters(graph), math.inf
    for dense, options in zip(placements, fronts, strict=True):
        division = CoreDivision.with_fewest_cores(options) if all(options) else None
        if division is None or division.cores > dense.cores:
            continue
        _, placed = division.grown(dense.cores).placed()
        delays_ns = [own.plan.core_ns / filters[key].window.out_lines for key, own in placed.items()]
        lines_ns = max(own.plan.core_ns for own in placed.values()) + LINE_DELAY * sum(delays_ns)
        if lines_ns + dense.slowest_ns < least_ns:
            least_ns = lines_ns + dense.slowest_ns
            yield CoreOption(dense.cores, least_ns, placed, dense.layers)
