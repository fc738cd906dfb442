"""Small layers with one output pixel, as in squeeze-and-excitation, on cores of the layer by line before them.

Such a layer waits for the last line of the layer before, whose cores have then ended the sample. A core of its own
would work for a few us of each interval; EfficientNet-B0 on 200 cores has 16 of them.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping

from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.mapping.allocation.whole_layers import number_neighbourhoods, place_whole_layers, slowest_dense_ns
from raptor.mapping.decision import renumber_record
from raptor.mapping.modes.plan_choice import PlacedPlan
from raptor.mapping.modes.step_replication import WholeLayer
from raptor.target.arch import Target

GUEST_SHARE = 1 / 8
"""Largest time of small layers on the cores of another layer, relative to the slowest streamed layer.

On 200 cores of `bench`, the layers of squeeze-and-excitation of EfficientNet-B0 take 0.4 to 2 %.
"""


Placed = tuple[dict[str, WholeLayer], dict[str, PlacedPlan]]
"""Layers that do not stream, and the plans of the others, on cores."""


def host_small_layers(
    graph: Graph, arch: Target, by_line: Container[str], divide: Callable[[Mapping[str, int]], Placed | None]
) -> Placed | None:
    """Returns all layers on cores, small ones on cores of the layer by line before them.

    `divide`: (layers that do not stream, see `number_neighbourhoods`) -> these and the streamed layers on cores of
    their own, or None if the chip is too small. It gets those that are not small, or do not fit on cores of others.
    None if none is hosted, or if there are recurrent layers.
    """
    others, filters = number_neighbourhoods(graph, by_line), find_filters(graph)
    hosts = find_hosts(graph, by_line, others)
    while hosts:
        own = {key: number for key, number in others.items() if number not in hosts}
        divided = None if any(filters[key].key for key in own) else divide(own)
        if divided is None:
            return None
        whole, placed = divided
        hosted = {
            number: place_guests(graph, arch, {k: n for k, n in others.items() if n == number}, host, placed)
            for number, host in hosts.items()
        }
        if all(hosted.values()):
            return {key: layer for layers in (whole, *hosted.values()) for key, layer in layers.items()}, placed
        hosts = {number: host for number, host in hosts.items() if hosted[number]}
    return None


def find_hosts(graph: Graph, by_line: Container[str], layers: Mapping[str, int]) -> dict[int, str]:
    """Returns the neighbourhoods of layers with one output pixel, each with the layer by line that comes before.

    `layers`: see `number_neighbourhoods`. Those with recurrent layers, or before all layers by line, have none.
    """
    filters, found = find_filters(graph), dict[int, str]()
    long = {number for key, number in layers.items() if filters[key].key or filters[key].window.out_pixels > 1}
    before = None
    for key in filters:
        if key in by_line:
            before = key
        elif key in layers and before is not None and layers[key] not in long:
            found.setdefault(layers[key], before)
    return found


def place_guests(
    graph: Graph, arch: Target, guests: Mapping[str, int], host: str, placed: Mapping[str, PlacedPlan]
) -> dict[str, WholeLayer]:
    """Returns the layers of a neighbourhood on cores of the layer `host`; empty if they are not small, or do not fit.

    Cores with most free crossbars are taken, the last one first. `guests`: see `number_neighbourhoods`. `placed`: all
    streamed layers, whose crossbars are taken.
    """
    taken = Counter[int]()
    for each in placed.values():
        taken.update(dict.fromkeys(each.cores, each.plan.xbars))
    cores = sorted(placed[host].cores, key=lambda core: (taken[core], -core))
    free = arch.xbars_per_core - taken[cores[-1]]
    if free < 1:
        return {}
    found, count = place_whole_layers(graph, guests, arch.with_xbars_per_core(free), apart=True)
    slowest_ns = max(each.plan.core_ns for each in placed.values())
    if count > len(cores) or slowest_dense_ns(graph, found, arch) > GUEST_SHARE * slowest_ns:
        return {}
    return {key: renumber_record(layer, cores.__getitem__) for key, layer in found.items()}
