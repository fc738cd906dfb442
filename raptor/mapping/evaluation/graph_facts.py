"""Facts about a graph that all decisions about it have in common, for their evaluation."""

from collections import defaultdict
from dataclasses import dataclass, field

from raptor.graph.ir import Filter, Graph, Move, Node
from raptor.graph.layers import filter_key, graph_tile_channels
from raptor.graph.rearrangement import MoveOrigins
from raptor.mapping.evaluation.region_origins import MoveRegion
from raptor.mapping.modes.critical_operand import CriticalPosition, find_critical_positions
from raptor.mapping.modes.epilogue_cost import find_sunk_maps
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, find_views, line_channel_ranges
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class LineProducts:
    """Work of the matrices of a core that multiply one range of input channels, for all lines of a sample.

    products_ns: time of the MVMs. terms: number of output pixels of the core that products are added to. runs: number
    of contiguous runs that are added. span: input pixels that are read. crossbars: for one copy of each matrix.
    """

    products_ns: float
    terms: int
    runs: int
    span: Range
    crossbars: int


@dataclass(slots=True, eq=False)
class GraphFacts:
    """Facts about a graph that has all rewrites, for decisions by line (`streams`) or by tile.

    parts: channel ranges of the tensors that stream; empty if values are whole tiles. views: nodes of the moves of
    which only regions are made. critical, sunk, turns: position of each tensor in the critical path, the layer on whose
    cores it is computed (`find_sunk_maps`), and its number in the order in which tensors are made. readers: of each
    tensor. tile: channels of a whole tile. steps: tensors that each layer makes. chips: the target with the
    elements of a tensor. moves, origins, products: what was found out about moves, their regions, and layers so far.
    """

    graph: Graph
    arch: Target
    streams: bool
    parts: dict[str, ChannelRanges] = field(init=False)
    views: dict[str, Node] = field(init=False)
    critical: dict[str, CriticalPosition] = field(init=False)
    sunk: dict[str, str] = field(init=False)
    turns: dict[str, int] = field(init=False)
    readers: dict[str, list[Node]] = field(init=False)
    tile: int = field(init=False)
    steps: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list[str]))
    chips: dict[str, Target] = field(default_factory=dict[str, Target])
    moves: dict[str, tuple[MoveOrigins, int]] = field(default_factory=dict[str, tuple[MoveOrigins, int]])
    origins: dict[object, MoveRegion] = field(default_factory=dict[object, MoveRegion])
    products: dict[object, LineProducts | None] = field(default_factory=dict[object, LineProducts | None])

    def __post_init__(self) -> None:
        graph = self.graph
        self.parts = line_channel_ranges(graph, self.arch) if self.streams else {}
        views = find_views(graph, self.parts)
        self.views = {node.output: node for node in graph.nodes if node.output in views}
        self.critical, self.sunk = find_critical_positions(graph), find_sunk_maps(graph)
        self.readers = graph.readers()
        self.tile = graph_tile_channels(graph, self.arch)
        made = (*graph.inputs, *(node.output for node in graph.nodes))
        self.turns = {name: turn for turn, name in enumerate(made)}
        for node in graph.nodes:
            if isinstance(node.operator, Filter):
                self.steps[filter_key(node)].append(node.output)

    def chip(self, name: str) -> Target:
        """Returns the target with the element type of a tensor."""
        if name not in self.chips:
            self.chips[name] = self.arch.with_element(self.graph.tensors[name].element)
        return self.chips[name]

    def move_origins(self, node: Node) -> tuple[MoveOrigins, int]:
        """Returns where each element of a moved tensor comes from, and the most lines that one of its lines reads."""
        if node.output not in self.moves:
            assert isinstance(node.operator, Move)
            images = [self.graph.tensors[name].image for name in node.inputs]
            found = MoveOrigins.from_sources(node.operator.sources, self.graph.tensors[node.output].image, images)
            self.moves[node.output] = found, found.most_lines(node.inputs)
        return self.moves[node.output]
