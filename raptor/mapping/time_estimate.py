"""Estimates the time of a decision from the cost model alone, before anything is lowered.

A core is busy with its products, their epilogues, and messages. The load of the busiest core is the interval. The
latency is that of a pipeline of lines: a layer starts when its first window is complete, and ends when its slowest core
is done. It is at least the load of the busiest core, which several layers may share.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import filter_key, find_layer_nodes, layer_target
from raptor.mapping.decision import Decision, DotGrid, FullyConnected, KernelUnfolding, LineFlow, LineUnfolding
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue, find_epilogues
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import ChannelRanges, line_channel_ranges
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.transformer.token_stages import attention_product_ns
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_ns, mvmul_ns, vector_ns


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Estimated latency of a single sample, and interval between consecutive samples."""

    latency_ns: float
    interval_ns: float


def estimate_times(
    graph: Graph,
    decision: Decision,
    arch: Target,
    cache: PlanCache | None = None,
    more_ns: Mapping[int, float] | None = None,
) -> TimeEstimate:
    """Estimates latency and interval of a decision about a graph that has all rewrites.

    `cache`: see `plan_layers`. `more_ns`: additional work in ns, by core.
    """
    cache = cache or PlanCache()
    parts, after = line_channel_ranges(graph, arch), find_epilogues(graph, arch)
    busy: defaultdict[int, float] = defaultdict(float, more_ns or {})
    begin_ns: dict[str, float] = dict.fromkeys(graph.inputs, 0.0)
    end_ns = dict(begin_ns)
    for node in graph.nodes:
        ready = [name for name in node.inputs if name in begin_ns]
        first, last = (max((times[n] for n in ready), default=0.0) for times in (begin_ns, end_ns))
        cores = _cores_ns(graph, node, decision, arch, parts, after, cache)
        for core, ns in cores.items():
            busy[core] += ns
        longest = max(cores.values(), default=0.0)
        delay = _delay(node, decision) * max(last - first, longest)
        begin_ns[node.output] = first + delay
        end_ns[node.output] = max(last, first + delay + longest)
    interval_ns = max(busy.values(), default=0.0)
    return TimeEstimate(max([interval_ns, *end_ns.values()]), interval_ns)


def _delay(node: Node, decision: Decision) -> float:
    """Returns the fraction of a layer's input that must be complete before the layer starts."""
    if not isinstance(node.operator, Filter):
        return 1.0 if node.output in _products(decision) else 0.0
    window, layer = node.operator.window, decision.layers.get(filter_key(node))
    if not isinstance(layer, LineUnfolding):
        return 1.0
    # In a volume, the slices before the last one that the first output needs come first, whole.
    slices = [(kernel - 1) * math.prod(window.in_dims[d + 1 : -1]) for d, kernel in enumerate(window.kernel[:-2])]
    return min(1.0, (sum(slices) + window.kernel[-2] * layer.grid.height) / window.in_lines)


def _products(decision: Decision) -> Mapping[str, DotGrid]:
    return decision.flow.products if isinstance(decision.flow, LineFlow) else {}


def _cores_ns(
    graph: Graph,
    node: Node,
    decision: Decision,
    arch: Target,
    parts: Mapping[str, ChannelRanges],
    after: Mapping[str, Epilogue],
    cache: PlanCache,
) -> dict[int, float]:
    """Returns the work in ns of each core for a layer, or for a product of two computed tensors."""
    grid = _products(decision).get(node.output)
    if grid is not None:
        ns = attention_product_ns(graph, node, grid, arch)
        return dict.fromkeys(grid.cores, ns)
    if not isinstance(node.operator, Filter):
        return {}
    chip, more = layer_target(graph, node, arch), after.get(filter_key(node), NO_EPILOGUE)
    match decision.layers.get(filter_key(node)):
        case LineUnfolding(grid, cores):
            ns = cache.grid_ns(node.operator, parts[node.inputs[0]], chip, more, grid)
            return {core: ns * segments for core, segments in Counter(cores).items()}
        case KernelUnfolding() | FullyConnected() as layer:
            return _whole_ns(node.operator, layer, chip, more)
        case _:
            return {}


def _whole_ns(
    filter_: Filter, layer: KernelUnfolding | FullyConnected, arch: Target, after: Epilogue
) -> dict[int, float]:
    """Returns the work in ns of each core for a layer with matrices of whole tiles: products and partial sums."""
    pixels, sums, found = filter_.window.out_pixels, with_accumulators(arch), Counter[int]()
    for k, core in enumerate(layer.cores):
        matrix = layer.matrices[k % len(layer.matrices)]  # steps of a recurrent layer may have copies
        width = matrix.cols[1] - matrix.cols[0]
        found[core] += int(pixels * (mvmul_ns(arch, matrix.xbars) + vector_ns(sums, width, 2) + 2 * ISSUE_NS))
    width = pixels * filter_.weights.shape[2] / max(1, len(found))
    rest = after.elements_ns / max(1, len(found)) + message_ns(sums, int(width))
    return {core: ns + rest for core, ns in found.items()}


def least_xbars(graph: Graph, arch: Target) -> int:
    """Returns a lower bound on the crossbars that a graph needs: the cells of all weights."""
    cells = arch.xbar_rows * arch.xbar_cols
    total = 0
    for node in find_layer_nodes(graph).values():
        operator = node.operator
        if isinstance(operator, Filter) and operator.groups == 1:
            total += operator.weights.size * (operator.weight_bits or arch.widths.weights) // arch.cell_bits
    return -(-total // cells)
