"""Plans of moves and embedding lookups that get cores of their own, alone or in groups that share them.

Each core puts together some columns of each line. It loads what these need from global memory or, where an input has
loaders, takes it from them. Results that element-wise operators combine are gathered on the same cores, so none of
their lines is sent.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import Elementwise, Graph, Indices, Move, Node, Take
from raptor.graph.rearrangement import MoveOrigins
from raptor.mapping.decision import LineGrid
from raptor.mapping.knobs import MESSAGE_OVERHEAD_NS
from raptor.mapping.modes.epilogue_cost import NO_EPILOGUE, Epilogue
from raptor.mapping.modes.line_plans import estimate_input_readers, split_evenly
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, takes_short_runs
from raptor.mapping.modes.operator_cost import copy_lines_ns
from raptor.mapping.modes.plan_choice import LayerPlan
from raptor.target.arch import Target
from raptor.target.tensor_layout import Image
from raptor.target.timing import ISSUE_NS, global_port_ns, load_ns, message_ns


def group_gathers(graph: Graph, gathers: Mapping[str, Node]) -> dict[str, tuple[Node, ...]]:
    """Returns the moves in groups whose results element-wise operators combine, keyed by the first result of a group.

    gathers: the moves, by name of the result (`SpreadMoves.gathers`). The results of a group have equal pixels.
    """
    sets, found = DisjointSets(), defaultdict[object, list[Node]](list)
    for node in graph.nodes:
        if isinstance(node.operator, Elementwise):
            for name in node.inputs:
                if graph.tensors[name].image.has_pixels_of(graph.tensors[node.output].image):
                    sets.union(node.output, name)
    for name, node in gathers.items():
        image = graph.tensors[name].image
        found[sets.find(name), image.rows, image.width, image.channels].append(node)
    return {nodes[0].output: tuple(nodes) for nodes in found.values()}


class GatherTimes(NamedTuple):
    """Times in ns that the columns of one core take for a sample.

    core_ns: work of this core. port_ns: time for which its loads of model inputs keep the port of global memory busy.
    source_ns: time that a single core with the whole computed tensor takes to send the elements.
    """

    core_ns: float
    port_ns: float = 0.0
    source_ns: float = 0.0


KnownTimes = dict[tuple[Graph, Node, Range], GatherTimes]
"""Memo of times by graph, move, and range of columns. A search asks for the same ones with each number of cores."""


def gather_plans(
    nodes: Sequence[Node],
    graph: Graph,
    arch: Target,
    parts: ChannelRanges,
    after: Mapping[str, Epilogue],
    known: KnownTimes,
) -> Iterator[LayerPlan]:
    """Yields plans to put together lines, some columns on each core.

    A core loads all that its columns need of each line of an input at once, if it is dense, and copies it in runs. For
    a lookup, it loads a row of the table for each pixel. `nodes`: a group of `group_gathers`. `parts`: channel ranges
    of the results. `after`: epilogues, by name of the result. `known`: memo of times.
    """
    image = graph.tensors[nodes[0].output].image
    widths, readers = [high - low for low, high in parts], estimate_input_readers(arch)
    message = message_ns(arch, -(-image.width * image.channels // readers)) + MESSAGE_OVERHEAD_NS

    @cache
    def gathered_move(node: Node) -> "_Lookup | _GatheredMove":
        return _Lookup(image) if isinstance(node.operator, Take) else _GatheredMove.from_node(node, graph)

    def times_ns(node: Node, own: Range) -> GatherTimes:
        key = graph, node, own
        if key not in known:
            known[key] = gathered_move(node).times_ns(own, arch)
        return known[key]

    for cols in split_evenly(image.width, arch.usable_cores):
        times = [[times_ns(node, own) for own in cols] for node in nodes]
        busiest_ns = max(sum(each.core_ns for each in of_core) for of_core in zip(*times, strict=True))
        port_ns = sum(each.port_ns for of_move in times for each in of_move)
        source_ns = sum(each.source_ns for of_move in times for each in of_move)
        sent_ns = image.rows * (readers / len(cols) + 1) * message
        after_ns = sum(after.get(node.output, NO_EPILOGUE).core_ns(1 / len(cols), 1, widths) for node in nodes)
        grid = LineGrid(cols, ((),), ((0, 0),), 1, 1, 0, 1)
        work_ns = max(busiest_ns + sent_ns, source_ns) + after_ns
        yield LayerPlan(grid, 0, work_ns, port_ns=port_ns, behind_ns=after_ns)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """An embedding lookup. image: of its result."""

    image: Image

    def times_ns(self, cols: Range, arch: Target) -> GatherTimes:
        """Returns the times that the lookup of some columns takes."""
        pixels, channels = self.image.rows * (cols[1] - cols[0]), self.image.channels
        port_ns = pixels * global_port_ns(arch, channels)
        return GatherTimes(pixels * (load_ns(arch, channels) + 4 * ISSUE_NS), port_ns)


@dataclass(frozen=True, slots=True)
class _GatheredMove:
    """A move of a group. sources: see `Move`, as [rows, width, channels] of the result. given: the operands.

    computed: the operands are computed. passed: they may have loaders, which then load for all.
    """

    sources: Indices
    places: MoveOrigins
    given: tuple[Image, ...]
    computed: bool
    passed: bool

    @classmethod
    def from_node(cls, node: Node, graph: Graph) -> "_GatheredMove":
        assert isinstance(node.operator, Move)
        image, given = graph.tensors[node.output].image, tuple(graph.tensors[name].image for name in node.inputs)
        sources = node.operator.sources.reshape(image.rows, image.width, image.channels)
        places = MoveOrigins.from_sources(node.operator.sources, image, given)
        computed = not {*graph.inputs}.issuperset(node.inputs)
        return cls(sources, places, given, computed, takes_short_runs(graph, node))

    def times_ns(self, cols: Range, arch: Target) -> GatherTimes:
        """Returns the times that some columns of the result take."""
        read = self.places.columns_read(cols)
        sizes = [(high - low) * self.given[t].channels for (t, _), (low, high) in read.items()]
        copy_ns = copy_lines_ns(self.sources[:, slice(*cols)].reshape(len(self.sources), -1), arch)
        if self.computed:
            brought_ns = sum(message_ns(arch, size) for size in sizes)
            return GatherTimes(copy_ns + brought_ns, source_ns=brought_ns)
        port_ns = 0.0 if self.passed else sum(global_port_ns(arch, size) for size in sizes)
        return GatherTimes(copy_ns + sum(load_ns(arch, size) for size in sizes), port_ns)
