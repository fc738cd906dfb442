"""Numbers the cores of a decision so that few flits cross the links between chips.

Core k is on chip `k // cores_per_chip`. Cores are numbered in the order in which the model uses them, so an attention
lies between the layers before and after it. Chips begin where the cores exchange least; unused cores are left at the
ends of chips.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key, graph_tile_channels
from raptor.mapping.decision import Decision, LayerRecord, LineFlow, renumber_record
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.multichip.chip_traffic import sum_core_traffic
from raptor.target.arch import Target
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit

Floats = npt.NDArray[np.float64]
LineDecision = tuple[dict[str, LayerRecord], LineFlow]


def number_cores_by_use(graph: Graph, found: LineDecision, arch: Target) -> LineDecision:
    """Returns a decision with its cores renumbered for the chips of a target. `found`: the decision about `graph`."""
    order = {core: number for number, core in enumerate(dict.fromkeys(_cores(graph, *found)))}
    layers, flow = renumber_decision(found, order.__getitem__)
    works = find_line_work(graph, (layers, flow), arch)
    cut_flits = _cut_flits(sum_core_traffic(works, arch)[: len(order), : len(order)])
    places = np.zeros(len(order), np.int64)
    begins = find_chip_begins(cut_flits, arch.cores_per_chip, arch.chips)
    for chip, (first, last) in enumerate(pairwise([*begins, len(order)])):
        places[first:last] = chip * arch.cores_per_chip + np.arange(last - first)
    return renumber_decision((layers, flow), places.tolist().__getitem__)


def find_line_work(graph: Graph, found: LineDecision, arch: Target) -> list[NodeWork]:
    """Returns the evaluated work of layers and flow for a graph that has all rewrites."""
    layers, flow = found
    return decision_work(graph, Decision("rows", graph_tile_channels(graph, arch), flow, layers), arch)


def find_chip_begins(cut_flits: Sequence[float], cores_per_chip: int, chips: int) -> tuple[int, ...]:
    """Returns the first core of each chip: the choice with the least load of the busiest link, then of all links.

    Found by dynamic programming over the chips. `cut_flits`: [cores + 1], flits that the first k cores exchange with
    the other cores, for each k.
    """
    count = len(cut_flits) - 1
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, (0,))}
    for chip in range(1, chips):
        least, before = max(0, count - (chips - chip) * cores_per_chip), best
        best = {
            begin: min(
                (
                    max(before[first][0], cut_flits[begin]),
                    before[first][1] + cut_flits[begin],
                    (*before[first][2], begin),
                )
                for first in range(max(0, begin - cores_per_chip), begin + 1)
                if first in before
            )
            for begin in range(least, min(count, chip * cores_per_chip) + 1)
        }
    return min(way for first, way in best.items() if count <= first + cores_per_chip)[2]


def _cut_flits(exchanged: Floats) -> list[float]:
    """Returns [cores + 1]: the flits that the first k cores exchange with the other cores, for each k."""
    both = exchanged + exchanged.T
    with_later, with_earlier = np.triu(both).sum(axis=1), np.tril(both).sum(axis=1)
    # Rounded, so that the order of additions, which depends on the machine, decides nothing.
    return [0.0, *np.cumsum(with_later - with_earlier).round(6).tolist()]


def renumber_decision(found: LineDecision, number: Callable[[int], int]) -> LineDecision:
    """Returns a decision in which core k is `number(k)`."""
    layers, flow = found
    loaders = {name: tuple((cols, number(core)) for cols, core in pairs) for name, pairs in flow.loaders.items()}
    products = {name: renumber_record(grid, number) for name, grid in flow.products.items()}
    others = {
        k: v if isinstance(v, OnVectorUnit | JoinedLayer) else renumber_record(v, number) for k, v in layers.items()
    }
    return others, replace(flow, loaders=loaders, products=products)


def _cores(graph: Graph, layers: Mapping[str, LayerRecord], flow: LineFlow) -> Iterator[int]:
    """Yields the cores of loaders, layers and products in the order of the graph, some of them several times."""
    for pairs in flow.loaders.values():
        yield from (core for _, core in pairs)
    for node in graph.nodes:
        key = filter_key(node) if isinstance(node.operator, Filter) else ""
        layer = layers.get(key) or flow.products.get(node.output)
        if layer is not None and not isinstance(layer, OnVectorUnit | JoinedLayer):
            yield from layer.cores
