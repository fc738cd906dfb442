"""Matrices of a crossbar's size that are not all zeros, of layers whose channels may be in another order."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Graph, Node
from raptor.transforms.channels.channel_sets import find_channel_sets

Bools = npt.NDArray[np.bool_]


class WeightBlocks:
    """The weights of layers that are not 0, and the order of the channels of each set.

    `used`: by result of a layer, [input channels, output channels]. `tile`: rows and columns of a matrix.
    """

    def __init__(self, graph: Graph, tile: tuple[int, int]) -> None:
        self.tile, self.sets = tile, find_channel_sets(graph)
        self.layers = [n for n in graph.nodes if isinstance(n.operator, Filter) and n.operator.groups == 1]
        self.used = {node.output: _find_used(node) for node in self.layers}
        self.order = {name: np.arange(size) for name, size in self.sets.sizes.items()}
        self.around: dict[str, list[Node]] = {}
        for node in self.layers:
            for name in dict.fromkeys(map(self.sets.find, (node.inputs[0], node.output))):
                self.around.setdefault(name, []).append(node)
        self.free = [name for name in self.around if name not in self.sets.fixed]

    def have_zeros(self) -> bool:
        """True if a channel of a layer has no weight in some tile of the layer."""
        return any(
            not _by_tiles(used, self.tile[0], axis=0).all() or not _by_tiles(used, self.tile[1], axis=1).all()
            for used in self.used.values()
        )

    def improve(self, name: str) -> bool:
        """Sorts the channels of a set by the tiles that they use. Returns True if fewer matrices have weights."""
        old, before = self.order[name], self.count(name)
        uses = np.concatenate([*self.list_uses(name)], axis=1)
        self.order[name] = old[np.lexsort(~uses[old].T[::-1])]
        if self.count(name) < before:
            return True
        self.order[name] = old
        return False

    def list_uses(self, name: str) -> Iterator[Bools]:
        """Yields, for each layer around a set, which tiles [channels, tiles] on its other side a channel uses."""
        for node in self.around[name]:
            given, made = (self.sets.find(each) for each in (node.inputs[0], node.output))
            used = self.used[node.output]
            if made == name:
                yield _by_tiles(used[self.order[given]], self.tile[0], axis=0).T
            if given == name:
                yield _by_tiles(used[:, self.order[made]], self.tile[1], axis=1)

    def count(self, name: str) -> int:
        """Returns the number of matrices with weights of the layers around a set."""
        return sum(self._count(node) for node in self.around[name])

    def _count(self, node: Node) -> int:
        given, made = (self.order[self.sets.find(each)] for each in (node.inputs[0], node.output))
        rows = _by_tiles(self.used[node.output][given][:, made], self.tile[0], axis=0)
        return int(_by_tiles(rows, self.tile[1], axis=1).sum())


def _find_used(node: Node) -> Bools:
    assert isinstance(node.operator, Filter)
    return np.asarray(node.operator.weights.any(axis=0), np.bool_)


def _by_tiles(used: Bools, size: int, axis: int) -> Bools:
    """Returns, for tiles of `size` channels along an axis, whether one of them is used."""
    starts = np.arange(0, int(used.shape[axis]), size, dtype=np.int64)
    return np.logical_or.reduceat(used, starts, axis=axis)
