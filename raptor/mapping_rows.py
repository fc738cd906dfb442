"""A mapping by lines: layers stream, and each takes as many cores as its work asks for.

The decision is greedy and deterministic: every layer begins with the fewest cores that hold it, then the layer that
takes longest gets its next faster grid of cores, as long as cores are left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from raptor.arch import Arch
from raptor.cost import copy_ns, load_ns, message_ns, mvmul_ns, vector_ns
from raptor.errors import CapacityError
from raptor.frontend.graph import Filter, Graph, Map, Node, Operator, Pool
from raptor.lines import Parts, Range, cut_channels, is_streamed, line_parts
from raptor.mapping import FilterMapping, LineMapping, Mapping, filter_key, kernel_unfolding, tile_channels
from raptor.unfold import Block, block_outputs, kernel_rows, line_blocks, output_line
from raptor.window import Window

ISSUE_NS = 5
"""Cycles an instruction takes beside its work: issue, register loads, completion."""

STEP_NS = 40_000
"""How long a core multiplies at most before it looks for messages: what a sender waits for a busy receiver."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a layer. `core_ns`: what the busiest of its cores works for a sample."""

    cols: tuple[Range, ...]
    ins: tuple[tuple[Range, ...], ...]
    outs: tuple[Range, ...]
    outputs: int
    step: int
    core_ns: float

    @property
    def cores(self) -> int:
        return len(self.cols) * len(self.ins) * len(self.outs)


def map_rows(graph: Graph, arch: Arch) -> Mapping:
    """Raises `CapacityError` when the fewest cores that hold every layer are more than the chip has."""
    parts = line_parts(graph, arch.xbar_rows)
    extra_ns = following_ns(graph, arch)
    fronts: dict[str, list[Plan]] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Filter) and _by_line(graph, node, node.operator) and node.inputs[0] in parts:
            plans = pareto(plans_of(node.operator, parts[node.inputs[0]], arch, extra_ns.get(filter_key(node), 0.0)))
            if plans:
                fronts[filter_key(node)] = plans
    whole = [n for n in graph.nodes if isinstance(n.operator, Filter) and filter_key(n) not in fronts]
    filters, used = _place_whole(whole, arch)
    lines: dict[str, LineMapping] = {}
    core = 0
    for key, plan in _choose(fronts, arch.core_count, used).items():
        cores = tuple(range(core, core + plan.cores))
        lines[key] = LineMapping(plan.cols, plan.ins, plan.outs, plan.outputs, plan.step, cores)
        core += plan.cores
    moved = {k: FilterMapping(f.matrices, tuple(c + core for c in f.cores)) for k, f in filters.items()}
    return Mapping("rows", tile_channels(arch), moved, lines, (arch.xbar_rows, arch.outputs_per_xbar))


def _by_line(graph: Graph, node: Node, operator: Filter) -> bool:
    window = operator.window
    if operator.groups > 1 or operator.key or operator.relu:
        return False
    if window.transposed or len(window.kernel) != 2 or window.batch != 1:
        return False
    return is_streamed(graph.tensors[node.output].image)


def following_ns(graph: Graph, arch: Arch) -> dict[str, float]:
    """By layer: what the element-wise operations and pools take that run on its cores, all together."""
    owner: dict[str, str] = {}
    total: dict[str, float] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            owner[node.output] = filter_key(node)
            continue
        key = next((owner[n] for n in node.inputs if n in owner), None)
        if key is not None:
            owner[node.output] = key
            elements = graph.tensors[node.output].image.elements
            total[key] = total.get(key, 0.0) + _passes(node.operator) * vector_ns(arch, elements, 2)
    return total


def _passes(operator: Operator) -> float:
    """Vector operations for each element of the result."""
    match operator:
        case Map():
            return 1
        case Pool():
            return operator.window.tap_count
        case _:
            return 0


def pareto(plans: Iterator[Plan]) -> list[Plan]:
    """Plans that no other beats in cores and time, from few cores to many."""
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.cores, p.core_ns)):
        if not front or plan.core_ns < front[-1].core_ns:
            front.append(plan)
    return front


