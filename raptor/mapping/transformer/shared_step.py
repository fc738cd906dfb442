"""Layers of one token that share all cores: each is cut into row groups and column groups, a core for each of both.

A decoder whose layers do not fit on cores of their own has one session at work, so a layer may use cores of all others.
It multiplies in the time of a few products then: groups of rows multiply at the same time, and their sums are added as
a tree; a core has few matrices, each as wide as its group of columns. Inputs are passed on from core to core.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import find_filters, find_layer_nodes, layer_target
from raptor.mapping.decision import FullyConnected, Matrix, count_matrix_crossbars
from raptor.mapping.modes.dense_unfolding import unfold_dense
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_ns, mvmul_ns, vector_ns


@dataclass(frozen=True, slots=True)
class _StepLayer:
    """A layer of one token: its matrices of one output tile each are `rows` x `cols`.

    arch: the chip with the widths of the layer.
    """

    key: str
    operator: Filter
    rows: int
    cols: int
    arch: Target
    tile: int

    def time_ns(self, groups: int, width: int) -> float:
        """Returns the time in ns until all outputs are complete.

        groups: groups of rows, each on other cores. width: output tiles of a matrix.
        """
        tall, sums = -(-self.rows // groups), with_accumulators(self.arch)
        copies = -(-self.cols // width)
        message, added = message_ns(self.arch, self.tile), vector_ns(sums, self.tile, 2) + ISSUE_NS
        given = tall * message * copies.bit_length()
        products = tall * (mvmul_ns(self.arch, self.xbars(width)) + ISSUE_NS)
        own = (tall - 1) * (vector_ns(sums, width * self.tile, 2) + ISSUE_NS)
        met = max((groups - 1).bit_length(), (groups - 1) * width / groups)
        after = -(-width // groups) * added
        return given + products + own + met * (message_ns(sums, self.tile) + added) + after

    def xbars(self, width: int) -> int:
        """Returns the crossbars of a matrix of so many output tiles."""
        return -(-width * self.tile // self.arch.weight_columns(self.operator.weight_bits))

    def grids(self, cores: int) -> Iterator[tuple[float, int, int, int]]:
        """Yields (time in ns, cores, groups of rows, output tiles of a matrix) of each grid on up to `cores` cores."""
        for tall in dict.fromkeys(-(-self.rows // groups) for groups in range(1, self.rows + 1)):
            groups = -(-self.rows // tall)
            for width in dict.fromkeys(-(-self.cols // copies) for copies in range(1, self.cols + 1)):
                used = groups * -(-self.cols // width)
                if used <= cores:
                    yield self.time_ns(groups, width), used, groups, width


def share_layers(
    graph: Graph, keys: Sequence[str], held: Mapping[int, int], arch: Target, tile: int
) -> dict[str, FullyConnected] | None:
    """Returns records of the layers `keys`, each on cores of the whole chip; None if they do not fit.

    held: crossbars of the other layers on each core. Wide layers choose first, as they leave the fewest choices. A
    layer takes its fastest grid for which the cores with the most free crossbars suffice.
    """
    filters, nodes = find_filters(graph), find_layer_nodes(graph)
    free = {core: arch.xbars_per_core - held.get(core, 0) for core in range(arch.usable_cores)}
    layers: list[_StepLayer] = []
    for key in keys:
        chip = layer_target(graph, nodes[key], arch)
        narrow = list(unfold_dense(filters[key], chip, tile, 1))
        cols = len({matrix.cols for matrix in narrow})
        layers.append(_StepLayer(key, filters[key], -(-len(narrow) // cols), cols, chip, tile))
    found: dict[str, FullyConnected] = {}
    for layer in sorted(layers, key=lambda layer: -layer.rows * layer.cols):
        record = next(_fitting(layer, free), None)
        if record is None:
            return None
        found[layer.key] = record
        for core, xbars in count_matrix_crossbars(record.matrices, record.cores).items():
            free[core] -= xbars
    return found


def _fitting(layer: _StepLayer, free: Mapping[int, int]) -> Iterator[FullyConnected]:
    """Yields records of a layer that fit the free crossbars of the cores, the fastest one first."""
    order = sorted(free, key=lambda core: (-free[core], core))
    for _, _, groups, width in sorted(layer.grids(len(order))):
        matrices = tuple(unfold_dense(layer.operator, layer.arch, layer.tile, width))
        places = _grid_places(matrices, groups)
        needed = count_matrix_crossbars(matrices, places)
        if max(places) < len(order) and all(count <= free[order[place]] for place, count in needed.items()):
            yield FullyConnected(matrices, tuple(order[place] for place in places), trees=True)


def _grid_places(matrices: Sequence[Matrix], groups: int) -> list[int]:
    """Returns the number of the core of each matrix: those of the same outputs are divided among `groups` cores."""
    places: list[int] = []
    first, begin = 0, 0
    while begin < len(matrices):
        end = begin
        while end < len(matrices) and matrices[end].cols == matrices[begin].cols:
            end += 1
        tall = -(-(end - begin) // groups)
        places += [first + k // tall for k in range(end - begin)]
        first, begin = first + groups, end
    return places
