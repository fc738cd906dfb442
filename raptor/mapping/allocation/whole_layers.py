"""Layers that do not stream: their neighbourhoods, their cores, and the load of a core by fully connected ones."""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import find_filters, find_layer_nodes, graph_tile_channels, is_dense, layer_target
from raptor.mapping.allocation.core_division import CoreOption, WholeLayer
from raptor.mapping.decision import FullyConnected, KernelUnfolding
from raptor.mapping.modes.dense_unfolding import choose_dense_matrices, dense_latency_ns, spread_matrices
from raptor.mapping.modes.kernel_unfolding import fill_cores, unfold_kernel
from raptor.mapping.modes.step_replication import RecurrentSteps, find_recurrent_steps, find_relay_steps
from raptor.target.arch import Target

FASTER = 0.8
"""Largest load of the busiest core of fully connected layers that get more cores, relative to the load before."""


def number_neighbourhoods(graph: Graph, by_line: Container[str]) -> dict[str, int]:
    """Returns the layers that do not stream, each with the number of its neighbourhood.

    Neighbourhoods are separated by layers `by_line`, and recurrent layers, whose steps take long, from others.
    """
    found: dict[str, int] = {}
    number, recurrent = 0, False
    for key, filter_ in find_filters(graph).items():
        if key in by_line or recurrent != bool(filter_.key):
            number, recurrent = number + 1, bool(filter_.key)
        if key not in by_line:
            found[key] = number
    return found


def whole_options(
    graph: Graph, numbers: Mapping[str, int], after_ns: Mapping[str, float], arch: Target, weight: float
) -> tuple[list[list[CoreOption]], float]:
    """Returns the options of each neighbourhood of layers that do not stream, and of relays for recurrent layers.

    Also returns the longest step of a recurrent layer, in ns. With more cores, fully connected layers are spread, and
    the steps of recurrent layers divided among more copies. `numbers`: see `number_neighbourhoods`. `after_ns`: time of
    each layer's epilogue. `weight`: factor on the work of fully connected layers, which delays a sample as a whole.
    """
    found: list[list[CoreOption]] = []
    neighbourhoods: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for key, number in numbers.items():
        neighbourhoods[number][key] = number
    recurrent: list[RecurrentSteps] = []
    for layers in neighbourhoods.values():
        whole, cores = place_whole_layers(graph, layers, arch, apart=True)
        steps = find_recurrent_steps(graph, whole, after_ns, arch)
        if steps is None:
            found.append([*_spread_options(graph, layers, arch, weight)])
        else:
            recurrent.append(steps)
            found.append([*_copied_options(steps, whole, cores, arch)])
    relays = find_relay_steps(graph, recurrent) if recurrent else None
    if relays is not None:
        found.append([*_copied_options(relays, {}, 0, arch)])
    return found, max((steps.step_ns for steps in recurrent), default=0.0)


def _copied_options(
    steps: RecurrentSteps, whole: Mapping[str, WholeLayer], cores: int, arch: Target
) -> Iterator[CoreOption]:
    """Yields options with more and more copies of recurrent layers. `whole`: a neighbourhood with one copy of them."""
    for copies in steps.copies():
        taken = cores + (copies - 1) * len(steps.cores)
        if copies > 1 and taken > arch.usable_cores:
            return
        yield CoreOption(taken, steps.core_ns(copies), whole={**whole, **steps.copy_layers(copies, cores)})


def _spread_options(graph: Graph, layers: Mapping[str, int], arch: Target, weight: float) -> Iterator[CoreOption]:
    """Yields options in which fully connected layers are spread over more and more cores."""
    whole, cores = place_whole_layers(graph, layers, arch, apart=True)
    slowest_ns = slowest_dense_ns(graph, whole, arch)
    yield CoreOption(cores, weight * slowest_ns, whole=whole)
    while slowest_ns > 0:
        limit_ns, before_ns = FASTER * slowest_ns, slowest_ns
        whole, cores = place_whole_layers(graph, layers, arch, apart=True, limit_ns=limit_ns)
        slowest_ns = slowest_dense_ns(graph, whole, arch)
        if slowest_ns >= before_ns or cores > arch.usable_cores:
            return
        yield CoreOption(cores, weight * slowest_ns, whole=whole)


def place_whole_layers(
    graph: Graph, layers: Mapping[str, int], arch: Target, *, apart: bool, limit_ns: float = math.inf
) -> tuple[dict[str, WholeLayer], int]:
    """Puts layers that do not stream on cores, one after another from core 0. Returns them, and their number of cores.

    `layers`: see `number_neighbourhoods`. If `apart`, only layers of one neighbourhood share a core: a core is occupied
    from its first to its last work of a sample, and can begin the next sample only then. Fully connected layers that
    load a core by more than `limit_ns` are spread over more cores.
    """
    found: dict[str, WholeLayer] = {}
    busy_ns = Counter[int]()
    core, free, tile = -1, 0, graph_tile_channels(graph, arch)
    filters, nodes = find_filters(graph), find_layer_nodes(graph)
    numbers = [*layers.values()]
    for i, key in enumerate(layers):
        if apart and i and numbers[i] != numbers[i - 1]:
            free = 0
        filter_ = filters[key]
        wide, chip = is_dense(filter_), layer_target(graph, nodes[key], arch)
        matrices = (
            choose_dense_matrices(filter_, chip, tile, core, free) if wide else unfold_kernel(filter_, chip, tile)
        )
        matrices = tuple(matrices)
        before = core
        cores, (core, free) = fill_cores(matrices, core, free, arch)
        if limit_ns < math.inf and _is_at_once(filter_):
            if max(busy_ns[c] for c in cores) + dense_latency_ns(matrices, cores, chip, tile) > limit_ns:
                spread = spread_matrices(matrices, before + 1, len(matrices), chip, tile, limit_ns) if wide else None
                if spread is not None:
                    cores, core, free = spread, spread[-1], 0
                else:
                    cores, (core, free) = fill_cores(matrices, before, 0, arch)
            busy_ns.update(dict.fromkeys(cores, dense_latency_ns(matrices, cores, chip, tile)))
        found[key] = FullyConnected(matrices, cores) if wide else KernelUnfolding(matrices, cores)
    return found, core + 1


def slowest_dense_ns(graph: Graph, layers: Mapping[str, WholeLayer], arch: Target) -> float:
    """Returns the largest load in ns of a core by fully connected layers."""
    tile, nodes, filters, busy_ns = (
        graph_tile_channels(graph, arch),
        find_layer_nodes(graph),
        find_filters(graph),
        Counter[int](),
    )
    for key, layer in layers.items():
        if _is_at_once(filters[key]):
            own_ns = dense_latency_ns(layer.matrices, layer.cores, layer_target(graph, nodes[key], arch), tile)
            busy_ns.update(dict.fromkeys(layer.cores, own_ns))
    return max(busy_ns.values(), default=0.0)


def _is_at_once(filter_: Filter) -> bool:
    """True if a layer has one output pixel and is not recurrent."""
    return filter_.window.out_pixels == 1 and not filter_.key