def plans_of(operator: Filter, parts: Parts, arch: Arch, extra_ns: float) -> Iterator[Plan]:
    """Every grid of cores that holds the layer, with blocks side by side and with blocks that own their outputs."""
    window = operator.window
    outs = cut_channels(operator.weights.shape[2], arch.xbar_rows)
    smallest = min(stop - start for start, stop in parts)
    owned = block_outputs(window, max(1, arch.xbar_rows // smallest))
    styles = [0, owned] if owned > 1 and window.kernel[1] > 1 else [0]
    phases = _phases(window)
    for outputs in styles:
        for cols in _splits((0, window.out_dims[1])):
            blocks = {r: [line_blocks(window, c, block_pixels(r, arch), outputs) for c in cols] for r in parts}
            for groups in _groupings(parts):
                for chosen in _groupings(outs):
                    ranges = tuple((g[0][0], g[-1][1]) for g in chosen)
                    cost = _Cost(window, arch, phases, ranges, extra_ns / (len(cols) * len(groups) * len(ranges)))
                    if max(cost.xbars(blocks, group) for group in groups) <= arch.xbars_per_core:
                        core_ns = max(cost.core_ns(blocks, group, cols, len(groups)) for group in groups)
                        step = max(1, int(STEP_NS / cost.block_ns(blocks, parts[0])))
                        yield Plan(cols, groups, ranges, outputs, step, core_ns)


def block_pixels(channels: Range, arch: Arch) -> int:
    """Pixels of a block: as many as fill the rows of a crossbar."""
    return max(1, arch.xbar_rows // (channels[1] - channels[0]))


def _phases(window: Window) -> dict[tuple[int, ...], int]:
    """The different sets of kernel rows that input lines are multiplied for, and how many lines have each."""
    count: dict[tuple[int, ...], int] = {}
    for line in range(window.in_dims[0]):
        rows = kernel_rows(window, line)
        if any(output_line(window, line, k) is not None for k in rows):
            count[rows] = count.get(rows, 0) + 1
    return count


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a core of a grid holds and how long it works. `outs`: output channels of the cores."""

    window: Window
    arch: Arch
    phases: dict[tuple[int, ...], int]
    outs: tuple[Range, ...]
    extra_ns: float

    @property
    def widest(self) -> int:
        return max(stop - start for start, stop in self.outs)

    def matrix_xbars(self, kernel_rows: tuple[int, ...], block: Block) -> int:
        columns = len(kernel_rows) * (block.outs[1] - block.outs[0]) * self.widest
        return -(-columns // self.arch.outputs_per_xbar)

    def xbars(self, blocks: dict[Range, list[tuple[Block, ...]]], group: tuple[Range, ...]) -> int:
        """Of the segment that needs most."""
        segments = len(next(iter(blocks.values())))
        return max(sum(self.part_xbars(blocks[part][s]) for part in group) for s in range(segments))

    def part_xbars(self, blocks: tuple[Block, ...]) -> int:
        shapes = {block_shape(self.window, b): b for b in blocks}
        return sum(self.matrix_xbars(rows, b) for b in shapes.values() for rows in self.phases)

    def core_ns(
        self,
        blocks: dict[Range, list[tuple[Block, ...]]],
        group: tuple[Range, ...],
        cols: tuple[Range, ...],
        groups: int,
    ) -> float:
        arch, middle = self.arch, len(cols) // 2
        products = sum(self.part_ns(blocks[part][middle]) for part in group)
        pixels = sum(self.pixels(blocks[part][middle]) * (part[1] - part[0]) for part in group)
        width = max(b - a for a, b in cols)
        results = self.window.out_dims[0] * width * self.widest
        moved = _per_element_ns(arch, "message")
        reduced = (groups - 1) / groups * results * (_per_element_ns(arch, "vector") + 2 * moved) if groups > 1 else 0.0
        received = sum(self.phases.values()) * pixels * moved
        sent = 1.2 * results / groups * moved
        return products + reduced + received + sent + self.extra_ns

    def part_ns(self, blocks: tuple[Block, ...]) -> float:
        """Products and their additions, all lines."""
        total = 0.0
        for rows, lines in self.phases.items():
            for block in blocks:
                elements = len(rows) * (block.outs[1] - block.outs[0]) * self.widest
                product = _mvmul_ns(self.arch, self.matrix_xbars(rows, block)) + ISSUE_NS
                total += lines * (product + elements * _per_element_ns(self.arch, "vector"))
        return total

    def block_ns(self, blocks: dict[Range, list[tuple[Block, ...]]], part: Range) -> float:
        """The longest product."""
        widest = max(
            (b for segment in blocks[part] for b in segment), key=lambda b: b.outs[1] - b.outs[0], default=None
        )
        rows = max(self.phases, key=len, default=())
        return _mvmul_ns(self.arch, self.matrix_xbars(rows, widest)) if widest else 1.0

    @staticmethod
    def pixels(blocks: tuple[Block, ...]) -> int:
        return blocks[-1].pixels[1] - blocks[0].pixels[0] if blocks else 0


def block_shape(window: Window, block: Block) -> tuple[int, int, int]:
    """Blocks of equal shape share their matrix: pixels, shift, output pixels (`LineMatrix`)."""
    shift = block.outs[0] * window.strides[1] - window.pads[1] - block.pixels[0]
    return block.pixels[1] - block.pixels[0], shift, block.outs[1] - block.outs[0]


@cache
def _mvmul_ns(arch: Arch, xbars: int) -> float:
    return mvmul_ns(arch, xbars)


@cache
def _per_element_ns(arch: Arch, kind: str) -> float:
    count = 2**12
    match kind:
        case "vector":
            return vector_ns(arch, count, 2) / count
        case "message":
            return message_ns(arch, count) / count
        case "load":
            return load_ns(arch, count) / count
        case _:
            return copy_ns(arch, count) / count


def _splits(whole: Range) -> Iterator[tuple[Range, ...]]:
    """A range cut into equal pieces, the last one smaller, in every number that differs."""
    start, stop = whole
    known: set[int] = set()
    for count in range(1, stop - start + 1):
        size = -(-(stop - start) // count)
        if size not in known:
            known.add(size)
            pieces = -(-(stop - start) // size)
            yield tuple(_even(start, stop, pieces))


def _even(start: int, stop: int, pieces: int) -> Iterator[Range]:
    for i in range(pieces):
        yield start + (stop - start) * i // pieces, start + (stop - start) * (i + 1) // pieces


def _groupings(parts: Parts) -> Iterator[tuple[tuple[Range, ...], ...]]:
    """Parts in equal groups of neighbours, in every number that differs."""
    for pieces in _splits((0, len(parts))):
        yield tuple(parts[a:b] for a, b in pieces)


def _choose(fronts: dict[str, list[Plan]], cores: int, used: int) -> dict[str, Plan]:
    """A plan for each layer: the slowest layer gets its next faster one, until the cores are used up.

    `used`: cores that other layers take.
    """
    at = dict.fromkeys(fronts, 0)
    free = cores - used - sum(front[0].cores for front in fronts.values())
    if free < 0:
        levers = (f"--cores {cores - free}", "--mapping raptor")
        raise CapacityError("cores", cores - free, cores, where="one copy of every layer", levers=levers)
    while fronts:
        slowest = max(fronts, key=lambda k: fronts[k][at[k]].core_ns)
        front, i = fronts[slowest], at[slowest]
        if i + 1 == len(front) or front[i + 1].cores - front[i].cores > free:
            break
        free -= front[i + 1].cores - front[i].cores
        at[slowest] += 1
    return {key: front[at[key]] for key, front in fronts.items()}


def _place_whole(nodes: list[Node], arch: Arch) -> tuple[dict[str, FilterMapping], int]:
    """Layers that are not computed by line, one after another on cores counted from 0."""
    filters: dict[str, FilterMapping] = {}
    core, free = -1, 0
    for node in nodes:
        assert isinstance(node.operator, Filter)
        if filter_key(node) in filters:
            continue
        matrices = tuple(kernel_unfolding(node.operator, arch, tile_channels(arch)))
        cores: list[int] = []
        for matrix in matrices:
            if matrix.xbars > free:
                core, free = core + 1, arch.xbars_per_core
            free -= matrix.xbars
            cores.append(core)
        filters[filter_key(node)] = FilterMapping(matrices, tuple(cores))
    return filters, core + 1
