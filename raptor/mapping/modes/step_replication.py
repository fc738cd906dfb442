"""Replication of recurrent layers: the time steps of a sample are divided among copies of the weights.

Steps are sequential, so copies do not shorten a sample. But while one copy works on the last steps of a sample, others
begin the next samples. A copy needs crossbars of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.graph.ir import Elementwise, Filter, Graph, Move, Node
from raptor.graph.layers import filter_key
from raptor.mapping.decision import FullyConnected, KernelUnfolding
from raptor.mapping.modes.plan_choice import LayerPlan, pareto_front
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, mvmul_ns

RELAY_WAIT_SHARE = 0.25
"""Share of a sample's time for which a result must wait so that relays are worth their cores."""

STATE_WAIT = 2
"""Largest number of products from one step to the next: the state of any recurrent layer waits this long."""


@dataclass(frozen=True, slots=True)
class RecurrentSteps:
    """Neighbouring recurrent layers, such as the two directions of one, on the same or neighbouring cores.

    layers: records with one copy; none for relays (see `relaying`). count: largest number of steps of a layer.
    sample_ns: time of all steps of a sample on the busiest core. counts: number of steps of each layer.
    """

    layers: Mapping[str, FullyConnected]
    count: int
    sample_ns: float
    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def cores(self) -> list[int]:
        """The cores of one copy."""
        return sorted({core for layer in self.layers.values() for core in layer.cores}) or [0]

    @property
    def step_ns(self) -> float:
        """Time of a step in ns."""
        return self.sample_ns / self.count

    def core_ns(self, copies: int) -> float:
        """Returns the work in ns of a core for a sample, with `copies` copies."""
        return self.step_ns * -(-self.count // copies)

    def copies(self) -> Iterator[int]:
        """Yields the numbers of copies that take less time than fewer ones, from 1 on."""
        yield from (n for n in range(1, self.count + 1) if n == 1 or self.core_ns(n) < self.core_ns(n - 1))

    def copy_layers(self, copies: int, first: int) -> dict[str, FullyConnected]:
        """Returns the records of the layers with `copies` copies, but at most one per step.

        The cores of all copies after the first one are numbered from `first`.
        """
        own = self.cores

        def more(key: str, layer: FullyConnected) -> Iterator[int]:
            for k in range(min(copies, self.counts[key]) - 1):
                yield from (first + k * len(own) + own.index(core) for core in layer.cores)

        return {key: replace(layer, cores=(*layer.cores, *more(key, layer))) for key, layer in self.layers.items()}


def find_recurrent_steps(
    graph: Graph, layers: Mapping[str, KernelUnfolding | FullyConnected], after_ns: Mapping[str, float], arch: Target
) -> RecurrentSteps | None:
    """Returns the recurrent layers among the `layers` of a neighbourhood; None if there are none.

    after_ns: time of each layer's epilogue, for all steps.
    """
    counts = Counter(filter_key(node) for node in graph.nodes if isinstance(node.operator, Filter))
    found = {k: layer for k, layer in layers.items() if counts[k] > 1 and isinstance(layer, FullyConnected)}
    if not found:
        return None
    each = (counts[key] * _step_ns(layer, arch) + after_ns.get(key, 0.0) for key, layer in found.items())
    return RecurrentSteps(found, max(counts[key] for key in found), sum(each), counts)


def find_one_line_tensors(graph: Graph) -> set[str]:
    """Returns the model inputs and layers with a single line of pixels, such as the tokens of a sequence."""
    inputs = {name for name in graph.inputs if graph.tensors[name].image.rows == 1}
    nodes = (node for node in graph.nodes if isinstance(node.operator, Filter))
    return inputs | {filter_key(node) for node in nodes if graph.tensors[node.output].image.rows == 1}


def slow_plans(
    plans: Mapping[str, Sequence[LayerPlan]], keys: Container[str], step_ns: float
) -> dict[str, list[LayerPlan]]:
    """Returns Pareto fronts of plans in which the pixels of layers `keys` arrive at the rate of recurrent steps.

    A core is occupied from its first pixel to its last, however little it works in between.
    """

    def slow(plan: LayerPlan) -> LayerPlan:
        pixels = max((last - first for first, last in plan.grid.cols), default=1)
        return replace(plan, work_ns=max(plan.work_ns, (pixels - 1) * step_ns + plan.work_ns / pixels))

    return {key: pareto_front(map(slow, found) if key in keys else found) for key, found in plans.items()}


def find_relay_steps(graph: Graph, steps: Sequence[RecurrentSteps]) -> RecurrentSteps | None:
    """Returns, as steps without layers, the relays for results that wait for those of much later steps; None if few do.

    See `raptor.spatial.refinement.value_relays`: idle cores divide the wait among them.
    """
    waits, products = find_longest_wait(graph)
    if waits <= max(STATE_WAIT, RELAY_WAIT_SHARE * products):
        return None
    return RecurrentSteps({}, waits, waits * max(found.step_ns for found in steps))


def find_longest_wait(graph: Graph) -> tuple[int, int]:
    """Returns (longest wait of a result for another result that is read with it, longest chain), in recurrent products.

    Results that are read together are read pixel by pixel.
    """
    counts = Counter(filter_key(node) for node in graph.nodes if isinstance(node.operator, Filter))
    level: dict[str, int] = {}
    longest = 0
    for node in graph.nodes:
        before = [level.get(name, 0) for name in node.inputs]
        longest = max(longest, _spread(graph, node, before))
        steps = isinstance(node.operator, Filter) and counts[filter_key(node)] > 1
        level[node.output] = max(before, default=0) + steps
    return max(longest, _longest_need(graph, level)), max(level.values(), default=0)


def _longest_need(graph: Graph, level: Mapping[str, int]) -> int:
    """Returns the longest wait, in products, of a pixel that one direction reads early and the other late.

    level: number of products before each tensor.
    """
    made_of: dict[str, str] = {}  # sequences, by what is made of them pixel by pixel
    pixel_of: dict[str, tuple[str, int]] = {}
    needed: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for node in graph.nodes:
        last = max((level.get(name, 0) for name in node.inputs), default=0)
        if last:
            for name in pixel_of.keys() & set(node.inputs):
                needed[pixel_of[name]].append(last)
        elif isinstance(node.operator, Move) and graph.tensors[node.output].image.pixels == 1:
            (name, *_), element = node.inputs, int(node.operator.sources[0, 0])
            pixel_of[node.output] = made_of.get(name, name), element // graph.tensors[name].image.channels
        elif isinstance(node.operator, Filter | Elementwise):
            made_of[node.output] = made_of.get(node.inputs[0], node.inputs[0])
    return max((max(levels) - min(levels) for levels in needed.values()), default=0)


def _spread(graph: Graph, node: Node, level: Sequence[int]) -> int:
    """Returns the largest difference of the levels of elements that are read together; level 0 counts as any level.

    level: level of each operand.
    """
    if not isinstance(node.operator, Move):
        found = [n for n in level if n]
        return max(found) - min(found) if found else 0
    ends = np.cumsum([graph.tensors[name].image.elements for name in node.inputs])
    sources = node.operator.sources
    read = np.append(level, 0)[np.where(sources < 0, len(level), np.searchsorted(ends, sources, side="right"))]
    least = np.where(read > 0, read, read.max()).min(axis=1)
    return int(np.max(read.max(axis=1) - least, initial=0))


def _step_ns(layer: FullyConnected, arch: Target) -> float:
    """Returns the time in ns of the products of one step, on the busiest core."""
    busy_ns: defaultdict[int, float] = defaultdict(float)
    for matrix, core in zip(layer.matrices, layer.cores, strict=True):
        busy_ns[core] += mvmul_ns(arch, matrix.xbars) + ISSUE_NS
    return max(busy_ns.values())
