"""Core sharing by pairs: a layer and the layer that reads it work at nearly the same time, so they may share cores.

A layer may leave its cores idle: it has so few outputs that one core is more than it needs, or it needs many cores for
its crossbars. Two neighbours on the same cores fill them, and a sample occupies these hardly longer than for one layer.
Distant layers would occupy them much longer: a core is occupied from its first work of a sample to its last.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key
from raptor.mapping.allocation.core_division import CoreDivision, CoreOption, OptionFronts
from raptor.mapping.modes.plan_choice import LayerPlan

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WORTH_SHARING = 0.99
"""Largest load of the busiest core with shared cores, relative to the load without, for pairs to share: they wait more.

A DenseNet on 32 pixels and 500 cores, with 22 pairs for a gain of 0.1 %, had a 5 % longer interval.
"""


def share_in_pairs(
    graph: Graph, plans: Mapping[str, Sequence[LayerPlan]], apart: CoreDivision, cores: int, xbars: int, factor: float
) -> CoreDivision:
    """Returns the division in which neighbours share cores, if that lowers the largest load enough (`WORTH_SHARING`).

    Searches, by bisection, for the least limit on the load of a core with which the units fit on `cores` cores of
    `xbars` crossbars each; then spare cores are given to the slowest. `apart`: the division without shared cores, which
    is returned otherwise. `plans`: of layers by line and inputs. `factor`: assumed load of a pair relative to its work,
    because its layers wait for others at different times.
    """
    read = layer_predecessors(graph)
    keys = ["".join(option.plans) if len(option.plans) == 1 else "" for option in apart.chosen_options]
    pairs = {
        i + 1: _pair_options(a, b, plans, xbars, factor)
        for i, (a, b) in enumerate(pairwise(keys))
        if a in read.get(b, ()) and read[b] <= plans.keys()
    }
    most_ns = WORTH_SHARING * apart.slowest_ns
    fronts = (*apart.fronts, *pairs.values())
    limits = sorted({option.core_ns for front in fronts for option in front if option.core_ns <= most_ns})

    def fits(limit_ns: float) -> bool:
        found = _fewest_cores(apart.fronts, pairs, limit_ns)
        return found is not None and found.cores <= cores

    i = bisect_left(limits, True, key=fits)
    found = _fewest_cores(apart.fronts, pairs, limits[i]) if i < len(limits) else None
    return apart if found is None else found.grown(cores)


def layer_predecessors(graph: Graph) -> dict[str, frozenset[str]]:
    """Returns the predecessors of each layer, by key: layers whose results it reads with no other layer in between."""
    makers: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        read = frozenset[str]().union(*(makers.get(name, frozenset()) for name in node.inputs))
        if isinstance(node.operator, Filter):
            found[filter_key(node)], read = read, frozenset([filter_key(node)])
        makers[node.output] = read
    return found


def _pair_options(
    a: str, b: str, plans: Mapping[str, Sequence[LayerPlan]], xbars: int, factor: float
) -> list[CoreOption]:
    """Returns the Pareto front of options of two layers on the same cores, with one copy of each matrix."""
    firsts, seconds = ([*_least_crossbars(plans[key])] for key in (a, b))
    (cores_a, ns_a, xbars_a), (cores_b, ns_b, xbars_b) = map(_columns, (firsts, seconds))
    i, j = np.nonzero(xbars_a[:, None] + xbars_b <= xbars)
    cores, core_ns = np.maximum(cores_a[i], cores_b[j]), factor * (ns_a[i] + ns_b[j])
    order = np.lexsort((core_ns, cores))  # for each number of cores, the fastest pair comes first
    best = order[np.flatnonzero(np.diff(cores[order], prepend=-1))]
    quickest = best[np.flatnonzero(np.diff(np.minimum.accumulate(core_ns[best]), prepend=np.inf) < 0)]
    return [
        CoreOption(
            int(cores[k]),
            float(core_ns[k]),
            {key: own.with_one_copy().on_first_cores() for key, own in ((a, firsts[i[k]]), (b, seconds[j[k]]))},
        )
        for k in quickest
    ]


def _columns(plans: Sequence[LayerPlan]) -> tuple[Ints, Floats, Ints]:
    """Returns cores, work in ns and crossbars of plans."""
    cores, xbars = ([plan.cores for plan in plans], [plan.xbars for plan in plans])
    return np.array(cores, np.int64), np.array([plan.core_ns for plan in plans]), np.array(xbars, np.int64)


def _least_crossbars(plans: Sequence[LayerPlan]) -> Iterator[LayerPlan]:
    """Yields, for each number of cores, the Pareto front of plans in crossbars and time."""
    cores, least_ns = -1, 0.0
    for plan in sorted(plans, key=lambda p: (p.cores, p.xbars, p.core_ns)):
        if plan.cores != cores or plan.core_ns < least_ns:
            cores, least_ns = plan.cores, plan.core_ns
            yield plan


def _fewest_cores(
    fronts: OptionFronts, pairs: Mapping[int, Sequence[CoreOption]], limit_ns: float
) -> CoreDivision | None:
    """Returns the division with the fewest cores in which no load exceeds a limit; None if there is none.

    Dynamic programming over the units in order: the last one is alone, or paired with the one before it. `pairs`:
    options of a unit together with the one before it, by its index.
    """
    best: list[tuple[int, tuple[tuple[Sequence[CoreOption], int], ...]] | None] = [(0, ())]
    for i, alone in enumerate(fronts):
        ends = [(best[i], alone), *([(best[i - 1], pairs[i])] if i in pairs else ())]
        found: list[tuple[int, tuple[tuple[Sequence[CoreOption], int], ...]]] = []
        for before, front in ends:
            at = next((j for j, option in enumerate(front) if option.core_ns <= limit_ns), None)
            if before is not None and at is not None:
                found.append((before[0] + front[at].cores, (*before[1], (front, at))))
        best.append(min(found, key=lambda f: f[0], default=None))
    last = best[-1]
    return None if last is None else CoreDivision([front for front, _ in last[1]], [at for _, at in last[1]])
