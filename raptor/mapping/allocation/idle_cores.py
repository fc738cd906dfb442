"""Decisions in which a layer on the core with most work has idle cores, too.

`place_whole_layers` fills cores one after another, so that its layers take few of those that others need. Where cores
are left, as for a perceptron or the classifier of a small network, a layer that does not stream can be on more cores.
How many are best depends on what the cores receive and send, so all are evaluated.
"""

from collections.abc import Iterator
from dataclasses import replace

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import find_filters, find_layer_nodes, layer_target
from raptor.mapping.decision import Decision, FullyConnected, KernelUnfolding, LayerRecord, record_cores
from raptor.mapping.modes.dense_unfolding import unfold_dense
from raptor.target.arch import Target


def relieve_core(graph: Graph, decision: Decision, arch: Target, core: int) -> Iterator[Decision]:
    """Yields decisions in which a layer that does not stream has idle cores in place of, or beside, `core`.

    The graph has all rewrites. A layer that shares the core with others leaves it; a fully connected layer is cut into
    more matrices, which more cores multiply at the same time.
    """
    filters, sharing = (
        find_filters(graph),
        [key for key, layer in decision.layers.items() if core in record_cores(layer)],
    )
    for key in sharing:
        layer, free = decision.layers[key], _free_cores(decision, arch, key)
        idle = [each for each in free if each not in record_cores(layer)]
        if isinstance(layer, FullyConnected | KernelUnfolding) and idle:
            if len(sharing) > 1:
                yield _with_layer(decision, key, _exchange_core(layer, core, idle[0]))
            if isinstance(layer, FullyConnected) and not filters[key].key:
                for wider in _cut_finer(graph, key, filters[key], layer, decision.tile, arch, free):
                    yield _with_layer(decision, key, wider)


def _free_cores(decision: Decision, arch: Target, key: str) -> list[int]:
    """Returns the cores of the chip on which nothing but layer `key` has work: its own, then idle ones."""
    others = {other: layer for other, layer in decision.layers.items() if other != key}
    own, busy = record_cores(decision.layers[key]), {*replace(decision, layers=others).cores}
    return [core for core in dict.fromkeys([*own, *range(arch.usable_cores)]) if core not in busy]


def _with_layer(decision: Decision, key: str, layer: LayerRecord) -> Decision:
    return replace(decision, layers={**decision.layers, key: layer})


def _exchange_core(layer: FullyConnected | KernelUnfolding, core: int, to: int) -> LayerRecord:
    """Returns the record of a layer whose matrices on `core` are on the core `to`."""
    return replace(layer, cores=tuple(to if each == core else each for each in layer.cores))


def _cut_finer(
    graph: Graph, key: str, filter_: Filter, layer: FullyConnected, tile: int, arch: Target, free: list[int]
) -> Iterator[FullyConnected]:
    """Yields records of a layer on more of the cores `free`, by output tiles of a matrix, and matrices of a core."""
    chip = layer_target(graph, find_layer_nodes(graph)[key], arch)
    widest = max(-(-(m.cols[1] - m.cols[0]) // tile) for m in layer.matrices)
    for tiles in (1 << n for n in range(widest.bit_length())):
        matrices = tuple(unfold_dense(filter_, chip, tile, tiles))
        for each in (1 << n for n in range(len(matrices).bit_length())):
            taken = -(-len(matrices) // each)
            if (
                len({*layer.cores}) < taken <= len(free)
                and max(each * m.xbars for m in matrices) <= arch.xbars_per_core
            ):
                cores = tuple(free[i // each] for i in range(len(matrices)))
                yield FullyConnected(matrices, cores)
                yield FullyConnected(matrices, cores, trees=True)
