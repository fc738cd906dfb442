"""The reference strategy: the mapping of the thesis."""

from collections.abc import Mapping

from raptor.common.errors import CapacityError
from raptor.common.option_spelling import spell_option
from raptor.graph.ir import Graph, Node
from raptor.graph.layers import find_filters, find_layer_nodes, graph_tile_channels
from raptor.mapping.decision import Decision, KernelUnfolding, TileFlow
from raptor.mapping.modes.kernel_unfolding import fill_cores, unfold_kernel
from raptor.target.arch import Target


def map_raptor(graph: Graph, arch: Target) -> Decision:
    """Returns the baseline: kernel unfolding, one replica, cores filled in order, layers one by one (thesis, 4.4).

    Raises `CapacityError` if the chip has too few crossbars or cores.
    """
    tile = graph_tile_channels(graph, arch)
    layers, cores = _fill(graph, arch, tile)
    if cores > arch.usable_cores:
        raise _too_small(graph, layers, arch, cores)
    return Decision("raptor", tile, TileFlow(), layers)


def _fill(graph: Graph, arch: Target, tile: int) -> tuple[dict[str, KernelUnfolding], int]:
    """Fills cores with the matrices of all layers in order. Returns the layers, and the number of cores in use."""
    layers: dict[str, KernelUnfolding] = {}
    core, free = 0, arch.xbars_per_core
    for key, filter_ in find_filters(graph).items():
        matrices = tuple(unfold_kernel(filter_, arch, tile))
        cores, (core, free) = fill_cores(matrices, core, free, arch)
        layers[key] = KernelUnfolding(matrices, cores)
    return layers, core + 1


def _too_small(graph: Graph, layers: Mapping[str, KernelUnfolding], arch: Target, cores: int) -> CapacityError:
    """Makes the error for a model that needs more cores than the chip has, with remedies."""
    weighted = find_layer_nodes(graph)
    first_out = next(weighted[key] for key, layer in layers.items() if layer.cores[-1] >= arch.usable_cores)
    needed = sum(m.xbars for layer in layers.values() for m in layer.matrices)
    return CapacityError(
        "cores",
        cores,
        arch.usable_cores,
        where=f"{needed} crossbars of {arch.xbar_rows}x{arch.xbar_cols}, {arch.xbars_per_core} a core, "
        f"full at layer {_label(first_out)}",
        levers=(
            spell_option("cores", cores),
            spell_option("xbars_per_core", _enough_xbars(graph, arch)),
            f"larger crossbars ({spell_option('xbar')})",
        ),
        crossbars=needed,
    )


def _enough_xbars(graph: Graph, arch: Target) -> int:
    """Finds a number of crossbars per core, not always the smallest, with which all layers fit the chip's cores."""
    count = arch.xbars_per_core
    while True:
        count += (count + 3) // 4
        larger = arch.with_xbars_per_core(count)
        if _fill(graph, larger, graph_tile_channels(graph, larger))[1] <= arch.usable_cores:
            return count


def _label(node: Node) -> str:
    return f"{node.name} ({node.op_type})"
