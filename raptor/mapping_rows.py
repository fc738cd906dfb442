"""A mapping by rows: layers stream, slow layers get copies, copies take rows in turn.

The decision is greedy and deterministic: every layer gets the unfolding with the cheapest row, then the layer that
takes longest gets further copies as long as cores are left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from raptor.arch import Arch
from raptor.cost import copy_ns, message_ns, mvmul_ns, vector_ns
from raptor.errors import CapacityError
from raptor.frontend.graph import Filter, Graph, Node
from raptor.mapping import FilterMapping, Mapping, RowMapping, filter_key, kernel_unfolding
from raptor.spatial.rows import is_streamed
from raptor.unfold import PatchMatrix, RowWindow, blocks

ISSUE_NS = 4
"""Cycles an instruction takes beside its work: issue, register load, completion."""

STEP_NS = 40_000
"""How long a core works on a row at most before it looks for messages: what a sender waits for a busy receiver."""

ROW_NS = 200_000
"""How long a core should work on a row: a longer one is shared by several cores, so that the next layer waits less."""

WHOLE = 2**31 - 1
"""Tile width that keeps all channels of a tensor together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a layer by row. Times are for a whole row of the output on one core."""

    outputs: int
    gather: bool
    step: int
    matrices: tuple[PatchMatrix, ...]
    stages: int
    row_ns: float
    rows: int

    def load_ns(self, copies: int) -> float:
        """Time of the busiest copy."""
        return -(-self.rows // copies) * self.row_ns


def map_rows(graph: Graph, arch: Arch) -> Mapping:
    """Raises `CapacityError` when one copy of every layer does not fit the chip."""
    by_row = [(n, n.operator) for n in graph.nodes if isinstance(n.operator, Filter)]
    plans = {filter_key(n): best_plan(o, arch) for n, o in by_row if _is_by_row(graph, n, o)}
    whole = [n for n in graph.nodes if isinstance(n.operator, Filter) and filter_key(n) not in plans]
    filters, used = _place_whole(whole, arch)
    copies = _replicate(plans, arch.core_count, used)
    rows: dict[str, RowMapping] = {}
    core = 0
    for key, plan in plans.items():
        replicas: list[tuple[tuple[int, int], ...]] = []
        for _ in range(copies[key]):
            counts = _even(len(plan.matrices), plan.stages)
            replicas.append(tuple((core + i, count) for i, count in enumerate(counts)))
            core += plan.stages
        rows[key] = RowMapping(plan.outputs, plan.gather, plan.step, plan.matrices, tuple(replicas))
    moved = {k: FilterMapping(f.matrices, tuple(c + core for c in f.cores)) for k, f in filters.items()}
    return Mapping("rows", WHOLE, moved, rows, by_row=True)


def _is_by_row(graph: Graph, node: Node, operator: Filter) -> bool:
    window = operator.window
    if operator.groups > 1 or operator.key or operator.relu:
        return False
    if window.transposed or len(window.kernel) != 2 or window.batch != 1:
        return False
    return is_streamed(graph.tensors[node.output].image)


def best_plan(operator: Filter, arch: Arch) -> Plan:
    """The unfolding with the cheapest row among windows of up to eight outputs, gathered or in place."""
    plans = [p for outputs in range(1, 9) for gather in (False, True) for p in _plans(operator, arch, outputs, gather)]
    if not plans:
        raise _too_wide(operator, arch)
    return min(plans, key=lambda p: (p.row_ns * p.stages, p.outputs, p.gather))


def _plans(operator: Filter, arch: Arch, outputs: int, gather: bool) -> Iterator[Plan]:
    window = operator.window
    if outputs > window.out_dims[1]:
        return
    shape = RowWindow.of(window, outputs)
    _, ins, outs = operator.weights.shape
    xbars = -(-outputs * outs // arch.outputs_per_xbar)
    if xbars > arch.xbars_per_core:
        return
    matrices = tuple(
        PatchMatrix(outputs, r, (0, outputs * outs), xbars) for r in blocks(shape, ins, arch.xbar_rows, gather=gather)
    )
    windows = -(-shape.out_width // outputs)
    product = _mvmul_ns(arch, xbars) + ISSUE_NS
    added = vector_ns(arch, outputs * outs, 2) + ISSUE_NS
    stages = -(-len(matrices) // (arch.xbars_per_core // xbars))
    if gather and stages > 1:
        return
    if not gather:
        stages = max(stages, min(len(matrices), round(windows * len(matrices) * (product + added) / ROW_NS)))
    count = -(-len(matrices) // stages)
    window_ns = count * product + (count - 1) * added
    if gather:
        window_ns += shape.kernel_rows * (copy_ns(arch, shape.patch_width * ins) + ISSUE_NS)
    row_ns = windows * window_ns
    line = shape.in_width * ins
    row_ns += window.kernel[0] * (message_ns(arch, line) + copy_ns(arch, line))
    row_ns += 2 * vector_ns(arch, shape.out_width * outs, 2)
    if stages > 1:
        row_ns += message_ns(arch, shape.out_width * outs) + vector_ns(arch, shape.out_width * outs, 2)
    step = max(1, round(STEP_NS / window_ns))
    yield Plan(outputs, gather, step, matrices, stages, row_ns, window.out_dims[0])


@cache
def _mvmul_ns(arch: Arch, xbars: int) -> float:
    return mvmul_ns(arch, xbars)


def _place_whole(nodes: list[Node], arch: Arch) -> tuple[dict[str, FilterMapping], int]:
    """Layers that are not computed by row, one after another on cores counted from 0."""
    filters: dict[str, FilterMapping] = {}
    core, free = -1, 0
    for node in nodes:
        assert isinstance(node.operator, Filter)
        if filter_key(node) in filters:
            continue
        tile = arch.xbars_per_core * arch.outputs_per_xbar
        if node.operator.weights.shape[2] > tile:
            raise _too_wide(node.operator, arch)
        matrices = tuple(kernel_unfolding(node.operator, arch, tile))
        cores: list[int] = []
        for matrix in matrices:
            if matrix.xbars > free:
                core, free = core + 1, arch.xbars_per_core
            free -= matrix.xbars
            cores.append(core)
        filters[filter_key(node)] = FilterMapping(matrices, tuple(cores))
    return filters, core + 1


def _too_wide(operator: Filter, arch: Arch) -> CapacityError:
    """Channels stay together here, so those of a result must fit a core."""
    needed = -(-operator.weights.shape[2] // arch.outputs_per_xbar)
    levers = ("--mapping raptor", "more --xbars-per-core")
    where = "one row of a layer's matrix"
    return CapacityError("crossbars a core", needed, arch.xbars_per_core, where=where, levers=levers)


def _replicate(plans: dict[str, Plan], cores: int, used: int) -> dict[str, int]:
    """Copies of each layer: the slowest gets the next number that shortens it, until the cores are used up.

    `used`: cores that other layers take.
    """
    copies = dict.fromkeys(plans, 1)
    free = cores - used - sum(plan.stages for plan in plans.values())
    if free < 0:
        levers = (f"--cores {cores - free}", "--mapping raptor")
        raise CapacityError("cores", cores - free, cores, where="one copy of every layer", levers=levers)
    while plans:
        slowest = max(plans, key=lambda k: plans[k].load_ns(copies[k]))
        plan = plans[slowest]
        rows = -(-plan.rows // copies[slowest])
        if rows == 1:
            break
        wanted = -(-plan.rows // (rows - 1))
        price = (wanted - copies[slowest]) * plan.stages
        if price > free:
            break
        copies[slowest], free = wanted, free - price
    return copies


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]
