"""Copies of the weights of recurrent layers: the steps of a sample are shared out among cores, in the order of time.

Steps follow one another, so copies do not shorten a sample. But while a core works on the last steps of a sample, the
others begin the next ones. A copy needs crossbars of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from raptor.graph.ir import Filter, Graph
from raptor.mapping.decision import FullyConnected, KernelUnfolding, filter_key
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, mvmul_ns

Whole = KernelUnfolding | FullyConnected


@dataclass(frozen=True, slots=True)
class Steps:
    """Recurrent layers that are neighbours, such as the two directions of one, on the same or neighbouring cores.

    layers: with one copy. count: number of steps. sample_ns: time of all steps of a sample on the busiest core.
    """

    layers: Mapping[str, FullyConnected]
    count: int
    sample_ns: float

    @property
    def cores(self) -> list[int]:
        """The cores of one copy."""
        return sorted({core for layer in self.layers.values() for core in layer.cores})

    def core_ns(self, copies: int) -> float:
        """Returns the working time of a core for a sample."""
        return self.sample_ns / self.count * -(-self.count // copies)

    def more(self, copies: int) -> int | None:
        """Returns the next number of copies that takes less time; None if there is none."""
        return next((c for c in range(copies + 1, self.count + 1) if self.core_ns(c) < self.core_ns(copies)), None)

    def copied(self, copies: int, first: int) -> dict[str, FullyConnected]:
        """Returns the layers with so many copies; the cores of all but the first copy are counted from `first`."""
        own = self.cores
        return {
            key: replace(
                layer,
                cores=layer.cores
                + tuple(first + k * len(own) + own.index(core) for k in range(copies - 1) for core in layer.cores),
            )
            for key, layer in self.layers.items()
        }


def recurrent_steps(
    graph: Graph, layers: Mapping[str, Whole], apart: Mapping[str, int], after_ns: Mapping[str, float], arch: Target
) -> Iterator[Steps]:
    """Yields the recurrent layers among `layers`, neighbours together.

    apart: a number for each layer, equal for neighbours. after_ns: by layer, time of what follows it, for all steps.
    """
    counts = Counter(filter_key(node) for node in graph.nodes if isinstance(node.operator, Filter))
    for number in dict.fromkeys(apart.values()):
        found = {
            key: layer
            for key, layer in layers.items()
            if apart[key] == number and counts[key] > 1 and isinstance(layer, FullyConnected)
        }
        if found:
            count = max(counts[key] for key in found)
            each = (counts[key] * _step_ns(layer, arch) + after_ns.get(key, 0.0) for key, layer in found.items())
            yield Steps(found, count, sum(each))


def _step_ns(layer: FullyConnected, arch: Target) -> float:
    """Returns the time of the products of one step, on the busiest core."""
    busy_ns: defaultdict[int, float] = defaultdict(float)
    for matrix, core in zip(layer.matrices, layer.cores, strict=True):
        busy_ns[core] += mvmul_ns(arch, matrix.xbars) + ISSUE_NS
    return max(busy_ns.values())
