"""Mapping by lines: layers stream, and each gets as many cores as its work needs.

The decision is greedy and deterministic: every layer begins with the fewest cores that hold it, then the layer that
takes longest gets its next faster grid of cores, as long as cores are left.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from raptor.graph.ir import (
    Filter,
    Graph,
    Node,
)
from raptor.graph.window import Window
from raptor.mapping.decision import (
    ByLine,
    Decision,
    FullyConnected,
    KernelUnfolding,
    Layer,
    LineGrid,
    LineUnfolding,
    filter_key,
    filters_of,
    layer_nodes,
)
from raptor.mapping.depthwise import as_stencils, choose_depthwise, choose_means
from raptor.mapping.following import NOTHING, Following, following
from raptor.mapping.fully_connected import dense_unfolding, is_dense
from raptor.mapping.kernel_unfolding import fill_cores, kernel_unfolding, tile_of
from raptor.mapping.knobs import DEFAULT, INPUT_READERS, MESSAGE_NS, SENDINGS, Knobs
from raptor.mapping.last_layers import LastLayers
from raptor.mapping.line_unfolding import (
    BandShape,
    Block,
    bands,
    block_outputs,
    block_pixels,
    block_shape,
    input_range,
    line_blocks,
    outputs_of,
)
from raptor.mapping.packing import share_cores
from raptor.mapping.plans import (
    Placed,
    Plan,
    choose,
    in_order,
    pareto,
)
from raptor.mapping.recurrent import Steps, Whole, recurrent_steps
from raptor.mapping.reference import map_raptor
from raptor.mapping.signals import lift_signals
from raptor.mapping.streaming import (
    Parts,
    Range,
    cut_channels,
    fits_rows,
    is_streamed,
    line_parts,
)
from raptor.mapping.token_cores import Stages, TokenCores, choose_token_cores, find_stages
from raptor.mapping.token_layout import is_tokens, lay_tokens
from raptor.mapping.views import join_views
from raptor.mapping.widths import accumulating, layer_target
from raptor.target.arch import (
    MESH_FLIT_NS,
    Target,
    Widths,
    memory_flit_ns,
    typical_flit_ns,
)
from raptor.target.layout import Image
from raptor.target.timing import (
    ISSUE_NS,
    load_ns,
    message_element_ns,
    message_ns,
    mvmul_ns,
    vector_element_ns,
)

T = TypeVar("T", LineUnfolding, KernelUnfolding, FullyConnected, Whole)

WORTH_SHARING = 1 / 16
"""Part of the cores above which the last layers share theirs with other layers: with fewer there is little to gain."""


KnownPlans = dict[tuple[Filter, Parts, Widths, Knobs], tuple[Following, list[Plan]]]
"""Plans of layers on one kind of core, with the work that follows each: parts of a graph have most in common."""


def layer_plans(
    graph: Graph, arch: Target, knobs: Knobs, without: Container[str] = (), known: KnownPlans | None = None
) -> dict[str, list[Plan]]:
    """Returns every plan of each layer that can be computed by line, by the key of the layer; of some layers none.

    `known`: plans that were made before; those that are made now are added.
    """
    known = {} if known is None else known
    parts = line_parts(graph, arch.xbar_rows)
    after = following(graph, arch)
    found: dict[str, list[Plan]] = {}
    for node in graph.nodes:
        if node.output in without:
            continue
        if isinstance(node.operator, Filter) and runs_by_line(graph, node, node.operator, parts, arch):
            chip = layer_target(graph, node, arch)
            more = after.get(filter_key(node), NOTHING)
            place = node.operator, parts[node.inputs[0]], chip.widths, knobs
            if place not in known or known[place][0] != more:
                known[place] = more, list(plans_of(node.operator, parts[node.inputs[0]], chip, more, knobs))
            if known[place][1]:
                found[filter_key(node)] = known[place][1]
    return found


def map_rows(graph: Graph, arch: Target, knobs: Knobs = DEFAULT, known: KnownPlans | None = None) -> Decision:
    """Returns the decision of `rows`; on a chip too small for any layer by line, that of the reference strategy.

    `known`: see `layer_plans`. Raises `CapacityError` if even the fewest cores that hold all layers are more than the
    chip has.
    """
    vector = choose_depthwise(graph, arch) | choose_means(graph, arch)
    on_crossbars = join_views(lift_signals(lay_tokens(as_stencils(graph, vector))))
    found = _map_lines(on_crossbars, arch, knobs, known)
    if found is None:
        return map_raptor(graph, arch)
    layers, flow = found
    tile = tile_of(on_crossbars, arch)
    return Decision("rows", tile, flow, {key: (layers | vector)[key] for key in filters_of(graph)})


def _map_lines(
    graph: Graph, arch: Target, knobs: Knobs, known: KnownPlans | None
) -> tuple[dict[str, Layer], ByLine] | None:
    """Returns the layers on crossbars, and the flow with its loaders; None if the chip is too small."""
    parts = line_parts(graph, arch.xbar_rows)
    read = {name for node in graph.nodes for name in node.inputs}
    inputs = {n: list(loading(graph.tensors[n].image, arch)) for n in graph.inputs if n in parts and n in read}
    after = {key: work.elements_ns for key, work in following(graph, arch).items()}
    stages = find_stages(graph, arch, after)
    tokens = None if stages is None else _beside_tokens(graph, arch, stages, inputs, knobs)
    if tokens is not None:
        return tokens
    layers = layer_plans(graph, arch, knobs, known=known)
    fitting = _fit(graph, arch, layers, inputs, after, knobs.share)
    if fitting is None:
        return None
    whole, placed = fitting
    return _numbered(graph, arch, knobs, layers, inputs, whole, placed, TokenCores())


def _beside_tokens(
    graph: Graph, arch: Target, stages: Stages, inputs: dict[str, list[Plan]], knobs: Knobs
) -> tuple[dict[str, Layer], ByLine] | None:
    """Returns the layers and the flow with chains and attentions on cores of their own; None if the chip is too small.

    The other layers get cores until none takes longer than a group of attentions, or than a part of that if the
    latency counts: in it, their times are added.
    """
    others = layer_plans(graph, arch, knobs, stages.keys)
    tokens = {name for name in inputs if is_tokens(graph.tensors[name].image)}
    fronts = {k: pareto(p) for k, p in (others | {n: p for n, p in inputs.items() if n not in tokens}).items()}
    whole, used = _place_whole(graph, _not_by_line(graph, others.keys() | stages.keys), arch, apart=True)
    at = dict.fromkeys(fronts, 0)
    while True:
        taken = sum(fronts[key][i].cores for key, i in at.items())
        choice = choose_token_cores(stages, arch, arch.usable_cores - used - taken, knobs)
        if choice is None:
            return None
        longest_ns = choice.interval_ns / (1 + knobs.latency)
        slow = [k for k, i in at.items() if fronts[k][i].core_ns > longest_ns and i + 1 < len(fronts[k])]
        if not slow:
            break
        at[max(slow, key=lambda k: fronts[k][at[k]].core_ns)] += 1
    placed = in_order({key: fronts[key][i] for key, i in at.items()})
    behind = _moved_all(whole, _first_free(placed) + choice.cores)
    return _numbered(graph, arch, knobs, others, inputs, behind, placed, choice)


def _numbered(
    graph: Graph,
    arch: Target,
    knobs: Knobs,
    layers: dict[str, list[Plan]],
    inputs: dict[str, list[Plan]],
    whole: dict[str, Whole],
    placed: dict[str, Placed],
    tokens: TokenCores,
) -> tuple[dict[str, Layer], ByLine]:
    """Returns all layers and the flow. Cores are those of `placed` and `whole`; those of `tokens` follow `placed`."""
    lines = {key: LineUnfolding(placed[key].plan.grid, placed[key].cores) for key in layers}
    loading_of = ((n, placed[n]) for n in inputs if n in placed and placed[n].cores)
    loaders = {n: tuple(zip(p.plan.grid.cols, p.cores, strict=True)) for n, p in loading_of}
    first = _first_free(placed)
    in_chains = {key: _moved(layer, first) for key, layer in tokens.layers.items()}
    products = {key: replace(grid, cores=tuple(c + first for c in grid.cores)) for key, grid in tokens.products.items()}
    begin = next(iter(in_chains.values()), None)
    if begin is not None:
        first_tokens = tuple((cols, begin.core(s, 0, 0)) for s, cols in enumerate(begin.grid.cols))
        wide = {n for n in inputs.keys() - placed.keys() if graph.tensors[n].image.width == begin.grid.cols[-1][1]}
        loaders |= dict.fromkeys(sorted(wide), first_tokens)
    xbar = arch.xbar_rows, arch.outputs_per_xbar
    patience_ns = knobs.patience_ns * typical_flit_ns(arch) / MESH_FLIT_NS
    return {**lines, **in_chains, **whole}, ByLine(
        xbar, patience_ns, loaders, products=products, makes_constants=bool(tokens.layers)
    )


def _moved(layer: T, first: int) -> T:
    """Returns a layer with its cores counted from `first`."""
    return replace(layer, cores=tuple(core + first for core in layer.cores))


def _moved_all(layers: dict[str, Whole], first: int) -> dict[str, Whole]:
    return {key: _moved(layer, first) for key, layer in layers.items()}


def _slowest_ns(placed: dict[str, Placed]) -> float:
    return max((p.plan.core_ns for p in placed.values()), default=0.0)


def _first_free(placed: dict[str, Placed]) -> int:
    """Returns the number of the first core behind those of all plans."""
    return 1 + max((core for p in placed.values() for core in p.cores), default=-1)


def _fit(
    graph: Graph,
    arch: Target,
    layers: dict[str, list[Plan]],
    inputs: dict[str, list[Plan]],
    after_ns: Mapping[str, float],
    share: float,
) -> tuple[dict[str, Whole], dict[str, Placed]] | None:
    """Returns the layers that are not computed by line, and a plan with cores for each of the others.

    Layers have cores of their own if there are enough; if not, first distant layers that are not computed by line share
    cores, then all layers do. If that is not enough either, layers lose their plans, the last one first, since a layer
    that is not computed by line wastes the fewest crossbars.
    """
    fronts = {key: pareto(plans) for key, plans in (layers | inputs).items()}
    while True:
        others = _not_by_line(graph, layers)
        whole, used = _place_whole(graph, others, arch, apart=True)
        placed = choose(fronts, arch.usable_cores, used, share)
        if placed is not None:
            steps = list(recurrent_steps(graph, whole, others, after_ns, arch))
            if steps:
                copied, placed = _copy_steps(steps, fronts, arch.usable_cores, used, placed, share)
                return _moved_all(whole | copied, _first_free(placed)), placed
            shared = _share_last(graph, arch, layers, inputs, share)
            return shared or (_moved_all(whole, _first_free(placed)), placed)
        whole, used = _place_whole(graph, others, arch, apart=False)
        placed = choose(fronts, arch.usable_cores, used, share)
        if placed is None and used < arch.usable_cores:
            placed = share_cores(layers | inputs, arch.usable_cores - used, arch.xbars_per_core)
        if placed is not None:
            return _moved_all(whole, _first_free(placed)), placed
        if not layers:
            return None
        del fronts[layers.popitem()[0]]


def _copy_steps(
    steps: Sequence[Steps],
    fronts: dict[str, list[Plan]],
    cores: int,
    used: int,
    placed: dict[str, Placed],
    share: float,
) -> tuple[dict[str, Whole], dict[str, Placed]]:
    """Copies the slowest recurrent layer as long as no layer by line becomes slower than it was.

    cores, used, share: as for `choose`. Returns the recurrent layers, and the plans of the others.
    """
    copies = [1] * len(steps)
    while True:
        slowest = max(range(len(steps)), key=lambda i: steps[i].core_ns(copies[i]))
        more = steps[slowest].more(copies[slowest])
        if more is None:
            break
        tried = [more if i == slowest else count for i, count in enumerate(copies)]
        taken = sum((count - 1) * len(found.cores) for count, found in zip(tried, steps, strict=True))
        fewer = choose(fronts, cores, used + taken, share)
        if fewer is None or _slowest_ns(fewer) > max(_slowest_ns(placed), steps[slowest].core_ns(copies[slowest])):
            break
        copies, placed = tried, fewer
    layers: dict[str, Whole] = {}
    for count, found in zip(copies, steps, strict=True):
        layers |= found.copied(count, used)
        used += (count - 1) * len(found.cores)
    return layers, placed


def _share_last(
    graph: Graph, arch: Target, layers: dict[str, list[Plan]], inputs: dict[str, list[Plan]], share: float
) -> tuple[dict[str, Whole], dict[str, Placed]] | None:
    """Returns what `_fit` returns, with cores shared by the last layers; None if these need few cores of their own."""
    others, order = _not_by_line(graph, layers), list(filters_of(graph))
    behind = order.index(list(layers)[-1]) if layers else -1
    last = {key: run for key, run in others.items() if order.index(key) > behind}
    before = {key: run for key, run in others.items() if key not in last}

    def place(limit: int) -> tuple[dict[str, Whole], int]:
        return _place_whole(graph, last, arch.with_xbars_per_core(limit), apart=True)

    if place(arch.xbars_per_core)[1] < WORTH_SHARING * arch.usable_cores:
        return None
    whole, used = _place_whole(graph, before, arch, apart=True)
    filters = filters_of(graph)
    lines = {key: filters[key].window.out_dims[0] for key in layers}
    least = max(-(-tile_of(graph, arch) // arch.outputs_of(filters[key].weight_bits)) for key in last)
    shared = LastLayers(
        layers | inputs, lines, place, least, arch.usable_cores - used, arch.xbars_per_core, share
    ).best()
    if shared is None:
        return None
    moved = _moved_all(shared.last, shared.first)
    return moved | _moved_all(whole, shared.end), shared.placed


def runs_by_line(graph: Graph, node: Node, operator: Filter, parts: Mapping[str, Parts], arch: Target) -> bool:
    """Tells whether a layer can be computed line by line. `parts`: see `line_parts`."""
    window, given = operator.window, parts.get(node.inputs[0])
    if given is None or not fits_rows(given, arch.xbar_rows):
        return False
    if operator.key or operator.relu:
        return False
    if len(window.kernel) != 2 or window.batch != 1:
        return False
    before, after = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    dims = (before.rows, before.width), (after.rows, after.width)
    return is_streamed(after) and dims == (window.in_dims, window.out_dims)


def loading(image: Image, arch: Target) -> Iterator[Plan]:
    """Yields plans to load a model input: every core loads what it needs, or loaders load columns and pass them on.

    A plan without loaders has a grid without cores.
    """
    line = image.width * image.channels
    flit = memory_flit_ns(arch)
    yield Plan(
        LineGrid((), (), (), 1, 1, 0, 1),
        0,
        image.rows * (INPUT_READERS * (load_ns(arch, -(-2 * line // INPUT_READERS)) - flit) + flit),
    )
    for cols in _splits((0, image.width)):
        if len(cols) > INPUT_READERS:
            break
        share = -(-line // len(cols))
        pieces = INPUT_READERS / len(cols) + 1
        message = message_ns(arch, -(-line // INPUT_READERS)) + MESSAGE_NS
        yield Plan(
            LineGrid(cols, ((),), ((0, 0),), 1, 1, 0, 1), 0, image.rows * (load_ns(arch, share) + pieces * message)
        )


def plans_of(operator: Filter, parts: Parts, arch: Target, after: Following, knobs: Knobs) -> Iterator[Plan]:
    """Yields a plan for every grid of cores that holds the layer, and for every way to form blocks."""
    window = operator.window
    outs = cut_channels(operator.weights.shape[2], arch.xbar_rows)
    for cols in _splits((0, window.out_dims[1])):
        extras = {
            (len(groups), len(chosen)): _after_ns(after, window, cols, chosen, len(groups))
            for groups, chosen in _grids(operator, parts, outs)
        }
        for height, pixels, outputs in _styles(window, parts, cols, arch):
            most = {r: min(pixels, block_pixels(r, arch.xbar_rows)) for r in parts}
            blocks = {r: [line_blocks(window, c, most[r], outputs) for c in cols] for r in parts}
            if height > 1 and any(len(b) > 1 for segments in blocks.values() for b in segments):
                continue
            phases = _phases(window, height)
            for groups, chosen in _grids(operator, parts, outs):
                ranges = tuple((g[0][0], g[-1][1]) for g in chosen)
                extra = extras[len(groups), len(chosen)]
                shares = _shares(operator, groups, ranges, outs)
                costs = [(_Cost(window, arch, phases, ranges, n, extra, knobs.products), group) for group, n in shares]
                xbars = max(cost.xbars(blocks, group) for cost, group in costs)
                if xbars <= arch.xbars_per_core:
                    core_ns = max(cost.core_ns(blocks, group, cols, len(groups)) for cost, group in costs)
                    step = max(1, int(knobs.step_ns / costs[0][0].block_ns(blocks, parts[0])))
                    # More copies are of no use: a core has at most `rob_size` products under way.
                    copies = max(1, min(arch.rob_size, arch.xbars_per_core // max(1, xbars)))
                    grid = LineGrid(cols, groups, ranges, height, pixels, outputs, step, copies)
                    yield Plan(grid, xbars, core_ns)


def grid_ns(operator: Filter, parts: Parts, arch: Target, after: Following, grid: LineGrid) -> float:
    """Returns the working time of the busiest core of a grid for a sample, as the plan of that grid has it."""
    outs = cut_channels(operator.weights.shape[2], arch.xbar_rows)
    chosen = tuple(tuple(o for o in outs if a <= o[0] < b) for a, b in grid.outs)
    extra = _after_ns(after, operator.window, grid.cols, chosen, len(grid.ins))
    phases = _phases(operator.window, grid.height)
    most = {r: min(grid.pixels, block_pixels(r, arch.xbar_rows)) for r in parts}
    blocks = {r: [line_blocks(operator.window, c, most[r], grid.outputs) for c in grid.cols] for r in parts}
    return max(
        _Cost(operator.window, arch, phases, grid.outs, n, extra, 1.0).core_ns(blocks, group, grid.cols, len(grid.ins))
        for group, n in _shares(operator, grid.ins, grid.outs, outs)
    )


def _grids(operator: Filter, ins: Parts, outs: Parts) -> Iterator[tuple[tuple[Parts, ...], tuple[Parts, ...]]]:
    """Yields groups of input ranges and groups of output ranges.

    A layer with groups of channels has one group of inputs: its cores read no more of it than their outputs need, and
    make no partial sums for each other.
    """
    for groups in _groupings(ins) if operator.groups == 1 else [(ins,)]:
        for chosen in _groupings(outs):
            yield groups, chosen


def _shares(
    operator: Filter, groups: tuple[Parts, ...], outs: tuple[Range, ...], tiles: Parts
) -> Iterator[tuple[Parts, int]]:
    """Yields what different cores of a grid multiply: input ranges, and the most output channels for one of them."""
    if operator.groups == 1:
        yield from ((group, max(b - a for a, b in outs)) for group in groups)
        return
    (ins,) = groups
    for out in outs:
        found = {part: outputs_of(operator, part, out, tiles) for part in ins}
        read = {part: b - a for part, (a, b) in found.items() if a < b}
        yield tuple(read), max(read.values())


def _after_ns(
    after: Following, window: Window, cols: tuple[Range, ...], outs: tuple[tuple[Range, ...], ...], groups: int
) -> float:
    """Returns the time for what follows a layer, of the core with most columns and channels.

    outs: channel ranges of each part of the grid. Cores of different groups of inputs share the ranges of a part.
    """
    widths = max(([b - a for a, b in part[: -(-len(part) // groups)]] for part in outs), key=sum)
    columns = max(b - a for a, b in cols) / window.out_dims[1]
    return after.core_ns(columns, sum(widths) / outs[-1][-1][1], widths)


def _styles(window: Window, parts: Parts, cols: tuple[Range, ...], arch: Target) -> Iterator[tuple[int, int, int]]:
    """Yields height, pixels and outputs of blocks: side by side, owning their outputs, or of several lines."""
    most = block_pixels(min(parts, key=lambda r: r[1] - r[0]), arch.xbar_rows)
    for pixels in _halves(most):
        yield 1, pixels, 0
        owned = block_outputs(window, min(pixels, block_pixels(max(parts, key=lambda r: r[1] - r[0]), arch.xbar_rows)))
        if window.kernel[1] > 1 and owned > 1:
            yield 1, arch.xbar_rows, owned
    needed = max(b - a for a, b in (input_range(window, c) for c in cols))
    channels = max(b - a for a, b in parts)
    tallest = min(arch.xbar_rows // max(1, needed * channels), window.in_dims[0], 2 * window.kernel[0])
    owned = max(b - a for a, b in cols)
    yield from ((height, arch.xbar_rows, owned) for height in range(2, tallest + 1))


def _halves(most: int) -> Iterator[int]:
    """Yields `most`, half of it, and so on to 1: smaller blocks need fewer crossbars."""
    while most > 1:
        yield most
        most //= 2
    yield 1


def _phases(window: Window, height: int) -> dict[BandShape, int]:
    """Counts the bands of each shape."""
    return dict(Counter(shape for _, shape in bands(window, height)))


@dataclass(frozen=True, slots=True)
class _Cost:
    """Crossbars and working time of a core of a grid.

    `phases`: number of bands of each shape. `outs`: output channels of the cores. `reading`: number of those for which
    a block is multiplied. `extra_ns`: time of the other operations of the core. `products`: see `Knobs`.
    """

    window: Window
    arch: Target
    phases: dict[BandShape, int]
    outs: tuple[Range, ...]
    reading: int
    extra_ns: float
    products: float

    @property
    def widest(self) -> int:
        """Largest number of output channels of a core."""
        return max(stop - start for start, stop in self.outs)

    def matrix_xbars(self, band: BandShape, block: Block) -> int:
        """Returns the crossbars of the matrix of a block."""
        columns = len(band.outs) * (block.outs[1] - block.outs[0]) * self.reading
        return -(-columns // self.arch.outputs_per_xbar)

    def xbars(self, blocks: dict[Range, list[tuple[Block, ...]]], group: tuple[Range, ...]) -> int:
        """Returns the crossbars of a core of the column segment that needs most."""
        segments = len(next(iter(blocks.values())))
        return max(sum(self.part_xbars(blocks[part][s]) for part in group) for s in range(segments))

    def part_xbars(self, blocks: tuple[Block, ...]) -> int:
        """Returns the crossbars of some blocks, where equal shapes share a matrix."""
        shapes = {block_shape(self.window, b): b for b in blocks}
        return sum(self.matrix_xbars(band, b) for b in shapes.values() for band in self.phases)

    def core_ns(
        self,
        blocks: dict[Range, list[tuple[Block, ...]]],
        group: tuple[Range, ...],
        cols: tuple[Range, ...],
        groups: int,
    ) -> float:
        """Returns the working time of a core for a sample: products, reductions, messages and `extra_ns`."""
        arch, sums, segment = self.arch, accumulating(self.arch), _widest(cols)
        products = sum(self.part_ns(blocks[part][segment]) for part in group)
        pixels = sum(self.pixels(blocks[part][segment]) * (part[1] - part[0]) for part in group)
        width = cols[segment][1] - cols[segment][0]
        results = self.window.out_dims[0] * width * self.widest
        moved = message_element_ns(arch)
        added = vector_element_ns(sums) + 2 * message_element_ns(sums)
        reduced = (groups - 1) / groups * results * added if groups > 1 else 0.0
        received = sum(band.lines * n for band, n in self.phases.items()) * (pixels * moved + MESSAGE_NS)
        sent = SENDINGS * results / groups * moved
        return products + reduced + received + sent + self.extra_ns

    def part_ns(self, blocks: tuple[Block, ...]) -> float:
        """Returns the time of the MVMs of some blocks and of their additions, for all lines of a sample."""
        total, sums = 0.0, accumulating(self.arch)
        for band, count in self.phases.items():
            for block in blocks:
                elements = len(band.outs) * (block.outs[1] - block.outs[0]) * self.reading
                product = self.products * _mvmul_ns(self.arch, self.matrix_xbars(band, block)) + ISSUE_NS
                total += count * (product + elements * vector_element_ns(sums))
        return total

    def block_ns(self, blocks: dict[Range, list[tuple[Block, ...]]], part: Range) -> float:
        """Returns the time of the longest MVM of a block."""
        found = [b for segment in blocks[part] for b in segment]
        widest = max((self.matrix_xbars(band, b) for band in self.phases for b in found), default=1)
        return _mvmul_ns(self.arch, widest)

    @staticmethod
    def pixels(blocks: tuple[Block, ...]) -> int:
        """Returns the number of input pixels of a line that the blocks span."""
        return blocks[-1].pixels[1] - blocks[0].pixels[0] if blocks else 0


@cache
def _widest(cols: tuple[Range, ...]) -> int:
    """Returns the number of the widest segment; of several, that nearest to the middle, which reads most."""
    return max(range(len(cols)), key=lambda s: (cols[s][1] - cols[s][0], -abs(s - len(cols) // 2)))


@cache
def _mvmul_ns(arch: Target, xbars: int) -> float:
    return mvmul_ns(arch, xbars)


def _splits(whole: Range) -> Iterator[tuple[Range, ...]]:
    """Yields the ways to cut a range into nearly equal pieces, one for each possible size of the largest piece."""
    start, stop = whole
    known: set[int] = set()
    for count in range(1, stop - start + 1):
        size = -(-(stop - start) // count)
        if size not in known:
            known.add(size)
            pieces = -(-(stop - start) // size)
            yield tuple(_even(start, stop, pieces))


def _even(start: int, stop: int, pieces: int) -> Iterator[Range]:
    """Yields ranges of sizes that differ by at most 1."""
    for i in range(pieces):
        yield start + (stop - start) * i // pieces, start + (stop - start) * (i + 1) // pieces


def _groupings(parts: Parts) -> Iterator[tuple[tuple[Range, ...], ...]]:
    """Yields the ways to form groups of neighbouring parts, of nearly equal numbers of parts."""
    for pieces in _splits((0, len(parts))):
        yield tuple(parts[a:b] for a, b in pieces)


def _not_by_line(graph: Graph, by_line: Container[str]) -> dict[str, int]:
    """Returns the layers that are not computed `by_line`, each with a number that is equal for neighbours.

    A layer by line lies between layers with different numbers, or only one of them is recurrent: its steps take long.
    """
    found: dict[str, int] = {}
    number, recurrent = 0, False
    for key, filter_ in filters_of(graph).items():
        if key in by_line or recurrent != bool(filter_.key):
            number, recurrent = number + 1, bool(filter_.key)
        if key not in by_line:
            found[key] = number
    return found


def _place_whole(graph: Graph, layers: Mapping[str, int], arch: Target, *, apart: bool) -> tuple[dict[str, Whole], int]:
    """Puts layers that are not computed by line on cores, one after another from core 0.

    `layers`: see `_not_by_line`. If `apart`, only neighbours share a core, not layers with a layer by line in between:
    a core is occupied from its first work of a sample to its last, and can begin the next sample only then. Returns the
    layers, and the number of cores that they take.
    """
    found: dict[str, Whole] = {}
    core, free, tile = -1, 0, tile_of(graph, arch)
    filters, nodes = filters_of(graph), layer_nodes(graph)
    numbers = [*layers.values()]
    for i, key in enumerate(layers):
        if apart and i and numbers[i] != numbers[i - 1]:
            free = 0
        filter_ = filters[key]
        wide, chip = is_dense(filter_), layer_target(graph, nodes[key], arch)
        matrices = dense_unfolding(filter_, chip, tile, core, free) if wide else kernel_unfolding(filter_, chip, tile)
        matrices = tuple(matrices)
        cores, (core, free) = fill_cores(matrices, core, free, arch)
        found[key] = FullyConnected(matrices, cores) if wide else KernelUnfolding(matrices, cores)
    return found, core + 1
