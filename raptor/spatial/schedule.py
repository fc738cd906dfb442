"""PlacedGraph to Schedule: computes in the order in which a chip with blocking messages would start them.

A list schedule: a compute starts when its core is free and its inputs are there; a message keeps both cores busy.
`pim.lower` visits computes in this order, so it decides which core waits for which, never what is computed.
"""

from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.mapping.widths import recipe_ns
from raptor.spatial.integer_operations import Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.spatial.ir import BodyOp, Compute, Copy, TakeRows
from raptor.spatial.operations import (
    ApplyFilters,
    ApplyLine,
    Average,
    Dot,
    Move,
    Overlap,
    Pool,
    Softmax,
    Stencil,
    Vector,
)
from raptor.spatial.placed import Fetch, PlacedGraph, Schedule
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target, Widths
from raptor.target.timing import (
    ISSUE_NS,
    copy_ns,
    load_ns,
    message_times,
    mvmul_ns,
    vector_ns,
)

Ints = npt.NDArray[np.int64]


def schedule(placed: PlacedGraph, decision: Decision, arch: Target) -> Schedule:
    """Returns the computes in global order: as they are, or by start time if the flow is by line.

    Of computes that can start at the same time, the one with the lowest `urgency` comes first.
    """
    count, flow = len(placed.graph.computes), decision.flow
    if not isinstance(flow, ByLine) or not count:
        return Schedule(placed, (), tuple(range(count)))
    order: list[int] = []
    fetches: list[Fetch] = []
    for together in _together(placed, flow):
        found = _ListSchedule(arch, flow.patience_ns, placed, together)
        local = found.run()
        first = count + len(fetches)
        numbers = [*together, *range(first, first + len(found.fetched))]
        order += (numbers[i] for i in local)
        fetches += found.fetched
    return Schedule(placed, tuple(fetches), tuple(order))


def _together(placed: PlacedGraph, flow: ByLine) -> list[range]:
    """Returns ranges of computes that are scheduled together: all, or those of a node if lines are not streamed."""
    computes = placed.graph.computes
    if flow.streamed:
        return [range(len(computes))]
    ends = accumulate((len(list(run)) for _, run in groupby(computes, key=lambda c: c.node)), initial=0)
    return [range(first, last) for first, last in pairwise(ends)]


