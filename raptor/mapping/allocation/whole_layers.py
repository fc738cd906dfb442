"""Layers that do not stream: their neighbourhoods, their cores, and the load of a core by fully connected ones."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import find_filters, find_layer_nodes, graph_tile_channels, is_dense, layer_target
from raptor.mapping.decision import FullyConnected, KernelUnfolding, renumber_record
from raptor.mapping.modes.dense_unfolding import choose_dense_matrices, dense_latency_ns, spread_matrices
from raptor.mapping.modes.kernel_unfolding import fill_cores, unfold_kernel
from raptor.mapping.modes.step_replication import WholeLayer
from raptor.target.arch import Target


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


@dataclass(frozen=True, slots=True)
class SpareCores:
    """Additional cores, over which fully connected layers that load a core by more than `most_ns` are spread."""

    cores: int
    most_ns: float


def place_whole_layers(
    graph: Graph, layers: Mapping[str, int], arch: Target, *, apart: bool, spare: SpareCores | None = None
) -> tuple[dict[str, WholeLayer], int]:
    """Puts layers that do not stream on cores, one after another from core 0. Returns them, and their number of cores.

    `layers`: see `number_neighbourhoods`. If `apart`, only layers of one neighbourhood share a core: a core is occupied
    from its first to its last work of a sample, and can begin the next sample only then. `spare`: see `SpareCores`.
    """
    left = 0 if spare is None else spare.cores
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
        if spare is not None and _is_at_once(filter_):
            if left and max(busy_ns[c] for c in cores) + dense_latency_ns(matrices, cores, chip, tile) > spare.most_ns:
                most = left + core - before
                spread = spread_matrices(matrices, before + 1, most, chip, tile) if wide else None
                if spread is not None:
                    cores, core, free = spread, spread[-1], 0
                elif not wide:
                    cores, (core, free) = fill_cores(matrices, before, 0, arch)
                left = most - (core - before)
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


def renumber_layers(layers: dict[str, WholeLayer], first: int) -> dict[str, WholeLayer]:
    """Returns layers whose cores have numbers larger by `first`."""
    return {key: renumber_record(layer, first.__add__) for key, layer in layers.items()}