@dataclass(slots=True)
class _ListSchedule:
    """List schedule of some neighbouring computes, and of fetches of the tiles that they read from other cores.

    Computes are numbered from 0, fetches after them. work, cores, positions: by this number. makers: the computes that
    make each tile, by name. fetches: number of the fetch of a tile to a core.
    """

    arch: Target
    patience_ns: float
    placed: PlacedGraph
    together: range
    work: list[Compute | Fetch] = field(init=False)
    cores: list[int] = field(init=False)
    positions: list[float] = field(init=False)
    makers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fetches: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    products: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """Time of an MVM in ns, by number of crossbars."""

    def __post_init__(self) -> None:
        chosen = slice(self.together.start, self.together.stop)
        computes = self.placed.graph.computes[chosen]
        self.work, self.cores = [*computes], [*self.placed.cores[chosen]]
        self.positions = [*self.placed.positions[chosen]]
        for i, compute in enumerate(computes):
            for tile in compute.results:
                self.makers.setdefault(tile.name, []).append(i)

    @property
    def fetched(self) -> list[Fetch]:
        """The fetches, in order of their numbers."""
        return [work for work in self.work if isinstance(work, Fetch)]

    def run(self) -> list[int]:
        """Returns the order of computes and fetches. A fetch comes before the first use of a tile on another core."""
        from raptor.spatial.schedule_kernel import list_schedule  # compiled code is loaded only where it runs

        needs = [self.needs(i, work) for i, work in enumerate(list(self.work)) if isinstance(work, Compute)]
        needs += [set(self.makers[fetch.tile.name]) for fetch in self.fetched]
        count = len(self.work)
        pairs = np.array([(j, i) for i, need in enumerate(needs) for j in need], np.int64).reshape(-1, 2)
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        by_rank = np.array(sorted(range(count), key=self.urgency), np.int64)
        rank = np.empty(count, np.int64)
        rank[by_rank] = np.arange(count)
        core = np.array(self.cores, np.int64)
        peer, sizes, local_ns = (np.array(column) for column in zip(*map(self.message, range(count)), strict=True))
        times = message_times(self.arch, peer, core, sizes)
        order, _ = list_schedule(
            int(core.max()) + 1,
            core,
            peer,
            times.request_ns,
            times.grant_ns,
            times.sender_ns + ISSUE_NS,
            times.wire_ns,
            np.where(peer >= 0, times.receiver_ns + ISSUE_NS, local_ns),
            np.array([self.work_ns(work) for work in self.work], np.float64),
            rank,
            by_rank,
            np.array([len(need) for need in needs], np.int64),
            np.searchsorted(pairs[:, 0], np.arange(count + 1)).astype(np.int64),
            np.ascontiguousarray(pairs[:, 1]),
            np.where(peer >= 0, self.patience_ns, 0.0),
        )
        return order.tolist()

    def needs(self, i: int, compute: Compute) -> set[int]:
        """Returns the numbers of computes and fetches that must be done before a compute; adds new fetches."""
        need: set[int] = set()
        for tile in compute.inputs:
            made = self.makers.get(tile.name, [])
            if _copies(compute) or not made or self.cores[made[0]] == self.cores[i]:
                need |= set(made)
            else:
                need.add(self.fetch(tile, i, compute.node))
        return need

    def fetch(self, tile: Tile, user: int, node: str) -> int:
        """Returns the number of the fetch that copies a whole tile to the core of its user; adds it if it is new."""
        core = self.cores[user]
        if (tile.name, core) not in self.fetches:
            self.fetches[tile.name, core] = len(self.work)
            self.work.append(Fetch(tile, core, node))
            self.cores.append(core)
            self.positions.append(self.positions[user])
        return self.fetches[tile.name, core]

    def urgency(self, i: int) -> tuple[float, bool, int]:
        """Returns the sort key of work that can start at the same time.

        Rows higher up in the image come first, then messages before other work, then the work nearer to the end.
        """
        work = self.work[i]
        return self.positions[i], isinstance(work, Compute) and not _copies(work), -i

    def message(self, i: int) -> tuple[int, int, float]:
        """Returns the transfer before work: sending core (-1: none), bytes, and its time in ns if no core sends."""
        tile, elements = _taken(self.work[i])
        if tile is None:
            return -1, 0, 0.0
        arch = self.arch.holding(tile.element)
        size, made = elements * arch.element_bytes, self.makers.get(tile.name)
        if made is None:
            return -1, size, load_ns(arch, elements, self.cores[i])
        source = self.cores[made[0]]
        if source == self.cores[i]:
            return -1, size, copy_ns(arch, elements)
        return source, size, 0.0

    def work_ns(self, work: Compute | Fetch) -> float:
        """Estimates the time of work on its core in ns, without the transfer before it."""
        return sum(self.op_ns(op, work) for op in work.body) if isinstance(work, Compute) else 0.0

    def product_ns(self, layer: str, given: Tile, result: Tile, xbars: int) -> float:
        """Returns the time of an MVM of a layer in ns."""
        key = layer, xbars
        if key not in self.products:
            bits = self.placed.graph.filters[layer].weight_bits or self.arch.widths.weights
            widths = Widths(bits, self.arch.bits_of(given.element), self.arch.bits_of(result.element))
            self.products[key] = mvmul_ns(self.arch.with_widths(widths), xbars) + ISSUE_NS
        return self.products[key]

    def op_ns(self, op: BodyOp, compute: Compute) -> float:
        """Estimates the time of an operation on its core in ns; roughly if it hardly matters."""
        arch = self.arch.holding(op.result.element)
        match op:
            case ApplyLine():
                weights: list[int] = op.products[:, 0].tolist()
                given = op.lines[0], op.result
                return sum(self.product_ns(compute.layer, *given, compute.matrices[w].xbars) for w in weights)
            case Overlap():
                added = max(int(op.runs[:, 3].sum()) - op.result.elements, 1)
                return vector_ns(arch, added, 2) + len(op.runs) * ISSUE_NS
            case Copy():
                return 0.0
            case TakeRows():
                return op.result.pixels * (load_ns(arch, op.result.channels) + 4 * ISSUE_NS)
            case ApplyFilters():
                product = self.product_ns(compute.layer, op.input, op.result, compute.matrices[0].xbars) - ISSUE_NS
                return op.result.pixels * len(op.weights) * (product + vector_ns(arch, op.result.channels, 2))
            case Vector() | Bound() | Lookup() | RequantiseAtOnce():
                return vector_ns(arch, op.result.elements, 2)
            case Requantise():
                return recipe_ns(op.recipe, op.result.element, op.result.elements, self.arch)
            case Stencil():
                taps = 2 * op.window.tap_count
                return op.result.pixels * taps * (vector_ns(arch, op.result.channels, 2) + ISSUE_NS)
            case Pool():
                return op.result.pixels * op.window.tap_count * (vector_ns(arch, op.result.channels, 2) + ISSUE_NS)
            case _:
                return _token_ns(op, arch)


def _token_ns(op: BodyOp, arch: Target) -> float:
    """Estimates the time of an operation of sequences in ns, and that of a copy for any other."""
    match op:
        case Dot():
            return op.result.elements * (vector_ns(arch.holding(op.left.element), op.left.channels, 2) + ISSUE_NS)
        case Average():
            return op.result.pixels * (vector_ns(arch, op.input.channels, 1) + ISSUE_NS)
        case Softmax():
            return op.result.pixels * (vector_ns(arch, op.result.channels, 1) + ISSUE_NS)
        case Move():
            return _moving_ns(op.runs, arch)
        case _:
            return copy_ns(arch, op.result.elements)


def _moving_ns(runs: Ints, arch: Target) -> float:
    """Returns the time in ns of the runs of a `Move`: copies of neighbours, and vector moves of elements apart."""
    strides, counts = runs[:, 3], runs[:, 4]
    lengths, times = np.unique(np.stack([counts, (strides != 1) & (counts > 1)]), axis=1, return_counts=True)
    each = [vector_ns(arch, n, 1) if apart else copy_ns(arch, n) for n, apart in lengths.T.tolist()]
    return float(np.dot(each, times)) + len(runs) * ISSUE_NS


def _copies(compute: Compute) -> bool:
    """True if the compute is a copy."""
    return bool(compute.body) and isinstance(compute.body[0], Copy)


def _taken(work: Compute | Fetch) -> tuple[Tile | None, int]:
    """Returns the tile that a copy or a fetch reads, and how many elements; None and 0 for other work."""
    if isinstance(work, Fetch):
        return work.tile, work.tile.elements
    op = work.body[0] if work.body else None
    return (op.source, op.elements) if isinstance(op, Copy) else (None, 0)
